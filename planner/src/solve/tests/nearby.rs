//! Splits near one that streams are found where they are faster. So are rings that page-lock only
//! a part of what they stream.

use protocol::profile::{ComponentProfile, ModelProfile};
use protocol::{Division, Layout, Phase, StorageType};

use super::super::candidates::{
    StepsBegun, Within, lane, nearby, own_slots, own_slots_in, rings_within,
};
use super::super::*;
use super::made_up::{Case, Dice, component, segment};
use crate::inventory::{DeviceKind, Rate};
use crate::policy::pins::Pin;
use crate::solve::lanes::LaneSet;
use crate::solve::place::WeightResidency;
use crate::solve::search::{Allowance, Choices, KnownChoices};

/// Two cards, each with room for less than half of a DiT of 1 GiB.
fn two_cards(dice: &mut Dice) -> Case {
    let block = segment("block", Bytes::mib(64), StorageType::BF16, 2e11);
    let dit = ComponentProfile {
        calls: 8,
        heads_max: 8,
        ..component("dit", Phase::Denoise, vec![block; 16])
    };
    let mut case = Case::plain(2, Bytes::ZERO, vec![dit]);
    for (device, budget) in case.inventory.devices.iter_mut().zip(&mut case.budgets.devices) {
        device.kind = DeviceKind::Cuda;
        *budget = Bytes::mib(150 + dice.below(300));
        device.link_bytes_per_s = Rate::declared(1e9 * (5 + dice.below(20)) as f64);
        device.speeds.half_flops_per_s = Rate::declared(1e12 * (20 + dice.below(150)) as f64);
    }
    case.inventory.host.page_cache_bytes_per_s = Rate::declared(1e9 * (2 + dice.below(10)) as f64);
    case
}

/// The DiT by heads over the two cards, in this order.
fn by_heads(problem: &Problem<'_>, order: [usize; 2], shares: [u32; 2]) -> LayoutQuery {
    let devices = order.map(Some).to_vec();
    let lanes = devices.iter().map(|device| lane(problem, *device)).collect();
    let division = Division::Tensor { shares: shares.to_vec() };
    LayoutQuery::of(0, devices, Layout { component: "dit".to_owned(), lanes, division })
}

fn sized(case: &Case, query: &LayoutQuery) -> Arc<ComponentLayout> {
    Arc::new(query.answered(&case.sizes(std::slice::from_ref(query))[0]))
}

fn fastest<'p>(places: impl IntoIterator<Item = &'p Place>) -> Option<&'p Place> {
    places.into_iter().min_by(|a, b| a.ms.alone().total_cmp(&b.ms.alone()))
}

#[test]
fn a_split_that_streams_has_faster_ones_near_it() {
    let dice = &mut Dice(7);
    let [mut faster, mut best] = [0; 2];
    for round in 0..12 {
        let mut case = two_cards(dice);
        let problem = case.problem(Objective::Latency);
        let equal = sized(&case, &by_heads(&problem, [0, 1], [1, 1]));
        let rings = rings_within(&problem, 0, &[&equal], Within::Budgets(None)).concat();
        let Some(from) = fastest(&rings) else { continue };
        let from_ms = from.ms.alone();
        let mut steps = StepsBegun::default();
        let near = nearby(&problem, 0, (from, from_ms), &mut steps);
        assert!(nearby(&problem, 0, (from, from_ms), &mut steps).is_empty(), "once is enough");
        let with_bytes = near.iter().flat_map(|split| {
            let layout = sized(&case, &split.query);
            own_slots_in(&problem, 0, (&layout, split.slots, split.locks), None)
        });
        let with_bytes: Vec<Place> = with_bytes.collect();
        let found_ms = fastest(&with_bytes).map_or(from_ms, |place| place.ms.alone());
        // Of all shares in eighths, either card first.
        let all = [[0, 1], [1, 0]]
            .into_iter()
            .flat_map(|order| (1..8).map(move |share| (order, [share, 8 - share])));
        let all = all.flat_map(|(order, shares)| {
            let layout = sized(&case, &by_heads(&problem, order, shares));
            let rings = rings_within(&problem, 0, &[&layout], Within::Budgets(None)).concat();
            fastest(&rings).map_or_else(Vec::new, |ring| own_slots(&problem, 0, ring, None))
        });
        let all: Vec<Place> = all.collect();
        let best_ms = fastest(&all).expect("a split").ms.alone();
        // From equal shares it comes to as little, and where a hill is in between, to little more.
        assert!(found_ms <= from_ms.min(1.1 * best_ms), "round {round}: {found_ms} ms, {best_ms}");
        [faster, best] =
            [faster + u32::from(found_ms < from_ms), best + u32::from(found_ms <= 1.01 * best_ms)];
        let near = |problem: &Problem<'_>, longest_ms| {
            nearby(problem, 0, (from, longest_ms), &mut StepsBegun::default())
        };
        assert!(near(&problem, 0.0).is_empty(), "nothing takes no time");
        // Who pins the devices pins their order.
        case.pins[0] = Pin { devices: vec![Some(0), Some(1)], ..Pin::FREE };
        assert!(near(&case.problem(Objective::Latency), from_ms).is_empty());
    }
    assert!(faster >= 10 && best >= 11, "{faster} faster, {best} the best");
}

