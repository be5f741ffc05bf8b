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
pub mod layers;
pub mod shipped;
pub mod values;
pub mod written;

use std::path::{Path, PathBuf};

use protocol::{Bytes, Phase};

use super::nvml::rates;
use super::speeds::{CUDA_STARTS_PER_S, HOST_STARTS_PER_S};
use super::{ASSUMED_CONTEXT_BYTES, Device, DeviceKind, Host, Rate, Source, Speeds, host};
use crate::policy::Wishes;
use crate::read::{self, ReadError};

/// The largest profile that is read. The shipped ones are near 2 KiB.
pub const FILE_BYTES_MAX: Bytes = Bytes::mib(1);

/// The most devices of a profile: as many GPUs as the largest common servers hold.
pub const DEVICES_MAX: usize = 16;

/// A loaded profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name, which the inventory shows as its source; [`Inventory::THIS_MACHINE`] where nobody gave one.
    ///
    /// [`Inventory::THIS_MACHINE`]: super::Inventory::THIS_MACHINE
    pub name: String,
    /// What it describes, in a sentence.
    pub description: String,
    /// The host, as far as it is described.
    pub host: HostProfile,
    /// The devices.
    pub devices: ProfileDevices,
    /// Wishes that flags and the environment override; each was found readable.
    pub policy: Wishes,
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
    /// All memory.
    pub memory_bytes: Option<Bytes>,
    /// What is available of it; all, where only `memory_bytes` is given.
    pub available_bytes: Option<Bytes>,
    /// Logical CPUs.
    pub cores: Option<usize>,
    /// The CPU's name.
    pub cpu: Option<String>,
    /// Whether components may be computed on the host; `true` where it is not given.
    pub compute: Option<bool>,
    /// f32 operations per second of all cores together.
    pub f32_flops_per_s: Option<f64>,
    /// Memory bytes per second.
    pub memory_bytes_per_s: Option<f64>,
    /// Disk bytes per second.
    pub storage_bytes_per_s: Option<f64>,
}

/// One device of a profile; `None` takes the default that the key's description states.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceProfile {
    /// A GPU, or a simulated one.
    pub kind: DeviceKind,
    /// The product name.
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
    /// f32 operations per second; a virtual device has the host's by default, a GPU of the machine its own.
    pub f32_flops_per_s: Option<f64>,
    /// Half precision operations per second; as f32 by default.
    pub half_flops_per_s: Option<f64>,
    /// Memory bytes per second; a virtual device has the host's by default.
    pub memory_bytes_per_s: Option<f64>,
    /// Context and libraries; by default none for a virtual device, [`ASSUMED_CONTEXT_BYTES`] for a
    /// GPU.
    pub overhead_bytes: Option<Bytes>,
    /// Page-locked memory of the host for it; by default [`DeviceKind::staging_bytes`].
    pub pinned_bytes: Option<Bytes>,
    /// The driver's lasting name, where the profile means one very device.
    pub uuid: Option<String>,
    /// Its number as CUDA counts, where the profile means the GPU that has it on this machine.
    pub ordinal: Option<usize>,
    /// The allocation (from 1) that fails; virtual devices only.
    pub fail_allocation: Option<u32>,
    /// The copy over the link (from 1) that fails; virtual devices only.
    pub fail_copy: Option<u32>,
    /// What someone else takes; virtual devices only.
    pub taken_bytes: Bytes,
    /// The phase at whose start it is taken; `None` for between plan and load.
    pub taken_in: Option<Phase>,
    /// How fast it computes, as a part of the host kernels' speed; virtual devices only.
    pub speed: f64,
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
        }
    }

    /// This profile's values over those of `this_host`.
    pub fn over(&self, name: &str, this_host: &Host) -> Host {
        let total_bytes = self.memory_bytes.unwrap_or(this_host.total_bytes);
        let available_bytes = self.available_bytes.unwrap_or(match self.memory_bytes {
            Some(memory) => memory,
            None => this_host.available_bytes,
        });
        // A declared size is another machine's: the limits of this one's control groups are not its
        // own.
        let imagined = self.memory_bytes.is_some() || self.available_bytes.is_some();
        let cores = self.cores.unwrap_or(this_host.cores);
        let rate =
            |declared: Option<f64>, otherwise: Rate| declared.map_or(otherwise, Rate::declared);
        let (flops, memory) = match self.cores {
            Some(cores) => (host::assumed_flops(cores), host::assumed_memory_rate(cores)),
            None => (this_host.speeds.f32_flops_per_s, this_host.speeds.memory_bytes_per_s),
        };
        let declared = [self.f32_flops_per_s, self.memory_bytes_per_s];
        let as_here = self.cores.is_none() && declared == [None, None];
        let memory = rate(self.memory_bytes_per_s, memory);
        Host {
            name: name.to_owned(),
            total_bytes,
            available_bytes: available_bytes.min(total_bytes),
            cgroup_limit_bytes: this_host.cgroup_limit_bytes.filter(|_| !imagined),
            cores,
            cpu: self.cpu.clone().unwrap_or_else(|| this_host.cpu.clone()),
            compute: self.compute.unwrap_or(true),
            speeds: match as_here {
                true => this_host.speeds.clone(),
                false => host::host_speeds(rate(self.f32_flops_per_s, flops), memory),
            },
            storage_bytes_per_s: rate(self.storage_bytes_per_s, this_host.storage_bytes_per_s),
            page_cache_bytes_per_s: match as_here {
                true => this_host.page_cache_bytes_per_s,
                false => host::assumed_page_cache_rate(memory),
            },
            page_cache: self.storage_bytes_per_s.is_none() && this_host.page_cache,
        }
    }
}

