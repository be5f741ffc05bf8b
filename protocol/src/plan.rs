//! The plan: what will be done, as plain immutable data.
//!
//! A plan leaves the executor no choice: it may refuse a plan, never adjust it. A new situation is
//! a new plan with the next generation.

mod component;
mod device;
mod host;
mod job;
mod options;
mod phase_bytes;

use serde::{Deserialize, Serialize};

use crate::model::ModelSource;
use crate::times::PredictedMs;
use crate::units::Bytes;

pub use component::{ComponentPlan, LOOKAHEAD, PartPlan, Residency, SegmentPlan};
pub use device::{
    ALIGNMENT_BYTES, CUDA_STAGING_BYTES, DeviceBackend, DeviceId, DevicePlan, STAGING_BYTES,
};
pub use host::HostPlan;
pub use job::JobShape;
pub use options::{ATTENTION_CHUNK, GraphOptions, Lora, MappingPolicy, PieceSizes, VaeTile};
pub use phase_bytes::PhaseBytes;

/// Version of the plan's document. Raised when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

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

    /// Page-locked copies of streamed weights that its components need.
    pub fn locked_bytes(&self) -> Bytes {
        let each = self.components.iter().map(ComponentPlan::locked_bytes);
        Bytes(each.fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }
}
