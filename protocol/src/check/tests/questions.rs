//! Options and layouts as they are asked, without a plan.

use super::*;
use crate::profile::Lane;

fn lane(backend: BackendKind) -> Lane {
    Lane { backend, unsupported: vec!["attention".to_owned()] }
}

/// A layer split over a device and the host, a row split over two devices, and one device.
fn layouts() -> Vec<Layout> {
    use BackendKind::{Cuda, Host, Virtual};
    let layout =
        |component: &str, lanes: &[BackendKind], segments: &[u32], shares: &[u32]| Layout {
            component: component.to_owned(),
            lanes: lanes.iter().copied().map(lane).collect(),
            segments: segments.to_vec(),
            row_shares: shares.to_vec(),
        };
    vec![
        layout("t5", &[Cuda, Virtual, Host], &[0, 1, 1, 2], &[]),
        layout("dit", &[Virtual, Virtual], &[0, 0, 0], &[3, 1]),
        layout("vae", &[Host], &[0], &[]),
    ]
}

type LayoutChange = (fn(&mut Vec<Layout>), &'static str);

const LAYOUTS: [LayoutChange; 19] = [
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
    (|l| l[1].segments = vec![0; SEGMENTS_MAX + 1], "dit: 1025 segments"),
    (|l| l[0].segments[3] = 3, "t5: a segment on an unknown lane"),
    (|l| l[0].segments[3] = u32::MAX, "t5: a segment on an unknown lane"),
    (|l| l[0].segments.clear(), "t5: its segments skip or mix lanes"),
    (|l| l[0].segments[0] = 1, "t5: its segments skip or mix lanes"),
    (|l| l[0].segments[3] = 0, "t5: its segments skip or mix lanes"),
    (|l| l[1].row_shares.truncate(1), "dit: 1 shares of rows, 2 lanes"),
    (|l| l[2].row_shares = vec![1], "vae: 1 shares of rows, 1 lanes"),
    (|l| l[1].lanes[1].backend = BackendKind::Host, "dit: a row split with the host"),
    (|l| l[1].row_shares[0] = 0, "dit: a share is not within 1 to 1048576"),
    (|l| l[1].row_shares[1] = ROW_SHARE_MAX + 1, "dit: a share is not within 1 to 1048576"),
    (|l| l[1].segments[2] = 1, "dit: a row split whose segments are elsewhere"),
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
    largest[0].segments = (0..SEGMENTS_MAX as u32).map(|index| index.min(16)).collect();
    largest[1].row_shares = vec![ROW_SHARE_MAX, 1];
    largest[1].lanes[0].unsupported = vec!["x".repeat(STRING_BYTES_MAX); UNSUPPORTED_MAX];
    largest.resize(LAYOUTS_MAX, largest[2].clone());
    assert_eq!(check_layouts(&largest), Ok(()));
}

#[test]
fn wrong_layouts_are_refused() {
    for (index, (change, says)) in LAYOUTS.iter().enumerate() {
        let mut layouts = layouts();
        change(&mut layouts);
        let Err(Violation(message)) = check_layouts(&layouts) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(message.contains(says), "change {index}: {message:?} does not say {says:?}");
    }
}

#[test]
fn a_row_split_needs_segments() {
    let mut layouts = layouts();
    layouts[1].segments.clear();
    assert!(check_layouts(&layouts).is_err());
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
        let Violation(message) = check_calibration(&devices).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
}
