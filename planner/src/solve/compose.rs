//! Bytes of a combination of places, on every device in every phase.

use protocol::plan::PhaseBytes;
use protocol::{Bytes, Phase, Residency};

use super::{Place, Problem};

/// Bytes by device and phase.
pub struct Composition {
    devices: Vec<[PhaseBytes; 3]>,
    host: [PhaseBytes; 3],
}

impl Composition {
    /// The phases of a device, or of the host for `None`.
    pub fn of(&self, device: Option<usize>) -> &[PhaseBytes; 3] {
        match device {
            Some(index) => &self.devices[index],
            None => &self.host,
        }
    }

    /// The first device, or the host as `None`, that needs more than its budget, with the phase in which it
    /// needs most.
    pub fn over(&self, problem: &Problem<'_>) -> Option<(Option<usize>, &PhaseBytes)> {
        let host = (None, &self.host, problem.budgets.host);
        let devices = self.devices.iter().zip(&problem.budgets.devices).enumerate();
        let devices = devices.map(|(index, (phases, &budget))| (Some(index), phases, budget));
        devices.chain([host]).find_map(|(device, phases, budget)| {
            let largest = phases.iter().max_by_key(|phase| phase.peak_bytes);
            largest.filter(|phase| phase.peak_bytes > budget).map(|phase| (device, phase))
        })
    }

    /// Peaks of all devices and the host together.
    pub fn total(&self) -> Bytes {
        let peaks = self.devices.iter().chain([&self.host]);
        peaks.map(|phases| phases.iter().map(|p| p.peak_bytes).max().unwrap_or_default()).sum()
    }
}

/// Composes the bytes of the first components in these places; the rest count as nowhere. Bytes only grow
/// with each further component, which lets the search cut what is over a budget already.
pub fn bytes(problem: &Problem<'_>, places: &[Place]) -> Composition {
    let devices = (0..problem.inventory.devices.len()).map(|index| {
        let used = places.iter().any(|place| place.device == Some(index));
        let overhead = problem.inventory.devices[index].overhead_bytes;
        phases(problem, places, Some(index), if used { overhead } else { Bytes::ZERO })
    });
    Composition {
        devices: devices.collect(),
        host: phases(problem, places, None, problem.profile.job_bytes),
    }
}

fn phases(
    problem: &Problem<'_>,
    places: &[Place],
    device: Option<usize>,
    fixed: Bytes,
) -> [PhaseBytes; 3] {
    Phase::TIMELINE.map(|phase| {
        let mut weights = Bytes::ZERO;
        let mut compute = Bytes::ZERO;
        for (component, place) in problem.profile.components.iter().zip(places) {
            if place.device != device {
                continue;
            }
            let now = component.phase == phase;
            if place.residency == Residency::Resident || (place.residency == Residency::Lazy && now)
            {
                weights += component.weights_bytes;
            }
            if now {
                let arena = component.compute_bytes(problem.backend(device));
                compute = compute.max(arena.expect("places are on backends that it has"));
            }
        }
        let key = (problem.device_id(device), phase);
        let staging = problem.corrections.get(&key).copied().unwrap_or_default();
        PhaseBytes {
            phase,
            weights_bytes: weights,
            compute_bytes: compute,
            staging_bytes: staging,
            peak_bytes: weights + compute + staging + fixed,
        }
    })
}