#[test]
fn a_ring_is_found_that_is_page_locked_in_part() {
    let dice = &mut Dice(8);
    let [mut all, mut in_part] = [0; 2];
    for round in 0..40 {
        let mut case = two_cards(dice);
        case.budgets.pinned = Some(Bytes::mib(20 + dice.below(400)));
        let mut problem = case.problem(Objective::Latency);
        let layout = sized(&case, &by_heads(&problem, [0, 1], [1, 1]));
        let rings = rings_within(&problem, 0, &[&layout], Within::Budgets(None)).concat();
        let Some(best) = fastest(&rings) else { continue };
        let WeightResidency::Some { stays, locked, .. } = &best.held else { continue };
        all += 1;
        let streamed = stays.iter().filter(|lanes| **lanes != LaneSet::ALL).count();
        let of_them = locked.iter().flat_map(|locked| locked.iter()).filter(|l| **l).count();
        in_part += u32::from(0 < of_them && of_them < streamed);
        // With no more time than it takes.
        problem.places[0] = vec![best.clone()].into();
        let known = &mut KnownChoices::default();
        let score =
            solve(std::slice::from_ref(&problem), 1).expect("it fits").chosen.expect("one").score;
        let choices = Choices::by_time(&problem, known).expect("a place");
        let allowance = Allowance::beside(&problem, &choices, 0, score.ticks_max(choices.step));
        let within = Within::Budgets(Some(&allowance));
        let found = rings_within(&problem, 0, &[&layout], within).concat();
        let found_ms = fastest(&found).map_or(f64::INFINITY, |place| place.ms.alone());
        assert!(
            found_ms <= 1.001 * best.ms.alone(),
            "round {round}: {found_ms} ms, {} ms",
            best.ms.alone()
        );
    }
    assert!(in_part >= 10 && all - in_part >= 10, "{in_part} of {all} in part");
}

/// The two cards, on a host whose RAM has room for a part of what they stream.
fn on_a_slow_disk(dice: &mut Dice) -> Case {
    let mut case = two_cards(dice);
    let sizes = [48, 64, 64, 80].map(Bytes::mib);
    let blocks = (0..24).map(|at| segment("block", sizes[at % 4], StorageType::BF16, 2e11));
    let dit = &case.profile.components[0];
    let dit = ComponentProfile {
        calls: dit.calls,
        heads_max: dit.heads_max,
        ..component("dit", Phase::Denoise, blocks.collect())
    };
    case = Case { profile: ModelProfile { components: vec![dit], ..case.profile }, ..case };
    let host = &mut case.inventory.host;
    host.available_bytes = Bytes::mib(100 + dice.below(300));
    host.storage_bytes_per_s = Rate::declared(1e8 * (2 + dice.below(20)) as f64);
    case.budgets.pinned = Some(Bytes::mib(100 + dice.below(300)));
    case
}

#[test]
fn segments_are_exchanged_where_calls_read_from_the_storage() {
    let dice = &mut Dice(9);
    let [mut reading, mut shorter] = [0; 2];
    for round in 0..20 {
        let case = on_a_slow_disk(dice);
        let problem = case.problem(Objective::Latency);
        let layout = sized(&case, &by_heads(&problem, [0, 1], [1, 1]));
        let rings = rings_within(&problem, 0, &[&layout], Within::Budgets(None)).concat();
        let Some(from) = fastest(&rings).filter(|ring| ring.ms.reads_again()) else {
            continue;
        };
        let places = own_slots(&problem, 0, from, None);
        let found = fastest(&places).expect("it streams");
        reading += 1;
        shorter += u32::from(found.ms.alone() < 0.999 * from.ms.alone());
        assert!(found.ms.alone() <= from.ms.alone(), "round {round}");
        for place in &places {
            let locked: Bytes = place.parts.iter().map(|part| part.locked_bytes).sum();
            assert!(
                locked <= problem.locked_max(&layout.devices),
                "round {round}: {locked} page-locked"
            );
            for part in place.parts.iter() {
                let Some(device) = part.device else { continue };
                let taken = part.resident_bytes + part.lazy_bytes + part.staging_bytes();
                let room = problem.room_for_weights(device, part.compute_bytes);
                assert!(room.is_some_and(|room| taken <= room), "round {round}: {taken}");
            }
        }
    }
    assert!(reading >= 15 && shorter >= 10, "{shorter} of {reading} are shorter");
}
