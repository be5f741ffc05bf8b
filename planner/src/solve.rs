//! The solver: inventory, budgets and model profile in; one plan and one report out, or `Infeasible`.
//!
//! Synchronous, pure, deterministic: no files, clocks, environment or randomness; ties end on the order of
//! the inventory. In this form a component computes on one device or on the host. The search is exact: branch and
//! bound over all combinations (`search`), with bytes by `compose` and times by `time`.

mod compose;
mod nearest;
mod report;
mod search;
mod time;

use std::collections::BTreeMap;

use protocol::plan::{
    ComponentPlan, DeviceBackend, DevicePlan, HostPlan, PhaseBytes, SCHEMA, SegmentPlan,
};
use protocol::profile::ComponentProfile;
use protocol::{
    BackendKind, Bytes, DeviceId, JobShape, ModelProfile, Phase, Placement, Plan, Residency,
};

pub use nearest::smallest_budget;
pub use report::{PlanReport, Rejected, shown_ms};

use crate::inventory::{Device, DeviceKind, Inventory};
use crate::policy::{Budgets, Objective};

/// Everything that a plan depends on.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// What is.
    pub inventory: &'a Inventory,
    /// What may be used of it.
    pub budgets: Budgets,
    /// For each device, why it cannot be used, if so.
    pub unusable: Vec<Option<String>>,
    /// Path of the model.
    pub model: &'a str,
    /// What the model needs.
    pub profile: &'a ModelProfile,
    /// The sizes asked for.
    pub job: &'a JobShape,
    /// What the plan is to be best at.
    pub objective: Objective,
    /// What the executor found a plan to need beyond its composition.
    pub corrections: Corrections,
}

/// Bytes by device and phase that the composition did not foresee.
pub type Corrections = BTreeMap<(DeviceId, Phase), Bytes>;

/// A candidate place of one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the device in the inventory; `None` for the host.
    pub device: Option<usize>,
    /// When its weights are there.
    pub residency: Residency,
}

impl Problem<'_> {
    /// The name of a place's device.
    pub fn device_id(&self, device: Option<usize>) -> DeviceId {
        match device {
            Some(index) => DeviceId(self.inventory.devices[index].id.clone()),
            None => DeviceId::host(),
        }
    }

    /// The budget of a device, or of the host for `None`.
    fn budget(&self, device: Option<usize>) -> Bytes {
        match device {
            Some(index) => self.budgets.devices[index],
            None => self.budgets.host,
        }
    }

    fn backend(&self, device: Option<usize>) -> BackendKind {
        match device.map(|index| self.inventory.devices[index].kind) {
            Some(DeviceKind::Cuda) => BackendKind::Cuda,
            Some(DeviceKind::Virtual) => BackendKind::Virtual,
            None => BackendKind::Host,
        }
    }

    /// Every place that a component may have, in the order in which ties are broken.
    fn places(&self, component: &ComponentProfile) -> Vec<Place> {
        let mut places = Vec::new();
        for (index, unusable) in self.unusable.iter().enumerate() {
            if unusable.is_none() && component.compute_bytes(self.backend(Some(index))).is_some() {
                for residency in [Residency::Resident, Residency::Lazy] {
                    places.push(Place { device: Some(index), residency });
                }
            }
        }
        let on_host = component.compute_bytes(BackendKind::Host).is_some();
        if self.inventory.host.compute && on_host {
            for residency in [Residency::Mapped, Residency::Resident, Residency::Lazy] {
                places.push(Place { device: None, residency });
            }
        }
        places
    }
}

/// A plan and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// What will be done.
    pub plan: Plan,
    /// Why.
    pub report: PlanReport,
}

/// Nothing fits. `nearest` budgets are exact; sizes are found by asking for their profiles in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Infeasible {
    /// Which memory is short in the least demanding placement, as a sentence.
    pub because: String,
    /// The least `--max-vram` for each device with which a plan exists.
    pub max_vram: Option<Bytes>,
    /// The least `--max-ram` with which a plan exists.
    pub max_ram: Option<Bytes>,
    /// Whether it takes both of these; else either does, with the other budget as it is.
    pub together: bool,
}

