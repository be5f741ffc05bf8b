//! What tests have in common of components whose items are dealt out, to devices or to groups.

use std::path::Path;
use std::sync::Arc;

use crate::support::plans::{self, Choice, Hardware};
use executor::models::Model;
use protocol::{GraphOptions, JobShape, Plan};

/// A small job of one picture.
pub const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// Devices that can do all but some operations; a bit for each that computes by itself.
pub fn hardware(devices: usize, apart: u32, unsupported: &[&str]) -> Hardware {
    let unsupported = unsupported.iter().map(|&name| name.to_owned()).collect();
    Hardware { devices, apart, link_bytes_per_s: 1e10, unsupported, ..Hardware::none() }
}

/// A plan with the DiT in such a place, and everything else on the host.
pub fn plan(
    dir: &Path,
    model: &dyn Model,
    job: &JobShape,
    dit: impl Fn(usize) -> Choice,
    hardware: &Hardware,
) -> Plan {
    let choices = plans::with_dit(model, job, dit);
    plans::plan(dir, model, job, &GraphOptions::default(), hardware, &choices)
}

/// Runs a plan, which must give these pictures in its bytes, without races.
#[track_caller]
pub fn assert_gives(plan: &Plan, model: &Arc<dyn Model>, expected: &[u8]) {
    let (result, races) = plans::run_traced(plan, model, None).expect("a run");
    let division = &plan.components.iter().find(|c| c.name == "dit").expect("a DiT").division;
    assert!(result.pixels == expected, "{division:?}: other pictures");
    assert!(races.is_empty(), "{division:?}: {}", races[0]);
    for device in &result.usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{division:?}: {} in {}", device.id, phase.phase);
        }
    }
}
