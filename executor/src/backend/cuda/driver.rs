//! The CUDA driver's library: found at run time, every function that is used looked up at once,
//! every code checked.
//!
//! Nothing here panics on a machine without a GPU: a library, a function or a device that is not
//! there is an [`Unavailable`], with what would help. The functions take and give raw numbers,
//! since a driver newer than this program may answer with codes that it does not know.

mod error;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction,
    CUmodule, CUstream, CUuuid,
};
use libloading::Library;

pub use self::error::DriverError;
use self::error::{code, hint};

/// The environment variable that names the driver's library, for tests: a path in place of the
/// driver package's.
pub const DRIVER_VARIABLE: &str = "BERTH_CUDA_DRIVER";

/// The driver's library, as the driver package installs it.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver, as `cuDriverGetVersion` counts, of the branch R470: 11.4 has the last of the
/// functions below, `cuDeviceGetUuid_v2`. The PTX that is shipped asks for less (`ptx`).
const VERSION_MIN: c_int = 11_040;

/// Why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// There is no driver.
    #[error(
        "no CUDA driver: {library}: {why}; hint: install NVIDIA's driver, or go on without a GPU"
    )]
    NoLibrary {
        /// The library that was looked for.
        library: String,
        /// What the loader says.
        why: String,
    },
    /// The library is not a whole driver.
    #[error(
        "{library} has no function {function}; hint: update the driver to one for CUDA 11.4 (470) or later"
    )]
    NoFunction {
        /// The file's name, as it was asked for.
        library: String,
        /// What the file does not export.
        function: &'static str,
    },
    /// The driver is older than this program needs.
    #[error("the driver is for CUDA {}.{}, older than 11.4; hint: update it to 470 or later", version / 1000, version % 1000 / 10)]
    Old {
        /// What `cuDriverGetVersion` says.
        version: c_int,
    },
    /// The driver does not start.
    #[error("the CUDA driver does not start: {0}")]
    NotStarted(String),
}

macro_rules! functions {
    ($(fn $name:ident = $symbol:literal ($($arg:ty),* $(,)?);)*) => {
        /// The functions of the driver that are used, by their names without `cu`.
        #[allow(missing_docs, reason = "as the driver's reference says")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_uint,)*
        }

        impl Functions {
            fn load(library: &Library, path: &str) -> Result<Functions, Unavailable> {
                $(
                    // SAFETY: the type is that of the driver's header, which its versioned names
                    // keep for ever.
                    let $name = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                    let $name = *$name.map_err(|_| Unavailable::NoFunction {
                        library: path.to_owned(),
                        function: $symbol,
                    })?;
                )*
                Ok(Functions { $($name,)* })
            }
        }
    };
}

functions! {
    fn init = "cuInit"(c_uint);
    fn driver_get_version = "cuDriverGetVersion"(*mut c_int);
    fn get_error_name = "cuGetErrorName"(c_uint, *mut *const c_char);
    fn device_get_count = "cuDeviceGetCount"(*mut c_int);
    fn device_get = "cuDeviceGet"(*mut CUdevice, c_int);
    fn device_get_uuid = "cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice);
    fn device_get_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, CUdevice);
    fn device_can_access_peer = "cuDeviceCanAccessPeer"(*mut c_int, CUdevice, CUdevice);
    fn primary_context_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
    fn primary_context_release = "cuDevicePrimaryCtxRelease_v2"(CUdevice);
    fn context_set_current = "cuCtxSetCurrent"(CUcontext);
    fn context_enable_peer_access = "cuCtxEnablePeerAccess"(CUcontext, c_uint);
    fn memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    fn memory_allocate = "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
    fn memory_free = "cuMemFree_v2"(CUdeviceptr);
    fn host_allocate = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    fn host_free = "cuMemFreeHost"(*mut c_void);
    fn copy_to_device = "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
    fn copy_to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
    fn copy_within = "cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    fn copy_peer = "cuMemcpyPeerAsync"(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    fn copy_2d = "cuMemcpy2DAsync_v2"(*const CUDA_MEMCPY2D, CUstream);
    fn copy_3d_peer = "cuMemcpy3DPeerAsync"(*const CUDA_MEMCPY3D_PEER, CUstream);
    fn stream_create = "cuStreamCreateWithPriority"(*mut CUstream, c_uint, c_int);
    fn stream_destroy = "cuStreamDestroy_v2"(CUstream);
    fn stream_synchronize = "cuStreamSynchronize"(CUstream);
    fn stream_wait_event = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
    fn event_create = "cuEventCreate"(*mut CUevent, c_uint);
    fn event_destroy = "cuEventDestroy_v2"(CUevent);
    fn event_record = "cuEventRecord"(CUevent, CUstream);
    fn event_query = "cuEventQuery"(CUevent);
    fn event_synchronize = "cuEventSynchronize"(CUevent);
    fn event_elapsed_ms = "cuEventElapsedTime"(*mut f32, CUevent, CUevent);
    fn module_load = "cuModuleLoadDataEx"(
        *mut CUmodule, *const c_void, c_uint, *mut c_int, *mut *mut c_void,
    );
    fn module_unload = "cuModuleUnload"(CUmodule);
    fn module_get_function = "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
    fn function_set_attribute = "cuFuncSetAttribute"(CUfunction, c_int, c_int);
    fn launch_kernel = "cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
        CUstream, *mut *mut c_void, *mut *mut c_void,
    );
}

