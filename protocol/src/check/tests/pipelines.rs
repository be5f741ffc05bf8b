//! Components through whose devices groups of items follow one another.

use super::good::{part, segment, text};
use super::*;

const DIT: usize = 2;

/// The plan of `text`, with the DiT as a pipeline over both devices: of the four items of each
/// step, two pictures in two passes, three go first.
pub fn pipeline() -> Plan {
    let mut plan = text();
    let dit = &mut plan.components[DIT];
    dit.division = Division::Pipeline { segments: vec![0, 1, 1], counts: vec![3, 1] };
    dit.residency = Residency::Lazy;
    dit.lookahead = 0;
    dit.segments = vec![
        segment("embed", Residency::Lazy, &[2048, 0]),
        segment("double.0", Residency::Lazy, &[0, 4096]),
        segment("double.1", Residency::Lazy, &[0, 4096]),
    ];
    dit.parts =
        vec![part("virtual0", [0, 2048, 0, 0, 4096]), part("virtual1", [0, 8192, 0, 0, 1024])];
    dit.weights_bytes = Bytes(2048 + 4096 + 4096);
    dit.tensor_bytes = dit.weights_bytes;
    plan
}

fn divided(plan: &mut Plan, segments: &[u32], counts: &[u32]) {
    plan.components[DIT].division =
        Division::Pipeline { segments: segments.to_vec(), counts: counts.to_vec() };
}

/// What the checker says of the DiT alone: sums over all components are others' tests.
fn said(plan: &Plan) -> Vec<String> {
    let found = check(plan).err();
    let all = found.iter().flat_map(|found| found.iter()).map(Violation::to_string);
    all.filter(|said| said.starts_with("dit")).collect()
}

const CHANGES: [Change; 11] = [
    (|p| divided(p, &[0, 1, 1], &[4]), "dit has 1 groups of items that follow one another"),
    (|p| divided(p, &[0, 1, 1], &[4, 0]), "dit has a device or a group without items"),
    (|p| divided(p, &[0, 1, 1], &[2, 1]), "dit deals out 3 items, each step has 4"),
    (|p| p.job.batch = 3, "dit deals out 4 items, each step has 6"),
    (|p| divided(p, &[0, 1], &[2, 2]), "dit: 2 segments have a device of 3"),
    (|p| divided(p, &[1, 0, 0], &[2, 2]), "dit: its segments are elsewhere"),
    (|p| divided(p, &[0, 1, 0], &[2, 2]), "dit: its segments are elsewhere"),
    (
        |p| p.components[DIT].phase = Phase::Decode,
        "dit is split by items in the decode phase, which has none",
    ),
    (|p| p.components[DIT].devices[1] = DeviceId::host(), "dit with placement pipeline is on host"),
    (
        |p| {
            p.components[DIT].residency = Residency::Streamed;
            p.components[DIT].segments[1].residencies.fill(Residency::Streamed);
        },
        "dit is streamed: groups that follow one another would need all weights once for each",
    ),
    (|p| p.components[DIT].residency = Residency::Mapped, "dit is mapped, and not on the host"),
];

#[test]
fn pipelines_pass_in_any_number_of_groups() {
    let mut plan = pipeline();
    for counts in [&[3, 1][..], &[2, 2], &[1, 1, 1, 1], &[1, 2, 1]] {
        divided(&mut plan, &[0, 1, 1], counts);
        assert_eq!(said(&plan), [""; 0], "{counts:?}");
    }
}

#[test]
fn pipelines_that_are_none_are_refused() {
    for (index, (change, says)) in CHANGES.iter().enumerate() {
        let mut plan = pipeline();
        change(&mut plan);
        let said = said(&plan);
        let is_said = said.iter().any(|said| said.contains(says));
        assert!(is_said, "change {index}: none says {says:?} of {said:?}");
    }
}

#[test]
fn pipelines_survive_documents_and_name_their_groups() {
    let plan = pipeline();
    let value = serde_json::to_value(&plan).unwrap();
    let dit = &value["components"][DIT];
    assert_eq!(dit["placement"], "pipeline");
    assert_eq!(dit["item_counts"], serde_json::json!([3, 1]));
    assert_eq!(dit["segments"][1]["device"], "virtual1");
    assert_eq!(serde_json::from_value::<Plan>(value).unwrap(), plan);
}

#[test]
fn weights_stay_when_a_job_has_other_groups_or_none() {
    let loaded = pipeline();
    let mut plan = Plan {
        generation: loaded.generation + 1,
        keeps_weights_of: Some(loaded.generation),
        ..loaded.clone()
    };
    plan.job.batch = 3;
    divided(&mut plan, &[0, 1, 1], &[3, 3]);
    assert_eq!(check_keeps(&plan, &loaded), Ok(()));
    plan.components[DIT].division = Division::Layer { segments: vec![0, 1, 1] };
    assert_eq!(check_keeps(&plan, &loaded), Ok(()));
    divided(&mut plan, &[0, 0, 1], &[3, 3]);
    let found = check_keeps(&plan, &loaded).unwrap_err();
    assert!(is_said(&found, "dit keeps its weights, and is placed anew"), "{found}");
}
