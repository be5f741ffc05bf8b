//! The plan checker: what must hold of any plan, whoever made it.
//!
//! Runs in the planner before a plan is sent and in the executor when it arrives. Shares no code
//! with the solver. It recomputes every sum from the plan's own parts; whether the parts are true
//! of the model is for the executor, which compares them with its own schedule.

use std::collections::BTreeSet;

use crate::limits::{
    ATTENTION_CHUNK_MAX, BATCH_MAX, COMPONENTS_MAX, DEVICES_MAX, LAYOUTS_MAX, LOOKAHEAD_MAX,
    LORA_WEIGHT_MAX, LORAS_MAX, MEMORY_BYTES_MAX, ROW_SHARE_MAX, SEGMENTS_MAX, SEQUENCE_TOKENS_MAX,
    SIDE_PIXELS_MAX, STEPS_MAX, STRING_BYTES_MAX, THREADS_MAX,
};
use crate::plan::{
    ALIGNMENT_BYTES, ComponentPlan, DeviceId, GraphOptions, JobShape, Lora, PartPlan, Phase,
    PhaseBytes, Placement, Plan, Residency, SCHEMA, SegmentPlan, VaeTile,
};
use crate::profile::{BackendKind, Layout};
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

mod calibration;
mod device;
mod idle;
mod keeps;
mod pool;

pub use calibration::check_calibration;
use device::{check_devices, check_unsupported};
pub use keeps::check_keeps;

/// Checks a plan; the first broken rule is the answer.
pub fn check(plan: &Plan) -> Result<(), Violation> {
    ensure!(plan.schema == SCHEMA, "schema {} where {SCHEMA} is understood", plan.schema);
    ensure!(plan.generation > 0, "generation 0");
    let kept = plan.keeps_weights_of.unwrap_or(0);
    ensure!(kept < plan.generation, "it keeps the weights of generation {kept}, a later one");
    for text in [&plan.model.to_string(), &plan.family] {
        ensure!(text.len() <= STRING_BYTES_MAX, "a name of {} bytes", text.len());
    }
    check_job(&plan.job)?;
    check_host(plan)?;
    check_devices(plan)?;
    check_components(plan)?;
    check_options(&plan.options)?;
    check_lora(plan)?;
    check_mapped(plan)?;
    for &phase in plan.job.timeline() {
        check_phase(plan, phase)?;
    }
    check_peaks(plan)?;
    idle::check(plan)?;
    pool::check(plan)
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
    ensure!(job.first_step < job.steps, "first_step {} leaves no step", job.first_step);
    ensure!(job.init_image || job.first_step == 0, "steps are left out without a picture");
    Ok(())
}

/// Checks options against the limits of the protocol. What a model can do is narrower.
pub fn check_options(options: &GraphOptions) -> Result<(), Violation> {
    let chunk = options.attention_chunk;
    ensure!(
        (1..=ATTENTION_CHUNK_MAX).contains(&chunk),
        "an attention chunk of {chunk} queries is not within 1 to {ATTENTION_CHUNK_MAX}"
    );
    if let Some(VaeTile { width, height, overlap }) = options.vae_tile {
        for side in [width, height] {
            let sides = 1..=SIDE_PIXELS_MAX;
            ensure!(sides.contains(&side), "a tile's side of {side} pixels");
        }
        ensure!((0.0..=0.5).contains(&overlap), "an overlap of {overlap} is not within 0 to 0.5");
    }
    ensure!(options.loras.len() <= LORAS_MAX, "{} LoRA files", options.loras.len());
    for Lora { path, weight } in &options.loras {
        ensure!(path.len() <= STRING_BYTES_MAX, "a LoRA path of {} bytes", path.len());
        let sound = weight.is_finite() && weight.abs() <= LORA_WEIGHT_MAX;
        ensure!(sound, "a LoRA weight of {weight}");
    }
    ensure!(options.lora_runtime.len() <= COMPONENTS_MAX, "too many LoRA components");
    let short = options.lora_runtime.iter().all(|name| name.len() <= STRING_BYTES_MAX);
    ensure!(short, "a component's name that is too long");
    Ok(())
}