/// CUDA's driver API, started once for the process.
pub struct Driver {
    pub(super) functions: Functions,
    /// As `cuDriverGetVersion` says: 1000 × major + 10 × minor.
    pub version: i32,
    _library: Library,
}

impl Driver {
    /// The driver of this machine, started the first time.
    ///
    /// # Errors
    /// Why there is none that can be used; it stays so for this process.
    pub fn get() -> Result<&'static Driver, &'static Unavailable> {
        static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        DRIVER.get_or_init(Driver::start).as_ref()
    }

    fn start() -> Result<Driver, Unavailable> {
        let named = std::env::var_os(DRIVER_VARIABLE).map(PathBuf::from);
        let path = named.unwrap_or_else(|| PathBuf::from(LIBRARY));
        let shown = path.display().to_string();
        // SAFETY: loading a library runs its initialisers; this one is the driver.
        let library = unsafe { Library::new(&path) }.map_err(|error| Unavailable::NoLibrary {
            library: shown.clone(),
            why: error.to_string(),
        })?;
        let functions = Functions::load(&library, &shown)?;
        let mut driver = Driver { functions, version: 0, _library: library };
        // SAFETY: takes no pointers.
        match unsafe { (driver.functions.init)(0) } {
            0 => {}
            failed => return Err(Unavailable::NotStarted(driver.why_not_started(failed))),
        }
        // SAFETY: the pointer is to a number of its own.
        let asked = unsafe { (driver.functions.driver_get_version)(&raw mut driver.version) };
        if asked != 0 || driver.version < VERSION_MIN {
            return Err(Unavailable::Old { version: driver.version });
        }
        Ok(driver)
    }

    fn why_not_started(&self, failed: u32) -> String {
        self.error_name(failed) + hint(failed)
    }

    /// The driver's name of a code.
    fn error_name(&self, code: u32) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is to a pointer of its own; the driver sets it to a string that lives
        // for ever, or to null.
        let known = unsafe { (self.functions.get_error_name)(code, &raw mut name) };
        if known != 0 || name.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// An error where a call's code says one.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let error = DriverError::new(call, code, self.error_name(code));
        Err(if error.is_out_of_memory() { error.with_free(self.free_bytes()) } else { error })
    }

    /// Bytes that are free on the GPU whose context is this thread's; `None` where the driver does
    /// not tell.
    fn free_bytes(&self) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers of their own.
        let code = unsafe { (self.functions.memory_info)(&raw mut free, &raw mut total) };
        (code == 0).then_some(free as u64)
    }

    /// Whether what a code is about has ended; an error where it is one.
    pub(super) fn check_ready(&self, call: &'static str, code: u32) -> Result<bool, DriverError> {
        if code == code::NOT_READY {
            return Ok(false);
        }
        self.check(call, code).map(|()| true)
    }
}
