//! What a run really used, beside what its plan said.

use serde::{Deserialize, Serialize};

use crate::phase::Phase;
use crate::plan::DeviceId;
use crate::times::MeasuredMs;
use crate::units::Bytes;

/// Predicted and measured use of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UsageReport {
    /// Every device of the plan, and the host as `host`.
    pub devices: Vec<DeviceUsage>,
    /// Each component that ran, in the order in which they ran.
    pub components: Vec<ComponentUsage>,
    /// Each GPU that was used, as a whole, where NVML tells of it.
    pub gpus: Vec<GpuUsage>,
    /// Wall times.
    pub measured_ms: MeasuredMs,
}

/// What the process took of one GPU, as NVML shows it: context and kernels too, and for all devices
/// of the plan that are parts of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// The devices of the plan that are on it.
    pub devices: Vec<DeviceId>,
    /// How NVML tells it.
    pub source: MemorySource,
    /// What the plan says of context and libraries.
    pub predicted_overhead_bytes: Bytes,
    /// The most that was taken beside what was allocated, at the ends of phases.
    pub measured_overhead_bytes: Bytes,
    /// What the plan says of its largest phase, all devices together.
    pub predicted_peak_bytes: Bytes,
    /// The most that was taken in all, at the ends of phases.
    pub measured_peak_bytes: Bytes,
}

/// How NVML tells what a process takes of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemorySource {
    /// Of this very process.
    Process,
    /// As the difference of what is free: others' changes count too.
    Free,
}

/// Times of one component in one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentUsage {
    /// As the plan calls it.
    pub name: String,
    /// How often its graph ran.
    pub calls: u32,
    /// Waiting for the weights that it holds, in milliseconds; streamed ones are waited for within
    /// `compute_ms`.
    pub load_ms: f64,
    /// Its calls, in milliseconds, with what crosses between devices.
    pub compute_ms: f64,
    /// Its weights that were copied to its devices, streamed ones each time that they were: 0 for
    /// one whose weights all lay there already, or are computed in place from the file mapping.
    #[serde(default)]
    pub sent_bytes: Bytes,
}

/// Use of one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// The device, or `host`.
    pub id: DeviceId,
    /// Each phase that ran.
    pub phases: Vec<PhaseUsage>,
    /// What stayed allocated once the job was done; `None` where nobody looked.
    #[serde(default)]
    pub idle: Option<IdleUsage>,
}

/// What stays on a device between two jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleUsage {
    /// What the plan says.
    pub predicted_bytes: Bytes,
    /// What was allocated.
    pub measured_bytes: Bytes,
}

impl DeviceUsage {
    /// The largest predicted and the largest measured peak.
    pub fn peaks(&self) -> (Bytes, Bytes) {
        let predicted = self.phases.iter().map(|p| p.predicted_peak_bytes).max();
        let measured = self.phases.iter().map(|p| p.measured_peak_bytes).max();
        (predicted.unwrap_or_default(), measured.unwrap_or_default())
    }
}

/// Use of one device in one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseUsage {
    /// When these bytes were held.
    pub phase: Phase,
    /// What the plan says.
    pub predicted_peak_bytes: Bytes,
    /// The most that was allocated at one time.
    pub measured_peak_bytes: Bytes,
    /// How long it worked, where it has a clock of its own that tells: a GPU's.
    pub busy_ms: Option<BusyMs>,
}

/// How long a GPU worked for a phase by its own clock, in milliseconds, without what each waited
/// for. The three go on at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct BusyMs {
    /// Computing.
    pub compute: f64,
    /// Copying weights to it, for this phase or, where they are prefetched, for the next one; with
    /// the reading of files that keeps a copy waiting.
    pub weights: f64,
    /// Copying activations to it or from it.
    pub activations: f64,
}