/// Checks a question for sizes against the limits of the protocol. What a model can do is narrower.
pub fn check_layouts(layouts: &[Layout]) -> Result<(), Violation> {
    ensure!(layouts.len() <= LAYOUTS_MAX, "{} layouts", layouts.len());
    for Layout { component, lanes, segments, row_shares } in layouts {
        ensure!(component.len() <= STRING_BYTES_MAX, "a name of {} bytes", component.len());
        let count = lanes.len();
        ensure!((1..=DEVICES_MAX + 1).contains(&count), "{component}: {count} lanes");
        for lane in lanes {
            check_unsupported(component, &lane.unsupported)?;
        }
        ensure!(segments.len() <= SEGMENTS_MAX, "{component}: {} segments", segments.len());
        let known = segments.iter().all(|&lane| (lane as usize) < count);
        ensure!(known, "{component}: a segment on an unknown lane");
        let hosts = lanes.iter().filter(|lane| lane.backend == BackendKind::Host).count();
        ensure!(hosts <= 1, "{component}: {hosts} lanes on the host");
        let shares = row_shares.len();
        if shares == 0 {
            let order = runs(segments.iter().map(|&lane| lane as usize));
            ensure!(order.into_iter().eq(0..count), "{component}: its segments skip or mix lanes");
            continue;
        }
        let rows = shares == count && count >= 2;
        ensure!(rows, "{component}: {shares} shares of rows, {count} lanes");
        ensure!(hosts == 0, "{component}: a row split with the host");
        let in_range = row_shares.iter().all(|share| (1..=ROW_SHARE_MAX).contains(share));
        ensure!(in_range, "{component}: a share is not within 1 to {ROW_SHARE_MAX}");
        let first = !segments.is_empty() && segments.iter().all(|&lane| lane == 0);
        ensure!(first, "{component}: a row split whose segments are elsewhere");
    }
    Ok(())
}

/// Equal neighbours taken as one.
fn runs<T: PartialEq>(entries: impl Iterator<Item = T>) -> Vec<T> {
    let mut runs: Vec<T> = entries.collect();
    runs.dedup();
    runs
}

/// Checks a size of memory. Under this limit no sum of a plan's sizes overflows, here or where it
/// is executed.
fn check_memory(owner: &str, sizes: &[Bytes]) -> Result<(), Violation> {
    let largest = sizes.iter().max().copied().unwrap_or_default();
    let what = "B is more memory than there is";
    ensure!(largest.0 <= MEMORY_BYTES_MAX, "{owner}: {} {what}", largest.0);
    Ok(())
}

fn check_host(plan: &Plan) -> Result<(), Violation> {
    let host = &plan.host;
    let threads = host.threads;
    ensure!(
        (1..=THREADS_MAX).contains(&threads),
        "host: {threads} threads are not within 1 to {THREADS_MAX}"
    );
    check_memory("host", &[host.budget_bytes, host.pool_bytes])
}

