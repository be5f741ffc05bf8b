//! The inventory: what a machine has, as plain data that the solver reads.
//!
//! It is not a policy (what may be used of it: [`crate::budget`]), not a description that somebody
//! wrote ([`crate::profile`] makes an inventory of one), and it opens no device: a GPU is read
//! through NVML only, as a CUDA context alone would cost hundreds of megabytes.
//!
//! Invariants: the same facts give the same inventory, in the same order; `devices` stand by
//! ascending id within a kind; `free_bytes` ≤ `total_bytes` for each device and `available_bytes` ≤
//! `total_bytes` for the host; each rate is a positive finite number and says where it comes from.

pub mod efficiency;
pub mod host;
pub mod names;
pub mod nvml;
pub mod parts;
mod seen;
pub mod speeds;

use std::fmt;
use std::path::Path;

use protocol::plan::{CUDA_STAGING_BYTES, DeviceBackend, STAGING_BYTES};
use protocol::{BackendKind, Bytes, Faults};
use serde::Serialize;

pub use host::HostError;
pub use parts::Part;
pub use speeds::Speeds;

use efficiency::Reached;
use nvml::Detected;

/// The environment variable that restricts which GPUs a CUDA process sees. NVML ignores it, so the
/// planner applies it: see [`nvml::detect`].
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// What the context and modules of a CUDA process take of a device before anything is measured
/// there. Figures reported for recent drivers run from 107 to 555 MiB; the upper end keeps an
/// unmeasured plan safe.
pub const ASSUMED_CONTEXT_BYTES: Bytes = Bytes::mib(576);

/// The host and its devices at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inventory {
    /// Where the facts come from: [`Inventory::THIS_MACHINE`], or a profile's name.
    pub source: String,
    /// The CPU and its memory.
    pub host: HostFacts,
    /// The devices, by ascending id within a kind: `cuda0`, `cuda1`, …, `virtual0`, `virtual1`, …
    pub devices: Vec<Device>,
    /// Why `devices` is empty, as a sentence for people; `None` where it is not.
    pub why_no_devices: Option<String>,
}

/// The CPU with its memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostFacts {
    /// The host's name, or the profile's.
    pub name: String,
    /// All memory of the machine.
    pub total_bytes: Bytes,
    /// What a new process may take without swapping: the kernel's estimate (reclaimable page cache
    /// included), no more than the room left in the process's control groups.
    pub available_bytes: Bytes,
    /// The tightest memory limit of the process's control groups, where one is below `total_bytes`.
    pub cgroup_limit_bytes: Option<Bytes>,
    /// Logical CPUs that the process may use, at most as many as threads may compute.
    pub cores: usize,
    /// The CPU's model name.
    pub cpu: String,
    /// Whether components may be computed on the host; `false`: it only feeds devices.
    pub compute: bool,
    /// All cores together.
    #[serde(flatten)]
    pub speeds: Speeds,
    /// Bytes per second from the disk that holds the models, outside the page cache.
    pub storage_bytes_per_s: Rate,
    /// Bytes per second from files that are in the page cache.
    pub page_cache_bytes_per_s: Rate,
    /// Whether the files' state in this machine's page cache counts: not where the storage is
    /// imagined.
    pub page_cache: bool,
}

/// One device that components can be placed on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Device {
    /// `cuda0`, … in PCI bus order, or `virtual0`, … in file order. Stands for this inventory only;
    /// across runs a device is known by its lasting name ([`Device::lasting_name`]).
    pub id: String,
    /// A GPU, or a simulated one.
    pub kind: DeviceKind,
    /// What its maker calls it.
    pub name: String,
    /// The driver's lasting name of the device (`GPU-…`, `MIG-…`); `None` for virtual and imagined
    /// devices.
    pub uuid: Option<String>,
    /// Its number as CUDA counts in PCI bus order under `CUDA_VISIBLE_DEVICES`; `None` for one that
    /// is not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<usize>,
    /// Where a profile divides a GPU, or uses a part of one: which part this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Why what a profile says of the device is not here, its GPU or its threads; `None` where it
    /// is, or was not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// All memory of the device.
    pub total_bytes: Bytes,
    /// What nobody has allocated.
    pub free_bytes: Bytes,
    /// What processes have allocated already.
    pub used_by_others_bytes: Bytes,
    /// What stays free of it, where its profile says so of this very device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin_bytes: Option<Bytes>,
    /// The device shares the host's memory: one pool with [`HostFacts::available_bytes`], not a
    /// second budget. Such a device is used where it is named, or where nothing else computes at a
    /// comparable speed.
    pub integrated: bool,
    /// Bytes per second from host memory to the device.
    pub link_bytes_per_s: Rate,
    /// Bytes per second from the device to host memory.
    pub link_back_bytes_per_s: Rate,
    /// Its processors.
    #[serde(flatten)]
    pub speeds: Speeds,
    /// What the process takes of the device besides Berth's own regions: context, modules,
    /// libraries.
    pub overhead_bytes: Bytes,
    /// Where `overhead_bytes` comes from.
    pub overhead_source: Source,
    /// Page-locked memory of the host through which its weights pass, while it is open.
    pub pinned_bytes: Bytes,
    /// The version of what drives it; `None` where nothing has to.
    pub driver: Option<String>,
    /// The link, as people name it: `gen 4 x16`.
    pub pcie: Option<String>,
    /// Virtual devices only: what it lets fail, for tests of failure.
    #[serde(flatten)]
    pub faults: Faults,
    /// Virtual devices only: how fast it computes, as a part of the host kernels' speed; 1 for
    /// others.
    pub speed: f64,
    /// Virtual devices only: compute threads of its own, beside the host's; `None` where it
    /// computes with those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Operations that it cannot do, by name: the host does them.
    pub unsupported: Vec<String>,
}

