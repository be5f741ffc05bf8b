//! Plans as documents and messages, and the checker on whatever numbers may stand in one.

use ipc_channel::ipc;
use proptest::prelude::*;

use super::good::{picture, text};
use super::items::replicas;
use super::own_sets::own_sets;
use super::pipelines::pipeline;
use super::*;
use crate::message::Command;

/// The plan of `text`, with the DiT's heads in place of its rows on both devices.
fn heads() -> Plan {
    let mut plan = text();
    plan.components[2].division = Division::Tensor { shares: vec![2, 1] };
    plan
}

#[test]
fn shares_of_heads_stand_where_there_are_some() {
    assert_eq!(check(&heads()), Ok(()));
    let value = serde_json::to_value(heads()).unwrap();
    assert_eq!(value["components"][2]["placement"], "tensor");
    assert_eq!(value["components"][2]["tensor_shares"], serde_json::json!([2, 1]));
    assert_eq!(value["components"][2]["row_shares"], serde_json::json!([]));
    assert!(value["components"][0].get("tensor_shares").is_none(), "others have none");
    for shares in [vec![], vec![1], vec![1, 0], vec![1, 1, 1]] {
        let mut plan = heads();
        plan.components[2].division = Division::Tensor { shares };
        assert!(check(&plan).is_err());
    }
}

#[test]
fn a_plan_survives_json() {
    for plan in [text(), picture(), heads()] {
        let document = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&document).unwrap(), plan);
    }
}

#[test]
fn other_programs_find_the_names_that_they_read() {
    let value = serde_json::to_value(text()).unwrap();
    let placements: Vec<&serde_json::Value> =
        (0..4).map(|index| &value["components"][index]["placement"]).collect();
    assert_eq!(placements, ["one", "layer", "row", "host"]);
    assert_eq!(value["components"][3]["residency"], "mapped");
    assert_eq!(value["components"][3]["devices"][0], "host");
    assert_eq!(value["components"][2]["segments"][1]["residency"], "streamed");
    assert_eq!(value["components"][2]["parts"][1]["slot_bytes"], 2048);
    assert_eq!(value["options"]["vae_tile"]["overlap"], 0.25);
    assert_eq!(value["mapping_policy"], "sequential");
    assert_eq!(value["devices"][0]["backend"]["virtual"]["fail_copy"], 1);
    assert_eq!(value["devices"][0]["phases"][1]["phase"], "denoise");
    assert_eq!(value["devices"][0]["phases"][1]["peak_bytes"], 29_996);
    let value = serde_json::to_value(picture()).unwrap();
    assert_eq!(value["devices"][0]["phases"][0]["phase"], "encode");
    assert_eq!(value["components"][2]["residency"], "resident");
    assert_eq!(value["components"][0]["residency"], "lazy");
}

#[test]
fn a_plan_survives_the_wire() {
    let (sender, receiver) = ipc::channel().unwrap();
    let plans = [text(), picture(), replicas(), heads(), pipeline(), own_sets()];
    for (sent, rehearse) in plans.into_iter().zip([false, true, true, false, true, false]) {
        sender.send(Command::Load { plan: Box::new(sent.clone()), rehearse }).unwrap();
        match receiver.recv().unwrap() {
            Command::Load { plan, rehearse: got } => assert_eq!((*plan, got), (sent, rehearse)),
            other => panic!("{other:?}"),
        }
    }
}

type Edit = fn(&mut serde_json::Value);

/// What a document says of its components' placement in several places, against each other.
const CONTRADICTIONS: [(Edit, &str); 13] = [
    (|c| c[0]["row_shares"] = [1].into(), "clip has shares of rows without a row split"),
    (|c| c[1]["row_shares"] = [1, 1, 1].into(), "t5 has shares of rows without a row split"),
    (|c| c[0]["tensor_shares"] = [1].into(), "clip has shares of heads without a tensor split"),
    (|c| c[2]["placement"] = "tensor".into(), "dit has shares of rows without a row split"),
    (|c| c[2]["placement"] = "layer".into(), "dit has shares of rows without a row split"),
    (|c| c[0]["placement"] = "host".into(), "clip: placement host cannot be on virtual0"),
    (|c| c[3]["placement"] = "one".into(), "vae: placement one cannot be on host"),
    (|c| c[0]["devices"][0] = "host".into(), "clip: placement one cannot be on host"),
    (
        |c| c[0]["devices"] = Vec::<String>::new().into(),
        "clip: placement one cannot be on no device",
    ),
    (
        |c| c[1]["placement"] = "one".into(),
        "t5: placement one cannot be on virtual0, virtual1, host",
    ),
    (
        |c| c[0]["segments"][1]["device"] = "virtual1".into(),
        "clip: segment layers.0 is on virtual1, and placement one is on virtual0",
    ),
    (
        |c| c[1]["segments"][1]["device"] = "cuda0".into(),
        "t5: segment block.1 is on cuda0, and placement layer is on virtual0, virtual1, host",
    ),
    // All that is not split is on the first of a row split's devices.
    (
        |c| c[2]["segments"][5]["device"] = "virtual1".into(),
        "dit: segment out is on virtual1, and placement row is on virtual0, virtual1",
    ),
];

