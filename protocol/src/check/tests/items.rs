//! Components whose items several devices share.

use super::good::{part, segment, text};
use super::*;

const DIT: usize = 2;

/// The plan of `text`, with the DiT as replicas on both devices: of the four items of each step,
/// two pictures in two passes, three on the first.
pub fn replicas() -> Plan {
    let mut plan = text();
    let dit = &mut plan.components[DIT];
    dit.division = Division::Items { counts: vec![3, 1] };
    dit.segments = vec![
        segment("embed", Residency::Resident, &[2048, 2048]),
        segment("double.0", Residency::Streamed, &[4096, 4096]),
        segment("double.1", Residency::Lazy, &[4096, 4096]),
    ];
    dit.parts = vec![
        part("virtual0", [2048, 4096, 4096, 1, 4096]),
        part("virtual1", [2048, 4096, 4096, 1, 1024]),
    ];
    dit.weights_bytes = Bytes(2 * (2048 + 4096 + 4096));
    dit.tensor_bytes = Bytes(2048 + 4096 + 4096);
    plan
}

fn counts(plan: &mut Plan, counts: &[u32]) {
    plan.components[DIT].division = Division::Items { counts: counts.to_vec() };
}

/// What the checker says of the DiT alone: sums over all components are others' tests.
fn said(plan: &Plan) -> Vec<String> {
    let found = check(plan).err();
    let all = found.iter().flat_map(|found| found.iter()).map(Violation::to_string);
    all.filter(|said| said.starts_with("dit")).collect()
}

const CHANGES: [Change; 10] = [
    (|p| counts(p, &[4]), "dit has 1 counts of items for 2 devices"),
    (|p| counts(p, &[2, 1, 1]), "dit has 3 counts of items for 2 devices"),
    (|p| counts(p, &[4, 0]), "dit has a device or a group without items"),
    (|p| counts(p, &[2, 1]), "dit deals out 3 items, each step has 4"),
    (|p| counts(p, &[u32::MAX, u32::MAX]), "dit deals out 8589934590 items, each step has 4"),
    (|p| p.job.true_cfg = false, "dit deals out 4 items, each step has 2"),
    (|p| p.job.batch = 3, "dit deals out 4 items, each step has 6"),
    (
        |p| p.components[DIT].phase = Phase::Decode,
        "dit is split by items in the decode phase, which has none",
    ),
    (
        |p| p.components[DIT].segments[1].part_bytes = vec![Bytes(6144), Bytes(2048)],
        "dit: its devices have different weights of double.0",
    ),
    (|p| p.components[DIT].devices[1] = DeviceId::host(), "dit with placement items is on host"),
];

#[test]
pub fn replicas_pass() {
    assert_eq!(said(&replicas()), [""; 0]);
}

#[test]
fn items_that_are_not_the_jobs_are_refused() {
    for (index, (change, says)) in CHANGES.iter().enumerate() {
        let mut plan = replicas();
        change(&mut plan);
        let said = said(&plan);
        let is_said = said.iter().any(|said| said.contains(says));
        assert!(is_said, "change {index}: none says {says:?} of {said:?}");
    }
}

#[test]
pub fn replicas_survive_documents_and_name_their_items() {
    let plan = replicas();
    let value = serde_json::to_value(&plan).unwrap();
    assert_eq!(value["components"][DIT]["placement"], "items");
    assert_eq!(value["components"][DIT]["item_counts"], serde_json::json!([3, 1]));
    assert!(value["components"][0].get("item_counts").is_none(), "others have none");
    assert_eq!(serde_json::from_value::<Plan>(value.clone()).unwrap(), plan);
    let mut elsewhere = value;
    elsewhere["components"][0]["item_counts"] = serde_json::json!([1]);
    let error = serde_json::from_value::<Plan>(elsewhere).unwrap_err().to_string();
    assert!(
        error.contains("clip has counts of items without an item split or a pipeline"),
        "{error}"
    );
}

#[test]
fn weights_stay_when_a_job_has_other_items() {
    let loaded = replicas();
    let mut plan = Plan {
        generation: loaded.generation + 1,
        keeps_weights_of: Some(loaded.generation),
        ..loaded.clone()
    };
    plan.job.batch = 1;
    counts(&mut plan, &[1, 1]);
    assert_eq!(check_keeps(&plan, &loaded), Ok(()));
    plan.components[DIT].division = Division::Row { shares: vec![3, 1] };
    let found = check_keeps(&plan, &loaded).unwrap_err();
    assert!(is_said(&found, "dit keeps its weights, and is placed anew"), "{found}");
}
