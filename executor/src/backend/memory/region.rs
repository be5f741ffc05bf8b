//! A region: one aligned allocation that is charged to a device's account.
//!
//! It lies in the host's memory, zeroed, or in a GPU's, where only that touches its bytes. Regions
//! are shared between the thread that computes and the copy engine, so access is by offset and
//! `unsafe`: who writes what, and when, is the schedule's to guarantee.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::plan::ALIGNMENT_BYTES;
use protocol::{Bytes, DeviceId};

use super::account::{Charge, Memory, OutOfMemory};
use super::limits;
use crate::backend::cuda::address::Address;
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::gpu::Gpu;
use crate::backend::cuda::memory::{DeviceMemory, PinnedMemory};
use crate::backend::cuda::stream::Place;
use crate::backend::stopped::Stopped;
use crate::race::Span;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// An allocation of a device.
pub struct Region {
    id: u64,
    bytes: Bytes,
    storage: RegionStorage,
    _charge: Charge,
}

/// What holds the bytes.
enum RegionStorage {
    /// Allocated by this process, pageable.
    Heap { start: NonNull<u8>, layout: Layout },
    /// Page-locked memory of the host.
    Pinned(PinnedMemory),
    /// A GPU's memory.
    Device(DeviceMemory),
}

// SAFETY: a region owns its allocation; all access goes through methods whose callers guarantee
// that writes do not race.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates `bytes` of the host's memory, named `name` in messages.
    pub fn allocate(memory: &Arc<Memory>, name: &str, bytes: Bytes) -> Result<Region, OutOfMemory> {
        let charge = memory.charge(name, bytes)?;
        let refused = || memory.refused_within(name, bytes, limits::left());
        let layout = Layout::from_size_align(size(bytes), ALIGNMENT_BYTES as usize);
        let layout = layout.map_err(|_| refused())?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Region::new(bytes, RegionStorage::Heap { start, layout }, charge))
    }

    /// Allocates page-locked memory of the host, for copies of a GPU, which `device` is on.
    pub fn allocate_pinned(
        gpu: &Arc<Gpu>,
        device: &DeviceId,
        memory: &Arc<Memory>,
        name: &str,
        bytes: Bytes,
    ) -> Result<Region, Stopped> {
        let charge = memory.charge(name, bytes)?;
        let pinned = PinnedMemory::allocate(gpu, size(bytes));
        let pinned = pinned.map_err(|error| match error.is_out_of_memory() {
            true => memory.refused(name, bytes, None).into(),
            false => Stopped::driver(device, &error),
        })?;
        // SAFETY: just allocated, of this size; zeroed so that it is initialised.
        unsafe { pinned.start().as_ptr().write_bytes(0, size(bytes)) };
        Ok(Region::new(bytes, RegionStorage::Pinned(pinned), charge))
    }

    /// Allocates memory of a GPU, after a look at what is free on it: a driver may rather move
    /// memory to the host than refuse.
    pub fn allocate_on(
        gpu: &Arc<Gpu>,
        memory: &Arc<Memory>,
        name: &str,
        bytes: Bytes,
    ) -> Result<Region, Stopped> {
        let charge = memory.charge(name, bytes)?;
        let free = gpu.free_bytes().map(Bytes);
        let free = free.map_err(|error| refusal(&error, memory, name, bytes, None))?;
        if bytes > free {
            return Err(memory.refused(name, bytes, Some(free)).into());
        }
        let allocated = DeviceMemory::allocate(gpu, size(bytes));
        let allocated =
            allocated.map_err(|error| refusal(&error, memory, name, bytes, Some(free)))?;
        Ok(Region::new(bytes, RegionStorage::Device(allocated), charge))
    }

    fn new(bytes: Bytes, storage: RegionStorage, charge: Charge) -> Region {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Region { id, bytes, storage, _charge: charge }
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

    /// The GPU whose memory it is, if it is one's.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.storage {
            RegionStorage::Device(memory) => Some(memory.gpu()),
            RegionStorage::Heap { .. } | RegionStorage::Pinned(_) => None,
        }
    }

    /// Where some bytes of it are, for a GPU's copies.
    pub fn place(&self, offset: Bytes, bytes: usize) -> Place {
        match &self.storage {
            RegionStorage::Device(memory) => {
                self.assert_inside(offset, bytes);
                Place::Device(memory.start().offset(offset.0))
            }
            RegionStorage::Heap { .. } | RegionStorage::Pinned(_) => {
                Place::Host(self.at(offset, bytes))
            }
        }
    }

    /// The device address of some bytes of it. It is a GPU's.
    pub fn address(&self, offset: Bytes, bytes: usize) -> Address {
        match self.place(offset, bytes) {
            Place::Device(address) => address,
            Place::Host(_) => panic!("the region is not in a GPU's memory"),
        }
    }

    fn assert_inside(&self, offset: Bytes, bytes: usize) {
        let offset = offset.as_usize();
        let end = offset.checked_add(bytes).expect("an end beyond the address space");
        assert!(end <= size(self.bytes), "{offset} + {bytes} B is outside of the region");
    }

    fn at(&self, offset: Bytes, bytes: usize) -> *mut u8 {
        self.assert_inside(offset, bytes);
        let start = match &self.storage {
            RegionStorage::Heap { start, .. } => *start,
            RegionStorage::Pinned(memory) => memory.start(),
            RegionStorage::Device(_) => panic!("the region is in a GPU's memory"),
        };
        // SAFETY: the offset was just checked to be inside of the allocation.
        unsafe { start.as_ptr().add(offset.as_usize()) }
    }

    /// Bytes of the region, which is in the host's memory.
    ///
    /// # Safety
    /// Nothing may write them while the slice is alive.
    pub unsafe fn bytes(&self, offset: Bytes, bytes: usize) -> &[u8] {
        // SAFETY: in range by `at`, initialised (zeroed), unwritten by the caller's promise.
        unsafe { slice::from_raw_parts(self.at(offset, bytes), bytes) }
    }

    /// Bytes of the region, which is in the host's memory, to write.
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
        if let RegionStorage::Heap { start, layout } = &self.storage {
            // SAFETY: allocated with this layout, and nothing borrows from a region that is
            // dropped.
            unsafe { dealloc(start.as_ptr(), *layout) }
        }
    }
}

/// Bytes to allocate: an empty region still gets an address.
fn size(bytes: Bytes) -> usize {
    bytes.as_usize().max(1)
}

/// What a GPU's refusal of an allocation means.
fn refusal(
    error: &DriverError,
    memory: &Memory,
    name: &str,
    bytes: Bytes,
    free: Option<Bytes>,
) -> Stopped {
    match error.is_out_of_memory() {
        true => memory.refused(name, bytes, free).into(),
        false => Stopped::driver(memory.device(), error),
    }
}
