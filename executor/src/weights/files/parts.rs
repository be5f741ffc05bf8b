//! Parts of a tensor: some of its rows, which lie in one piece, or some of its columns, or of a
//! filter over several frames the last one's taps, which do not.
//!
//! A part is a [`TensorRef`] like any other, with the size that its bytes have one after the other.

use std::ops::Range;

use super::{TensorRef, WeightFiles};
use crate::weights::dimensions::Dimensions;

/// Most runs of columns that a part may have.
pub const RUNS_MAX: usize = 2;

/// Which bytes of each row of a matrix belong to some of its columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ColumnRuns {
    /// From one row to the next in the file.
    stride: usize,
    /// Where each run begins in its row, and its bytes.
    runs: [(usize, usize); RUNS_MAX],
}

impl ColumnRuns {
    /// Bytes of one row's columns.
    fn row_bytes(&self) -> usize {
        self.runs.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl TensorRef {
    /// Whether its rows begin with whole blocks, so that parts can be made of it.
    pub fn has_whole_rows(&self) -> bool {
        let row: usize = self.shape().iter().skip(1).product();
        (row as u64).is_multiple_of(self.storage.block_elements())
    }

    /// Some rows of a matrix, or some elements of a vector, which lie in one piece.
    ///
    /// # Panics
    /// If there are fewer, it has more than two dimensions, or its rows are no whole blocks.
    pub fn rows(&self, rows: Range<usize>) -> TensorRef {
        let (count, shape) = match *self.shape() {
            [count, columns] => (count, Dimensions::new(&[rows.len(), columns])),
            [count] => (count, Dimensions::new(&[rows.len()])),
            _ => panic!("no matrix: {:?}", self.shape),
        };
        assert!(rows.start <= rows.end && rows.end <= count, "rows {rows:?} of {count}");
        assert!(self.columns.is_none() && self.has_whole_rows(), "rows in one piece");
        let row_elements: usize = self.shape()[1..].iter().product();
        let row_bytes = self.storage.bytes(row_elements as u64).as_usize();
        TensorRef {
            shape: shape.expect("two dimensions at most"),
            offset_bytes: self.offset_bytes + rows.start * row_bytes,
            size_bytes: rows.len() * row_bytes,
            ..*self
        }
    }

    /// Some columns of a matrix: of each row these runs, one after the other.
    ///
    /// # Panics
    /// If there are fewer columns or too many runs, this is no matrix, or a run is no whole blocks.
    pub fn columns(&self, runs: &[Range<usize>]) -> TensorRef {
        let &[count, columns] = self.shape() else { panic!("no matrix: {:?}", self.shape) };
        assert!(self.columns.is_none() && self.has_whole_rows(), "columns of a whole matrix");
        let bytes = |elements: usize| {
            let block = self.storage.block_elements();
            assert!((elements as u64).is_multiple_of(block), "{elements} is within a block");
            self.storage.bytes(elements as u64).as_usize()
        };
        let mut own = ColumnRuns { stride: bytes(columns), runs: [(0, 0); RUNS_MAX] };
        for (run, own) in runs.iter().zip(&mut own.runs) {
            assert!(run.start <= run.end && run.end <= columns, "columns {run:?} of {columns}");
            *own = (bytes(run.start), bytes(run.len()));
        }
        assert!(runs.len() <= RUNS_MAX, "{} runs of columns", runs.len());
        let width = runs.iter().map(Range::len).sum();
        TensorRef {
            shape: Dimensions::new(&[count, width]).expect("two dimensions"),
            size_bytes: count * own.row_bytes(),
            columns: Some(own),
            ..*self
        }
    }

    /// A tensor of one long dimension as a vector, whatever dimensions of 1 stand around it.
    pub fn as_vector(&self) -> TensorRef {
        let elements: usize = self.shape().iter().product();
        TensorRef { shape: Dimensions::new(&[elements]).expect("one dimension"), ..*self }
    }

    /// Of filters `[out, in, frames, height, width]` the last frame's, `[out, in, height, width]`;
    /// `None` where they are stored in blocks that hold parts of several frames.
    ///
    /// # Panics
    /// If this has not five dimensions, or is a part already.
    pub fn last_frame(&self) -> Option<TensorRef> {
        let &[out, input, frames, height, width] = self.shape() else {
            panic!("no filters over frames: {:?}", self.shape)
        };
        assert!(self.columns.is_none() && frames > 0, "whole filters");
        let shape = Dimensions::new(&[out, input, height, width]).expect("four dimensions");
        if frames == 1 {
            return Some(TensorRef { shape, ..*self });
        }
        if self.storage.is_blocks() {
            return None;
        }
        let frame = height * width * self.storage.element_bytes();
        let runs = [((frames - 1) * frame, frame), (0, 0)];
        let columns = Some(ColumnRuns { stride: frames * frame, runs });
        Some(TensorRef { shape, size_bytes: out * input * frame, columns, ..*self })
    }

    /// Where it lies in the mapping, if that is not in one piece: from the first byte of its first
    /// row on, and the bytes from one row's to the next one's.
    ///
    /// # Panics
    /// If `files` are not those that gave this out, or rows have several pieces.
    pub fn spread<'a>(&self, files: &'a WeightFiles) -> Option<(&'a [u8], usize)> {
        let ColumnRuns { stride, runs: [(start, length), others] } = self.columns?;
        assert!(others.1 == 0 && length > 0, "one piece of each row");
        let rows = self.size_bytes / length;
        let bytes = rows.saturating_sub(1) * stride + length;
        Some((files.slice(self.file_index, self.offset_bytes + start, bytes), stride))
    }

    /// Copies its bytes out of the mapping, from byte `from` on, as many as `target` takes.
    ///
    /// # Panics
    /// If `files` are not those that gave this out, or it has fewer bytes.
    pub fn read(&self, files: &WeightFiles, from: usize, target: &mut [u8]) {
        assert!(from + target.len() <= self.size_bytes, "bytes beyond the tensor");
        let bytes =
            |start: usize, count| files.slice(self.file_index, self.offset_bytes + start, count);
        let Some(columns) = self.columns else {
            target.copy_from_slice(bytes(from, target.len()));
            return;
        };
        let row_bytes = columns.row_bytes();
        let mut target = target;
        let (mut row, mut inside) = (from / row_bytes, from % row_bytes);
        while !target.is_empty() {
            for (start, length) in columns.runs {
                let skipped = inside.min(length);
                inside -= skipped;
                let count = (length - skipped).min(target.len());
                let (now, later) = target.split_at_mut(count);
                now.copy_from_slice(bytes(row * columns.stride + start + skipped, count));
                target = later;
            }
            row += 1;
        }
    }

    /// From its first byte to its last one in the file, whatever else lies between them.
    pub(in crate::weights) fn byte_range(&self) -> Range<usize> {
        let bytes = match &self.columns {
            None => self.size_bytes,
            Some(columns) => {
                let (start, length) = columns.runs.iter().copied().max().unwrap_or_default();
                let rows = self.size_bytes.checked_div(columns.row_bytes()).unwrap_or(0);
                let before = rows.saturating_sub(1) * columns.stride;
                before + start + length
            }
        };
        self.offset_bytes..self.offset_bytes + bytes
    }
}
