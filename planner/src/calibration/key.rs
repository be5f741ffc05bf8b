//! What a measurement belongs to: the machine, and of a device what lasts.
//!
//! A GPU is known by its UUID, with the driver that ran it. A virtual device is host kernels on
//! this machine: it is known by all that makes it as fast as it is, so that nothing measured of one
//! imagined device is taken for another's.

use protocol::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::NAME_BYTES_MAX;
use crate::inventory::{Device, DeviceKind, HostError, HostFacts, Inventory, Source};

/// What a host's figures belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The CPU's model name.
    pub cpu: String,
    /// Logical CPUs that the process may use.
    pub cores: usize,
    /// What the system has in all.
    pub memory_bytes: Bytes,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn this() -> Result<Machine, HostError> {
        Ok(Machine::of(&HostFacts::of_this_machine()?))
    }

    /// The machine of a host that was read from it.
    pub fn of(host: &HostFacts) -> Machine {
        Machine { cpu: host.cpu.clone(), cores: host.cores, memory_bytes: host.total_bytes }
    }

    /// Whether a host is this machine's own, not one that a profile imagines. A profile may have it
    /// compute with fewer threads.
    pub fn is(&self, host: &HostFacts) -> bool {
        let speeds = &host.speeds;
        let declared = [speeds.f32_flops_per_s, speeds.memory_bytes_per_s];
        let here = Machine { cores: host.cores.max(self.cores), ..Machine::of(host) } == *self;
        here && declared.iter().all(|rate| rate.source != Source::Declared)
    }

    /// The key of its processor with fewer threads than it has cores; `None` for the whole of it.
    pub fn part(&self, host: &HostFacts) -> Option<DeviceKey> {
        (host.cores != self.cores).then_some(DeviceKey::Host { threads: host.cores })
    }
}

/// What a device's figures belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum DeviceKey {
    /// A GPU.
    Cuda {
        /// As NVML prints it: `GPU-…`, `MIG-…`.
        uuid: String,
        /// The driver's version, where it was told.
        driver: Option<String>,
    },
    /// The host's own kernels with fewer threads than the machine has cores, as a profile may say.
    Host {
        /// How many of its threads computed.
        threads: usize,
    },
    /// Host kernels behind a paced link.
    Virtual {
        /// In which it is declared.
        profile: String,
        /// Its name in the profile.
        id: String,
        /// The link's declared rate.
        link_bytes_per_s: f64,
        /// Its declared part of the host kernels' speed.
        speed: f64,
        /// Worker threads of the host's kernels.
        threads: usize,
        /// Threads of its own that compute in their place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own_threads: Option<usize>,
        /// Operations that it cannot do.
        unsupported: Vec<String>,
    },
}

impl DeviceKey {
    /// The key of a device of an inventory; `None` for a GPU that is only imagined, and for names
    /// too long to keep.
    pub fn of(inventory: &Inventory, device: &Device) -> Option<DeviceKey> {
        let key = match device.kind {
            DeviceKind::Cuda => {
                DeviceKey::Cuda { uuid: device.uuid.clone()?, driver: device.driver.clone() }
            }
            DeviceKind::Virtual => DeviceKey::Virtual {
                profile: inventory.source.clone(),
                id: device.id.clone(),
                link_bytes_per_s: device.link_bytes_per_s.value,
                speed: device.speed,
                threads: inventory.host.cores,
                own_threads: device.threads,
                unsupported: device.unsupported.clone(),
            },
        };
        (key.name_bytes() <= NAME_BYTES_MAX).then_some(key)
    }

    /// Whether figures of `other` are of the same device, as it is now or as it was.
    pub fn is_same_device(&self, other: &DeviceKey) -> bool {
        match (self, other) {
            (DeviceKey::Cuda { uuid, .. }, DeviceKey::Cuda { uuid: other, .. }) => uuid == other,
            _ => self == other,
        }
    }

    /// Whether it computes with this machine's CPU.
    pub fn is_virtual(&self) -> bool {
        matches!(self, DeviceKey::Virtual { .. } | DeviceKey::Host { .. })
    }

    /// Bytes of all its names.
    fn name_bytes(&self) -> usize {
        match self {
            DeviceKey::Host { .. } => 0,
            DeviceKey::Cuda { uuid, driver } => uuid.len() + driver.as_ref().map_or(0, String::len),
            DeviceKey::Virtual { profile, id, unsupported, .. } => {
                profile.len() + id.len() + unsupported.iter().map(String::len).sum::<usize>()
            }
        }
    }
}
