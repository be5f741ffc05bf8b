//! The checker of memory over time: what each device, and the host, takes in each phase and between
//! two jobs, against the plan's own parts and its budget.

use super::{Violation, Violations};
use crate::limits::DEVICES_MAX;
use crate::phase::Phase;
use crate::plan::{DeviceId, PhaseBytes, Plan};
use crate::units::Bytes;

rules! {
    /// What holds of a memory; told after its device's name, and the phase's.
    pub enum MemoryRule {
        Entries { count: usize, phase: Phase } = ": {count} entries for {phase}",
        Phases { count: usize } = ": {count} phases",
        Sum { what: &'static str, stated: u64, expected: u64 } =
            ": {stated} B of {what}, the components' sum is {expected} B",
        Peak { peak: u64 } = ": peak {peak} B is not its largest phase's",
        Budget { peak: u64, budget: u64 } = ": peak {peak} B is above the budget of {budget} B",
        Idle { stated: u64, expected: u64 } =
            ": {stated} B stay between jobs, its components leave {expected} B there",
        Pinned { stated: u64, expected: u64 } = ": {stated} B are pinned, not {expected}",
        Locked { stated: u64, expected: u64 } =
            ": {stated} B of weights are page-locked, the components' are {expected} B",
    }
}

/// What a plan states of one memory.
struct Stated<'p> {
    device: DeviceId,
    phases: &'p [PhaseBytes],
    peak: Bytes,
    budget: Bytes,
    idle: Bytes,
    /// Bytes beside the components', in each phase: weights, staging, and what else is in a peak.
    fixed: [u64; 3],
    /// Bytes beside the resident weights, between jobs.
    fixed_idle: u64,
}

/// Checks each phase of each device and of the host, their peaks, and what stays between jobs.
pub(super) fn check_phases(plan: &Plan, found: &mut Violations) {
    let mut pinned = 0u64;
    for device in plan.devices.iter().take(DEVICES_MAX) {
        let used = plan.uses(&device.id);
        // One that is not used may have the context that another part of its GPU needs, and nothing
        // else.
        let opened = used || device.peak_bytes > Bytes::ZERO;
        let overhead = if opened { device.overhead_bytes.0 } else { 0 };
        if used {
            pinned = pinned.saturating_add(device.pinned_bytes.0);
        }
        let stated = Stated {
            device: device.id.clone(),
            phases: &device.phases,
            peak: device.peak_bytes,
            budget: device.budget_bytes,
            idle: device.idle_bytes,
            fixed: [0, 0, overhead],
            fixed_idle: overhead,
        };
        check_memory(plan, &stated, found);
    }
    let host = &plan.host;
    let locked = plan.locked_bytes().0;
    let stated = Stated {
        device: DeviceId::host(),
        phases: &host.phases,
        peak: host.peak_bytes,
        budget: host.budget_bytes,
        idle: host.idle_bytes,
        fixed: [host.changed_bytes.0.saturating_add(locked), pinned, host.job_bytes.0],
        fixed_idle: host.changed_bytes.0.saturating_add(host.pinned_bytes.0),
    };
    check_memory(plan, &stated, found);
    let mut ensure = |holds, rule| {
        let device = DeviceId::host();
        found.ensure(holds, || Violation::Memory { device, phase: None, rule });
    };
    let (stated, expected) = (host.locked_bytes.0, locked);
    ensure(stated == expected, MemoryRule::Locked { stated, expected });
    let (stated, expected) = (host.pinned_bytes.0, pinned.saturating_add(locked));
    ensure(stated == expected, MemoryRule::Pinned { stated, expected });
}

fn check_memory(plan: &Plan, stated: &Stated<'_>, found: &mut Violations) {
    let mut ensure = |holds, phase, rule| {
        let device = stated.device.clone();
        found.ensure(holds, || Violation::Memory { device, phase, rule });
    };
    let timeline = plan.job.timeline();
    for &phase in timeline {
        let mut entries = stated.phases.iter().filter(|entry| entry.phase == phase);
        let (entry, more) = (entries.next(), entries.count());
        let count = usize::from(entry.is_some()) + more;
        ensure(count == 1, None, MemoryRule::Entries { count, phase });
        let Some(entry) = entry else { continue };
        let [weights, compute, staging] = sums(plan, &stated.device, phase, stated.fixed);
        let all = [weights, compute, staging, stated.fixed[2]];
        let peak = all.into_iter().fold(0u64, u64::saturating_add);
        for (what, stated, expected) in [
            ("weights", entry.weights_bytes.0, weights),
            ("compute", entry.compute_bytes.0, compute),
            ("staging", entry.staging_bytes.0, staging),
            ("peak", entry.peak_bytes.0, peak),
        ] {
            let rule = MemoryRule::Sum { what, stated, expected };
            ensure(stated == expected, Some(phase), rule);
        }
    }
    let count = stated.phases.len();
    ensure(count == timeline.len(), None, MemoryRule::Phases { count });
    let largest = stated.phases.iter().map(|entry| entry.peak_bytes).max().unwrap_or_default();
    let (peak, budget) = (stated.peak.0, stated.budget.0);
    ensure(peak == largest.0, None, MemoryRule::Peak { peak });
    ensure(peak <= budget, None, MemoryRule::Budget { peak, budget });
    let parts = plan.components.iter().flat_map(|component| &component.parts);
    let resident =
        parts.filter(|part| part.device == stated.device).map(|part| part.resident_bytes.0);
    let expected = resident.fold(stated.fixed_idle, u64::saturating_add);
    let idle = stated.idle.0;
    ensure(idle == expected, None, MemoryRule::Idle { stated: idle, expected });
}

/// Weights, compute and staging of a device in a phase, as its components' parts say.
fn sums(plan: &Plan, device: &DeviceId, phase: Phase, fixed: [u64; 3]) -> [u64; 3] {
    let [mut weights, mut staging, _] = fixed;
    let mut compute = 0;
    for component in &plan.components {
        let now = component.phase == phase;
        let soon = component.prefetch && plan.job.phase_after(phase) == Some(component.phase);
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
    [weights, compute, staging]
}
