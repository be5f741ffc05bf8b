//! Options and layouts as they are asked, without a plan.

use super::*;
use crate::profile::Lane;

fn lane(backend: BackendKind) -> Lane {
    Lane { backend, unsupported: vec!["attention".to_owned()] }
}

/// A layer split over a device and the host, a row split over two devices, one device, and an item
/// split and a pipeline over devices of two kinds.
fn layouts() -> Vec<Layout> {
    use BackendKind::{Cuda, Host, Virtual};
    let layout = |component: &str, lanes: &[BackendKind], division| Layout {
        component: component.to_owned(),
        lanes: lanes.iter().copied().map(lane).collect(),
        division,
    };
    vec![
        layout("t5", &[Cuda, Virtual, Host], Division::Layer { segments: vec![0, 1, 1, 2] }),
        layout("dit", &[Virtual, Virtual], Division::Row { shares: vec![3, 1] }),
        layout("vae", &[Host], Division::One),
        layout("dit", &[Virtual, Cuda], Division::Items { counts: vec![2, 1] }),
        layout("dit", &[Virtual, Cuda], in_groups(&[0, 1, 1], &[2, 1])),
    ]
}

fn in_groups(segments: &[u32], counts: &[u32]) -> Division {
    Division::Pipeline { segments: segments.to_vec(), counts: counts.to_vec() }
}

/// The division of a layout in layers.
fn in_layers(layout: &mut Layout, segments: &[u32]) {
    layout.division = Division::Layer { segments: segments.to_vec() };
}

fn in_rows(layout: &mut Layout, shares: &[u32]) {
    layout.division = Division::Row { shares: shares.to_vec() };
}