impl DeviceProfile {
    /// The device as the inventory has it, beside its `host`.
    pub fn to_device(&self, id: String, host: &Host) -> Device {
        let free = self.total_bytes.saturating_sub(self.used_by_others_bytes);
        let default_name = match self.kind {
            DeviceKind::Cuda => "GPU of the profile",
            DeviceKind::Virtual => "virtual device",
        };
        let link = self.link_bytes_per_s.map(Rate::declared);
        let link = link.unwrap_or(Rate::assumed(rates::Link::default().bytes_per_s()));
        let (overhead_bytes, overhead_source) = match (self.overhead_bytes, self.kind) {
            (Some(bytes), _) => (bytes, Source::Declared),
            (None, DeviceKind::Virtual) => (Bytes::ZERO, Source::Declared),
            (None, DeviceKind::Cuda) => (ASSUMED_CONTEXT_BYTES, Source::Assumed),
        };
        Device {
            id,
            kind: self.kind,
            name: self.name.clone().unwrap_or_else(|| default_name.to_owned()),
            uuid: self.uuid.clone(),
            ordinal: None,
            part: None,
            missing: None,
            total_bytes: self.total_bytes,
            free_bytes: if self.integrated { free.min(host.available_bytes) } else { free },
            used_by_others_bytes: self.used_by_others_bytes,
            margin_bytes: self.margin_bytes,
            integrated: self.integrated,
            link_bytes_per_s: link,
            link_back_bytes_per_s: link,
            speeds: self.speeds(host),
            overhead_bytes,
            overhead_source,
            pinned_bytes: self.pinned_bytes.unwrap_or(self.kind.staging_bytes()),
            driver: None,
            pcie: None,
            fail_allocation: self.fail_allocation,
            fail_copy: self.fail_copy,
            taken_bytes: self.taken_bytes,
            taken_in: self.taken_in,
            speed: self.speed,
            unsupported: self.unsupported.clone(),
        }
    }
}

impl DeviceProfile {
    /// Makes its device one on a GPU that is here: what it does not declare is that GPU's. Memory is divided later.
    pub fn place_on(&self, gpu: &Device, device: &mut Device) {
        device.uuid = gpu.uuid.clone();
        device.ordinal = gpu.ordinal;
        device.driver = gpu.driver.clone();
        device.pcie = gpu.pcie.clone();
        device.integrated |= gpu.integrated;
        if self.name.is_none() {
            device.name = gpu.name.clone();
        }
        if self.link_bytes_per_s.is_none() {
            device.link_bytes_per_s = gpu.link_bytes_per_s;
            device.link_back_bytes_per_s = gpu.link_back_bytes_per_s;
        }
        let rate =
            |declared: Option<f64>, otherwise: Rate| declared.map_or(otherwise, Rate::declared);
        let half = self.half_flops_per_s.or(self.f32_flops_per_s);
        device.speeds = Speeds::new(
            rate(self.f32_flops_per_s, gpu.speeds.f32_flops_per_s),
            rate(half, gpu.speeds.half_flops_per_s),
            rate(self.memory_bytes_per_s, gpu.speeds.memory_bytes_per_s),
            CUDA_STARTS_PER_S,
        );
    }

    /// What is declared over what the host's kernels do at this speed, or a modest GPU.
    fn speeds(&self, host: &Host) -> Speeds {
        let own = match self.kind {
            DeviceKind::Virtual => host.speeds.scaled(self.speed),
            DeviceKind::Cuda => rates::modest_speeds(),
        };
        let declared = [self.f32_flops_per_s, self.half_flops_per_s, self.memory_bytes_per_s];
        if self.kind == DeviceKind::Virtual && declared == [None; 3] {
            return own;
        }
        let rate = |declared: Option<f64>, otherwise: Rate| {
            declared.map_or(Rate::assumed(otherwise.value), Rate::declared)
        };
        let f32_flops = rate(self.f32_flops_per_s, own.f32_flops_per_s);
        let half_flops = self.half_flops_per_s.map_or(f32_flops, Rate::declared);
        let memory_bytes = rate(self.memory_bytes_per_s, own.memory_bytes_per_s);
        let starts_per_s = match self.kind {
            DeviceKind::Virtual => HOST_STARTS_PER_S * self.speed,
            DeviceKind::Cuda => CUDA_STARTS_PER_S,
        };
        Speeds::new(f32_flops, half_flops, memory_bytes, starts_per_s)
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
