//! Calibration: what the executor is asked to measure, and its answer.

use serde::{Deserialize, Serialize};

use crate::plan::{DeviceBackend, DeviceId};
use crate::profile::WorkKind;
use crate::units::Bytes;

/// A device to be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationDevice {
    /// The device.
    pub id: DeviceId,
    /// How to reach it.
    pub backend: DeviceBackend,
    /// What may be used of it for the measurement.
    pub budget_bytes: Bytes,
    /// What its context is taken to use.
    pub overhead_bytes: Bytes,
    /// Page-locked memory of the host for it.
    pub pinned_bytes: Bytes,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Of its processor, with all threads.
    pub host: MeasuredSpeeds,
    /// Bytes per second of files that are not in the page cache; `None` where the page cache cannot
    /// be bypassed.
    pub storage_bytes_per_s: Option<f64>,
    /// Bytes per second of files that are in the page cache, copied into other memory.
    pub page_cache_bytes_per_s: f64,
    /// The devices, in the order in which they were asked for.
    pub devices: Vec<MeasuredDevice>,
}

/// What was measured of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredDevice {
    /// The device.
    pub id: DeviceId,
    /// Its processor.
    pub speeds: MeasuredSpeeds,
    /// Bytes per second from host memory to the device.
    pub link_bytes_per_s: f64,
    /// Bytes per second from the device to host memory.
    pub link_back_bytes_per_s: f64,
    /// What context and libraries take of it, where that can be seen.
    pub overhead_bytes: Option<Bytes>,
}

/// How fast a processor is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSpeeds {
    /// Floating-point operations per second by kind of work, for those that arithmetic bounds.
    pub work: Vec<WorkSpeed>,
    /// Bytes per second between the processor and its memory.
    pub memory_bytes_per_s: f64,
    /// Operations per second that can be started: what each takes however small it is.
    pub starts_per_s: f64,
}

/// The speed of one kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkSpeed {
    /// What was computed.
    pub kind: WorkKind,
    /// Floating-point operations per second; a multiply-add counts two.
    pub flops_per_s: f64,
}
