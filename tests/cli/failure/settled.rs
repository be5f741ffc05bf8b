//! The sums of a plan that a test changes by hand.

use protocol::plan::PhaseBytes;
use protocol::{Bytes, DeviceId, Plan, Residency};

/// Makes every sum of a plan follow its parts, so that only the parts can be wrong.
pub fn settle(plan: &mut Plan) {
    for component in &mut plan.components {
        for segment in &mut component.segments {
            segment.part_bytes = vec![segment.weights_bytes];
        }
        component.weights_bytes = component.segments.iter().map(|s| s.weights_bytes).sum();
        let with = |residency| {
            let segments = component.segments.iter().filter(move |s| s.residency() == residency);
            segments.map(|segment| segment.weights_bytes)
        };
        let part = &mut component.parts[0];
        part.resident_bytes = with(Residency::Resident).sum();
        part.lazy_bytes = with(Residency::Lazy).sum();
        part.slot_bytes = with(Residency::Streamed).max().unwrap_or_default();
        part.slots = component.lookahead.min(with(Residency::Streamed).count() as u32);
    }
    let (components, job) = (plan.components.clone(), plan.job.clone());
    let after = |phase| job.phase_after(phase);
    let settle_phases = |id: &DeviceId, phases: &mut [PhaseBytes], staging: Bytes, fixed: Bytes| {
        for entry in phases.iter_mut() {
            let here = components.iter().filter(|c| c.devices.contains(id));
            let now = here.clone().filter(|c| c.phase == entry.phase);
            let next = here.clone().filter(|c| c.prefetch && after(entry.phase) == Some(c.phase));
            let lazy: Bytes = now.clone().chain(next).map(|c| c.parts[0].lazy_bytes).sum();
            let ring: Bytes = now.clone().map(|c| c.parts[0].staging_bytes()).sum();
            entry.weights_bytes = here.map(|c| c.parts[0].resident_bytes).sum::<Bytes>() + lazy;
            let compute = now.map(|c| c.parts[0].compute_bytes);
            entry.compute_bytes = compute.max().unwrap_or_default();
            entry.staging_bytes = ring + staging;
            entry.peak_bytes =
                entry.weights_bytes + entry.compute_bytes + entry.staging_bytes + fixed;
        }
        phases.iter().map(|entry| entry.peak_bytes).max().unwrap_or_default()
    };
    let resident = |id: &DeviceId| -> Bytes {
        let here = components.iter().filter(|c| c.devices.contains(id));
        here.map(|c| c.parts[0].resident_bytes).sum()
    };
    for device in &mut plan.devices {
        let used = components.iter().any(|c| c.devices.contains(&device.id));
        let fixed = if used { device.overhead_bytes } else { Bytes::ZERO };
        device.peak_bytes = settle_phases(&device.id, &mut device.phases, Bytes::ZERO, fixed);
        device.idle_bytes = resident(&device.id) + fixed;
    }
    let host = &mut plan.host;
    let (staging, job) = (host.pinned_bytes, host.job_bytes);
    host.peak_bytes = settle_phases(&DeviceId::host(), &mut host.phases, staging, job);
    host.idle_bytes = resident(&DeviceId::host()) + staging;
}
