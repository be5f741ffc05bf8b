//! Splits of which each device streams segments of its own, through as many slots as it has.

use super::good::text;
use super::*;

// Components and segments of `text`.
const T5: usize = 1;
const DIT: usize = 2;
const STREAMED: usize = 3;
const OUT: usize = 5;

/// The plan of `text`, where the second device holds a segment that the first one streams, and the
/// first one has a slot less. Sums are written by hand.
pub fn own_sets() -> Plan {
    let mut plan = text();
    let dit = &mut plan.components[DIT];
    dit.segments[STREAMED].residencies[1] = Residency::Lazy;
    dit.parts[0].slots = 3;
    dit.parts[1].lazy_bytes = Bytes(2048 + 1536);
    dit.parts[1].slots = 2;
    let first = &mut plan.devices[0];
    first.phases[1].staging_bytes = Bytes(3 * 4096);
    first.phases[1].peak_bytes = Bytes(9216 + 4096 + 12_288 + 300);
    first.peak_bytes = first.phases[1].peak_bytes;
    let second = &mut plan.devices[1];
    second.phases[0].weights_bytes = Bytes(2048 + 2048 + 1536);
    second.phases[0].peak_bytes = Bytes(5632 + 768 + 200);
    second.phases[1].weights_bytes = Bytes(2048 + 1536);
    second.phases[1].staging_bytes = Bytes(2 * 2048);
    second.phases[1].peak_bytes = Bytes(3584 + 1024 + 4096 + 200);
    second.peak_bytes = second.phases[1].peak_bytes;
    plan
}

const CHANGES: [Change; 6] = [
    (
        |p| p.components[DIT].segments[STREAMED].residencies.truncate(1),
        "dit: segment single.0 has other residencies than its devices",
    ),
    (
        |p| p.components[DIT].segments[STREAMED].residencies.push(Residency::Lazy),
        "dit: segment single.0 has other residencies than its devices",
    ),
    (
        |p| p.components[DIT].segments[STREAMED].residencies[1] = Residency::Mapped,
        "dit: segment single.0 has another residency",
    ),
    (
        |p| p.components[DIT].segments[STREAMED].residencies[1] = Residency::Streamed,
        "dit on virtual1: 3584 for lazy, its segments give 2048",
    ),
    // Layers are on one device each.
    (
        |p| p.components[T5].segments[0].residencies[1] = Residency::Resident,
        "t5: segment block.0 has other residencies than its devices",
    ),
    // What has no bytes on a device takes no slot there.
    (|p| p.components[DIT].parts[1].slots = 3, "dit on virtual1: 3 for slots, its segments give 2"),
];

#[test]
fn devices_may_stream_sets_of_their_own() {
    assert_eq!(check(&own_sets()), Ok(()));
    refuses(own_sets, &CHANGES);
}

#[test]
fn a_document_names_residencies_that_differ() {
    let value = serde_json::to_value(own_sets()).unwrap();
    let segments = &value["components"][DIT]["segments"];
    assert_eq!(segments[STREAMED]["residency"], "streamed");
    let both = serde_json::json!(["streamed", "lazy"]);
    assert_eq!(segments[STREAMED]["device_residencies"], both);
    assert!(segments[OUT].get("device_residencies").is_none(), "alike on both");
    assert_eq!(serde_json::from_value::<Plan>(value.clone()).unwrap(), own_sets());
    let mut value = value;
    value["components"][DIT]["segments"][STREAMED]["residency"] = "lazy".into();
    let error = serde_json::from_value::<Plan>(value).unwrap_err().to_string();
    let says = "dit: segment single.0 is lazy, and its devices have it otherwise";
    assert!(error.contains(says), "{error}");
}

#[test]
fn only_what_a_device_streams_is_page_locked_for_it() {
    let mut plan = own_sets();
    let dit = &mut plan.components[DIT];
    assert_eq!(dit.locked_bytes(), Bytes::ZERO);
    dit.segments[STREAMED].residencies[0] = Residency::Locked;
    dit.segments[1].residencies.fill(Residency::Locked);
    assert_eq!(dit.locked_bytes(), Bytes(3072 + 4096 + 2048));
}
