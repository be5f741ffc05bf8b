//! What stays between two jobs, against the plan's own parts.

use super::Violation;
use crate::plan::{DeviceId, Plan};
use crate::units::Bytes;

/// Each device, and the host, keeps its resident weights and what an open device takes.
pub(super) fn check(plan: &Plan) -> Result<(), Violation> {
    for device in &plan.devices {
        let open = plan.uses(&device.id) || device.peak_bytes > Bytes::ZERO;
        let overhead = if open { device.overhead_bytes.0 } else { 0 };
        check_one(plan, &device.id, device.idle_bytes, overhead)?;
    }
    let host = &plan.host;
    let fixed = host.changed_bytes.0.saturating_add(host.pinned_bytes.0);
    check_one(plan, &DeviceId::host(), host.idle_bytes, fixed)
}

/// Checks what is stated of one device against its resident weights and `fixed` bytes beside them.
fn check_one(plan: &Plan, device: &DeviceId, stated: Bytes, fixed: u64) -> Result<(), Violation> {
    let parts = plan.components.iter().flat_map(|component| &component.parts);
    let resident = parts.filter(|part| part.device == *device).map(|part| part.resident_bytes.0);
    let expected = resident.fold(fixed, u64::saturating_add);
    ensure!(
        stated.0 == expected,
        "{device}: {} B stay between jobs, its components leave {expected} B there",
        stated.0
    );
    Ok(())
}