/// Whether any plan exists. Asks less than [`solve`]: neither for reasons nor for what would fit instead.
pub fn fits(problem: &Problem<'_>) -> bool {
    search::best(problem).is_some()
}

/// Finds the best plan.
pub fn solve(problem: &Problem<'_>, generation: u64) -> Result<Solution, Infeasible> {
    let Some(places) = search::best(problem) else {
        return Err(nearest::infeasible(problem));
    };
    let report = report::report(problem, &places);
    let plan = plan(problem, &places, &report, generation);
    Ok(Solution { plan, report })
}

fn plan(problem: &Problem<'_>, places: &[Place], report: &PlanReport, generation: u64) -> Plan {
    let bytes = compose::bytes(problem, places);
    let components = problem.profile.components.iter().zip(places).zip(&report.reasons);
    let components = components.map(|((component, place), reason)| {
        component_plan(problem, component, *place, reason.clone())
    });
    let devices = problem.inventory.devices.iter().enumerate().map(|(index, device)| {
        let used = places.iter().any(|place| place.device == Some(index));
        device_plan(device, problem.budgets.devices[index], bytes.of(Some(index)), used)
    });
    let mapped = problem.profile.components.iter().zip(places);
    let mapped_bytes =
        mapped.filter(|(_, p)| p.residency == Residency::Mapped).map(|(c, _)| c.tensor_bytes).sum();
    let host = bytes.of(None);
    Plan {
        schema: SCHEMA,
        generation,
        model: problem.model.to_owned(),
        family: problem.profile.family.clone(),
        job: problem.job.clone(),
        components: components.collect(),
        devices: devices.collect(),
        host: HostPlan {
            budget_bytes: problem.budgets.host,
            peak_bytes: peak(host),
            pinned_bytes: Bytes::ZERO,
            mapped_bytes,
            threads: problem.inventory.host.cores as u32,
            job_bytes: problem.profile.job_bytes,
            phases: host.to_vec(),
        },
        predicted_ms: time::predict(problem, places),
    }
}

fn component_plan(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    place: Place,
    reason: String,
) -> ComponentPlan {
    let device = problem.device_id(place.device);
    let segments = component.segments.iter().map(|segment| SegmentPlan {
        name: segment.name.clone(),
        device: device.clone(),
        residency: place.residency,
        weights_bytes: segment.weights_bytes,
    });
    let backend = problem.backend(place.device);
    ComponentPlan {
        name: component.name.clone(),
        phase: component.phase,
        placement: if place.device.is_some() { Placement::One } else { Placement::Host },
        devices: vec![device.clone()],
        residency: place.residency,
        segments: segments.collect(),
        weights_bytes: component.weights_bytes,
        tensor_bytes: component.tensor_bytes,
        compute_bytes: component
            .compute_bytes(backend)
            .expect("places are on backends that it has"),
        reason,
    }
}

fn device_plan(
    device: &Device,
    budget_bytes: Bytes,
    phases: &[PhaseBytes],
    used: bool,
) -> DevicePlan {
    let backend = match device.kind {
        DeviceKind::Virtual => DeviceBackend::Virtual {
            link_bytes_per_s: device.link_bytes_per_s.value,
            fail_allocation: device.fail_allocation,
        },
        DeviceKind::Cuda => DeviceBackend::Cuda { uuid: device.uuid.clone() },
    };
    DevicePlan {
        id: DeviceId(device.id.clone()),
        name: device.name.clone(),
        backend,
        total_bytes: device.total_bytes,
        free_bytes: device.free_bytes,
        budget_bytes,
        overhead_bytes: if used { device.overhead_bytes } else { Bytes::ZERO },
        overhead_source: device.overhead_source.to_string(),
        phases: phases.to_vec(),
        peak_bytes: peak(phases),
    }
}

fn peak(phases: &[PhaseBytes]) -> Bytes {
    phases.iter().map(|phase| phase.peak_bytes).max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
