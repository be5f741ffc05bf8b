//! A host profile: a TOML file that describes a machine, real or imagined, and the policy that
//! suits it.
//!
//! Not an inventory: what a profile leaves out of the host is filled from this machine when it
//! becomes one. The keys are described in `profiles/README.md`. Several profiles are shipped inside
//! the binary.
//!
//! Invariants of a loaded profile: each size and rate is positive where it must be, parts are no
//! larger than their wholes, the policy's values are readable, and there are at most
//! [`DEVICES_MAX`] devices.

mod file;
mod inventory;
mod layer;
pub mod layers;
mod parts;
pub mod shipped;
pub mod values;
pub mod written;

use std::path::{Path, PathBuf};

use protocol::{Bytes, Faults};

use crate::inventory::{DeviceKind, Source};
use crate::policy::PolicyText;
use crate::read::{self, ReadError};

/// The largest profile that is read. The shipped ones are near 2 KiB.
pub const FILE_BYTES_MAX: Bytes = Bytes::mib(1);

/// The most devices of a profile: as many GPUs as the largest common servers hold.
pub const DEVICES_MAX: usize = 16;

/// A machine as somebody described it.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name, which the inventory shows as its source;
    /// [`Inventory::THIS_MACHINE`](crate::inventory::Inventory::THIS_MACHINE) where nobody gave
    /// one.
    pub name: String,
    /// What it describes, in a sentence.
    pub description: String,
    /// The host, as far as it is described.
    pub host: HostProfile,
    /// What it computes on beside its processor.
    pub devices: ProfileDevices,
    /// PolicyText that flags and the environment override; each was found readable.
    pub policy: PolicyText,
}

/// Where a profile's devices come from.
#[derive(Debug, Clone, PartialEq)]
pub enum ProfileDevices {
    /// Those that this machine has.
    Detect,
    /// Those that the file lists, in its order.
    Listed(Vec<DeviceProfile>),
}

/// A profile's host; `None` is this machine's value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostProfile {
    /// What the system has in all.
    pub memory_bytes: Option<Bytes>,
    /// What is available of it; all, where only `memory_bytes` is given.
    pub available_bytes: Option<Bytes>,
    /// Logical CPUs.
    pub cores: Option<usize>,
    /// What its maker calls the processor.
    pub cpu: Option<String>,
    /// Whether components may be computed on the host; `true` where it is not given.
    pub compute: Option<bool>,
    /// f32 operations per second of all cores together.
    pub f32_flops_per_s: Option<f64>,
    /// Memory bytes per second.
    pub memory_bytes_per_s: Option<f64>,
    /// Disk bytes per second.
    pub storage_bytes_per_s: Option<f64>,
    /// Bytes per second from files in the page cache.
    pub page_cache_bytes_per_s: Option<f64>,
    /// How its rates are known: `Declared`, where it is not given, or `Assumed`.
    pub rates: Option<Source>,
}

