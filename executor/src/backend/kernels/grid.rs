//! What kernels over packed panels share: how results are cut into tasks, rows to read and to
//! write, aligned scratch.

use std::ops::Range;

use super::simd::prefetch;
use super::workers::Disjoint;

/// The most elements by which a slice can miss a 64-byte border.
const ALIGNMENT_SLACK: usize = 15;

/// Room for so many elements that begin at a 64-byte border.
pub(super) const fn aligned_len(len: usize) -> usize {
    len + ALIGNMENT_SLACK
}

/// The part of `scratch` that begins at a 64-byte border, so that vectors do not cross lines.
pub(super) fn aligned(scratch: &mut [f32]) -> &mut [f32] {
    let skip = scratch.as_ptr().align_offset(64).min(ALIGNMENT_SLACK);
    &mut scratch[skip..]
}

/// Cuts `len` elements off the front of `scratch`, from a 64-byte border on, of its first
/// [`aligned_len`] elements.
pub(super) fn piece<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (piece, rest) = std::mem::take(scratch).split_at_mut(aligned_len(len));
    *scratch = rest;
    &mut aligned(piece)[..len]
}

/// How a matrix of results is cut into tasks: panels of columns, and chunks of rows where the
/// panels alone are too few for the workers.
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    task_rows: usize,
    task_columns: usize,
}

impl Grid {
    /// Panels of `task_columns` columns, the last one narrower, and no chunk of fewer than about
    /// `rows_min` rows.
    pub(super) fn new(
        rows: usize,
        columns: usize,
        task_columns: usize,
        rows_min: usize,
        workers: usize,
    ) -> Grid {
        assert!(rows > 0 && columns > 0, "nothing to compute");
        /// So many tasks for each worker make the wait for the last one short.
        const TASKS_PER_WORKER: usize = 4;
        let wanted = if workers == 1 { 1 } else { workers * TASKS_PER_WORKER };
        let chunks = wanted.div_ceil(columns.div_ceil(task_columns));
        let chunks = chunks.clamp(1, rows.div_ceil(rows_min));
        Grid { rows, columns, task_rows: rows.div_ceil(chunks).next_multiple_of(8), task_columns }
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.task_rows) * self.columns.div_ceil(self.task_columns)
    }

    /// The rows and the columns of a task.
    pub(super) fn task(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let panels = self.columns.div_ceil(self.task_columns);
        let (row, column) = (index / panels * self.task_rows, index % panels * self.task_columns);
        (
            row..self.rows.min(row + self.task_rows),
            column..self.columns.min(column + self.task_columns),
        )
    }

    /// The columns of the task that a worker probably does after one: each of `workers` takes the
    /// next one in turn. None after the last ones.
    pub(super) fn following(&self, index: usize, workers: usize) -> Range<usize> {
        let next = index + workers;
        if next < self.tasks() { self.task(next).1 } else { 0..0 }
    }
}

/// Rows in memory: row `i` begins at `i * stride`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Begins with row 0.
    pub(super) values: &'a [f32],
    /// The distance between rows, in elements.
    pub(super) stride: usize,
    /// How many there are.
    pub(super) count: usize,
}

/// Where the products of rows go: element `(i, j)` is at `from + i * stride + j`.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    values: &'a Disjoint<'a>,
    from: usize,
    stride: usize,
    accumulate: bool,
}

impl<'a> Target<'a> {
    /// Products go to `values` from element `from` on, in rows `stride` apart; `accumulate` adds
    /// them to what is there.
    ///
    /// # Safety
    /// While the target is used, the elements that it is used for belong to the caller alone.
    pub(super) unsafe fn new(
        values: &'a Disjoint<'a>,
        from: usize,
        stride: usize,
        accumulate: bool,
    ) -> Target<'a> {
        Target { values, from, stride, accumulate }
    }

    /// Whether products are added to what is there.
    #[inline(always)]
    pub(super) fn accumulates(&self) -> bool {
        self.accumulate
    }

    /// Asks for the cache lines of elements of a row.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: usize, column: usize, count: usize) {
        let start = self.values.start().wrapping_add(self.from + row * self.stride + column);
        prefetch(start);
        prefetch(start.wrapping_add(count - 1));
    }

    /// Where the elements of some rows begin, of each `count` from a column on; and how far apart
    /// rows are.
    pub(super) fn rows(&self, row: Range<usize>, column: usize, count: usize) -> (*mut f32, usize) {
        let at = |row: usize| self.from + row * self.stride + column;
        let end = at(row.end - 1) + count;
        (self.values.pointer(at(row.start)..end), self.stride)
    }

    /// `count` elements of a row.
    ///
    /// # Safety
    /// They belong to the caller alone, and no other slice of them is alive.
    #[inline(always)]
    pub(super) unsafe fn row(&self, row: usize, column: usize, count: usize) -> &'a mut [f32] {
        let from = self.from + row * self.stride + column;
        // SAFETY: the caller's promise.
        unsafe { self.values.range(from..from + count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_follow_each_other() {
        let mut values = vec![0.0; 3 * aligned_len(21)];
        let mut rest = &mut values[1..];
        for _ in 0..2 {
            let piece = piece(&mut rest, 21);
            assert!(piece.len() == 21 && piece.as_ptr().addr().is_multiple_of(64));
        }
        assert_eq!(rest.len(), aligned_len(21) - 1);
    }
}
