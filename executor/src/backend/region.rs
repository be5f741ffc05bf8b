//! A region: one aligned, zeroed allocation that is charged to a device's account.
//!
//! Regions are shared between the thread that computes and the copy engine, so access is by offset and
//! `unsafe`: who writes what, and when, is the schedule's to guarantee.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::Bytes;
use protocol::plan::ALIGNMENT_BYTES;

use super::memory::{Charge, Memory, OutOfMemory};
use crate::race::Span;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An allocation of a device.
#[derive(Debug)]
pub struct Region {
    id: u64,
    bytes: Bytes,
    start: NonNull<u8>,
    layout: Layout,
    _charge: Charge,
}

// SAFETY: a region owns its allocation; all access goes through methods whose callers guarantee that
// writes do not race.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `bytes`, named `name` in messages.
    pub fn allocate(memory: &Arc<Memory>, name: &str, bytes: Bytes) -> Result<Region, OutOfMemory> {
        let charge = memory.charge(name, bytes)?;
        // An empty region still gets an address.
        let size = bytes.as_usize().max(1);
        let refused = || memory.refused(name, bytes);
        let layout =
            Layout::from_size_align(size, ALIGNMENT_BYTES as usize).map_err(|_| refused())?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Region { id, bytes, start, layout, _charge: charge })
    }

    /// Its size.
    pub fn len(&self) -> Bytes {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == Bytes::ZERO
    }

    /// A number that no other region of this process has, freed ones included.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// All of its bytes.
    pub fn span(&self) -> Span {
        Span::new(self.id, 0, self.bytes.0)
    }

    fn at(&self, offset: Bytes, bytes: usize) -> *mut u8 {
        let offset = offset.as_usize();
        let end = offset.checked_add(bytes).expect("an end beyond the address space");
        assert!(end <= self.layout.size(), "{offset} + {bytes} B is outside of the region");
        // SAFETY: the offset was just checked to be inside of the allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Bytes of the region.
    ///
    /// # Safety
    /// Nothing may write them while the slice is alive.
    pub unsafe fn bytes(&self, offset: Bytes, bytes: usize) -> &[u8] {
        // SAFETY: in range by `at`, initialised (zeroed), unwritten by the caller's promise.
        unsafe { slice::from_raw_parts(self.at(offset, bytes), bytes) }
    }

    /// Bytes of the region, to write.
    ///
    /// # Safety
    /// Nothing else may read or write them while the slice is alive.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusiveness is by byte range, which the caller promises"
    )]
    pub unsafe fn bytes_mut(&self, offset: Bytes, bytes: usize) -> &mut [u8] {
        // SAFETY: in range by `at`, initialised (zeroed), exclusive by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.at(offset, bytes), bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nothing borrows from a region that is dropped.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
