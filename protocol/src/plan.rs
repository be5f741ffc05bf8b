//! The plan: what will be done, as plain immutable data.
//!
//! A plan leaves the executor no choice: it may refuse a plan, never adjust it. A new situation is
//! a new plan with the next generation.

mod options;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::ModelSource;
use crate::times::PredictedMs;
use crate::units::Bytes;

pub use options::GraphOptions;

/// Version of the plan's document. Raised when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// Every region of device memory starts at a multiple of this, and so does every tensor within one:
/// 256 bytes is what `cudaMalloc` guarantees (CUDA C++ Programming Guide, "Device Memory
/// Accesses"), and a multiple of every SIMD width and cache line.
pub const ALIGNMENT_BYTES: u64 = 256;

/// Queries that one worker attends with at a time where nothing else is said. With AVX-512 and 24
/// heads of 128 over 1536 tokens, 64 queries run at 0.86 of its rate, 128 at 0.95 and 512 at 0.99,
/// as keys and values are read and packed once a chunk (`executor/benches/kernels.rs`).
pub const ATTENTION_CHUNK: u32 = 256;

/// Page-locked RAM of an open device, through which its weights pass: two halves of 256 KiB, one
/// read from the file mapping while the other is on the link. A half stays in the second level
/// cache of a core.
pub const STAGING_BYTES: Bytes = Bytes(512 << 10);

/// The same of a GPU: two queues of two halves of 4 MiB. The GPU copies a half by itself, in 160 µs
/// at the 26 GB/s of PCIe 4.0 x16, beside which the 10 to 20 µs of handing out a copy and hearing
/// of its end count little; of a half of 128 KiB, which takes 5 µs, they would be most.
pub const CUDA_STAGING_BYTES: Bytes = Bytes(16 << 20);

/// Stream slots where nothing else is said: one is computed from while the next is copied.
pub const LOOKAHEAD: u32 = 2;

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
    /// The VAE encoder turns a given picture into latents: image-to-image only.
    Encode,
    /// The text encoders turn the prompt into embeddings.
    Condition,
    /// The DiT runs once or twice for each step.
    Denoise,
    /// The VAE decoder turns latents into a picture.
    Decode,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 5] =
        [Phase::Load, Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];

    /// The phase that follows in a job; `None` after the last.
    pub const fn next(self) -> Option<Phase> {
        match self {
            Phase::Load => None,
            Phase::Encode => Some(Phase::Condition),
            Phase::Condition => Some(Phase::Denoise),
            Phase::Denoise => Some(Phase::Decode),
            Phase::Decode => None,
        }
    }

    /// The phase's name as in the plan's document.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Encode => "encode",
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
    /// Contiguous segments on several devices, one after the other.
    Layer,
    /// The rows of each large matrix on several devices; everything else on the first of them.
    Row,
    /// On the host's processor, in its RAM.
    Host,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::One => "one",
            Placement::Layer => "layer",
            Placement::Row => "row",
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
    /// Copied for each call, into a ring of slots, while earlier segments compute. A component is
    /// streamed if any of its segments is; the others of its segments stay.
    Streamed,
    /// Computed in place from the file mapping; host only, no allocation.
    Mapped,
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Residency::Resident => "resident",
            Residency::Lazy => "lazy",
            Residency::Streamed => "streamed",
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
    /// Tokens of the long text encoder, padding included.
    pub max_sequence_length: u32,
    /// Whether the DiT runs a second time in each step, on the negative prompt
    /// (`--true-cfg-scale`).
    pub true_cfg: bool,
    /// Whether the job starts from a picture.
    pub init_image: bool,
    /// Steps of the sampler's table that are left out at its start: above 0 for a job that starts
    /// from a picture at less than full strength.
    pub first_step: u32,
}

impl JobShape {
    /// The phases that a plan for this job states bytes for, in order. `Load` holds a subset of the
    /// first one's.
    pub const fn timeline(&self) -> &'static [Phase] {
        const WHOLE: [Phase; 4] = [Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];
        if self.init_image { &WHOLE } else { WHOLE.split_at(1).1 }
    }

    /// Steps that run.
    pub const fn steps_run(&self) -> u32 {
        self.steps.saturating_sub(self.first_step)
    }
}

/// The size of the pieces in which the VAE works, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VaeTile {
    /// Width of a tile.
    pub width: u32,
    /// Height of a tile.
    pub height: u32,
    /// Part of a tile that it shares with each neighbour, as diffusers' `tile_overlap_factor`.
    pub overlap: f64,
}

/// A LoRA file and how strongly it is applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Path of the safetensors file.
    pub path: String,
    /// Multiplies its scale.
    pub weight: f32,
}

/// What happens to the pages of a mapped weight file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MappingPolicy {
    /// They stay in the page cache for the next run.
    #[default]
    Keep,
    /// The kernel reads ahead, and drops pages behind the reader.
    Sequential,
    /// Pages are given back as soon as their weights are on their device.
    Drop,
}

impl MappingPolicy {
    /// All policies.
    pub const ALL: [MappingPolicy; 3] =
        [MappingPolicy::Keep, MappingPolicy::Sequential, MappingPolicy::Drop];

    /// The policy's name as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            MappingPolicy::Keep => "keep",
            MappingPolicy::Sequential => "sequential",
            MappingPolicy::Drop => "drop",
        }
    }
}

