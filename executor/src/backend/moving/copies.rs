//! Copies as data: weights from their files into a region, and activations between two regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::Bytes;

use super::ticket::Ticket;
use crate::backend::cancel::CancelFlag;
use crate::backend::cuda::stream::Event;
use crate::backend::memory::{Link, Region};
use crate::race::Span;
use crate::schedule::Transfer;
use crate::weights::{TensorRef, WeightFiles};

/// Which of a device's copies wait behind each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Weights of whole components.
    Loads,
    /// Weights of the ring.
    Slots,
    /// Values that cross between lanes.
    Activations,
}

/// Where a weight, or some rows of it, goes in a region.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightMove {
    /// Where it is in the files.
    pub tensor: TensorRef,
    /// The bytes of it that go.
    pub bytes: Range<usize>,
    /// Where they go.
    pub offset: Bytes,
}

/// Bytes of a weight that go together.
#[derive(Debug, Clone)]
pub struct WeightPiece<'a> {
    files: &'a WeightFiles,
    tensor: &'a TensorRef,
    bytes: Range<usize>,
}

impl WeightMove {
    /// All of its bytes.
    pub fn whole<'a>(&'a self, files: &'a WeightFiles) -> WeightPiece<'a> {
        WeightPiece { files, tensor: &self.tensor, bytes: self.bytes.clone() }
    }

    /// All of its bytes, in pieces of at most `most` bytes, the first ones first.
    pub fn pieces<'a>(
        &'a self,
        files: &'a WeightFiles,
        most: usize,
    ) -> impl Iterator<Item = WeightPiece<'a>> {
        let end = self.bytes.end;
        self.bytes.clone().step_by(most).map(move |start| WeightPiece {
            files,
            tensor: &self.tensor,
            bytes: start..end.min(start + most),
        })
    }
}

impl WeightPiece<'_> {
    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The part of it that begins at byte `from` and has so many `bytes`.
    pub fn part(&self, from: usize, bytes: usize) -> WeightPiece<'_> {
        let from = self.bytes.start + from;
        WeightPiece { bytes: from..from + bytes, ..*self }
    }

    /// Copies them out of the mapping of their file.
    ///
    /// # Panics
    /// If `target` has room for more, or fewer.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.bytes.len(), "room for a piece of a weight");
        self.tensor.read(self.files, self.bytes.start, target);
    }
}

/// A page-locked copy of a ring's item in RAM: the first way to the device leaves it there, later
/// ones begin there.
#[derive(Clone)]
pub struct LockedCopy {
    /// The memory that has it.
    pub region: Arc<Region>,
    /// Where it begins there. Its weights lie from there on as they do in a slot.
    pub start: Bytes,
    /// Whether it is there as a whole.
    pub filled: Arc<AtomicBool>,
}

impl LockedCopy {
    fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Where a piece of a weight is page-locked, that lies so far from its item's start: the answer
    /// is the offset in the region. `piece` is the same as in the weight's file; unless it is
    /// there, `copy` is given the bytes to which it goes.
    pub fn hold(
        &self,
        piece: &WeightPiece<'_>,
        offset: Bytes,
        copy: impl FnOnce(&mut [u8]),
    ) -> Bytes {
        let at = self.start + offset;
        if !self.is_filled() {
            // SAFETY: the thread of the ring's copies is the only one that touches an item's copy,
            // and before it is filled a device reads of it only what this thread has handed out,
            // which is written once: a load that was stopped is waited for before the next begins.
            copy(unsafe { self.region.bytes_mut(at, piece.bytes()) });
        }
        at
    }

    /// The same, as the bytes that are there then.
    pub fn bytes(&self, piece: &WeightPiece<'_>, offset: Bytes) -> &[u8] {
        let at = self.hold(piece, offset, |target| piece.copy_to(target));
        // SAFETY: as above; nothing writes them while this thread reads.
        unsafe { self.region.bytes(at, piece.bytes()) }
    }
}

/// Weights on their way into a region.
#[derive(Clone)]
pub struct WeightLoad {
    /// From where their bytes are mapped.
    pub files: Arc<WeightFiles>,
    /// What goes where, from `base`.
    pub moves: Arc<[WeightMove]>,
    /// Where they go.
    pub region: Arc<Region>,
    /// Where in the region the moves' offsets begin.
    pub base: Bytes,
    /// Ends the load soon, once set.
    pub stop: CancelFlag,
    /// Whether the weights are read no more once they are copied, so that their pages may go.
    pub once: bool,
    /// The copy in RAM from which they come, where one is kept.
    pub locked: Option<LockedCopy>,
}

/// Activations on their way from one region to another.
pub struct RegionCopy {
    /// The region that is read.
    pub from: Arc<Region>,
    /// The region that is written.
    pub to: Arc<Region>,
    /// Which bytes.
    pub transfer: Transfer,
    /// The other device's link, where both ends are devices.
    pub other_link: Option<Arc<Link>>,
    /// What its ends had to compute before, where they are GPUs.
    pub after: Vec<Event>,
    /// The same, where they compute in threads of their own.
    pub computed: Vec<Ticket>,
}

impl WeightLoad {
    /// Says that a weight was copied.
    pub fn copied(&self, entry: &WeightMove) {
        if self.once || self.locked.as_ref().is_some_and(|locked| !locked.is_filled()) {
            self.files.release([&entry.tensor]);
        }
    }

    /// Says that all weights were copied.
    pub fn ended(&self) {
        if let Some(locked) = &self.locked {
            locked.filled.store(true, Ordering::Release);
        }
    }

    /// Bytes of all its weights.
    pub fn len(&self) -> Bytes {
        Bytes(self.moves.iter().map(|entry| entry.bytes.len() as u64).sum())
    }

    /// The spans that change, for a trace.
    pub fn writes(&self) -> Vec<Span> {
        let span = |entry: &WeightMove| {
            let start = self.base + entry.offset;
            Span::new(self.region.id(), start.0, entry.bytes.len() as u64)
        };
        self.moves.iter().map(span).collect()
    }
}

impl RegionCopy {
    /// What it reads, and what it writes.
    pub fn spans(&self) -> [Vec<Span>; 2] {
        let Transfer { from, from_stride, to, to_stride, rows, row_bytes, .. } = self.transfer;
        let rows = rows as u64;
        [(&self.from, from, from_stride), (&self.to, to, to_stride)].map(|(region, at, stride)| {
            Span::rows(region.id(), at.0, row_bytes.0, stride.0, rows).collect()
        })
    }

    /// Copies the bytes, at once.
    pub fn perform(&self) {
        let transfer = &self.transfer;
        let bytes = transfer.row_bytes.as_usize();
        for row in 0..transfer.rows as u64 {
            let from = transfer.from + Bytes(row * transfer.from_stride.0);
            let to = transfer.to + Bytes(row * transfer.to_stride.0);
            // SAFETY: both ends are alive from the copy's start to the wait for it, and until then
            // nothing else writes the first or touches these columns of the second: the schedule's
            // lifetimes.
            let source = unsafe { self.from.bytes(from, bytes) };
            // SAFETY: as above.
            unsafe { self.to.bytes_mut(to, bytes) }.copy_from_slice(source);
        }
    }
}
