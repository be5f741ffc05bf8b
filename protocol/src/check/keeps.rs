//! A plan that keeps the weights of the loaded one, held against that one.
//!
//! All that is held must stay where it lies, to the byte. What is made for each job may differ:
//! its size, tiles, arenas, slots, and what is prefetched.

use super::Violations;
use crate::plan::{
    ComponentPlan, DeviceBackend, DeviceId, DevicePlan, GraphOptions, PartPlan, Plan, SegmentPlan,
};
use crate::units::Bytes;

rules! {
    /// What holds of a plan that keeps the weights of a loaded one.
    pub enum KeptRule {
        Generation { generation: u64, loaded: u64 } =
            "it keeps the weights of generation {generation}, and {loaded} is loaded",
        Model = "it keeps the weights of another model",
        Family = "it keeps the weights of another family",
        Options = "it keeps weights that were loaded with other options",
        Host = "it keeps weights, and the host of another plan",
        Devices = "it keeps weights on devices that are not open so",
        Placed { component: String } = "{component} keeps its weights, and is placed anew",
        Held { component: String } = "{component} keeps its weights, and holds other ones",
        Parts { component: String } = "{component} keeps its weights, and has them elsewhere",
    }
}

/// Checks that `plan` may follow `loaded` without a load. A plan that keeps nothing may follow any.
///
/// # Errors
/// The rules that it breaks.
pub fn check_keeps(plan: &Plan, loaded: &Plan) -> Result<(), Violations> {
    let mut found = Violations::default();
    let Some(generation) = plan.keeps_weights_of else { return Ok(()) };
    let is_loaded = generation == loaded.generation;
    found.ensure(is_loaded, || KeptRule::Generation { generation, loaded: loaded.generation });
    found.ensure(plan.model == loaded.model, || KeptRule::Model);
    found.ensure(plan.family == loaded.family, || KeptRule::Family);
    let same_options = of_weights(plan, loaded) == of_weights(loaded, plan);
    found.ensure(same_options, || KeptRule::Options);
    let same_host = plan.mapping_policy == loaded.mapping_policy
        && plan.host.threads == loaded.host.threads
        && plan.host.changed_bytes == loaded.host.changed_bytes;
    found.ensure(same_host, || KeptRule::Host);
    found.ensure(open_devices(plan) == open_devices(loaded), || KeptRule::Devices);
    // One that only one of them has, as a VAE's encoder, is freed or loaded.
    for component in &plan.components {
        if let Some(before) = loaded.components.iter().find(|before| before.name == component.name)
        {
            check_component(component, before, &mut found);
        }
    }
    found.result()
}

/// What of a plan's options weights depend on that another plan has too.
fn of_weights(plan: &Plan, other: &Plan) -> GraphOptions {
    let GraphOptions { attention_chunk, preview_every, .. } = GraphOptions::default();
    let has = |plan: &Plan, name: &String| plan.components.iter().any(|c| c.name == *name);
    let options = &plan.options;
    let in_both = |name: &&String| has(plan, name) && has(other, name);
    let lora_runtime = options.lora_runtime.iter().filter(in_both).cloned().collect();
    GraphOptions { vae_tile: None, attention_chunk, preview_every, lora_runtime, ..options.clone() }
}

/// What must stay of the devices that hold weights, or only a context: they stay open as they are.
fn open_devices(plan: &Plan) -> Vec<(DeviceId, DeviceBackend, Bytes, Bytes)> {
    let used = plan.devices.iter().filter(|device| plan.uses(&device.id)).map(|device| {
        let DevicePlan { id, backend, overhead_bytes, pinned_bytes, .. } = device.clone();
        (id, backend, overhead_bytes, pinned_bytes)
    });
    used.collect()
}

fn check_component(component: &ComponentPlan, before: &ComponentPlan, found: &mut Violations) {
    let name = || component.name.clone();
    let placed =
        component.devices == before.devices && component.division.holds_as(&before.division);
    found.ensure(placed, || KeptRule::Placed { component: name() });
    let held = |segment: &SegmentPlan| {
        let SegmentPlan { name, residencies, part_bytes, .. } = segment.clone();
        (name, residencies, part_bytes)
    };
    let same = component.segments.iter().map(held).eq(before.segments.iter().map(held));
    found.ensure(same, || KeptRule::Held { component: name() });
    let resident = |part: &PartPlan| (part.device.clone(), part.resident_bytes);
    let same = component.parts.iter().map(resident).eq(before.parts.iter().map(resident));
    found.ensure(same, || KeptRule::Parts { component: name() });
}
