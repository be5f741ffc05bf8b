//! What is left out at first, beside all of it.

use std::sync::Arc;

use protocol::{Division, Layout, Phase, StorageType};

use super::super::candidates::{
    Within, fastest_heads, heads_left_out, lane, likely_heads, likely_layers, neighbours,
    new_layouts, other_heads, rings_within,
};
use super::super::refine::largest;
use super::super::*;
use super::made_up::{Case, component, segment};
use crate::policy::pins::{Params, Pin};
use crate::solve::lanes::SlotCounts;
use crate::solve::place::WeightResidency;

/// How much longer a plan may take than the best with all rings: of numbers of slots that save less
/// than this only the least is tried.
const LONGER_MAX: f64 = 0.001;

/// A case whose devices are unlike, so that splits have few rings at first.
fn unlike(seed: u64) -> Case {
    let mut case = Case::random(seed);
    case.pins.fill(Pin::FREE);
    case
}

#[test]
fn what_is_left_out_is_found_where_it_is_better() {
    let [mut same, mut refined_ones] = [0; 2];
    for seed in 0..1_500 {
        let case = unlike(seed);
        let Ok(first) = case.solve(Objective::Latency) else { continue };
        let refined = case.solve_refined(Objective::Latency).expect("it fits");
        let mut all = case.problem(Objective::Latency);
        let (wanted, bytes) = case.sized(&all, Lists::All);
        for index in 0..all.places.len() {
            let asked = wanted.iter().zip(&bytes).filter(|(wanted, _)| wanted.component == index);
            let layouts = asked.map(|(wanted, bytes)| Arc::new(wanted.answered(bytes)));
            let mut layouts: Vec<Arc<ComponentLayout>> = layouts.collect();
            let mut places = all.places[index].to_vec();
            if Some(index) == largest(&all) {
                let heads = heads_left_out(&all, index, (&wanted, &bytes), f64::INFINITY);
                let bytes = case.sizes(&heads);
                let more = new_layouts(&all, index, heads.iter().zip(&bytes));
                layouts.extend(more.iter().map(|layout| Arc::clone(&layout.least.spread)));
                places.extend(more.into_iter().flat_map(|layout| layout.others));
            }
            let layouts: Vec<&Arc<ComponentLayout>> = layouts.iter().collect();
            places.extend(rings_within(&all, index, &layouts, Within::Budgets(None)).concat());
            all.places[index] = places.into();
        }
        let best = solve(&[all], 1).expect("it fits");
        let [first, refined, best] =
            [&first, &refined, &best].map(|solution| solution.plan.predicted_ms.total);
        assert!(refined <= first, "seed {seed}: {refined} ms, {first} ms at first");
        let longest = best * (1.0 + LONGER_MAX);
        assert!(refined <= longest, "seed {seed}: {refined} ms, {best} ms with all rings");
        same += u32::from(refined == first);
        refined_ones += u32::from(refined < first);
    }
    assert!(same > 100 && refined_ones > 10, "{refined_ones} better, {same} the same");
}