fn check_components(plan: &Plan) -> Result<(), Violation> {
    let count = plan.components.len();
    ensure!((1..=COMPONENTS_MAX).contains(&count), "{count} components");
    let mut names = BTreeSet::new();
    let mut phase = Phase::Load;
    for component in &plan.components {
        let name = &component.name;
        ensure!(names.insert(name), "component {name} stands twice");
        let timed = plan.job.timeline().contains(&component.phase);
        ensure!(timed, "{name}: the job has no {} phase to compute in", component.phase);
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
    for ms in [component.predicted_load_ms, component.predicted_compute_ms] {
        ensure!(ms.is_finite() && ms >= 0.0, "{name} is predicted to take {ms} ms");
    }
    check_placement(plan, component)?;
    check_residency(plan, component)?;
    check_segments(component)?;
    (0..component.parts.len()).try_for_each(|part| check_part(component, part))
}

fn check_placement(plan: &Plan, component: &ComponentPlan) -> Result<(), Violation> {
    let name = &component.name;
    let (placement, devices) = (component.placement, &component.devices);
    let count = devices.len();
    let counts = match placement {
        Placement::Host | Placement::One => 1..=1,
        Placement::Row => 2..=DEVICES_MAX,
        Placement::Layer => 2..=DEVICES_MAX + 1,
    };
    ensure!(counts.contains(&count), "{name} names {count} devices for placement {placement}");
    let mut seen = BTreeSet::new();
    for device in devices {
        ensure!(seen.insert(device), "{name} names {device} twice");
        let known = plan.devices.iter().any(|d| d.id == *device);
        let takes_host = matches!(placement, Placement::Host | Placement::Layer);
        ensure!(
            if device.is_host() { takes_host } else { known && placement != Placement::Host },
            "{name} with placement {placement} is on {device}, which cannot be"
        );
    }
    let planned = component.parts.iter().map(|part| &part.device);
    ensure!(planned.clone().take(count).eq(devices), "{name}: its parts are on other devices");
    let host = DeviceId::host();
    let more: Vec<&DeviceId> = planned.skip(count).collect();
    ensure!(
        more.is_empty() || (more == [&host] && !devices.contains(&host)),
        "{name} has parts beyond its devices"
    );
    if placement != Placement::Row {
        ensure!(component.row_shares.is_empty(), "{name} has shares of rows without a row split");
        return Ok(());
    }
    let shares = &component.row_shares;
    ensure!(shares.len() == count, "{name} has {} shares for {count} devices", shares.len());
    let in_range = shares.iter().all(|share| (1..=ROW_SHARE_MAX).contains(share));
    ensure!(in_range, "{name}: a share of rows is not within 1 to {ROW_SHARE_MAX}");
    Ok(())
}

fn check_residency(plan: &Plan, component: &ComponentPlan) -> Result<(), Violation> {
    let name = &component.name;
    let residency = component.residency;
    let on_host = component.placement == Placement::Host;
    ensure!(on_host || residency != Residency::Mapped, "{name} is mapped, and not on the host");
    ensure!(!on_host || residency != Residency::Streamed, "{name} is streamed to the host");
    let slots = if residency == Residency::Streamed { 1..=LOOKAHEAD_MAX } else { 0..=0 };
    let lookahead = component.lookahead;
    ensure!(slots.contains(&lookahead), "{name}, {residency}, has a lookahead of {lookahead}");
    for segment in &component.segments {
        let allowed: &[Residency] = match residency {
            _ if segment.device.is_host() && !on_host => &[Residency::Mapped],
            Residency::Streamed => &[Residency::Streamed, Residency::Resident, Residency::Lazy],
            Residency::Resident => &[Residency::Resident],
            Residency::Lazy => &[Residency::Lazy],
            Residency::Mapped => &[Residency::Mapped],
        };
        let agrees = allowed.contains(&segment.residency);
        ensure!(agrees, "{name}: segment {} has another residency", segment.name);
    }
    let weighs = |s: &SegmentPlan| s.weights_bytes > Bytes::ZERO;
    let streams =
        component.segments.iter().any(|s| s.residency == Residency::Streamed && weighs(s));
    ensure!(
        streams == (residency == Residency::Streamed),
        "{name} is streamed without a streamed segment"
    );
    let first = component.phase == plan.job.timeline()[0];
    let early = !component.prefetch
        || residency == Residency::Resident
        || (residency != Residency::Mapped && !first);
    ensure!(early, "{name} has nothing to prefetch, or no phase to do it in");
    Ok(())
}

fn check_segments(component: &ComponentPlan) -> Result<(), Violation> {
    let name = &component.name;
    let segments = &component.segments;
    ensure!((1..=SEGMENTS_MAX).contains(&segments.len()), "{name} has {} segments", segments.len());
    let mut sum = 0u64;
    for segment in segments {
        check_segment(component, segment)?;
        sum = sum.saturating_add(segment.weights_bytes.0);
    }
    let order = runs(segments.iter().map(|segment| &segment.device));
    let expected: Vec<&DeviceId> = match component.placement {
        Placement::Row => component.devices.iter().take(1).collect(),
        _ => component.devices.iter().collect(),
    };
    ensure!(order == expected, "{name}: its segments are elsewhere, or in another order");
    let weights = component.weights_bytes;
    ensure!(sum == weights.0, "{name}: segments hold {sum} B of {} B", weights.0);
    ensure!(component.tensor_bytes <= weights, "{name}: more tensor bytes than weights");
    check_memory(name, &[weights])
}

fn check_segment(component: &ComponentPlan, segment: &SegmentPlan) -> Result<(), Violation> {
    let (name, of) = (&component.name, &segment.name);
    let length = of.len();
    ensure!(length <= STRING_BYTES_MAX, "{name}: a segment's name of {length} bytes");
    let parts = segment.part_bytes.len();
    ensure!(parts == component.parts.len(), "{name}: segment {of} has {parts} parts");
    let mut held = 0u64;
    for (part, bytes) in component.parts.iter().zip(&segment.part_bytes) {
        let device = &part.device;
        ensure!(bytes.0 % ALIGNMENT_BYTES == 0, "{name}: {} B of {of} is not aligned", bytes.0);
        // The host takes what a device cannot do; else only rows lie elsewhere than their segment.
        let belongs =
            component.placement == Placement::Row || *device == segment.device || device.is_host();
        ensure!(belongs || *bytes == Bytes::ZERO, "{name}: weights of {of} lie on {device}");
        held = held.saturating_add(bytes.0);
    }
    let stated = segment.weights_bytes.0;
    ensure!(held == stated, "{name}: segment {of} holds {held} B of {stated} B");
    Ok(())
}

/// Whether a part computes its weights in place from the file mapping.
fn is_mapped(component: &ComponentPlan, part: &PartPlan) -> bool {
    let elsewhere = component.placement != Placement::Host;
    part.device.is_host() && (elsewhere || component.residency == Residency::Mapped)
}

/// A part's sizes against the segments that it has.
fn check_part(component: &ComponentPlan, index: usize) -> Result<(), Violation> {
    let (name, part) = (&component.name, &component.parts[index]);
    let device = &part.device;
    let mapped = is_mapped(component, part);
    let of = |residency| {
        let held = component.segments.iter().filter(move |s| s.residency == residency && !mapped);
        held.map(|segment| segment.part_bytes[index].0)
    };
    let sum = |residency| of(residency).fold(0u64, u64::saturating_add);
    let streamed = || of(Residency::Streamed).filter(|&bytes| bytes > 0);
    let slots = streamed().count().min(component.lookahead as usize) as u64;
    for (what, stated, expected) in [
        ("resident", part.resident_bytes.0, sum(Residency::Resident)),
        ("lazy", part.lazy_bytes.0, sum(Residency::Lazy)),
        ("a slot", part.slot_bytes.0, streamed().max().unwrap_or(0)),
        ("slots", u64::from(part.slots), slots),
    ] {
        ensure!(
            stated == expected,
            "{name} on {device}: {stated} for {what}, its segments give {expected}"
        );
    }
    let compute = part.compute_bytes.0;
    ensure!(compute % ALIGNMENT_BYTES == 0, "{name} on {device}: {compute} B is not aligned");
    Ok(())
}

/// What the plan says of LoRA against its components.
fn check_lora(plan: &Plan) -> Result<(), Violation> {
    let mut names = BTreeSet::new();
    for name in &plan.options.lora_runtime {
        let known = plan.components.iter().any(|component| component.name == *name);
        ensure!(known, "LoRA is to be added to {name}, which is no component");
        ensure!(names.insert(name), "LoRA is to be added to {name} twice");
    }
    let changed = plan.host.changed_bytes;
    let unchanged = changed == Bytes::ZERO || !plan.options.loras.is_empty();
    ensure!(unchanged, "{} B of weights are changed without a LoRA file", changed.0);
    Ok(())
}

/// The mapped bytes leave the alignment out, so that they are no sum of a plan's own parts.
fn check_mapped(plan: &Plan) -> Result<(), Violation> {
    let mut held = 0u64;
    for component in &plan.components {
        let parts = component.parts.iter().enumerate();
        for (index, _) in parts.filter(|(_, part)| is_mapped(component, part)) {
            let bytes = component.segments.iter().map(|segment| segment.part_bytes[index].0);
            held = bytes.fold(held, u64::saturating_add);
        }
    }
    let mapped = plan.host.mapped_bytes.0;
    ensure!(mapped <= held, "{mapped} B are mapped, the components have {held} B to map");
    Ok(())
}

fn check_phase(plan: &Plan, phase: Phase) -> Result<(), Violation> {
    let mut pinned = 0u64;
    for device in &plan.devices {
        let used = plan.uses(&device.id);
        // One that is not used may have the context that another part of its GPU needs, and nothing
        // else.
        let opened = used || device.peak_bytes > Bytes::ZERO;
        let overhead = if opened { device.overhead_bytes } else { Bytes::ZERO };
        if used {
            pinned = pinned.saturating_add(device.pinned_bytes.0);
        }
        check_bytes(plan, &device.id, phase, &device.phases, [0, 0, overhead.0])?;
    }
    let host = &plan.host;
    ensure!(host.pinned_bytes.0 == pinned, "{} B are pinned, not {pinned}", host.pinned_bytes.0);
    let fixed = [host.changed_bytes.0, pinned, host.job_bytes.0];
    check_bytes(plan, &DeviceId::host(), phase, &host.phases, fixed)
}

/// Checks a phase of a device, which has `fixed` bytes of weights, of staging and of overhead
/// beside its components'.
fn check_bytes(
    plan: &Plan,
    device: &DeviceId,
    phase: Phase,
    phases: &[PhaseBytes],
    fixed: [u64; 3],
) -> Result<(), Violation> {
    let count = phases.iter().filter(|entry| entry.phase == phase).count();
    ensure!(count == 1, "{device}: {count} entries for {phase}");
    let timeline = plan.job.timeline().len();
    ensure!(phases.len() == timeline, "{device}: {} phases", phases.len());
    let entry = phases.iter().find(|entry| entry.phase == phase).expect("counted above");

    let [mut weights, mut staging, overhead] = fixed;
    let mut compute = 0;
    for component in &plan.components {
        let now = component.phase == phase;
        let soon = component.prefetch && phase.next() == Some(component.phase);
        for part in component.parts.iter().filter(|part| part.device == *device) {
            weights = weights.saturating_add(part.resident_bytes.0);
            if now || soon {
                weights = weights.saturating_add(part.lazy_bytes.0);
            }
            if now {
                staging = staging.saturating_add(part.staging_bytes().0);
                compute = compute.max(part.compute_bytes.0);
            }
        }
    }
    let peak = [weights, compute, staging, overhead].into_iter().fold(0u64, u64::saturating_add);
    for (what, stated, expected) in [
        ("weights", entry.weights_bytes.0, weights),
        ("compute", entry.compute_bytes.0, compute),
        ("staging", entry.staging_bytes.0, staging),
        ("peak", entry.peak_bytes.0, peak),
    ] {
        ensure!(
            stated == expected,
            "{device}, {phase}: {stated} B of {what}, the components' sum is {expected} B"
        );
    }
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
