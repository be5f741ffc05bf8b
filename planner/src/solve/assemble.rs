//! The plan's document, from chosen places.

use protocol::plan::{
    ComponentPlan, DevicePlan, HostPlan, PartPlan, PhaseBytes, SCHEMA, SegmentPlan,
};
use protocol::profile::ComponentProfile;
use protocol::{Bytes, DeviceId, Phase, Plan, PredictedMs, Residency};

use super::component_ms::ComponentMs;
use super::compose::Composition;
use super::place::{Place, PlacePart};
use super::timeline::{LoadInterval, TimeStep, position};
use super::{PlanReport, Problem, timeline};
use crate::inventory::Device;

/// The plan of these places, one for each component.
pub fn plan(
    problem: &Problem<'_>,
    places: &[&Place],
    report: &PlanReport,
    generation: u64,
) -> Plan {
    let bytes = Composition::of(problem, places);
    let components = problem.profile.components.iter().zip(places).zip(&report.reasons);
    let components = components.map(|((component, place), reason)| {
        component_plan(problem, component, place, reason.clone())
    });
    let devices: Vec<DevicePlan> = (0..problem.inventory.devices.len())
        .map(|index| device_plan(problem, index, &bytes))
        .collect();
    let mapped = problem.profile.components.iter().zip(places);
    let host = bytes.phases(None);
    Plan {
        schema: SCHEMA,
        generation,
        keeps_weights_of: None,
        model: problem.model.clone(),
        family: problem.profile.family.clone(),
        job: problem.job.clone(),
        options: problem.options.clone(),
        mapping_policy: problem.mapping_policy,
        components: components.collect(),
        host: HostPlan {
            budget_bytes: problem.budgets.host,
            pool_bytes: problem.budgets.host,
            peak_bytes: peak(&host),
            idle_bytes: bytes.idle(None),
            pinned_bytes: bytes.pinned_bytes(),
            locked_bytes: bytes.locked_bytes(),
            changed_bytes: problem.profile.changed_bytes,
            mapped_bytes: mapped.map(|(component, place)| mapped_bytes(component, place)).sum(),
            threads: problem.inventory.host.cores as u32,
            job_bytes: problem.profile.job_bytes,
            phases: host,
        },
        devices,
        predicted_ms: predicted(problem, places),
    }
}

fn component_plan(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    place: &Place,
    reason: String,
) -> ComponentPlan {
    let spread = &place.spread;
    let id = |device: Option<usize>| problem.device_id(device);
    let segments = component.segments.iter().enumerate().map(|(index, segment)| SegmentPlan {
        name: segment.name.clone(),
        residencies: place.residencies(index).collect(),
        weights_bytes: spread.segment_bytes(index),
        part_bytes: spread.parts.iter().map(|part| part.segment_bytes[index]).collect(),
    });
    let part = |part: &PlacePart| PartPlan {
        device: id(part.device),
        resident_bytes: part.resident_bytes,
        lazy_bytes: part.lazy_bytes,
        slot_bytes: part.slot_bytes,
        slots: part.slots,
        compute_bytes: part.compute_bytes,
    };
    ComponentPlan {
        name: component.name.clone(),
        phase: component.phase,
        devices: spread.devices.iter().map(|device| id(*device)).collect(),
        division: spread.division.clone(),
        residency: place.residency(),
        lookahead: place.lookahead(),
        prefetch: place.early,
        parts: place.parts.iter().map(part).collect(),
        segments: segments.collect(),
        weights_bytes: spread.weights_bytes(),
        tensor_bytes: component.tensor_bytes,
        predicted_load_ms: place.ms.load,
        predicted_compute_ms: place.ms.first_read + place.ms.compute,
        reason,
    }
}

/// What the host computes in place from the file: all of a mapped component as in the file, else
/// the weights that it has in the place of a device.
fn mapped_bytes(component: &ComponentProfile, place: &Place) -> Bytes {
    if place.spread.is_on_host() {
        let mapped = place.residency() == Residency::Mapped;
        return if mapped { component.tensor_bytes } else { Bytes::ZERO };
    }
    let parts = 0..place.parts.len();
    let on_host = parts.filter(|part| place.parts[*part].device.is_none());
    on_host.map(|part| place.spread.part_bytes(part)).sum()
}

fn device_plan(problem: &Problem<'_>, index: usize, bytes: &Composition) -> DevicePlan {
    let device: &Device = &problem.inventory.devices[index];
    let used = bytes.uses(index);
    let phases = bytes.phases(Some(index));
    DevicePlan {
        id: DeviceId(device.id.clone()),
        name: device.name.clone(),
        backend: device.backend(),
        integrated: device.integrated,
        total_bytes: device.total_bytes,
        free_bytes: device.free_bytes,
        budget_bytes: problem.budgets.devices[index],
        overhead_bytes: bytes.overhead_bytes(index),
        overhead_source: device.overhead_source.to_string(),
        pinned_bytes: if used { device.pinned_bytes } else { Bytes::ZERO },
        peak_bytes: peak(&phases),
        idle_bytes: bytes.idle(Some(index)),
        phases,
    }
}

/// Times of the whole plan.
fn predicted(problem: &Problem<'_>, places: &[&Place]) -> PredictedMs {
    let mut times = PredictedMs::default();
    for (component, place) in problem.profile.components.iter().zip(places) {
        let ComponentMs { load, first_read, compute, .. } = place.ms;
        times.phases[Phase::Load] += load + first_read;
        times.phases[component.phase] += match component.phase {
            Phase::Denoise => compute / f64::from(problem.job.calls_run()),
            _ => compute,
        };
    }
    let phases = problem.profile.components.iter().zip(places);
    let phases = phases.map(|(c, place)| (*place, position(problem.job.timeline(), c.phase)));
    let step = TimeStep::of(problem);
    let total = |interval: fn(&Place, usize, TimeStep) -> LoadInterval| {
        let intervals: Vec<LoadInterval> =
            phases.clone().map(|(place, phase)| interval(place, phase, step)).collect();
        timeline::ms(step.compared(timeline::total(&intervals)))
    };
    times.total = total(LoadInterval::cold);
    times.next_total = total(LoadInterval::warm);
    times
}

fn peak(phases: &[PhaseBytes]) -> Bytes {
    phases.iter().map(|phase| phase.peak_bytes).max().unwrap_or_default()
}