impl fmt::Display for MappingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A plan, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA`] of the Berth that made it.
    pub schema: u32,
    /// The plan's number; each new plan of a session has a higher one.
    pub generation: u64,
    /// Generation of the plan that is loaded when this one arrives, whose held weights stay where
    /// they lie: only arenas, slots and the job's buffers are new. `None`: what is loaded goes
    /// first.
    #[serde(default)]
    pub keeps_weights_of: Option<u64>,
    /// Where the model is.
    pub model: ModelSource,
    /// The name of the model's family.
    pub family: String,
    /// The sizes that the plan was made for.
    pub job: JobShape,
    /// What beside the job decides what is computed.
    pub options: GraphOptions,
    /// What happens to the pages of weight files.
    pub mapping_policy: MappingPolicy,
    /// One entry for each component, in the order in which they run.
    pub components: Vec<ComponentPlan>,
    /// The devices that the plan was made for, used or not; the host not among them.
    pub devices: Vec<DevicePlan>,
    /// The host's share.
    pub host: HostPlan,
    /// What the planner expects the job to take, in milliseconds.
    pub predicted_ms: PredictedMs,
}

impl Plan {
    /// Whether any component computes on the device.
    pub fn uses(&self, device: &DeviceId) -> bool {
        self.components.iter().any(|c| c.parts.iter().any(|part| part.device == *device))
    }
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
    /// The devices it computes on, in order; `["host"]` for [`Placement::Host`]. The first of a row
    /// split holds all that is not split.
    pub devices: Vec<DeviceId>,
    /// For [`Placement::Row`], each device's share of the rows, in proportion; else empty.
    pub row_shares: Vec<u32>,
    /// When its weights are there.
    pub residency: Residency,
    /// For [`Residency::Streamed`], slots of the ring on each device; else 0.
    pub lookahead: u32,
    /// Whether its weights are on their way before its phase: resident ones while the phases before
    /// it compute, lazy ones during the phase just before it, which then holds them too.
    pub prefetch: bool,
    /// What it takes on each of its devices, in their order; then on the host, where that computes
    /// what a device cannot.
    pub parts: Vec<PartPlan>,
    /// Its segments in order, each with its place.
    pub segments: Vec<SegmentPlan>,
    /// Its weights as held in memory, on all devices: tensor bytes and alignment.
    pub weights_bytes: Bytes,
    /// Its weights as in the file.
    pub tensor_bytes: Bytes,
    /// Waiting for the weights that it holds, in milliseconds, as `ComponentUsage::load_ms` will
    /// count it.
    #[serde(default)]
    pub predicted_load_ms: f64,
    /// Its calls, in milliseconds, as `ComponentUsage::compute_ms` will count them: with the wait
    /// for streamed weights and with what crosses between devices. 0 where nothing is predicted.
    #[serde(default)]
    pub predicted_compute_ms: f64,
    /// Why this assignment was chosen.
    pub reason: String,
}

/// What a component takes on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartPlan {
    /// The device.
    pub device: DeviceId,
    /// Weights held in all phases.
    pub resident_bytes: Bytes,
    /// Weights held in the component's phase.
    pub lazy_bytes: Bytes,
    /// Size of one stream slot: the largest of the segments that pass through the ring here.
    /// Smaller ones take their own bytes of the ring only.
    pub slot_bytes: Bytes,
    /// Stream slots: the lookahead, or the number of streamed segments here where that is less.
    pub slots: u32,
    /// Activations and workspaces, while it runs.
    pub compute_bytes: Bytes,
}

impl PartPlan {
    /// The ring of slots.
    pub fn staging_bytes(&self) -> Bytes {
        Bytes(self.slot_bytes.0.saturating_mul(u64::from(self.slots)))
    }
}

/// The assignment of one segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SegmentPlan {
    /// The segment's name, usually its block's.
    pub name: String,
    /// Where it computes; for a row split, the device of all that is not split.
    pub device: DeviceId,
    /// When its weights are there.
    pub residency: Residency,
    /// Its weights as held in memory, on all devices.
    pub weights_bytes: Bytes,
    /// The same by part of the component.
    pub part_bytes: Vec<Bytes>,
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
        /// For tests of failure: this copy over the link (counted from 1) fails as if the device
        /// were gone.
        fail_copy: Option<u32>,
        /// For tests of failure: bytes that someone else takes between the plan and its load.
        taken_bytes: Bytes,
        /// For tests of failure: the phase at whose start they are taken; `None` for before the
        /// load.
        taken_in: Option<Phase>,
        /// How fast it computes, as a part of the host kernels' speed: at least
        /// [`SPEED_MIN`](crate::limits::SPEED_MIN), at most 1.
        speed: f64,
        /// Operations that it cannot do, by name; the host does them.
        unsupported: Vec<String>,
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
    /// Its memory is the host's: what it takes is taken of [`HostPlan::pool_bytes`] too.
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
    /// What the host and the integrated devices may take together in any phase: their memory is
    /// one.
    pub pool_bytes: Bytes,
    /// The largest phase's sum.
    pub peak_bytes: Bytes,
    /// What stays between two jobs: resident weights, those that LoRA changed, and page-locked
    /// memory.
    pub idle_bytes: Bytes,
    /// Page-locked memory, part of the peak: what all used devices' weights pass through.
    pub pinned_bytes: Bytes,
    /// Weights of mapped files that LoRA changed, as private pages: part of each phase's weights.
    pub changed_bytes: Bytes,
    /// Weights computed in place from the file mapping: page cache, not part of the peak.
    pub mapped_bytes: Bytes,
    /// Worker threads of the host's kernels. Workspaces depend on it.
    pub threads: u32,
    /// Latents, embeddings and pictures, held from the first phase to the last; part of each peak.
    pub job_bytes: Bytes,
    /// Bytes in each phase of the job's timeline; each peak includes `job_bytes`.
    pub phases: Vec<PhaseBytes>,
}
