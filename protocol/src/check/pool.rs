//! One memory for several: integrated devices and the host, against what there is for them
//! together.
//!
//! Not here: each device's own budget, and the sums of its phases, which the checker has compared
//! before.

use super::Violation;
use crate::plan::{PhaseBytes, Plan};

/// The host and the integrated devices that are used take no more together than their one memory
/// has for them.
pub(super) fn check(plan: &Plan) -> Result<(), Violation> {
    let pool = plan.host.pool_bytes;
    for &phase in plan.job.timeline() {
        let of = |phases: &[PhaseBytes]| {
            let entry = phases.iter().find(|entry| entry.phase == phase);
            entry.map_or(0, |entry| entry.peak_bytes.0)
        };
        let integrated = plan.devices.iter().filter(|device| device.integrated);
        let shared = integrated.map(|device| of(&device.phases)).fold(0u64, u64::saturating_add);
        let together = shared.saturating_add(of(&plan.host.phases));
        ensure!(
            shared == 0 || together <= pool.0,
            "{phase}: the host and integrated devices take {together} B of one memory, which has {} B for them",
            pool.0
        );
    }
    Ok(())
}