#[test]
fn neighbours_are_other_orders_and_a_few_segments_elsewhere() {
    let blocks = vec![segment("block", Bytes(1 << 20), StorageType::BF16, 1e12); 8];
    let mut dit = component("dit", Phase::Denoise, blocks);
    dit.heads_max = 8;
    let mut case = Case::plain(3, Bytes::mib(8), vec![dit]);
    for (at, device) in case.inventory.devices.iter_mut().enumerate() {
        device.speeds.f32_flops_per_s.value *= 1.0 + at as f64;
    }
    let problem = case.problem(Objective::Latency);
    let layout = |division| {
        let devices = vec![Some(0), Some(1), Some(2)];
        let lanes = devices.iter().map(|device| lane(&problem, *device)).collect();
        let layout = Layout { component: "dit".to_owned(), lanes, division };
        let wanted = LayoutQuery::of(0, devices, layout);
        let bytes = case.sizes(std::slice::from_ref(&wanted)).remove(0);
        wanted.answered(&bytes)
    };
    let shown = |near: Vec<LayoutQuery>| -> Vec<(Vec<usize>, Division)> {
        let one = |wanted: LayoutQuery| {
            (wanted.devices.into_iter().flatten().collect(), wanted.layout.division)
        };
        near.into_iter().map(one).collect()
    };
    let near = |division| shown(neighbours(&problem, 0, &layout(division)));
    // One of the first device is all that it has.
    let near_layers = near(Division::Layer { segments: vec![0, 1, 1, 2, 2, 2, 2, 2] });
    let layers = |devices: [usize; 3], segments: [u32; 8]| {
        (devices.to_vec(), Division::Layer { segments: segments.to_vec() })
    };
    assert!(near_layers.contains(&layers([2, 0, 1], [0, 0, 0, 0, 0, 1, 2, 2])));
    assert!(near_layers.contains(&layers([0, 1, 2], [0, 0, 1, 2, 2, 2, 2, 2])));
    assert!(near_layers.contains(&layers([0, 1, 2], [0, 1, 1, 1, 2, 2, 2, 2])));
    // Five other orders; from the second one segment to either, and of the third.
    assert_eq!(near_layers.len(), 5 + 2 + 2);
    let heads = |devices: [usize; 3], shares: [u32; 3]| {
        (devices.to_vec(), Division::Tensor { shares: shares.to_vec() })
    };
    let near_heads = near(Division::Tensor { shares: vec![1, 2, 5] });
    assert_eq!(near_heads, [heads([1, 0, 2], [2, 1, 5]), heads([2, 1, 0], [5, 2, 1])]);
    // From each device to each other a head, and one, two and four eighths; the first has one head.
    let tensor = layout(Division::Tensor { shares: vec![1, 2, 5] });
    let moved = shown(other_heads(&problem, 0, &tensor));
    assert!(moved.contains(&heads([0, 1, 2], [1, 1, 2])));
    assert!(moved.contains(&heads([0, 1, 2], [8, 17, 39])));
    // Each of the two others comes first, too.
    assert!(moved.contains(&heads([2, 1, 0], [5, 2, 1])));
    assert_eq!(moved.len(), 2 * 3 + 4 * 4 + 2);
    // Shares that are finer than that come to it.
    let fine = layout(Division::Tensor { shares: vec![101, 199, 500] });
    let mut of_fine = shown(other_heads(&problem, 0, &fine));
    assert_eq!(of_fine.remove(0), heads([0, 1, 2], [1, 2, 5]));
    assert_eq!(of_fine, moved);
    let layers = layout(Division::Layer { segments: vec![0, 1, 1, 2, 2, 2, 2, 2] });
    assert!(other_heads(&problem, 0, &layers).is_empty());
    // Who pins the devices pins their order.
    case.pins[0].devices = vec![Some(0), Some(1)];
    let problem = case.problem(Objective::Latency);
    let pinned = problem.places[0].iter().find(|place| place.spread.devices.len() == 2);
    let spread = &pinned.expect("a split").spread;
    assert!(neighbours(&problem, 0, spread).is_empty());
    assert!(other_heads(&problem, 0, &tensor).is_empty());
}

#[test]
fn heads_are_tried_on_devices_that_have_time_for_them() {
    let blocks = vec![segment("block", Bytes(1 << 20), StorageType::BF16, 1e12); 8];
    let mut dit = component("dit", Phase::Denoise, blocks);
    dit.heads_max = 8;
    let mut case = Case::plain(3, Bytes::mib(64), vec![dit]);
    case.inventory.devices.iter_mut().for_each(|device| device.threads = Some(1));
    let problem = case.problem(Objective::Latency);
    let over = |devices: &[usize], shares: &[u32]| {
        let devices: Vec<Option<usize>> = devices.iter().copied().map(Some).collect();
        let lanes = devices.iter().map(|device| lane(&problem, *device)).collect();
        let division = Division::Tensor { shares: shares.to_vec() };
        let layout = Layout { component: "dit".to_owned(), lanes, division };
        LayoutQuery::of(0, devices, layout)
    };
    let wanted = |order: [usize; 3], shares: [u32; 3]| over(&order, &shares);
    let in_order = |shares| wanted([0, 1, 2], shares);
    let chosen = in_order([2, 3, 3]);
    let bytes = case.sizes(std::slice::from_ref(&chosen)).remove(0);
    let others = vec![
        in_order([3, 2, 3]),
        in_order([1, 3, 4]),
        in_order([2, 2, 4]),
        // In another order they are compared with it, too; layouts over other devices are not.
        wanted([1, 0, 2], [3, 2, 3]),
        wanted([1, 0, 2], [1, 3, 4]),
        over(&[1, 2], &[1, 7]),
    ];
    let chosen = chosen.answered(&bytes);
    let mut likely = likely_heads(&problem, 0, &[&chosen], others.clone());
    likely.sort_by_key(|likely| others.iter().position(|other| other == likely));
    assert_eq!(likely, [others[0].clone(), others[3].clone(), others[5].clone()]);
    // Of some splits it is the fastest, where they may take that long.
    let slow = others[1].answered(&case.sizes(&others[1..2])[0]);
    let fastest = |longest_ms| fastest_heads(&problem, 0, vec![&slow, &chosen], longest_ms);
    assert_eq!(fastest(f64::INFINITY), Some(&chosen));
    assert_eq!(fastest(0.0), None);
}

