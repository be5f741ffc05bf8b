//! Allocations of the driver: memory of a GPU, and page-locked memory of the host.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::address::Address;
use super::driver::DriverError;
use super::gpu::Gpu;

/// Memory of a GPU, freed when dropped. The driver then waits for all work of its context first.
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    start: Address,
}

impl DeviceMemory {
    /// A plain allocation: not of the driver's pools, so that what it frees is free to others at
    /// once.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceMemory, DriverError> {
        gpu.enter()?;
        let mut start: CUdeviceptr = 0;
        // SAFETY: the pointer is to a number of its own.
        let code = unsafe { (gpu.driver.functions.memory_allocate)(&raw mut start, bytes) };
        gpu.check("cuMemAlloc", code)?;
        Ok(DeviceMemory { gpu: Arc::clone(gpu), start: Address(start) })
    }

    /// On which it was allocated.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The first byte: a multiple of 256.
    pub fn start(&self) -> Address {
        self.start
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by this driver, and freed once.
            unsafe { (self.gpu.driver.functions.memory_free)(self.start.0) };
        }
    }
}

/// Page-locked memory of the host, from which a GPU copies by itself. Freed when dropped.
pub struct PinnedMemory {
    gpu: Arc<Gpu>,
    start: NonNull<u8>,
}

// SAFETY: plain memory that it owns.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; who writes what, and when, is the users' to guarantee.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Page-locked for all contexts, and cached: it is written by the processor.
    pub fn allocate(gpu: &Arc<Gpu>, bytes: usize) -> Result<PinnedMemory, DriverError> {
        /// `CU_MEMHOSTALLOC_PORTABLE`.
        const PORTABLE: u32 = 1;
        gpu.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (gpu.driver.functions.host_allocate)(&raw mut start, bytes, PORTABLE) };
        gpu.check("cuMemHostAlloc", code)?;
        let start = NonNull::new(start.cast())
            .ok_or_else(|| DriverError::own("cuMemHostAlloc", "no address".to_owned()))?;
        Ok(PinnedMemory { gpu: Arc::clone(gpu), start })
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: allocated by this driver, and freed once.
            unsafe { (self.gpu.driver.functions.host_free)(self.start.as_ptr().cast()) };
        }
    }
}
