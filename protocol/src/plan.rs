//! The plan: what will be done, as plain immutable data.
//!
//! A plan leaves the executor no choice: it may refuse a plan, never adjust it. A new situation is a
//! new plan with the next generation.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Version of the plan's document. Raised when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// Every region of device memory starts at a multiple of this, and so does every tensor within one:
/// 256 bytes is what `cudaMalloc` guarantees (CUDA C++ Programming Guide, "Device Memory Accesses"),
/// and a multiple of every SIMD width and cache line.
pub const ALIGNMENT_BYTES: u64 = 256;

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

/// A step of the time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Weights of resident components go to their devices.
    Load,
    /// The text encoders turn the prompt into embeddings.
    Condition,
    /// The DiT runs once or twice for each step.
    Denoise,
    /// The VAE decoder turns latents into a picture.
    Decode,
}

impl Phase {
    /// The phases that a plan states bytes for, in order. `Load` holds a subset of the first one's.
    pub const TIMELINE: [Phase; 3] = [Phase::Condition, Phase::Denoise, Phase::Decode];

    /// The phase's name as in the plan's document.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Condition => "condition",
            Phase::Denoise => "denoise",
            Phase::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a component computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one device.
    One,
    /// On the host's processor, in its RAM.
    Host,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::One => "one",
            Placement::Host => "host",
        })
    }
}

/// When a component's weights are where it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In all phases: loaded once, kept for the next job.
    Resident,
    /// Loaded for the component's own phase, freed after it.
    Lazy,
    /// Computed in place from the file mapping; host only, no allocation.
    Mapped,
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Residency::Resident => "resident",
            Residency::Lazy => "lazy",
            Residency::Mapped => "mapped",
        })
    }
}

/// What of a job decides sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Height of the picture in pixels.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Pictures made together.
    pub batch: u32,
    /// Tokens of the long text encoder (T5), padding included.
    pub max_sequence_length: u32,
    /// Whether the DiT runs a second time in each step, on the negative prompt (`--true-cfg-scale`).
    pub true_cfg: bool,
}

/// A plan, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA`] of the Berth that made it.
    pub schema: u32,
    /// The plan's number; each new plan of a session has a higher one.
    pub generation: u64,
    /// Path of the model directory.
    pub model: String,
    /// The model's family, as `flux`.
    pub family: String,
    /// The sizes that the plan was made for.
    pub job: JobShape,
    /// One entry for each component, in the order in which they run.
    pub components: Vec<ComponentPlan>,
    /// The devices that the plan was made for, used or not; the host not among them.
    pub devices: Vec<DevicePlan>,
    /// The host's share.
    pub host: HostPlan,
    /// What the planner expects the job to take, in milliseconds.
    pub predicted_ms: PredictedMs,
}

/// The assignment of one component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentPlan {
    /// The component's name, as `dit`.
    pub name: String,
    /// The phase in which it computes.
    pub phase: Phase,
    /// Where it computes.
    pub placement: Placement,
    /// The devices it computes on; `["host"]` for [`Placement::Host`].
    pub devices: Vec<DeviceId>,
    /// When its weights are there.
    pub residency: Residency,
    /// Its segments in order, each with its place.
    pub segments: Vec<SegmentPlan>,
    /// Its weights as held in memory: tensor bytes and alignment.
    pub weights_bytes: Bytes,
    /// Its weights as in the file.
    pub tensor_bytes: Bytes,
    /// Its arena: activations and workspaces, while it runs.
    pub compute_bytes: Bytes,
    /// Why this assignment was chosen.
    pub reason: String,
}

/// The assignment of one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentPlan {
    /// The segment's name, usually its block's.
    pub name: String,
    /// Where it computes.
    pub device: DeviceId,
    /// When its weights are there.
    pub residency: Residency,
    /// Its weights as held in memory.
    pub weights_bytes: Bytes,
}

/// How the executor reaches a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceBackend {
    /// Host kernels over memory of a hard capacity, behind a copy engine paced to a link.
    Virtual {
        /// The link's rate.
        link_bytes_per_s: f64,
        /// For tests of failure: this allocation (counted from 1) fails as if the device were full.
        fail_allocation: Option<u32>,
    },
    /// An NVIDIA GPU, found by its UUID.
    Cuda {
        /// As NVML prints it: `GPU-…`.
        uuid: Option<String>,
    },
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
    /// All its memory.
    pub total_bytes: Bytes,
    /// What was free when the plan was made.
    pub free_bytes: Bytes,
    /// What Berth may use, overhead included.
    pub budget_bytes: Bytes,
    /// Context and libraries, counted only where the plan uses the device.
    pub overhead_bytes: Bytes,
    /// Where the overhead's figure comes from: `measured`, `declared` or `assumed`.
    pub overhead_source: String,
    /// Bytes in each phase of [`Phase::TIMELINE`].
    pub phases: Vec<PhaseBytes>,
    /// The largest phase's sum.
    pub peak_bytes: Bytes,
}

/// Memory of one device, or of the host, in one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBytes {
    /// The phase.
    pub phase: Phase,
    /// Parameters, alignment included.
    pub weights_bytes: Bytes,
    /// Activations and workspaces: one arena.
    pub compute_bytes: Bytes,
    /// Stream slots; on the host: buffers that feed devices.
    pub staging_bytes: Bytes,
    /// Their sum with the overhead.
    pub peak_bytes: Bytes,
}

/// What a plan uses of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostPlan {
    /// What Berth may allocate in RAM. File mappings are reclaimable and not counted in it.
    pub budget_bytes: Bytes,
    /// The largest phase's sum.
    pub peak_bytes: Bytes,
    /// Page-locked memory, part of the peak.
    pub pinned_bytes: Bytes,
    /// Weights computed in place from the file mapping: page cache, not part of the peak.
    pub mapped_bytes: Bytes,
    /// Worker threads of the host's kernels. Workspaces depend on it.
    pub threads: u32,
    /// Latents, embeddings and pictures, held from the first phase to the last; part of each peak.
    pub job_bytes: Bytes,
    /// Bytes in each phase of [`Phase::TIMELINE`]; each peak includes `job_bytes`.
    pub phases: Vec<PhaseBytes>,
}

/// Predicted times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PredictedMs {
    /// All weights on their way to their devices, in whichever phase.
    pub load: f64,
    /// The condition phase without loads.
    pub condition: f64,
    /// One step of the denoise phase, without loads.
    pub denoise_step: f64,
    /// The decode phase without loads.
    pub decode: f64,
    /// From cold start to picture.
    pub total: f64,
}
