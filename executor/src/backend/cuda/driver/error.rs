//! What the driver answers in place of success: in words, with what helps, and by what can be done
//! about it.

/// Codes of `CUresult` (CUDA driver API reference, "Data types used by CUDA driver").
pub(super) mod code {
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const STUB_LIBRARY: u32 = 34;
    /// Of the runtime API, which a driver's compatibility package passes on.
    pub const INSUFFICIENT_DRIVER: u32 = 35;
    pub const NO_DEVICE: u32 = 100;
    pub const NO_BINARY_FOR_GPU: u32 = 209;
    pub const INVALID_PTX: u32 = 218;
    pub const JIT_COMPILER_NOT_FOUND: u32 = 221;
    pub const UNSUPPORTED_PTX_VERSION: u32 = 222;
    pub const NOT_READY: u32 = 600;
    pub const SYSTEM_NOT_READY: u32 = 802;
    pub const SYSTEM_DRIVER_MISMATCH: u32 = 803;
    pub const COMPAT_NOT_SUPPORTED_ON_DEVICE: u32 = 804;
}

/// A driver's function answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}{about} failed: {name} ({code}){more}{}", hint(*code))]
pub struct DriverError {
    call: &'static str,
    /// What the call was about, as it follows its name.
    about: String,
    code: u32,
    name: String,
    /// What else is known, as it follows in a sentence.
    more: String,
    free_bytes: Option<u64>,
}

impl DriverError {
    /// A call's error, by its code and the driver's name of that.
    pub(super) fn new(call: &'static str, code: u32, name: String) -> DriverError {
        DriverError {
            call,
            about: String::new(),
            code,
            name,
            more: String::new(),
            free_bytes: None,
        }
    }

    /// An error of this program's own making, as a kernel that no module has.
    pub(in super::super) fn own(call: &'static str, name: String) -> DriverError {
        DriverError::new(call, 0, name)
    }

    /// With what the call was about: a kernel, by its name.
    pub(in super::super) fn about(self, kernel: &str) -> DriverError {
        DriverError { about: format!(" of {kernel}"), ..self }
    }

    /// With what else is known of it, unless that is nothing.
    pub(in super::super) fn with(self, more: &str) -> DriverError {
        match more {
            "" => self,
            more => DriverError { more: format!("{}: {more}", self.more), ..self },
        }
    }

    /// With the bytes that were free on its GPU.
    pub(in super::super) fn with_free(self, free_bytes: Option<u64>) -> DriverError {
        DriverError { free_bytes, ..self }
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == code::OUT_OF_MEMORY
    }

    /// Bytes that were free on the GPU when memory ran out; `None` where the driver did not tell.
    pub fn free_bytes(&self) -> Option<u64> {
        self.free_bytes
    }

    /// Whether the GPU's context answers every later call with an error: another process may find
    /// the GPU in order, this one never will. The driver's reference says so of these codes. Of the
    /// last, the unknown error, it says nothing; it is taken for one of them.
    pub fn ends_context(&self) -> bool {
        matches!(self.code, 700 | 702 | 710 | 714..=719 | 721 | 999)
    }
}

/// What helps against an error, as the end of a sentence; nothing where nobody knows.
pub(super) fn hint(failed: u32) -> &'static str {
    match failed {
        code::STUB_LIBRARY => {
            ": the library is the toolkit's stub; hint: take the stubs folder off LD_LIBRARY_PATH"
        }
        code::INSUFFICIENT_DRIVER => {
            ": the driver's kernel module is older than its library; hint: update the driver, or restart after an update"
        }
        code::NO_DEVICE => {
            ": it finds no GPU; hint: look at CUDA_VISIBLE_DEVICES, and whether the container was given a GPU"
        }
        code::NO_BINARY_FOR_GPU => {
            ": the kernels are for other GPUs; hint: update Berth, or --backend host computes without this GPU"
        }
        code::INVALID_PTX => {
            ": the driver does not compile the kernel; hint: update the driver, and please report this if it stays"
        }
        code::JIT_COMPILER_NOT_FOUND => {
            "; hint: the driver's libnvidia-ptxjitcompiler.so.1 is missing: install the driver's package with it; a container needs the NVIDIA Container Toolkit with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        }
        code::UNSUPPORTED_PTX_VERSION => {
            ": the driver is older than the kernels; hint: update the driver"
        }
        code::SYSTEM_NOT_READY => {
            ": the machine's GPUs are not ready; hint: start nvidia-fabricmanager, which GPUs behind NVSwitch need"
        }
        code::SYSTEM_DRIVER_MISMATCH => {
            ": its library and its kernel module differ; hint: restart after an update of the driver"
        }
        code::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            ": the package cuda-compat does not serve this GPU; hint: take its folder off LD_LIBRARY_PATH, or remove it from the container"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_what_it_was_about_and_what_helps() {
        let error = DriverError::new("cuModuleLoadDataEx", 221, "NOT_FOUND".to_owned());
        let told = error.about("add").with("").with("line 3").to_string();
        let begins = "cuModuleLoadDataEx of add failed: NOT_FOUND (221): line 3; hint: ";
        assert!(told.starts_with(begins) && told.contains("NVIDIA_DRIVER_CAPABILITIES"), "{told}");
        let plain = DriverError::new("cuEventQuery", 1, "INVALID_VALUE".to_owned());
        assert_eq!(plain.to_string(), "cuEventQuery failed: INVALID_VALUE (1)");
    }

    #[test]
    fn what_ends_a_context_is_neither_a_shortage_nor_a_refusal() {
        let error = |code| DriverError::new("cuLaunchKernel", code, String::new());
        for code in [700, 702, 714, 715, 716, 717, 718, 719, 999] {
            assert!(error(code).ends_context() && !error(code).is_out_of_memory(), "{code}");
        }
        for code in [0, 1, 2, 46, 209, 214, 218, 221, 222, 400, 600, 701, 704, 713, 720, 801] {
            assert!(!error(code).ends_context(), "{code}");
        }
        assert!(error(2).is_out_of_memory());
    }
}
