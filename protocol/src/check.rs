//! The plan checker: what must hold of any plan, whoever made it.
//!
//! Runs in the planner before a plan is sent and in the executor when it arrives. Shares no code
//! with the solver. It recomputes every sum from the plan's own parts; whether the parts are true
//! of the model is for the executor, which compares them with its own schedule.
//!
//! The answer is every rule that is broken, in the order of the plan's document. What a broken rule
//! leaves without a meaning is not looked at: a plan of another schema, the segments of a component
//! that has too many.

#[macro_use]
mod violation;

mod calibration;
mod component;
mod device;
mod job;
mod keeps;
mod layout;
mod options;
mod part;
mod phases;
mod pool;
mod rule;
mod segment;

use crate::limits::{STRING_BYTES_MAX, THREADS_MAX};
use crate::plan::{Plan, SCHEMA};
use component::check_components;
use device::check_devices;
use options::check_lora;
use part::check_mapped;
use phases::check_phases;
use pool::check_pool;

pub use calibration::check_calibration;
pub use device::DeviceRule;
pub use job::{JobRule, check_job};
pub use keeps::{KeptRule, check_keeps};
pub use layout::{LayoutRule, check_layouts};
pub use options::{OptionsRule, check_measured, check_options};
pub use phases::MemoryRule;
pub use rule::ComponentRule;
pub use violation::{ListRule, SHOWN_MAX, VIOLATIONS_MAX, Violation, Violations};

rules! {
    /// What holds of a plan as a whole and of its host.
    pub enum PlanRule {
        Schema { schema: u32 } = "schema {schema} where {SCHEMA} is understood",
        Generation = "generation 0",
        KeepsLater { generation: u64 } =
            "it keeps the weights of generation {generation}, a later one",
        Name { length: usize } = "a name of {length} bytes",
        Threads { threads: u32 } = "host: {threads} threads are not within 1 to {THREADS_MAX}",
        Mapped { stated: u64, held: u64 } =
            "{stated} B are mapped, the components have {held} B to map",
    }
}

/// Checks a plan. The answer is all that is broken, the first [`VIOLATIONS_MAX`] of it.
///
/// # Errors
/// The rules that the plan breaks.
pub fn check(plan: &Plan) -> Result<(), Violations> {
    let mut found = Violations::default();
    found.ensure(plan.schema == SCHEMA, || PlanRule::Schema { schema: plan.schema });
    if !found.is_empty() {
        return found.result();
    }
    found.ensure(plan.generation > 0, || PlanRule::Generation);
    let generation = plan.keeps_weights_of.unwrap_or(0);
    found.ensure(generation < plan.generation.max(1), || PlanRule::KeepsLater { generation });
    for text in [&plan.model.to_string(), &plan.family] {
        let length = text.len();
        found.ensure(length <= STRING_BYTES_MAX, || PlanRule::Name { length });
    }
    job::find(&plan.job, &mut found);
    check_host(plan, &mut found);
    check_devices(plan, &mut found);
    check_components(plan, &mut found);
    options::find(&plan.options, &mut found);
    check_lora(plan, &mut found);
    check_mapped(plan, &mut found);
    check_phases(plan, &mut found);
    check_pool(plan, &mut found);
    found.result()
}

fn check_host(plan: &Plan, found: &mut Violations) {
    let threads = plan.host.threads;
    found.ensure((1..=THREADS_MAX).contains(&threads), || PlanRule::Threads { threads });
    found.ensure_memory("host", &[plan.host.budget_bytes, plan.host.pool_bytes]);
}

/// Equal neighbours taken as one.
fn runs<T: PartialEq>(entries: impl Iterator<Item = T>) -> Vec<T> {
    let mut runs: Vec<T> = entries.collect();
    runs.dedup();
    runs
}

#[cfg(test)]
mod tests;
