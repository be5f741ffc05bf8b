//! A plan that keeps the weights of the loaded one, held against that one.
//!
//! All that is held must stay where it lies, to the byte. What is made for each job may differ:
//! its size, tiles, arenas, slots, and what is prefetched.

use super::Violation;
use crate::plan::{ComponentPlan, DevicePlan, GraphOptions, PartPlan, Plan, SegmentPlan};

/// Checks that `plan` may follow `loaded` without a load. A plan that keeps nothing may follow any.
pub fn check_keeps(plan: &Plan, loaded: &Plan) -> Result<(), Violation> {
    let Some(generation) = plan.keeps_weights_of else { return Ok(()) };
    ensure!(
        generation == loaded.generation,
        "it keeps the weights of generation {generation}, and {} is loaded",
        loaded.generation
    );
    ensure!(plan.model == loaded.model, "it keeps the weights of another model");
    ensure!(plan.family == loaded.family, "it keeps the weights of another family");
    ensure!(
        of_weights(&plan.options) == of_weights(&loaded.options),
        "it keeps weights that were loaded with other options"
    );
    ensure!(
        plan.mapping_policy == loaded.mapping_policy
            && plan.host.threads == loaded.host.threads
            && plan.host.changed_bytes == loaded.host.changed_bytes,
        "it keeps weights, and the host of another plan"
    );
    check_devices(plan, loaded)?;
    // One that only one of them has, as a VAE's encoder, is freed or loaded.
    for component in &plan.components {
        if let Some(before) = loaded.components.iter().find(|before| before.name == component.name)
        {
            check_component(component, before)?;
        }
    }
    Ok(())
}

/// What of a plan's options weights depend on.
fn of_weights(options: &GraphOptions) -> GraphOptions {
    let GraphOptions { attention_chunk, preview_every, .. } = GraphOptions::default();
    GraphOptions { vae_tile: None, attention_chunk, preview_every, ..options.clone() }
}

/// Devices that hold weights, or only a context, stay open as they are.
fn check_devices(plan: &Plan, loaded: &Plan) -> Result<(), Violation> {
    let open = |plan: &Plan| {
        let used = plan.devices.iter().filter(|device| plan.uses(&device.id)).map(|device| {
            let DevicePlan { id, backend, overhead_bytes, pinned_bytes, .. } = device.clone();
            (id, backend, overhead_bytes, pinned_bytes)
        });
        used.collect::<Vec<_>>()
    };
    ensure!(open(plan) == open(loaded), "it keeps weights on devices that are not open so");
    Ok(())
}

fn check_component(component: &ComponentPlan, before: &ComponentPlan) -> Result<(), Violation> {
    let name = &component.name;
    let placed = |c: &ComponentPlan| (c.placement, c.devices.clone(), c.row_shares.clone());
    ensure!(placed(component) == placed(before), "{name} keeps its weights, and is placed anew");
    let held = |segment: &SegmentPlan| {
        let SegmentPlan { name, device, residency, part_bytes, .. } = segment.clone();
        (name, device, residency, part_bytes)
    };
    ensure!(
        component.segments.iter().map(held).eq(before.segments.iter().map(held)),
        "{name} keeps its weights, and holds other ones"
    );
    let resident = |part: &PartPlan| (part.device.clone(), part.resident_bytes);
    ensure!(
        component.parts.iter().map(resident).eq(before.parts.iter().map(resident)),
        "{name} keeps its weights, and has them elsewhere"
    );
    Ok(())
}
