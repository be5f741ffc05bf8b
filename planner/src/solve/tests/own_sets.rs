//! Splits whose devices each stream a set of their own, through a number of slots of their own.

use protocol::plan::ATTENTION_CHUNK;
use protocol::profile::{ComponentProfile, SegmentProfile, StepItems};
use protocol::{Division, Phase, StorageType};

use super::super::candidates::own_slots;
use super::super::*;
use super::made_up::{Case, Dice, component, segment};
use super::times::{four, gpus, spread};
use crate::inventory::{DeviceKind, Inventory, Rate};
use crate::policy::pins::{Params, Pin, Split};
use crate::solve::component_ms::ComponentMs;
use crate::solve::lanes::{LaneSet, SlotCounts};
use crate::solve::place::WeightResidency;
use crate::solve::time::{SegmentTimes, Timing};

/// What does not stay on its device is streamed through so many slots there.
fn held(stays: [LaneSet; 4], slots: SlotCounts) -> WeightResidency {
    let (residency, locked) = (protocol::Residency::Lazy, None);
    WeightResidency::Some { residency, stays: stays.to_vec().into(), locked, slots }
}

/// One call of a hundred, and all times, of a component whose halves two devices have.
fn call(
    inventory: &Inventory,
    component: &ComponentProfile,
    division: Division,
    held: &WeightResidency,
) -> (f64, ComponentMs) {
    let bytes = if division.is_replicated() { 1000 } else { 500 };
    let spread = spread(division, &[Some(0), Some(1)], &[[bytes; 4]; 2]);
    let component = ComponentProfile { calls: 100, ..component.clone() };
    let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
    let ms = Timing::new(&times, &spread).ms(held);
    (ms.compute / 1e5, ms)
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} s, not {expected} s");
}

#[test]
fn only_what_a_device_streams_goes_over_its_link() {
    let mut inventory = gpus();
    inventory.host.storage_bytes_per_s = Rate::declared(50.0);
    let rows = || Division::Row { shares: vec![1, 1] };
    let of = |stays, slots| call(&inventory, &four(), rows(), &held([stays; 4], slots));
    let two = SlotCounts::alike(2);
    // 2000 B at 100 B/s, or at 200 B/s, beside halves of 4 s each and 3 s of crossing.
    let (slow, times) = of(LaneSet::from(1), two);
    assert_near(slow, 1.05 * 20.0);
    assert_near(of(LaneSet::from(0), two.with(1, 4)).0, 1.05 * 11.0);
    // The last segment takes 5 s, in which two slots have room for one copy of 2.5 s.
    assert_near(of(LaneSet::from(0), two).0, 1.05 * 12.5);
    assert_near(of(LaneSet::NONE, two).0, 1.05 * 20.0);
    // Half of all is loaded, and the other half read in the first call.
    assert!((times.load - 40e3).abs() < 1e-6 && (times.storage - 40e3).abs() < 1e-6, "{times:?}");
    // With one slot nothing is copied while the device computes; the other one has none.
    assert_near(of(LaneSet::from(1), two.with(0, 1)).0, 1.05 * (20.0 + 11.0));
    assert_eq!(of(LaneSet::from(1), two.with(1, 1)).0, slow);
}

#[test]
fn a_replica_that_streams_has_the_memory_to_itself() {
    let mut inventory = gpus();
    inventory.host.storage_bytes_per_s = Rate::declared(50.0);
    let items = StepItems { passes: 1, batch: 2, run_min: 1 };
    let component = ComponentProfile { items, ..four() };
    let counts = || Division::Items { counts: vec![1, 1] };
    let of = |inventory: &Inventory, stays| {
        call(inventory, &component, counts(), &held([stays; 4], SlotCounts::alike(2)))
    };
    // One device holds all of what is read for it, once.
    let (alone, times) = of(&inventory, LaneSet::from(1));
    assert_near(alone, 1.05 * 40.0);
    assert!((times.load - 80e3).abs() < 1e-6 && (times.storage - 80e3).abs() < 1e-6, "{times:?}");
    // 4000 B are read from memory and written at 100 B/s, for each device that streams them.
    inventory.host.speeds.memory_bytes_per_s = Rate::declared(100.0);
    assert_near(of(&inventory, LaneSet::from(1)).0, 1.05 * 80.0);
    assert_near(of(&inventory, LaneSet::NONE).0, 1.05 * 160.0);
}

#[test]
fn what_one_device_streams_is_page_locked_once() {
    let mut inventory = gpus();
    inventory.host.storage_bytes_per_s = Rate::declared(1e12);
    let locking = |stays: LaneSet| {
        let (residency, slots) = (protocol::Residency::Lazy, SlotCounts::alike(2));
        let (stays, locked) = ([stays; 4].into(), Some([true; 4].into()));
        let held = WeightResidency::Some { residency, stays, locked, slots };
        let rows = Division::Row { shares: vec![1, 1] };
        call(&inventory, &four(), rows, &held).1.first_read
    };
    let [one, both] = [LaneSet::from(1), LaneSet::NONE].map(locking);
    assert!((both - 2.0 * one).abs() < 1e-9 && one > 0.0, "{one} ms for one, {both} ms for both");
}

