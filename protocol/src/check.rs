//! The plan checker: what must hold of any plan, whoever made it.
//!
//! Runs in the planner before a plan is sent and in the executor when it arrives. Shares no code with
//! the solver. It recomputes every sum from the plan's own parts; whether the parts are true of the
//! model is for the executor, which compares them with its own schedule.

use std::collections::BTreeSet;

use crate::limits::{
    BATCH_MAX, COMPONENTS_MAX, DEVICES_MAX, SEGMENTS_MAX, SEQUENCE_TOKENS_MAX, SIDE_PIXELS_MAX,
    STEPS_MAX, STRING_BYTES_MAX, THREADS_MAX,
};
use crate::plan::{
    ALIGNMENT_BYTES, ComponentPlan, DeviceBackend, DeviceId, JobShape, Phase, PhaseBytes,
    Placement, Plan, Residency, SCHEMA,
};
use crate::units::Bytes;

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the plan breaks a rule: {0}")]
pub struct Violation(pub String);

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(Violation(format!($($message)+)));
        }
    };
}

/// Checks a plan; the first broken rule is the answer.
pub fn check(plan: &Plan) -> Result<(), Violation> {
    ensure!(plan.schema == SCHEMA, "schema {} where {SCHEMA} is understood", plan.schema);
    ensure!(plan.generation > 0, "generation 0");
    for text in [&plan.model, &plan.family] {
        ensure!(text.len() <= STRING_BYTES_MAX, "a name of {} bytes", text.len());
    }
    check_job(&plan.job)?;
    let threads = plan.host.threads;
    ensure!((1..=THREADS_MAX).contains(&threads), "{threads} threads");
    check_devices(plan)?;
    check_components(plan)?;
    for phase in Phase::TIMELINE {
        check_phase(plan, phase)?;
    }
    check_peaks(plan)
}

/// Checks a job's shape against the limits of the protocol. What a model can do is narrower.
pub fn check_job(job: &JobShape) -> Result<(), Violation> {
    for (what, value, max) in [
        ("width", job.width, SIDE_PIXELS_MAX),
        ("height", job.height, SIDE_PIXELS_MAX),
        ("steps", job.steps, STEPS_MAX),
        ("batch", job.batch, BATCH_MAX),
        ("max_sequence_length", job.max_sequence_length, SEQUENCE_TOKENS_MAX),
    ] {
        ensure!((1..=max).contains(&value), "{what} {value} is not within 1 to {max}");
    }
    Ok(())
}

fn check_devices(plan: &Plan) -> Result<(), Violation> {
    ensure!(plan.devices.len() <= DEVICES_MAX, "{} devices", plan.devices.len());
    let mut seen = BTreeSet::new();
    for device in &plan.devices {
        ensure!(!device.id.is_host(), "the host stands among the devices");
        ensure!(
            device.id.0.len() <= STRING_BYTES_MAX,
            "a device id of {} bytes",
            device.id.0.len()
        );
        ensure!(seen.insert(&device.id), "device {} stands twice", device.id);
        for text in [&device.name, &device.overhead_source] {
            ensure!(
                text.len() <= STRING_BYTES_MAX,
                "{}: a text of {} bytes",
                device.id,
                text.len()
            );
        }
        if let DeviceBackend::Virtual { link_bytes_per_s: link, .. } = device.backend {
            ensure!(link.is_finite() && link > 0.0, "{}: a link of {link} B/s", device.id);
        }
        ensure!(device.free_bytes <= device.total_bytes, "{}: more free than total", device.id);
        ensure!(device.budget_bytes <= device.free_bytes, "{}: budget above free", device.id);
    }
    Ok(())
}

fn check_components(plan: &Plan) -> Result<(), Violation> {
    let count = plan.components.len();
    ensure!((1..=COMPONENTS_MAX).contains(&count), "{count} components");
    let mut names = BTreeSet::new();
    let mut phase = Phase::Load;
    for component in &plan.components {
        let name = &component.name;
        ensure!(names.insert(name), "component {name} stands twice");
        ensure!(component.phase != Phase::Load, "{name} computes in the load phase");
        ensure!(phase <= component.phase, "{name} stands after a later phase's component");
        phase = component.phase;
        check_component(plan, component)?;
    }
    Ok(())
}

