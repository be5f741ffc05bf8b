//! One memory for several: integrated devices and the host, against what there is for them
//! together.
//!
//! Not here: each device's own budget, and the sums of its phases, which are compared on their own.

use super::{Violation, Violations};
use crate::limits::DEVICES_MAX;
use crate::plan::{PhaseBytes, Plan};

/// The host and the integrated devices that are used take no more together than their one memory
/// has for them.
pub(super) fn check_pool(plan: &Plan, found: &mut Violations) {
    let pool = plan.host.pool_bytes.0;
    for &phase in plan.job.timeline() {
        let of = |phases: &[PhaseBytes]| {
            let entry = phases.iter().find(|entry| entry.phase == phase);
            entry.map_or(0, |entry| entry.peak_bytes.0)
        };
        let devices = plan.devices.iter().take(DEVICES_MAX);
        let integrated = devices.filter(|device| device.integrated);
        let shared = integrated.map(|device| of(&device.phases)).fold(0u64, u64::saturating_add);
        let together = shared.saturating_add(of(&plan.host.phases));
        let fits = shared == 0 || together <= pool;
        found.ensure(fits, || Violation::Pool { phase, together, pool });
    }
}
