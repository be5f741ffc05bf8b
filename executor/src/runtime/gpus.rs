//! What the process takes of each GPU that a plan uses, and what the plan says of it.
//!
//! Devices of a plan may be parts of one GPU: what NVML shows is of all of them together, with the
//! one context that they share.

use std::sync::Arc;

use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::usage::{GpuUsage, MemorySource};
use protocol::{Bytes, DeviceId, Plan};

use super::Devices;
use crate::backend::cuda::gpu::Gpu;

/// One GPU, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGpu {
    /// The open devices that are on it.
    pub devices: Vec<DeviceId>,
    /// How it is known.
    pub source: MemorySource,
    /// What is taken beside what is allocated.
    pub overhead_bytes: Bytes,
    /// All that is taken.
    pub taken_bytes: Bytes,
}

/// Each GPU of the open devices as it is now, where NVML tells of it.
pub fn seen(devices: &Devices) -> Vec<SeenGpu> {
    let mut gpus: Vec<(&Arc<Gpu>, Vec<DeviceId>, Bytes)> = Vec::new();
    for (id, backend) in devices.iter() {
        let Some(device) = backend.as_cuda() else { continue };
        let allocated = device.allocated_bytes();
        match gpus.iter_mut().find(|(gpu, ..)| Arc::ptr_eq(gpu, device.gpu())) {
            Some((_, ids, sum)) => {
                ids.push(id.clone());
                *sum += allocated;
            }
            None => gpus.push((device.gpu(), vec![id.clone()], allocated)),
        }
    }
    let seen = gpus.into_iter().filter_map(|(gpu, devices, allocated)| {
        let taken = gpu.taken()?;
        let overhead_bytes = taken.bytes.saturating_sub(allocated);
        Some(SeenGpu { devices, source: taken.source, overhead_bytes, taken_bytes: taken.bytes })
    });
    seen.collect()
}

impl SeenGpu {
    /// The more of what was seen twice.
    pub fn join(&mut self, other: &SeenGpu) {
        self.source = other.source;
        self.overhead_bytes = self.overhead_bytes.max(other.overhead_bytes);
        self.taken_bytes = self.taken_bytes.max(other.taken_bytes);
    }

    /// The plan's devices on this GPU: those that are open, and one of its parts that may have the
    /// context and nothing else.
    fn parts<'a>(&self, plan: &'a Plan) -> Vec<&'a DevicePlan> {
        let is_open = |device: &&DevicePlan| self.devices.contains(&device.id);
        let own = plan.devices.iter().find(is_open).and_then(uuid);
        let is_part =
            |device: &&DevicePlan| is_open(device) || own.is_some() && uuid(device) == own;
        plan.devices.iter().filter(is_part).collect()
    }

    /// Beside what the plan says.
    pub fn usage(&self, plan: &Plan) -> GpuUsage {
        let parts = self.parts(plan);
        let peaks = plan.job.timeline().iter().map(|phase| {
            let phases = parts.iter().flat_map(|device| &device.phases);
            phases.filter(|entry| entry.phase == *phase).map(|entry| entry.peak_bytes).sum()
        });
        GpuUsage {
            devices: self.devices.clone(),
            source: self.source,
            predicted_overhead_bytes: parts.iter().map(|device| device.overhead_bytes).sum(),
            measured_overhead_bytes: self.overhead_bytes,
            predicted_peak_bytes: peaks.max().unwrap_or_default(),
            measured_peak_bytes: self.taken_bytes,
        }
    }
}

/// The UUID of a device's GPU, where the plan has one.
fn uuid(device: &DevicePlan) -> Option<&str> {
    match &device.backend {
        DeviceBackend::Cuda { uuid, .. } => uuid.as_deref(),
        DeviceBackend::Virtual { .. } => None,
    }
}
