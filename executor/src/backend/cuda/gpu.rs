//! The GPUs that the driver shows, and the context of each: one for the process, whatever logical
//! devices share it.

use std::ffi::c_int;
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUuuid};

use super::context::Context;
use super::cublas::{Cublas, Library};
use super::driver::{Driver, DriverError};
use super::kernels::Kernels;
use super::overhead::{Meter, ProcessMemory};

/// Older GPUs have no tensor cores that take what the kernels give them.
pub const CAPABILITY_MIN: (u32, u32) = (7, 5);

/// Kernels that an error names at most, as those that may be to blame.
const LAUNCHED_MAX: usize = 8;

/// A GPU as the driver shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number among those that the driver shows.
    pub ordinal: u32,
    /// As NVML prints it: `GPU-…`; of a MIG instance `MIG-…`, which the driver does not tell apart.
    pub uuid: String,
    /// Major and minor number of what it computes.
    pub capability: (u32, u32),
}

/// All GPUs that the driver shows, in its order.
pub fn list(driver: &'static Driver) -> Result<Vec<GpuInfo>, DriverError> {
    let mut count = 0;
    // SAFETY: the pointer is to a number of its own.
    let code = unsafe { (driver.functions.device_get_count)(&raw mut count) };
    driver.check("cuDeviceGetCount", code)?;
    (0..count).map(|ordinal| info(driver, ordinal)).collect()
}

fn info(driver: &'static Driver, ordinal: c_int) -> Result<GpuInfo, DriverError> {
    let device = device(driver, ordinal)?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to 16 bytes of its own.
    let code = unsafe { (driver.functions.device_get_uuid)(&raw mut uuid, device) };
    driver.check("cuDeviceGetUuid", code)?;
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let major = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(GpuInfo {
        ordinal: ordinal as u32,
        uuid: shown_uuid(&uuid),
        capability: (major as u32, minor as u32),
    })
}

/// As NVML prints a GPU's: `GPU-` and the bytes in groups of 4, 2, 2, 2 and 6.
fn shown_uuid(uuid: &CUuuid) -> String {
    let mut shown = String::from("GPU");
    for (index, byte) in uuid.bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            shown.push('-');
        }
        write!(shown, "{:02x}", *byte as u8).expect("a string takes all");
    }
    shown
}

fn device(driver: &'static Driver, ordinal: c_int) -> Result<CUdevice, DriverError> {
    let mut device: CUdevice = 0;
    // SAFETY: the pointer is to a number of its own.
    let code = unsafe { (driver.functions.device_get)(&raw mut device, ordinal) };
    driver.check("cuDeviceGet", code)?;
    Ok(device)
}

fn attribute(
    driver: &'static Driver,
    device: CUdevice,
    attribute: CUdevice_attribute,
) -> Result<c_int, DriverError> {
    let mut value = 0;
    // SAFETY: the pointer is to a number of its own.
    let code = unsafe {
        (driver.functions.device_get_attribute)(&raw mut value, attribute as c_int, device)
    };
    driver.check("cuDeviceGetAttribute", code)?;
    Ok(value)
}

/// A GPU in use: its primary context, and the kernels in it. Logical devices on one GPU share it.
pub struct Gpu {
    pub(super) driver: &'static Driver,
    /// Released after all else of it.
    pub(super) context: Context,
    device: CUdevice,
    /// What it is.
    pub info: GpuInfo,
    /// Units that each run blocks of their own.
    pub multiprocessors: u32,
    /// Shared memory of each of them, in bytes.
    pub multiprocessor_shared_bytes: u32,
    kernels: Arc<Kernels>,
    /// None where it did not start.
    cublas: OnceLock<Option<Cublas>>,
    /// What NVML shows of it; none where it shows nothing.
    meter: Option<Meter>,
    /// Kernels that were handed out, each once, the last one last.
    launched: Mutex<Vec<&'static str>>,
}