/// Two GPUs that compute alike, with room for so many of the 8 MiB of a DiT of 16 blocks, of which
/// each has half.
fn unlike_rooms(mib: [u64; 2], split: Split) -> Case {
    let blocks = vec![segment("block", Bytes(1 << 19), StorageType::BF16, 1e9); 16];
    let blocks = blocks.into_iter().map(|block| SegmentProfile { block: true, ..block });
    let dit = component("dit", Phase::Denoise, blocks.collect());
    let mut case = Case::plain(2, Bytes::gib(1), vec![dit]);
    for (device, mib) in case.inventory.devices.iter_mut().zip(mib) {
        device.kind = DeviceKind::Cuda;
        device.total_bytes = Bytes::mib(mib);
    }
    case.budgets.devices = mib.map(Bytes::mib).to_vec();
    case.pins[0] = Pin { devices: vec![Some(0), Some(1)], split, ..Pin::FREE };
    case
}

#[test]
fn a_device_with_room_for_its_part_streams_nothing() {
    for split in [Split::Row, Split::Tensor] {
        let case = unlike_rooms([6, 2], split);
        let solution = case.solve_refined(Objective::Latency).expect("it fits");
        let place = &solution.chosen.expect("it was solved").places[0];
        let WeightResidency::Some { stays, .. } = &place.held else {
            panic!("{split:?}: 2 MiB do not hold {:?}", place.parts)
        };
        assert!(stays.iter().all(|lanes| lanes.has(0)), "{split:?}: {stays:?}");
        assert!(stays.iter().any(|lanes| !lanes.has(1)), "{split:?}: {stays:?}");
        assert_eq!(place.parts[0].slots, 0);
    }
}

#[test]
fn own_slots_are_those_that_a_search_of_all_finds() {
    let dice = &mut Dice(5);
    let mut unlike = 0;
    for round in 0..60 {
        let rooms = [2 + dice.below(5), 2 + dice.below(5)];
        let mut case = unlike_rooms(rooms, [Split::Row, Split::Tensor, Split::Layer][round % 3]);
        for device in &mut case.inventory.devices {
            device.link_bytes_per_s = dice.rate();
            device.speeds.f32_flops_per_s = Rate::declared(1e6 * dice.rate().value);
        }
        case.pins[0].params = Some(Params::Cpu);
        let Ok(solution) = case.solve(Objective::Latency) else { continue };
        let chosen = solution.chosen.expect("it was solved");
        let problem = case.problem(Objective::Latency);
        let found = own_slots(&problem, 0, &chosen.places[0], None);
        let alone = |place: &Place| place.ms.load + place.ms.first_read + place.ms.compute;
        let least = found.iter().map(alone).fold(f64::INFINITY, f64::min);
        // From every pair of numbers it comes to the same, or hardly less.
        let WeightResidency::Some { residency, stays, locked, .. } = &chosen.places[0].held else {
            continue;
        };
        for pair in 0..256 {
            let (residency, stays, locked) = (*residency, stays.clone(), locked.clone());
            let slots = SlotCounts::alike(1 + pair / 16).with(1, 1 + pair % 16);
            let from = Place {
                held: WeightResidency::Some { residency, stays, locked, slots },
                ..chosen.places[0].clone()
            };
            let other =
                own_slots(&problem, 0, &from, None).iter().map(alone).fold(f64::INFINITY, f64::min);
            assert!(least <= 1.01 * other, "round {round}, {slots:?}: {least} ms, {other} ms");
        }
        unlike += usize::from(found.iter().any(|place| match &place.held {
            WeightResidency::Some { slots, .. } => slots.on(0) != slots.on(1),
            WeightResidency::All(_) => false,
        }));
    }
    assert!(unlike > 0, "no device has slots of its own");
}

#[test]
fn what_is_pinned_to_page_locked_copies_has_no_file_as_its_source() {
    let mut case = unlike_rooms([3, 2], Split::Row);
    case.pins[0].params = Some(Params::Locked);
    let solution = case.solve(Objective::Latency).expect("it fits");
    let place = &solution.chosen.expect("it was solved").places[0];
    // No byte more may be page-locked than this place has.
    let locked = place.parts.iter().map(|part| part.locked_bytes).sum();
    case.budgets.pinned = Some(locked);
    let others = own_slots(&case.problem(Objective::Latency), 0, place, None);
    assert!(!others.is_empty() && locked > Bytes::ZERO);
    for other in others {
        let all = (0..16).flat_map(|segment| other.residencies(segment).collect::<Vec<_>>());
        assert!(!all.into_iter().any(|r| r == protocol::Residency::Streamed), "{:?}", other.held);
    }
}
