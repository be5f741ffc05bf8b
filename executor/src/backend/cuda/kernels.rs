//! The kernels of one context, by name: each a module from the PTX that is part of the program,
//! which the driver compiles for its GPU when the kernel is first asked for, and keeps compiled on
//! disk.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};

use super::driver::{Driver, DriverError};
use super::ptx;

/// What is kept of what the driver says of a module, in bytes.
const LOG_BYTES_MAX: usize = 2048;

/// What every launch may add to the shared memory that a kernel declares, in bytes: more is asked
/// for (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const SHARED_BYTES_UNASKED: u32 = 48 << 10;

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
pub(super) struct Function {
    pub(super) raw: CUfunction,
    /// Its entry point.
    pub(super) name: &'static str,
}

impl Kernels {
    /// For a GPU of this compute capability; its context is current when kernels are asked for and
    /// when they are unloaded.
    pub(super) fn new(driver: &'static Driver, capability: (u32, u32)) -> Kernels {
        Kernels { driver, capability, functions: Mutex::default() }
    }

    /// A kernel by its entry point's name, to whose shared memory launches add so much.
    pub(super) fn function(
        &self,
        name: &'static str,
        shared_bytes: u32,
    ) -> Result<Function, DriverError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = functions.get(name) {
            return Ok(loaded.function);
        }
        let loaded = self.load(name, shared_bytes)?;
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

    fn load(&self, name: &'static str, shared_bytes: u32) -> Result<Loaded, DriverError> {
        let missing = || DriverError::own("cuModuleLoadDataEx", "it is in no module".to_owned());
        let text = ptx::module(self.capability, name).ok_or_else(missing);
        let module = text.and_then(|text| self.load_module(&text));
        let module = module.map_err(|error| error.about(name))?;
        match self.entry(module, name, shared_bytes) {
            Ok(raw) => Ok(Loaded { module, function: Function { raw, name } }),
            Err(error) => {
                // SAFETY: loaded above, and nothing of it is known.
                unsafe { (self.driver.functions.module_unload)(module) };
                Err(error.about(name))
            }
        }
    }

    /// A module's entry point, to whose shared memory launches may add so much.
    fn entry(
        &self,
        module: CUmodule,
        name: &str,
        shared_bytes: u32,
    ) -> Result<CUfunction, DriverError> {
        let functions = &self.driver.functions;
        let mut raw: CUfunction = std::ptr::null_mut();
        let name = CString::new(name).expect("a name has no zero byte");
        // SAFETY: the module is loaded, and the name ends with a zero byte.
        let code = unsafe { (functions.module_get_function)(&raw mut raw, module, name.as_ptr()) };
        self.driver.check("cuModuleGetFunction", code)?;
        if shared_bytes > SHARED_BYTES_UNASKED {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is the module's.
            let code = unsafe {
                (functions.function_set_attribute)(raw, most as c_int, shared_bytes as c_int)
            };
            self.driver.check("cuFuncSetAttribute", code)?;
        }
        Ok(raw)
    }

    /// Has the driver compile a module; what it says of errors in it is part of the error.
    fn load_module(&self, text: &str) -> Result<CUmodule, DriverError> {
        let text = CString::new(text).expect("PTX has no zero byte");
        let mut log = [0u8; LOG_BYTES_MAX];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_int,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_int,
        ];
        // The second one is the size itself, and not its address.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(LOG_BYTES_MAX)];
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: a module's text ends with a zero byte and is copied; the log is written during
        // the call, within its size.
        let code = unsafe {
            (self.driver.functions.module_load)(
                &raw mut module,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let checked = self.driver.check("cuModuleLoadDataEx", code);
        checked.map(|()| module).map_err(|error| error.with(&said(&log)))
    }
}

/// A log of the driver, in one line.
fn said(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_with_its_zero_byte_and_has_one_line() {
        assert_eq!(said(b"ptxas fatal   : a\n line 2\n\0junk"), "ptxas fatal : a line 2");
        assert_eq!(said(b"\0\0"), "");
        assert_eq!(said(b"cut off"), "cut off");
    }
}
