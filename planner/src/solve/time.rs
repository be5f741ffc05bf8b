//! The time model: how long a component takes in a place, in milliseconds.
//!
//! A segment takes max(FLOPs / rate, bytes / bandwidth). Rates come from the inventory, which says of each
//! whether it was measured, declared or assumed.

use protocol::plan::PredictedMs;
use protocol::profile::{ComponentProfile, SegmentProfile};
use protocol::{Phase, Residency, StorageType};

use super::{Place, Problem};
use crate::inventory::DeviceKind;
use crate::policy::Objective;

/// Times of one component in one place, for one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComponentMs {
    /// Its weights on their way, once.
    pub load: f64,
    /// All of its calls.
    pub compute: f64,
}

impl ComponentMs {
    /// What counts for an objective: a warm executor keeps what is resident or in the page cache.
    pub fn counted(&self, objective: Objective, residency: Residency) -> f64 {
        match (objective, residency) {
            (Objective::Throughput, Residency::Resident | Residency::Mapped) => self.compute,
            _ => self.load + self.compute,
        }
    }
}

/// Times of a component in a place.
pub fn component_ms(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    place: Place,
) -> ComponentMs {
    let host = &problem.inventory.host;
    let storage = host.storage_bytes_per_s.value;
    let weights = component.tensor_bytes.0 as f64;
    let boundary = component.boundary_bytes.0 as f64;
    let calls = f64::from(component.calls);
    let (load_rate, boundary_s, reread_s) = match place.device {
        Some(index) => {
            let link = problem.inventory.devices[index].link_bytes_per_s.value;
            (storage.min(link), boundary / link, 0.0)
        }
        None => {
            // A mapping larger than the RAM that is left is read from storage anew for every call.
            let cached = component.tensor_bytes <= host.available_bytes;
            let reread = place.residency == Residency::Mapped && !cached;
            (storage, 0.0, if reread { weights / storage } else { 0.0 })
        }
    };
    let once: f64 = component.segments.iter().map(|s| segment_s(problem, s, place.device)).sum();
    let first_read = if reread_s > 0.0 { 0.0 } else { weights / load_rate };
    ComponentMs { load: 1e3 * first_read, compute: 1e3 * calls * (once + boundary_s + reread_s) }
}

fn segment_s(problem: &Problem<'_>, segment: &SegmentProfile, device: Option<usize>) -> f64 {
    let (flops, bandwidth) = match device.map(|index| &problem.inventory.devices[index]) {
        Some(device) => {
            let halves = segment.storage.iter().all(|entry| entry.storage != StorageType::F32);
            let rate = match device.kind {
                DeviceKind::Cuda if halves => device.half_flops_per_s,
                _ => device.f32_flops_per_s,
            };
            (rate.value, device.memory_bytes_per_s.value)
        }
        None => {
            let host = &problem.inventory.host;
            (host.f32_flops_per_s.value, host.memory_bytes_per_s.value)
        }
    };
    (segment.flops / flops).max(segment.moved_bytes.0 as f64 / bandwidth)
}

/// Times of a whole plan.
pub fn predict(problem: &Problem<'_>, places: &[Place]) -> PredictedMs {
    let mut times = PredictedMs::default();
    for (component, place) in problem.profile.components.iter().zip(places) {
        let ms = component_ms(problem, component, *place);
        times.load += ms.load;
        match component.phase {
            Phase::Denoise => times.denoise_step += ms.compute / f64::from(problem.job.steps),
            Phase::Decode => times.decode += ms.compute,
            Phase::Condition | Phase::Load => times.condition += ms.compute,
        }
        times.total += ms.load + ms.compute;
    }
    times
}