#[test]
fn of_many_kinds_of_devices_shares_of_heads_are_left_out_that_take_longer() {
    let blocks = vec![segment("block", Bytes(1 << 20), StorageType::BF16, 1e12); 8];
    let mut dit = component("dit", Phase::Denoise, blocks);
    dit.heads_max = 8;
    let mut case = Case::plain(3, Bytes::mib(64), vec![dit]);
    for (at, device) in case.inventory.devices.iter_mut().enumerate() {
        device.threads = Some(1);
        device.speeds.f32_flops_per_s.value *= 1.0 + at as f64;
        device.speeds.half_flops_per_s.value *= 1.0 + at as f64;
    }
    let by_heads = |wanted: &[LayoutQuery]| -> Vec<(Vec<Option<usize>>, Vec<u32>)> {
        let shares = wanted.iter().filter_map(|wanted| {
            Some((wanted.devices.clone(), wanted.layout.division.tensor_shares()?.to_vec()))
        });
        shares.collect()
    };
    let left_out = |case: &Case, longest_ms| {
        let problem = case.problem(Objective::Latency);
        let (wanted, bytes) = case.sized(&problem, Lists::All);
        let left_out = heads_left_out(&problem, 0, (&wanted, &bytes), longest_ms);
        (by_heads(&wanted), by_heads(&left_out))
    };
    let (first, others) = left_out(&case, f64::INFINITY);
    // Pairs in both orders, and the fastest of three first: each as it computes.
    assert_eq!(first.len(), 3 * 2 + 1);
    let all_three = [Some(2), Some(0), Some(1)].to_vec();
    assert!(first.contains(&(all_three.clone(), vec![500, 167, 333])), "{first:?}");
    assert!(others.contains(&(all_three.clone(), vec![1, 1, 1])), "{others:?}");
    assert!(others.contains(&(vec![Some(0), Some(1)], vec![1, 7])), "{others:?}");
    assert!(others.iter().all(|other| !first.contains(other)));
    // In the time of the fastest device, the slowest cannot do most.
    let mut alone = Case::clone(&case);
    alone.pins[0].devices = vec![Some(2)];
    let places = Arc::clone(&alone.problem(Objective::Latency).places[0]);
    let fastest_ms = places.iter().map(|place| place.ms.alone()).fold(f64::INFINITY, f64::min);
    let (_, near) = left_out(&case, fastest_ms);
    assert!(near.len() < others.len() && near.iter().all(|other| others.contains(other)));
    assert!(!near.contains(&(vec![Some(0), Some(1)], vec![7, 1])), "{near:?}");
    assert!(left_out(&case, 0.0).1.is_empty());
    // Over alike devices all are tried at first.
    for device in &mut case.inventory.devices {
        device.speeds = case.inventory.host.speeds.clone();
    }
    assert!(left_out(&case, f64::INFINITY).1.is_empty());
}

/// Eight large blocks, then sixteen small ones, over two unlike devices: one has room for the large
/// ones, the other has a fast link.
#[test]
fn a_likely_cut_leaves_small_blocks_to_the_device_that_streams() {
    let block = |bytes, flops| segment("block", bytes, StorageType::BF16, flops);
    let blocks = [vec![block(Bytes::mib(4), 4e9); 8], vec![block(Bytes::mib(1), 4e9); 16]].concat();
    let mut case = Case::plain(2, Bytes::mib(64), vec![component("dit", Phase::Denoise, blocks)]);
    let large: Bytes =
        case.profile.components[0].segments[..8].iter().map(|s| s.weights_bytes).sum();
    case.budgets.devices = vec![large + Bytes::mib(1), Bytes::mib(5)];
    let [first, second] = &mut case.inventory.devices[..] else { panic!("two devices") };
    first.link_bytes_per_s.value /= 1e3;
    second.link_bytes_per_s.value *= 4.0;
    let problem = case.problem(Objective::Latency);
    let known = problem.places[0].iter().map(|place| &*place.spread);
    let known: Vec<&ComponentLayout> = known.collect();
    let likely = |longest_ms| likely_layers(&problem, 0, &known, longest_ms);
    let best = likely(f64::INFINITY).remove(0);
    assert_eq!(best.devices, [Some(0), Some(1)]);
    let on_first =
        best.layout.division.segments().expect("layers").iter().filter(|lane| **lane == 0);
    // All large ones, and a small one at most beside them.
    let on_first = on_first.count();
    assert!((8..=9).contains(&on_first), "{on_first} on the first device");
    // Nothing takes no time.
    assert!(likely(0.0).is_empty());
}

#[test]
fn slots_beyond_what_is_tried_are_those_that_were_pinned() {
    const SLOTS: u32 = 20;
    let blocks = vec![segment("block", Bytes(1 << 20), StorageType::BF16, 1e12); 48];
    for devices in 1..=3 {
        let dit = component("dit", Phase::Denoise, blocks.clone());
        let mut case = Case::plain(devices, Bytes::mib(64), vec![dit]);
        for (at, device) in case.inventory.devices.iter_mut().enumerate() {
            device.speeds.f32_flops_per_s.value *= 1.0 + at as f64;
        }
        case.pins[0] = Pin {
            devices: (0..devices).map(Some).collect(),
            params: Some(Params::Cpu),
            lookahead: Some(SLOTS),
            ..Pin::FREE
        };
        let solution = case.solve_refined(Objective::Latency).expect("it fits");
        let held = &solution.chosen.expect("it was solved").places[0].held;
        assert!(
            matches!(held, WeightResidency::Some { slots, .. } if *slots == SlotCounts::alike(SLOTS)),
            "{devices} devices: {held:?}"
        );
    }
}
