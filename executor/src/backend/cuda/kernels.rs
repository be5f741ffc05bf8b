//! The kernels of one context, by name: each a module from the PTX that is part of the program,
//! which the driver compiles for its GPU when the kernel is first asked for, and keeps compiled on
//! disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::driver::{Driver, DriverError};
use super::ptx;

/// Functions of the context that was current when they were loaded.
pub struct Kernels {
    driver: &'static Driver,
    capability: (u32, u32),
    functions: Mutex<HashMap<&'static str, Loaded>>,
}

/// A kernel in a module of its own.
struct Loaded {
    module: CUmodule,
    function: Function,
}

// SAFETY: handles may be used from any thread.
unsafe impl Send for Loaded {}

/// A kernel's handle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(pub(super) CUfunction);

impl Kernels {
    /// For a GPU of this compute capability; its context is current when kernels are asked for and
    /// when they are unloaded.
    pub(super) fn new(driver: &'static Driver, capability: (u32, u32)) -> Kernels {
        Kernels { driver, capability, functions: Mutex::default() }
    }

    /// A kernel by its entry point's name.
    pub(super) fn function(&self, name: &'static str) -> Result<Function, DriverError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = functions.get(name) {
            return Ok(loaded.function);
        }
        let loaded = self.load(name)?;
        let function = loaded.function;
        functions.insert(name, loaded);
        Ok(function)
    }

    /// Ends all modules; no work is under way. A library may keep the context alive, and modules
    /// would stay with it.
    pub(super) fn unload(&self) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, loaded) in functions.drain() {
            // SAFETY: loaded once, and its function is forgotten.
            let code = unsafe { (self.driver.functions.module_unload)(loaded.module) };
            if let Err(error) = self.driver.check("cuModuleUnload", code) {
                tracing::debug!("{name}: {error}");
            }
        }
    }

    fn load(&self, name: &str) -> Result<Loaded, DriverError> {
        let missing =
            || DriverError::own("cuModuleLoadData", format!("no kernel is called {name}"));
        let text = ptx::module(self.capability, name).ok_or_else(missing)?;
        let [text, name] =
            [text.as_str(), name].map(|text| CString::new(text).expect("PTX has no zero byte"));
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: a module's text ends with a zero byte and is copied.
        let code =
            unsafe { (self.driver.functions.module_load)(&raw mut module, text.as_ptr().cast()) };
        self.driver.check("cuModuleLoadData", code)?;
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero byte.
        let code = unsafe {
            (self.driver.functions.module_get_function)(&raw mut function, module, name.as_ptr())
        };
        self.driver.check("cuModuleGetFunction", code)?;
        Ok(Loaded { module, function: Function(function) })
    }
}
