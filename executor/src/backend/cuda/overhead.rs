//! What this process takes of a GPU, as NVML shows it: its context, the code of its kernels and
//! what else the driver keeps, beside all that is allocated.
//!
//! Nothing here decides or fails anything: without NVML nothing is known, with a reason. NVML tells
//! the memory of each process that has a context, by its number. Where it does not (in a container
//! with numbers of its own, or under WSL), what is free has become less meanwhile, by others' doing
//! too: [`MemorySource`] says which of the two a figure is.

use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use protocol::Bytes;
use protocol::usage::MemorySource;

/// NVML's library, as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// One GPU, watched from before its context was made.
pub struct Meter {
    nvml: Nvml,
    uuid: String,
    free_before: u64,
}

/// What the process takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Context, kernels and all that is allocated.
    pub bytes: Bytes,
    /// How it is known.
    pub source: MemorySource,
}

impl Meter {
    /// Begins to watch the GPU of this UUID, as NVML prints it, which this process has no context
    /// on yet.
    ///
    /// # Errors
    /// Why NVML cannot tell.
    pub fn start(uuid: &str) -> Result<Meter, String> {
        Meter::start_with(Path::new(LIBRARY), uuid)
    }

    fn start_with(library: &Path, uuid: &str) -> Result<Meter, String> {
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
        let nvml = nvml.map_err(|error| format!("NVML does not start: {error}"))?;
        if nvml.lib().nvmlShutdown.is_err() {
            // The wrapper's destructor would panic on the missing function: such a library stays
            // loaded.
            std::mem::forget(nvml);
            return Err(format!("{} is no complete NVML", library.display()));
        }
        let mut meter = Meter { nvml, uuid: uuid.to_owned(), free_before: 0 };
        meter.free_before = meter.free().map_err(|error| format!("{uuid}: {error}"))?;
        Ok(meter)
    }

    fn free(&self) -> Result<u64, NvmlError> {
        Ok(self.nvml.device_by_uuid(self.uuid.as_str())?.memory_info()?.free)
    }

    /// Bytes that are free on the GPU now; `None` where it does not answer.
    pub fn free_bytes(&self) -> Option<u64> {
        self.free().ok()
    }

    /// What the process takes now.
    ///
    /// # Errors
    /// The GPU does not answer any more.
    pub fn taken(&self) -> Result<ProcessMemory, NvmlError> {
        if let Some(bytes) = self.of_process(std::process::id()) {
            return Ok(ProcessMemory { bytes: Bytes(bytes), source: MemorySource::Process });
        }
        let bytes = Bytes(self.free_before.saturating_sub(self.free()?));
        Ok(ProcessMemory { bytes, source: MemorySource::Free })
    }

    /// What a process takes, where NVML tells it.
    fn of_process(&self, pid: u32) -> Option<u64> {
        let processes = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        let processes = processes.running_compute_processes().ok()?;
        let own = processes.iter().filter(|process| process.pid == pid);
        // One entry for each instance of a divided GPU.
        own.filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        })
        .reduce(u64::saturating_add)
    }
}

#[cfg(test)]
mod tests;