#[test]
fn a_document_that_contradicts_itself_is_not_read() {
    for (index, (change, says)) in CONTRADICTIONS.iter().enumerate() {
        let mut value = serde_json::to_value(text()).unwrap();
        change(&mut value["components"]);
        let error = serde_json::from_value::<Plan>(value).unwrap_err().to_string();
        assert!(error.contains(says), "change {index}: {error:?} does not say {says:?}");
    }
}

#[test]
fn a_segment_without_a_device_is_not_written() {
    let mut plan = text();
    plan.components[1].division = Division::Layer { segments: vec![0, 3, 2] };
    let error = serde_json::to_string(&plan).unwrap_err().to_string();
    assert!(error.contains("t5: segment 1 has no device"), "{error}");
}

/// Paths of all numbers of a document, and of all its lists.
fn places(
    value: &serde_json::Value,
    path: &str,
    numbers: &mut Vec<String>,
    lists: &mut Vec<String>,
) {
    match value {
        serde_json::Value::Number(_) => numbers.push(path.to_owned()),
        serde_json::Value::Array(entries) => {
            lists.push(path.to_owned());
            for (index, entry) in entries.iter().enumerate() {
                places(entry, &format!("{path}/{index}"), numbers, lists);
            }
        }
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                places(field, &format!("{path}/{name}"), numbers, lists);
            }
        }
        _ => {}
    }
}

fn plan(from_picture: bool) -> Plan {
    if from_picture { picture() } else { text() }
}

fn document(from_picture: bool) -> (serde_json::Value, Vec<String>, Vec<String>) {
    let value = serde_json::to_value(plan(from_picture)).unwrap();
    let (mut numbers, mut lists) = (Vec::new(), Vec::new());
    places(&value, "", &mut numbers, &mut lists);
    (value, numbers, lists)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(1 << 63),
        Just(u64::MAX - ALIGNMENT_BYTES + 1),
        Just(u64::MAX),
        0..200_000u64,
        any::<u64>(),
    ]
}

/// Ways to damage a list.
const DAMAGES: [fn(&mut Vec<serde_json::Value>); 4] = [
    |list| list.clear(),
    |list| drop(list.pop()),
    |list| list.reverse(),
    |list| list.extend(list.first().cloned()),
];

/// Whether a plan with the number at this path made larger must be refused: of what sums depend on,
/// all but what an unused device would take.
fn counts(path: &str, from_picture: bool) -> bool {
    let unused =
        !from_picture && ["/devices/2/overhead_bytes", "/devices/2/pinned_bytes"].contains(&path);
    let names = [
        "weights_bytes",
        "resident_bytes",
        "lazy_bytes",
        "slot_bytes",
        "slots",
        "compute_bytes",
        "staging_bytes",
        "overhead_bytes",
        "pinned_bytes",
        "changed_bytes",
        "mapped_bytes",
        "job_bytes",
        "peak_bytes",
    ];
    let named = path.rsplit('/').next().is_some_and(|name| names.contains(&name));
    (named || path.contains("/part_bytes/")) && !unused
}

proptest! {
    /// Whatever stands in a plan, the checker answers, and always the same.
    #[test]
    fn nothing_makes_it_panic(
        from_picture: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 0..6),
        damages in prop::collection::vec((any::<prop::sample::Index>(), 0..DAMAGES.len()), 0..3),
    ) {
        let (mut value, numbers, lists) = document(from_picture);
        for (index, number) in changes {
            *value.pointer_mut(&numbers[index.index(numbers.len())]).unwrap() = number.into();
        }
        for (index, damage) in damages {
            // An earlier damage may have taken it away.
            if let Some(list) = value.pointer_mut(&lists[index.index(lists.len())]).and_then(|v| v.as_array_mut()) {
                DAMAGES[damage](list);
            }
        }
        // Fields of 32 bits take no more.
        if let Ok(plan) = serde_json::from_value::<Plan>(value) {
            prop_assert_eq!(check(&plan), check(&plan));
        }
    }

    /// No number that a sum depends on can change alone.
    #[test]
    fn no_byte_of_a_sum_changes_alone(from_picture: bool, more in 16 * KIB..1 << 40) {
        let (value, numbers, _) = document(from_picture);
        let counted = || numbers.iter().filter(|path| counts(path, from_picture));
        prop_assert!(counted().count() > 100);
        for path in counted() {
            let mut changed = value.clone();
            let number = changed.pointer_mut(path).unwrap();
            *number = (number.as_u64().unwrap() + more).into();
            // Slots are of 32 bits.
            if let Ok(plan) = serde_json::from_value::<Plan>(changed) {
                prop_assert!(check(&plan).is_err(), "{path} by {more}");
            }
        }
    }
}
