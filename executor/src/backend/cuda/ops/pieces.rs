//! The pieces of a workspace, one after the other.

/// What each piece's place is a multiple of: the largest transaction that a kernel's access becomes
/// is 128 bytes, the alignment of the driver's allocations 256.
const ALIGNMENT: u64 = 256;

/// Gives out places in a workspace.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    end: u64,
}

impl Pieces {
    /// The place of a piece of so many bytes, from the workspace's beginning.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let start = self.end.next_multiple_of(ALIGNMENT);
        self.end = start + bytes;
        start
    }

    /// Bytes of the workspace.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }
}
