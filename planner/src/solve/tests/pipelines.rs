//! Pipelines: what they take by small sums made by hand, where they are chosen, and where not.

use protocol::plan::ATTENTION_CHUNK;
use protocol::profile::{ComponentProfile, LayoutPart, StepItems};
use protocol::{Division, Phase, Residency, StorageType};

use super::made_up::{Case, component, segment};
use super::*;
use crate::inventory::{Inventory, Rate};
use crate::policy::pins::group_counts;
use crate::solve::time::{SegmentTimes, Timing};

/// Devices that compute beside each other, 1000 operations a second each, behind links of so many
/// bytes a second; nothing else is slow.
fn machine(devices: usize, link: f64) -> Inventory {
    let mut inventory = Case::plain(devices, Bytes::gib(1), Vec::new()).inventory;
    for device in &mut inventory.devices {
        device.threads = Some(1);
        device.speeds.f32_flops_per_s = Rate::declared(1e3);
        device.link_bytes_per_s = Rate::declared(link);
        device.link_back_bytes_per_s = Rate::declared(link);
        device.speeds.memory_bytes_per_s = Rate::declared(1e12);
    }
    inventory.host.storage_bytes_per_s = Rate::declared(1e12);
    inventory.host.page_cache_bytes_per_s = Rate::declared(1e12);
    inventory
}

/// Segments of 1000 B and so many operations each, in one call of a job.
fn dit(items: StepItems, flops: &[f64]) -> ComponentProfile {
    let segments = flops.iter().map(|f| segment("block", Bytes(1000), StorageType::F32, *f));
    let dit = component("dit", Phase::Denoise, segments.collect());
    ComponentProfile { calls: items.passes, items, ..dit }
}

/// The seconds of a step of a pipeline over the first devices.
fn step_s(
    inventory: &Inventory,
    component: &ComponentProfile,
    segments: &[u32],
    counts: &[u32],
) -> f64 {
    let devices = segments.last().map_or(0, |last| *last as usize + 1);
    let part = |lane: usize| LayoutPart {
        compute_bytes: Bytes::ZERO,
        segment_bytes: segments
            .iter()
            .map(|at| Bytes(1000 * u64::from(*at as usize == lane)))
            .collect(),
    };
    let spread = ComponentLayout {
        devices: (0..devices).map(Some).collect(),
        division: Division::Pipeline { segments: segments.to_vec(), counts: counts.to_vec() },
        parts: (0..devices).map(part).collect(),
        crossing_bytes: Bytes(300),
    };
    let times = SegmentTimes::new(inventory, component, ATTENTION_CHUNK);
    let held = WeightResidency::All(Residency::Resident);
    Timing::new(&times, &spread).ms(&held).compute / 1e3
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found} s, expected {expected} s");
}

const FOUR: StepItems = StepItems { passes: 1, batch: 4, run_min: 1 };

#[test]
fn groups_follow_one_another_and_wait_for_what_crosses() {
    let inventory = machine(3, 100.0);
    let alike = dit(FOUR, &[4000.0; 4]);
    // 8 s on each device for all; 300 B cross at 100 B/s.
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 1], &[4]), 16.0 + 3.0);
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 1], &[2, 2]), 12.0 + 3.0);
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 1], &[1; 4]), 10.0 + 3.0);
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 1], &[3, 1]), 14.0 + 3.0);
    // The slower stage decides: 12 s and 4 s for all.
    assert_near(step_s(&inventory, &alike, &[0, 0, 0, 1], &[1; 4]), 13.0 + 3.0);
    assert_near(step_s(&inventory, &alike, &[0, 1, 1, 1], &[1; 4]), 13.0 + 3.0);
    // Three stages of 2, 1 and 1 s for a picture: the first of them is never free.
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 2], &[1; 4]), 10.0 + 3.0);
    // Of two passes in one call, each has its half.
    let guided = dit(StepItems { passes: 2, batch: 1, run_min: 1 }, &[4000.0; 4]);
    assert_near(step_s(&inventory, &guided, &[0, 0, 1, 1], &[1, 1]), 24.0 + 3.0);
}

#[test]
fn a_slot_lasts_as_long_as_its_slowest_device() {
    let inventory = machine(3, 100.0);
    // For a picture 1, 6 and 1 s: the middle device is never free between.
    let uneven = dit(FOUR, &[4000.0, 24_000.0, 4000.0]);
    assert_near(step_s(&inventory, &uneven, &[0, 1, 2], &[1; 4]), 1.0 + 4.0 * 6.0 + 1.0 + 3.0);
    // For a group 1, 1 and 12 s: the last device is never free.
    let late = dit(FOUR, &[2000.0, 2000.0, 24_000.0]);
    assert_near(step_s(&inventory, &late, &[0, 1, 2], &[2, 2]), 1.0 + 1.0 + 24.0 + 3.0);
    // For a group 10, 2 and 10 s: either end has one of them in each of four slots.
    let ends = dit(FOUR, &[20_000.0, 4000.0, 20_000.0]);
    assert_near(step_s(&inventory, &ends, &[0, 1, 2], &[2, 2]), 40.0 + 3.0);
}