type LayoutChange = (fn(&mut Vec<Layout>), &'static str);

fn in_heads(layout: &mut Layout, shares: &[u32]) {
    layout.division = Division::Tensor { shares: shares.to_vec() };
}

fn in_items(layout: &mut Layout, counts: &[u32]) {
    layout.division = Division::Items { counts: counts.to_vec() };
}

const LAYOUTS: [LayoutChange; 34] = [
    (|l| *l = vec![l[0].clone(); LAYOUTS_MAX + 1], "1025 layouts"),
    (|l| l[0].component = long(), "a name of 16385 bytes"),
    (|l| l[0].lanes.clear(), "t5: 0 lanes"),
    (|l| l[0].lanes.resize(DEVICES_MAX + 2, lane(BackendKind::Cuda)), "t5: 18 lanes"),
    (
        |l| l[0].lanes[1].unsupported = vec![String::new(); UNSUPPORTED_MAX + 1],
        "t5: 65 unsupported",
    ),
    (|l| l[0].lanes[1].unsupported[0] = long(), "t5: an operation's name that is too long"),
    (|l| l[0].lanes[0].backend = BackendKind::Host, "t5: 2 lanes on the host"),
    (|l| in_layers(&mut l[0], &[0; SEGMENTS_MAX + 1]), "t5: 1025 segments"),
    (|l| in_layers(&mut l[0], &[0, 1, 1, 3]), "t5: a segment on an unknown lane"),
    (|l| in_layers(&mut l[0], &[0, 1, 1, u32::MAX]), "t5: a segment on an unknown lane"),
    (|l| in_layers(&mut l[0], &[]), "t5: its segments skip or mix lanes"),
    (|l| in_layers(&mut l[0], &[1, 1, 1, 2]), "t5: its segments skip or mix lanes"),
    (|l| in_layers(&mut l[0], &[0, 1, 1, 0]), "t5: its segments skip or mix lanes"),
    (|l| l[0].division = Division::One, "t5: undivided over 3 lanes"),
    (|l| in_rows(&mut l[1], &[3]), "dit: 1 shares, 2 lanes"),
    (|l| in_rows(&mut l[1], &[]), "dit: 0 shares, 2 lanes"),
    (|l| in_rows(&mut l[2], &[1]), "vae: 1 shares, 1 lanes"),
    (|l| l[1].lanes[1].backend = BackendKind::Host, "dit: a row split with the host"),
    (|l| in_rows(&mut l[1], &[0, 1]), "dit: a share is not within 1 to 1048576"),
    (|l| in_rows(&mut l[1], &[3, ROW_SHARE_MAX + 1]), "dit: a share is not within 1 to 1048576"),
    (|l| in_heads(&mut l[1], &[3]), "dit: 1 shares, 2 lanes"),
    (|l| in_heads(&mut l[2], &[1]), "vae: 1 shares, 1 lanes"),
    (|l| in_heads(&mut l[1], &[0, 1]), "dit: a share is not within 1 to 1048576"),
    (
        |l| {
            in_heads(&mut l[1], &[1, 1]);
            l[1].lanes[1].backend = BackendKind::Host;
        },
        "dit: a tensor split with the host",
    ),
    (|l| in_items(&mut l[3], &[3]), "dit: 1 counts of items, 2 lanes"),
    (|l| in_items(&mut l[2], &[1]), "vae: 1 counts of items, 1 lanes"),
    (|l| in_items(&mut l[3], &[0, 2]), "dit: a count of items is not within 1 to 128"),
    (|l| in_items(&mut l[3], &[129, 2]), "dit: a count of items is not within 1 to 128"),
    (|l| l[3].lanes[0].backend = BackendKind::Host, "dit: an item split with the host"),
    (|l| l[4].division = in_groups(&[0, 1], &[2]), "dit: 1 groups of items that follow"),
    (|l| l[4].division = in_groups(&[0, 1, 0], &[1, 1]), "dit: its segments skip or mix lanes"),
    (|l| l[4].division = in_groups(&[0, 2], &[1, 1]), "dit: a segment on an unknown lane"),
    (|l| l[4].division = in_groups(&[0, 1], &[0, 1]), "dit: a count of items is not within 1 to"),
    (|l| l[4].lanes[0].backend = BackendKind::Host, "dit: a pipeline with the host"),
];

#[test]
fn good_layouts_pass() {
    assert_eq!(check_layouts(&[]), Ok(()));
    assert_eq!(check_layouts(&layouts()), Ok(()));
}

#[test]
fn limits_of_layouts_are_inclusive() {
    let mut largest = layouts();
    largest[0].lanes = vec![lane(BackendKind::Cuda); DEVICES_MAX + 1];
    let most: Vec<u32> = (0..SEGMENTS_MAX as u32).map(|index| index.min(16)).collect();
    in_layers(&mut largest[0], &most);
    in_rows(&mut largest[1], &[ROW_SHARE_MAX, 1]);
    in_items(&mut largest[3], &[STEP_ITEMS_MAX, 1]);
    largest[4].division = in_groups(&[0, 1], &[1; STEP_ITEMS_MAX as usize]);
    largest[1].lanes[0].unsupported = vec!["x".repeat(STRING_BYTES_MAX); UNSUPPORTED_MAX];
    largest.resize(LAYOUTS_MAX, largest[2].clone());
    assert_eq!(check_layouts(&largest), Ok(()));
}

#[test]
fn wrong_layouts_are_refused() {
    for (index, (change, says)) in LAYOUTS.iter().enumerate() {
        let mut layouts = layouts();
        change(&mut layouts);
        let Err(found) = check_layouts(&layouts) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(is_said(&found, says), "change {index}: none says {says:?} of {found}");
    }
}

#[test]
fn options_are_checked_without_a_plan() {
    assert_eq!(check_options(&GraphOptions::default()), Ok(()));
    let wrong = GraphOptions { attention_chunk: 0, ..GraphOptions::default() };
    assert!(check_options(&wrong).is_err());
    // Which components there are is for a plan to say.
    let runtime = vec!["unet".to_owned()];
    let foreign = GraphOptions { lora_runtime: runtime, ..GraphOptions::default() };
    assert_eq!(check_options(&foreign), Ok(()));
}

#[test]
fn devices_to_be_measured_are_checked() {
    use crate::calibration::CalibrationDevice;
    let plan = good::text();
    let device = |id: &str, budget: u64| CalibrationDevice {
        id: DeviceId(id.to_owned()),
        backend: plan.devices[0].backend.clone(),
        budget_bytes: Bytes(budget),
        overhead_bytes: Bytes::ZERO,
        pinned_bytes: Bytes::ZERO,
    };
    let some = |count: usize| -> Vec<CalibrationDevice> {
        (0..count).map(|n| device(&format!("virtual{n}"), 1)).collect()
    };
    assert_eq!(check_calibration(&some(DEVICES_MAX)), Ok(()));
    let mut slow = device("virtual0", 1);
    if let DeviceBackend::Virtual { speed, .. } = &mut slow.backend {
        *speed = 0.0;
    }
    for (devices, expected) in [
        (some(DEVICES_MAX + 1), "17 devices"),
        (vec![device("host", 1)], "the host stands among the devices"),
        (vec![device("virtual0", 1), device("virtual0", 1)], "virtual0 stands twice"),
        (vec![device("virtual0", MEMORY_BYTES_MAX + 1)], "more memory than there is"),
        (vec![device(&"v".repeat(STRING_BYTES_MAX + 1), 1)], "a device id of"),
        (vec![slow], "a speed of 0"),
    ] {
        let found = check_calibration(&devices).unwrap_err();
        assert!(is_said(&found, expected), "{found}");
    }
}