/// What stands behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An NVIDIA GPU.
    Cuda,
    /// Host kernels over an arena of their own behind a paced link.
    Virtual,
}

/// How fast something is, per second, and how that is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// Bytes or floating point operations per second; positive and finite.
    pub value: f64,
    /// How it is known.
    pub source: Source,
}

/// How a figure is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured on this very device.
    Measured,
    /// Stated by a host profile.
    Declared,
    /// A maker's figure, of which programs reach a part ([`efficiency`]); the first measurement
    /// replaces it.
    Datasheet,
    /// Derived from a rule of thumb; the first measurement replaces it.
    Assumed,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Source::Measured => "measured",
            Source::Declared => "declared",
            Source::Datasheet => "datasheet",
            Source::Assumed => "assumed",
        })
    }
}

impl Inventory {
    /// The `source` of an inventory that was read from the machine itself.
    pub const THIS_MACHINE: &str = "this machine";

    /// Reads this machine: `/proc` and `/sys` for the host, NVML for the GPUs that
    /// `CUDA_VISIBLE_DEVICES` shows. No GPU or no driver is an ordinary answer, told in
    /// `why_no_devices`.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn of_this_machine() -> Result<Inventory, HostError> {
        let host = HostFacts::of_this_machine()?;
        let Detected { devices, why_none: why_no_devices } = detected(&host);
        Ok(Inventory { source: Self::THIS_MACHINE.to_owned(), host, devices, why_no_devices })
    }

    /// The device named `id`.
    pub fn device(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id)
    }
}

impl Device {
    /// How the executor reaches it.
    pub fn backend(&self) -> DeviceBackend {
        match self.kind {
            DeviceKind::Virtual => DeviceBackend::Virtual {
                link_bytes_per_s: self.link_bytes_per_s.value,
                faults: self.faults,
                speed: self.speed,
                threads: self.threads.map(|threads| threads as u32),
                unsupported: self.unsupported.clone(),
            },
            DeviceKind::Cuda => DeviceBackend::Cuda {
                uuid: self.uuid.clone(),
                unsupported: self.unsupported.clone(),
            },
        }
    }

    /// Whether it computes while the host and other devices do: a GPU, or threads of its own.
    pub fn computes_apart(&self) -> bool {
        self.kind == DeviceKind::Cuda || self.threads.is_some()
    }

    /// How fast its link is in the slower of both directions.
    pub fn link_both_ways_bytes_per_s(&self) -> f64 {
        self.link_bytes_per_s.value.min(self.link_back_bytes_per_s.value)
    }

    /// Whether the same work takes the same time here as on another device, and the same bytes.
    pub fn is_like(&self, other: &Device) -> bool {
        self.kind == other.kind
            && self.unsupported == other.unsupported
            && self.speeds == other.speeds
            && self.threads == other.threads
            && self.link_bytes_per_s == other.link_bytes_per_s
            && self.link_back_bytes_per_s == other.link_back_bytes_per_s
    }

    /// How the executor reaches it, without what a profile lets fail or go for tests.
    pub fn undisturbed_backend(&self) -> DeviceBackend {
        let quiet = Device { faults: Faults::default(), ..self.clone() };
        quiet.backend()
    }
}

impl DeviceKind {
    /// Page-locked memory of the host for a device of this kind, where nothing else is said.
    pub const fn staging_bytes(self) -> Bytes {
        match self {
            DeviceKind::Cuda => CUDA_STAGING_BYTES,
            DeviceKind::Virtual => STAGING_BYTES,
        }
    }

    /// The kind of backend that it needs.
    pub const fn backend(self) -> BackendKind {
        match self {
            DeviceKind::Cuda => BackendKind::Cuda,
            DeviceKind::Virtual => BackendKind::Virtual,
        }
    }
}

impl Rate {
    /// A rate measured here.
    pub fn measured(value: f64) -> Rate {
        Rate::new(value, Source::Measured)
    }

    /// A rate stated by a profile.
    pub fn declared(value: f64) -> Rate {
        Rate::new(value, Source::Declared)
    }

    /// A rate of a datasheet.
    pub fn datasheet(value: f64) -> Rate {
        Rate::new(value, Source::Datasheet)
    }

    /// A rate derived from a rule of thumb.
    pub fn assumed(value: f64) -> Rate {
        Rate::new(value, Source::Assumed)
    }

    /// What programs reach of it: of a datasheet's figure that part.
    pub fn reaches(self, reached: Reached) -> f64 {
        let part = if self.source == Source::Datasheet { reached.part } else { 1.0 };
        self.value * part
    }

    /// A rate that is known so.
    pub fn new(value: f64, source: Source) -> Rate {
        assert!(value.is_finite() && value > 0.0, "a rate of {value} per second");
        Rate { value, source }
    }
}

/// The id of the `index`-th device of a kind.
pub(crate) fn device_id(kind: DeviceKind, index: usize) -> String {
    match kind {
        DeviceKind::Cuda => format!("cuda{index}"),
        DeviceKind::Virtual => format!("virtual{index}"),
    }
}

/// The GPUs of this machine that `CUDA_VISIBLE_DEVICES` shows, on such a host; while NVML does not
/// answer, as they were.
pub(crate) fn detected(host: &HostFacts) -> Detected {
    let visible = std::env::var_os(CUDA_VISIBLE_DEVICES);
    let visible = visible.as_deref().map(|text| text.to_string_lossy());
    seen::or_last(nvml::detect(Path::new(nvml::LIBRARY), visible.as_deref(), host))
}

#[cfg(test)]
pub(crate) mod tests;