impl Gpu {
    /// The GPU of this number, its context made unless it is there.
    pub fn open(driver: &'static Driver, info: &GpuInfo) -> Result<Arc<Gpu>, DriverError> {
        static OPEN: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|gpu| gpu.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        if let Some(gpu) = known.into_iter().find(|gpu| gpu.info.ordinal == info.ordinal) {
            return Ok(gpu);
        }
        let device = device(driver, info.ordinal as c_int)?;
        let meter = Meter::start(&info.uuid);
        let meter =
            meter.inspect_err(|why| tracing::warn!("what the context takes is not known: {why}"));
        // Without a context the driver does not tell what is free.
        let free_bytes = || meter.as_ref().ok()?.free_bytes();
        let context = Context::retain(driver, device);
        let context = context.map_err(|error| match error.is_out_of_memory() {
            true => error.with_free(free_bytes()),
            false => error,
        })?;
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        };
        let fact = |which| attribute(driver, device, which).map(|value| value as u32);
        let multiprocessors = fact(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let multiprocessor_shared_bytes =
            fact(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let info = info.clone();
        let kernels = Kernels::new(driver, info.capability);
        let gpu = Arc::new(Gpu {
            driver,
            context,
            device,
            info,
            multiprocessors,
            multiprocessor_shared_bytes,
            kernels: Arc::new(kernels),
            cublas: OnceLock::new(),
            meter: meter.ok(),
            launched: Mutex::default(),
        });
        open.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// The kernels in this context.
    pub fn kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    /// cuBLASLt on it, started the first time; none where it cannot be used.
    pub(super) fn cublas(&self) -> Option<&Cublas> {
        let start = || {
            let library = Library::get(self.driver.version).ok()?;
            let started = Cublas::start(library, &self.context);
            started.inspect_err(|why| tracing::warn!("cuBLASLt {library} is not used: {why}")).ok()
        };
        self.cublas.get_or_init(start).as_ref()
    }

    /// Makes its context this thread's, as all calls that follow need.
    pub(super) fn enter(&self) -> Result<(), DriverError> {
        self.context.enter()
    }

    /// An error where a call's code says one, with the kernels that may be to blame.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DriverError> {
        self.driver.check(call, code).map_err(|error| self.explained(error))
    }

    /// Whether what a code is about has ended, as [`Driver::check_ready`] says; its error has the
    /// kernels that may be to blame.
    pub(super) fn check_ready(&self, call: &'static str, code: u32) -> Result<bool, DriverError> {
        self.driver.check_ready(call, code).map_err(|error| self.explained(error))
    }

    /// A kernel computes after the call that hands it out: its fault shows in some later call.
    pub(super) fn note_launch(&self, kernel: &'static str) {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        if launched.last() == Some(&kernel) {
            return;
        }
        launched.retain(|known| *known != kernel);
        if launched.len() == LAUNCHED_MAX {
            launched.remove(0);
        }
        launched.push(kernel);
    }

    /// The kernels that were handed out since this was last asked, the last one last, each once; of
    /// many the last ones. Starts anew.
    pub fn take_launched(&self) -> Vec<String> {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.drain(..).map(str::to_owned).collect()
    }

    /// With the kernels that may have broken the context, where one did.
    pub(super) fn explained(&self, error: DriverError) -> DriverError {
        let launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        if !error.ends_context() || launched.is_empty() {
            return error;
        }
        let last_first: Vec<&str> = launched.iter().rev().copied().collect();
        error.with(&format!("kernels handed out before, the last first: {}", last_first.join(", ")))
    }

    /// What this process takes of it in all, as NVML shows it; `None` where that is not told.
    pub fn taken(&self) -> Option<ProcessMemory> {
        let taken = self.meter.as_ref()?.taken();
        taken.inspect_err(|error| tracing::warn!("what is used is not known: {error}")).ok()
    }

    /// Bytes that the driver could allocate now.
    pub fn free_bytes(&self) -> Result<u64, DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers of their own.
        let code = unsafe { (self.driver.functions.memory_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    /// Lets this one's copies and kernels reach the memory of another directly, where the machine
    /// can.
    pub fn reach(&self, other: &Gpu) -> Result<bool, DriverError> {
        /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
        const ALREADY: u32 = 704;
        if self.device == other.device {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the pointer is to a number of its own.
        let code = unsafe {
            (self.driver.functions.device_can_access_peer)(&raw mut can, self.device, other.device)
        };
        self.check("cuDeviceCanAccessPeer", code)?;
        if can == 0 {
            return Ok(false);
        }
        self.enter()?;
        // SAFETY: the other's context lives as long as it does.
        let code =
            unsafe { (self.driver.functions.context_enable_peer_access)(other.context.raw, 0) };
        if code != ALREADY {
            self.check("cuCtxEnablePeerAccess", code)?;
        }
        Ok(true)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let cublas = self.cublas.take().flatten();
        if self.enter().is_ok() {
            drop(cublas);
            self.kernels.unload();
        } else {
            // Of a context that is broken nothing can be ended.
            std::mem::forget(cublas);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_shown_as_nvml_shows_it() {
        let mut bytes = [0; 16];
        (0..).zip(&mut bytes).for_each(|(index, byte): (u8, _)| *byte = (17 * index) as _);
        let uuid = CUuuid { bytes };
        assert_eq!(shown_uuid(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
