//! The primary context of a GPU: one for the process, kept until its last user is gone.

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::driver::{Driver, DriverError};

/// A context that is retained.
pub struct Context {
    driver: &'static Driver,
    device: CUdevice,
    /// As the driver takes it.
    pub(super) raw: CUcontext,
}

// SAFETY: a context may be used from any thread, and the driver locks what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a device, made unless it is there.
    pub(super) fn retain(
        driver: &'static Driver,
        device: CUdevice,
    ) -> Result<Context, DriverError> {
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (driver.functions.primary_context_retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context { driver, device, raw })
    }

    /// Makes it this thread's, as all calls that follow need.
    pub(super) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as this does.
        let code = unsafe { (self.driver.functions.context_set_current)(self.raw) };
        self.driver.check("cuCtxSetCurrent", code)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`; all that used the context is gone.
        let code = unsafe { (self.driver.functions.primary_context_release)(self.device) };
        if code != 0 {
            tracing::warn!("the context of GPU {} was not released: {code}", self.device);
        }
    }
}
