//! What a plan uses of the host.

use serde::{Deserialize, Serialize};

use super::phase_bytes::PhaseBytes;
use crate::units::Bytes;

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
    /// Page-locked memory, part of the peak: what all used devices' weights pass through, and
    /// `locked_bytes`.
    pub pinned_bytes: Bytes,
    /// Page-locked copies of streamed weights, held from the load on: part of each phase's weights.
    #[serde(default)]
    pub locked_bytes: Bytes,
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