#[test]
fn devices_that_share_a_processor_take_turns() {
    let mut inventory = machine(3, 100.0);
    let alike = dit(FOUR, &[4000.0; 4]);
    inventory.devices[..2].iter_mut().for_each(|device| device.threads = None);
    assert_near(step_s(&inventory, &alike, &[0, 0, 1, 1], &[1; 4]), 16.0 + 3.0);
    // The third one computes beside these two: all but its part of the last group.
    assert_near(step_s(&inventory, &alike, &[0, 1, 1, 2], &[1; 4]), 12.0 + 1.0 + 3.0);
}

#[test]
fn weights_of_a_pipeline_are_moved_for_each_group() {
    let mut inventory = machine(2, 1e12);
    for device in &mut inventory.devices {
        // 1 s for the weights of a segment.
        device.speeds.memory_bytes_per_s = Rate::declared(1000.0);
    }
    let small = dit(FOUR, &[1.0; 4]);
    let [two, four] =
        [&[2, 2][..], &[1; 4]].map(|counts| step_s(&inventory, &small, &[0, 0, 1, 1], counts));
    assert!(two > 6.0 - 1e-6 && four > 10.0 - 1e-6, "{two} s, {four} s");
}

/// A job on cards that each hold half of the model, or all of it.
fn case(batch: u32, link: f64, budget: Bytes) -> Case {
    let items = StepItems { passes: 1, batch, run_min: 1 };
    let segments = vec![segment("block", Bytes::mib(1), StorageType::BF16, 1e12); 8];
    let dit = component("dit", Phase::Denoise, segments);
    let dit = ComponentProfile { calls: 4, items, boundary_bytes: Bytes::kib(64), ..dit };
    let mut case = Case::plain(2, budget, vec![dit]);
    case.job.batch = batch;
    for device in &mut case.inventory.devices {
        device.kind = DeviceKind::Cuda;
        device.speeds.half_flops_per_s = Rate::declared(1e12);
        device.speeds.f32_flops_per_s = Rate::declared(1e12);
        device.speeds.memory_bytes_per_s = Rate::declared(1e12);
        device.link_bytes_per_s = Rate::declared(link);
        device.link_back_bytes_per_s = Rate::declared(link);
    }
    case.inventory.host.compute = false;
    case
}

fn chosen_division(case: &Case) -> Division {
    let solution = case.solve_refined(Objective::Latency).expect("it fits");
    solution.plan.components[0].division.clone()
}

#[test]
fn a_pipeline_is_chosen_where_cards_hold_half_of_a_model_behind_slow_links() {
    let slow = case(4, 1e5, Bytes::mib(5));
    match chosen_division(&slow) {
        Division::Pipeline { segments, counts } => {
            assert_eq!((segments.as_slice(), counts), (&[0, 0, 0, 0, 1, 1, 1, 1][..], vec![1; 4]));
        }
        other => panic!("{other:?}"),
    }
    // Found by the bound too, where pipelines are left out at first.
    let first = [slow.problem_over(Objective::Latency, Lists::First)];
    let best = solve(&first, 1).expect("it fits");
    assert!(matches!(turns_that_may_beat(&first, &best, 0.0).as_slice(), [Some(_)]));
    // One picture has no groups.
    let one = chosen_division(&case(1, 1e5, Bytes::mib(5)));
    assert!(matches!(one, Division::Layer { .. }), "{one:?}");
}

#[test]
fn no_pipeline_is_chosen_where_it_wins_nothing() {
    // Each card holds all of it: both compute all the time.
    let wide = case(4, 1e9, Bytes::mib(64));
    let replicas = chosen_division(&wide);
    assert!(matches!(replicas, Division::Items { .. }), "{replicas:?}");
    // Nor is any measured: not even the best conceivable one would be better.
    let first = [wide.problem_over(Objective::Latency, Lists::First)];
    let best = solve(&first, 1).expect("it fits");
    assert!(matches!(turns_that_may_beat(&first, &best, 0.0).as_slice(), [None]));
    // Parts of one card take turns, and have none.
    let mut parts = case(4, 1e5, Bytes::mib(5));
    parts.divide();
    let wanted = wanted(&parts.problem(Objective::Latency), &[Some(Lists::All)]);
    let in_groups =
        |query: &LayoutQuery| matches!(query.layout.division, Division::Pipeline { .. });
    assert!(!wanted.iter().any(in_groups));
}

#[test]
fn a_pipeline_is_never_streamed_and_has_neighbours() {
    let case = case(4, 1e5, Bytes::mib(5));
    let problem = case.problem(Objective::Latency);
    let pipelines = problem.places[0]
        .iter()
        .filter(|place| matches!(place.spread.division, Division::Pipeline { .. }));
    let pipelines: Vec<&Place> = pipelines.collect();
    assert!(pipelines.iter().all(|place| matches!(place.held, WeightResidency::All(_))));
    let counts: Vec<Vec<u32>> = group_counts(FOUR, 2);
    assert_eq!(counts, [vec![1; 4], vec![2, 2]]);
    // Every cut, either number of groups; resident, or lazy and early, or lazy.
    assert_eq!(pipelines.len(), 7 * 2 * 3);
    let near = candidates::neighbours(&problem, 0, &pipelines[0].spread);
    assert!(!near.is_empty());
    let in_groups = |query: &LayoutQuery| query.layout.division.item_counts() == Some(&[1; 4][..]);
    assert!(near.iter().all(in_groups));
}