/// One device of a profile; `None` takes the default that the key's description states.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceProfile {
    /// A GPU, or a simulated one.
    pub kind: DeviceKind,
    /// What its maker calls it.
    pub name: Option<String>,
    /// All memory.
    pub total_bytes: Bytes,
    /// What others use of it; the rest is free.
    pub used_by_others_bytes: Bytes,
    /// What stays free of it.
    pub margin_bytes: Option<Bytes>,
    /// Whether it shares the host's memory.
    pub integrated: bool,
    /// Bytes per second from host memory; of a GPU of the machine as NVML tells it by default.
    pub link_bytes_per_s: Option<f64>,
    /// f32 operations per second; a virtual device has the host's by default, a GPU of the machine
    /// its own.
    pub f32_flops_per_s: Option<f64>,
    /// Half precision operations per second; as f32 by default.
    pub half_flops_per_s: Option<f64>,
    /// Operations per second of products of integers; as half precision by default.
    pub integer_flops_per_s: Option<f64>,
    /// Memory bytes per second; a virtual device has the host's by default.
    pub memory_bytes_per_s: Option<f64>,
    /// How its rates are known: `Declared`, or `Datasheet` of a GPU.
    pub rates: Source,
    /// Context and libraries; by default none for a virtual device, and
    /// [`crate::inventory::ASSUMED_CONTEXT_BYTES`] for a GPU.
    pub overhead_bytes: Option<Bytes>,
    /// Page-locked memory of the host for it; by default [`DeviceKind::staging_bytes`].
    pub pinned_bytes: Option<Bytes>,
    /// The driver's lasting name, where the profile means one very device.
    pub uuid: Option<String>,
    /// Its number as CUDA counts, where the profile means the GPU that has it on this machine.
    pub ordinal: Option<usize>,
    /// What it lets fail; virtual devices only.
    pub faults: Faults,
    /// How fast it computes, as a part of the host kernels' speed; virtual devices only.
    pub speed: f64,
    /// Compute threads of its own; virtual devices only.
    pub threads: Option<usize>,
    /// Operations that it cannot do, by name; virtual devices only.
    pub unsupported: Vec<String>,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a shipped profile nor a file.
    #[error("no host profile `{name}`; hint: give a path, or one of {}", shipped::names().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("cannot read the host profile {}: {cause}; hint: it must be a readable TOML file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },
    /// The file is larger than any profile.
    #[error("{} is not a host profile: it is larger than {FILE_BYTES_MAX}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is no profile.
    #[error("{origin}:{line}: {}{message}", key.as_ref().map(|key| format!("`{key}`: ")).unwrap_or_default())]
    Invalid {
        /// The file, or the shipped profile.
        origin: String,
        /// The line, from 1.
        line: usize,
        /// The key on that line, where there is one.
        key: Option<String>,
        /// What is wrong, and what would be right.
        message: String,
    },
}

impl Profile {
    /// Loads the profile that `argument` names: a path (anything with a separator or ending in
    /// `.toml`), else a shipped profile, else a file of that name in the working directory.
    ///
    /// # Errors
    /// There is no such profile, it cannot be read, or it is none: with file, line and key.
    pub fn load(argument: &str) -> Result<Profile, ProfileError> {
        let is_path =
            argument.contains(['/', std::path::MAIN_SEPARATOR]) || argument.ends_with(".toml");
        if !is_path && let Some(text) = shipped::text(argument) {
            return Profile::parse(text, &format!("shipped profile {argument}"));
        }
        let path = Path::new(argument);
        if !is_path && !path.is_file() {
            return Err(ProfileError::Unknown { name: argument.chars().take(80).collect() });
        }
        Profile::parse(&read_capped(path)?, argument)
    }

    /// Whether the host's memory is this machine's, not one that the profile imagines.
    pub fn memory_is_here(&self) -> bool {
        let HostProfile { memory_bytes, available_bytes, .. } = self.host;
        self.devices == ProfileDevices::Detect || (memory_bytes, available_bytes) == (None, None)
    }

    /// Reads a profile from its text; `origin` names it in errors.
    ///
    /// # Errors
    /// The text is no profile: with line and key.
    pub fn parse(text: &str, origin: &str) -> Result<Profile, ProfileError> {
        file::parse(text).map_err(|error| error.at(text, origin))
    }
}

impl HostProfile {
    /// These values, and those of `below` where there are none.
    fn or(self, below: HostProfile) -> HostProfile {
        HostProfile {
            memory_bytes: self.memory_bytes.or(below.memory_bytes),
            available_bytes: self.available_bytes.or(below.available_bytes),
            cores: self.cores.or(below.cores),
            cpu: self.cpu.or(below.cpu),
            compute: self.compute.or(below.compute),
            f32_flops_per_s: self.f32_flops_per_s.or(below.f32_flops_per_s),
            memory_bytes_per_s: self.memory_bytes_per_s.or(below.memory_bytes_per_s),
            storage_bytes_per_s: self.storage_bytes_per_s.or(below.storage_bytes_per_s),
            page_cache_bytes_per_s: self.page_cache_bytes_per_s.or(below.page_cache_bytes_per_s),
            rates: self.rates.or(below.rates),
        }
    }
}

/// The file's text, if it is a regular file of an ordinary size.
fn read_capped(path: &Path) -> Result<String, ProfileError> {
    read::text(path, FILE_BYTES_MAX).map_err(|error| match error {
        ReadError::TooLarge { .. } => ProfileError::TooLarge { path: path.to_owned() },
        cause => ProfileError::Read { path: path.to_owned(), cause },
    })
}

#[cfg(test)]
mod tests;
