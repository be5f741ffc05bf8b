//! Plans that keep the weights of a loaded one, and every single change of them that must be
//! refused.

use super::good::{picture, text};
use super::*;

/// A good plan, and the next one, which keeps its weights.
fn pair(loaded: fn() -> Plan) -> (Plan, Plan) {
    let loaded = loaded();
    let plan = Plan {
        generation: loaded.generation + 1,
        keeps_weights_of: Some(loaded.generation),
        ..loaded.clone()
    };
    (plan, loaded)
}

const DIT: usize = 2;

const CHANGES: [Change; 17] = [
    (|p| p.keeps_weights_of = Some(2), "it keeps the weights of generation 2, and 3 is loaded"),
    (|p| p.model.model = Some("/models/other".to_owned()), "the weights of another model"),
    (|p| p.family = "other".to_owned(), "the weights of another family"),
    (|p| p.options.loras[0].weight = 0.5, "loaded with other options"),
    (|p| p.options.lora_runtime.clear(), "loaded with other options"),
    (|p| p.options.exact_matmul = false, "loaded with other options"),
    (|p| p.mapping_policy = MappingPolicy::Drop, "the host of another plan"),
    (|p| p.host.threads = 3, "the host of another plan"),
    (|p| grow(&mut p.host.changed_bytes), "the host of another plan"),
    (|p| grow(&mut p.devices[0].overhead_bytes), "on devices that are not open so"),
    (|p| p.devices[1].id = device("virtual7"), "on devices that are not open so"),
    (|p| p.components[DIT].division = Division::One, "dit keeps its weights, and is placed anew"),
    (
        |p| p.components[DIT].division = Division::Row { shares: vec![1, 2] },
        "dit keeps its weights, and is placed anew",
    ),
    (|p| p.components[1].devices.swap(0, 1), "t5 keeps its weights, and is placed anew"),
    (
        |p| p.components[DIT].segments[2].residencies.fill(Residency::Streamed),
        "dit keeps its weights, and holds other ones",
    ),
    (
        |p| grow(&mut p.components[DIT].segments[1].part_bytes[0]),
        "dit keeps its weights, and holds other ones",
    ),
    (
        |p| grow(&mut p.components[0].parts[0].resident_bytes),
        "clip keeps its weights, and has them elsewhere",
    ),
];

#[test]
fn what_is_made_for_each_job_may_differ() {
    let (mut plan, loaded) = pair(text);
    assert_eq!((check(&plan), check_keeps(&plan, &loaded)), (Ok(()), Ok(())));
    plan.job.width = 1024;
    plan.job.batch = 1;
    plan.options.vae_tile = None;
    plan.options.attention_chunk = 64;
    plan.components[DIT].lookahead = 1;
    plan.components[DIT].prefetch = false;
    grow(&mut plan.components[DIT].parts[0].compute_bytes);
    grow(&mut plan.devices[0].budget_bytes);
    assert_eq!(check_keeps(&plan, &loaded), Ok(()));
    // One of them may have a component that the other one lacks.
    let mut encoder = picture().components.remove(0);
    encoder.devices[0] = device("virtual0");
    encoder.parts[0].device = device("virtual0");
    plan.components.insert(0, encoder);
    plan.components.remove(1);
    assert_eq!(check_keeps(&plan, &loaded), Ok(()));
}

#[test]
fn what_is_held_must_stay() {
    for (index, (change, says)) in CHANGES.iter().enumerate() {
        let (mut plan, loaded) = pair(text);
        change(&mut plan);
        let Err(found) = check_keeps(&plan, &loaded) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(is_said(&found, says), "change {index}: none says {says:?} of {found}");
    }
}

#[test]
fn a_plan_that_keeps_nothing_may_follow_any() {
    let (mut plan, _) = pair(text);
    plan.keeps_weights_of = None;
    assert_eq!(check_keeps(&plan, &picture()), Ok(()));
}