fn check_component(plan: &Plan, component: &ComponentPlan) -> Result<(), Violation> {
    let name = &component.name;
    for text in [name, &component.reason] {
        ensure!(text.len() <= STRING_BYTES_MAX, "a component's text of {} bytes", text.len());
    }
    ensure!(component.devices.len() == 1, "{name} names {} devices", component.devices.len());
    let device = &component.devices[0];
    match component.placement {
        Placement::Host => ensure!(device.is_host(), "{name} is on the host, yet on {device}"),
        Placement::One => {
            let known = plan.devices.iter().any(|d| d.id == *device);
            ensure!(known, "{name} is on {device}, which the plan does not know");
            let mapped = component.residency == Residency::Mapped;
            ensure!(!mapped, "{name} is mapped on {device}; only the host can compute so");
        }
    }
    let segments = &component.segments;
    ensure!((1..=SEGMENTS_MAX).contains(&segments.len()), "{name} has {} segments", segments.len());
    let mut sum = 0u64;
    for segment in segments {
        let length = segment.name.len();
        ensure!(length <= STRING_BYTES_MAX, "{name}: a segment's name of {length} bytes");
        ensure!(segment.device == *device, "{name}: segment {} is elsewhere", segment.name);
        let agrees = segment.residency == component.residency;
        ensure!(agrees, "{name}: segment {} has another residency", segment.name);
        sum = sum.saturating_add(segment.weights_bytes.0);
    }
    let weights = component.weights_bytes;
    ensure!(sum == weights.0, "{name}: segments hold {sum} B of {} B", weights.0);
    ensure!(component.tensor_bytes <= weights, "{name}: more tensor bytes than weights");
    for size in [weights, component.compute_bytes] {
        ensure!(size.0 % ALIGNMENT_BYTES == 0, "{name}: {} B is not aligned", size.0);
    }
    Ok(())
}

fn check_phase(plan: &Plan, phase: Phase) -> Result<(), Violation> {
    for device in &plan.devices {
        let used = used(plan, &device.id);
        let overhead = if used { device.overhead_bytes } else { Bytes::ZERO };
        check_bytes(plan, &device.id, phase, &device.phases, overhead)?;
    }
    check_bytes(plan, &DeviceId::host(), phase, &plan.host.phases, plan.host.job_bytes)
}

/// Whether any component computes on the device.
fn used(plan: &Plan, device: &DeviceId) -> bool {
    plan.components.iter().any(|component| component.devices.contains(device))
}

fn check_bytes(
    plan: &Plan,
    device: &DeviceId,
    phase: Phase,
    phases: &[PhaseBytes],
    fixed: Bytes,
) -> Result<(), Violation> {
    let count = phases.iter().filter(|entry| entry.phase == phase).count();
    ensure!(count == 1, "{device}: {count} entries for {phase}");
    ensure!(phases.len() == Phase::TIMELINE.len(), "{device}: {} phases", phases.len());
    let entry = phases.iter().find(|entry| entry.phase == phase).expect("counted above");

    let here = || plan.components.iter().filter(|c| c.devices.contains(device));
    let held = here().filter(|c| match c.residency {
        Residency::Resident => true,
        Residency::Lazy => c.phase == phase,
        Residency::Mapped => false,
    });
    let weights = held.fold(0u64, |sum, c| sum.saturating_add(c.weights_bytes.0));
    let compute = here().filter(|c| c.phase == phase).map(|c| c.compute_bytes.0).max().unwrap_or(0);
    let stated = entry.weights_bytes.0;
    ensure!(
        stated == weights,
        "{device}, {phase}: {stated} B of weights, components have {weights} B"
    );
    let stated = entry.compute_bytes.0;
    ensure!(
        stated == compute,
        "{device}, {phase}: {stated} B of compute, components need {compute} B"
    );
    let sum = [weights, compute, entry.staging_bytes.0, fixed.0]
        .into_iter()
        .fold(0u64, u64::saturating_add);
    ensure!(
        entry.peak_bytes.0 == sum,
        "{device}, {phase}: peak {} B is not {sum} B",
        entry.peak_bytes.0
    );
    Ok(())
}

fn check_peaks(plan: &Plan) -> Result<(), Violation> {
    let host = (DeviceId::host(), &plan.host.phases, plan.host.peak_bytes, plan.host.budget_bytes);
    let devices =
        plan.devices.iter().map(|d| (d.id.clone(), &d.phases, d.peak_bytes, d.budget_bytes));
    for (id, phases, peak, budget) in devices.chain([host]) {
        let largest = phases.iter().map(|entry| entry.peak_bytes).max().unwrap_or_default();
        ensure!(peak == largest, "{id}: peak {} B is not its largest phase's", peak.0);
        ensure!(peak <= budget, "{id}: peak {} B is above the budget of {} B", peak.0, budget.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
