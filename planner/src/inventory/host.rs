//! The host as the kernel describes it: memory, control group limits, cores, CPU.
//!
//! Not a measurement: the rates are assumptions by instruction set until a calibration replaces
//! them. Every reader takes the root of the file tree, so that tests use made-up ones; nothing
//! outside `/proc` and `/sys` is read.

mod cgroup;
pub mod oom;

use std::path::{Path, PathBuf};
use std::{fs, io};

use protocol::Bytes;
use protocol::limits::THREADS_MAX;

use super::speeds::HOST_STARTS_PER_S;
use super::{HostFacts, Rate, Speeds};

/// f32 operations per second assumed of a core with AVX-512: two 16-lane multiply-adds a cycle near
/// 2 GHz would be 128e9; kernels reach most of it.
pub const AVX512_FLOPS_PER_CORE: f64 = 100e9;

/// f32 operations per second assumed of a core with AVX2 and FMA: two 8-lane multiply-adds a cycle
/// near 3 GHz would be 96e9; a logical core is often half a physical one.
pub const AVX2_FLOPS_PER_CORE: f64 = 50e9;

/// f32 operations per second assumed of any other core: one 4-lane multiply or add a cycle near 2
/// GHz.
pub const PLAIN_FLOPS_PER_CORE: f64 = 8e9;

/// Bytes per second that one core is assumed to move: about what its outstanding cache misses
/// allow.
pub const MEMORY_BYTES_PER_S_PER_CORE: f64 = 10e9;

/// Cores beyond which memory is assumed to be the limit: four of them fill two channels of
/// DDR4-3200 (2 × 25.6 GB/s) at the usual 80 %.
pub const MEMORY_CORES_MAX: usize = 4;

/// Bytes per second assumed of the models' disk: a modest NVMe drive, twice a SATA one.
pub const STORAGE_BYTES_PER_S: f64 = 1e9;

/// The kernel's description of the host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file of `/proc` is missing or unreadable.
    #[error("cannot read {}: {cause}; hint: Berth reads the host's memory there, on Linux", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// `/proc/meminfo` lacks what every kernel since 3.14 writes.
    #[error("{} has no readable `{field}`; hint: Linux 3.14 or newer is needed", path.display())]
    NoField {
        /// The file.
        path: PathBuf,
        /// The missing line's key.
        field: &'static str,
    },
}

impl HostFacts {
    /// What a virtual device does at this part of the host kernels' speed, with all cores or with
    /// this many threads of its own: these have their part of the cores, and of the memory's rate
    /// as much as they fill.
    pub fn virtual_speeds(&self, speed: f64, threads: Option<usize>) -> Speeds {
        let Some(threads) = threads else { return self.speeds.scaled(speed) };
        let part = |most: usize| threads.min(most) as f64 / self.cores.min(most) as f64;
        self.speeds.with_threads(part(usize::MAX), part(MEMORY_CORES_MAX)).scaled(speed)
    }

    /// Reads this machine.
    ///
    /// # Errors
    /// `/proc/meminfo` is missing, or lacks `MemTotal` or `MemAvailable`.
    pub fn of_this_machine() -> Result<HostFacts, HostError> {
        HostFacts::read(Path::new("/"), core_count())
    }

    /// Reads the file tree under `root`, with the number of usable `cores` given.
    ///
    /// # Errors
    /// As [`HostFacts::of_this_machine`].
    pub fn read(root: &Path, cores: usize) -> Result<HostFacts, HostError> {
        let path = root.join("proc/meminfo");
        let text = fs::read_to_string(&path)
            .map_err(|cause| HostError::Read { path: path.clone(), cause })?;
        let field = |field| {
            meminfo_field(&text, field)
                .ok_or_else(|| HostError::NoField { path: path.clone(), field })
        };
        let total_bytes = field("MemTotal")?;
        let available_bytes = field("MemAvailable")?.min(total_bytes);
        let group = cgroup::memory_room(root, total_bytes);
        let name = fs::read_to_string(root.join("proc/sys/kernel/hostname")).unwrap_or_default();
        let cpu = fs::read_to_string(root.join("proc/cpuinfo")).ok().as_deref().and_then(cpu_model);
        Ok(HostFacts {
            name: if name.trim().is_empty() { "host" } else { name.trim() }.to_owned(),
            total_bytes,
            available_bytes: group
                .map_or(available_bytes, |group| available_bytes.min(group.room_bytes)),
            cgroup_limit_bytes: group.map(|group| group.limit_bytes),
            cores,
            cpu: cpu.unwrap_or_else(|| format!("unknown {} CPU", std::env::consts::ARCH)),
            compute: true,
            speeds: host_speeds(assumed_flops(cores), assumed_memory_rate(cores)),
            storage_bytes_per_s: Rate::assumed(STORAGE_BYTES_PER_S),
            page_cache_bytes_per_s: assumed_page_cache_rate(assumed_memory_rate(cores)),
            page_cache: true,
        })
    }
}

/// The speeds of a host with this f32 rate and this memory: its kernels compute in f32 whatever
/// weights are stored in.
pub(crate) fn host_speeds(f32_flops: Rate, memory_bytes: Rate) -> Speeds {
    let half_flops = Rate::assumed(f32_flops.value);
    Speeds::new(f32_flops, half_flops, memory_bytes, HOST_STARTS_PER_S)
}

/// The rate at which one thread is assumed to copy out of the page cache: one of those
/// that fill the memory's channels.
pub(crate) fn assumed_page_cache_rate(memory: Rate) -> Rate {
    Rate::assumed(memory.value.min(MEMORY_BYTES_PER_S_PER_CORE))
}

/// The f32 rate assumed of `cores` cores of this machine's instruction set.
pub(crate) fn assumed_flops(cores: usize) -> Rate {
    Rate::assumed(flops_per_core() * cores.max(1) as f64)
}

/// The memory rate assumed of a machine with `cores` cores.
pub(crate) fn assumed_memory_rate(cores: usize) -> Rate {
    Rate::assumed(MEMORY_BYTES_PER_S_PER_CORE * cores.clamp(1, MEMORY_CORES_MAX) as f64)
}

fn core_count() -> usize {
    // It fails only where the system forbids the question: one core is then the safe answer.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX as usize)
}

#[cfg(target_arch = "x86_64")]
fn flops_per_core() -> f64 {
    if std::is_x86_feature_detected!("avx512f") {
        AVX512_FLOPS_PER_CORE
    } else if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        AVX2_FLOPS_PER_CORE
    } else {
        PLAIN_FLOPS_PER_CORE
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn flops_per_core() -> f64 {
    PLAIN_FLOPS_PER_CORE
}

/// The value of `MemTotal:   24682416 kB`; the kernel's `kB` are KiB.
fn meminfo_field(text: &str, field: &str) -> Option<Bytes> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// The first `model name` of `/proc/cpuinfo`; ARM kernels write none.
fn cpu_model(text: &str) -> Option<String> {
    let (_, name) = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
