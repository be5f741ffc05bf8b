//! One device: its name, how to reach it, and what a plan uses of it.

mod document;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::phase_bytes::PhaseBytes;
use crate::faults::Faults;
use crate::units::Bytes;

/// Every region of device memory starts at a multiple of this, and so does every tensor within one:
/// 256 bytes is what `cudaMalloc` guarantees (CUDA C++ Programming Guide, "Device Memory
/// Accesses"), and a multiple of every SIMD width and cache line.
pub const ALIGNMENT_BYTES: u64 = 256;

/// Page-locked RAM of an open device, through which its weights pass: two halves of 256 KiB, one
/// read from the file mapping while the other is on the link. A half stays in the second level
/// cache of a core.
pub const STAGING_BYTES: Bytes = Bytes(512 << 10);

/// The same of a GPU: two queues of two halves of 4 MiB. The GPU copies a half by itself, in 160 µs
/// at the 26 GB/s of PCIe 4.0 x16, beside which the 10 to 20 µs of handing out a copy and hearing
/// of its end count little; of a half of 128 KiB, which takes 5 µs, they would be most.
pub const CUDA_STAGING_BYTES: Bytes = Bytes(16 << 20);

/// The name of a device within one inventory: `host`, `cuda0`, `virtual1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(pub String);

impl DeviceId {
    /// The CPU with its RAM.
    pub fn host() -> DeviceId {
        DeviceId("host".to_owned())
    }

    /// Whether this is the CPU with its RAM.
    pub fn is_host(&self) -> bool {
        self.0 == "host"
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// How the executor reaches a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "document::BackendDocument", into = "document::BackendDocument")]
pub enum DeviceBackend {
    /// Host kernels over memory of a hard capacity, behind a copy engine paced to a link.
    Virtual {
        /// The link's rate.
        link_bytes_per_s: f64,
        /// What it lets fail.
        faults: Faults,
        /// How fast it computes, as a part of the host kernels' speed: at least
        /// [`SPEED_MIN`](crate::limits::SPEED_MIN), at most 1.
        speed: f64,
        /// Compute threads of its own, beside the host's; `None` where it computes with those.
        threads: Option<u32>,
        /// Operations that it cannot do, by name; the host does them.
        unsupported: Vec<String>,
    },
    /// An NVIDIA GPU, found by its UUID.
    Cuda {
        /// As NVML prints it: `GPU-…`.
        uuid: Option<String>,
        /// Operations that its kernels got wrong in the self-test, by name; the host does them.
        unsupported: Vec<String>,
    },
}

impl DeviceBackend {
    /// Operations that it cannot do, by name.
    pub fn unsupported(&self) -> &[String] {
        let (DeviceBackend::Virtual { unsupported, .. } | DeviceBackend::Cuda { unsupported, .. }) =
            self;
        unsupported
    }
}

/// What a plan uses of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// The device.
    pub id: DeviceId,
    /// Its name for people.
    pub name: String,
    /// How to reach it.
    pub backend: DeviceBackend,
    /// Its memory is the host's: what it takes is taken of
    /// [`pool_bytes`](crate::plan::HostPlan::pool_bytes) too.
    pub integrated: bool,
    /// All its memory.
    pub total_bytes: Bytes,
    /// What was free when the plan was made.
    pub free_bytes: Bytes,
    /// What Berth may use, overhead included.
    pub budget_bytes: Bytes,
    /// Context and libraries, counted only where the plan uses the device, or another part of its
    /// GPU.
    pub overhead_bytes: Bytes,
    /// Where the overhead's figure comes from: `measured`, `declared` or `assumed`.
    pub overhead_source: String,
    /// Page-locked RAM through which its weights pass, held while the device is open.
    pub pinned_bytes: Bytes,
    /// Bytes in each phase of the job's timeline.
    pub phases: Vec<PhaseBytes>,
    /// The largest phase's sum.
    pub peak_bytes: Bytes,
    /// What stays between two jobs: resident weights, and the overhead of a device that is open.
    pub idle_bytes: Bytes,
}
