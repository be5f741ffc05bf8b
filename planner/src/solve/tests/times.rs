//! The time model and early loads, by small sums made by hand.

use protocol::plan::ATTENTION_CHUNK;
use protocol::profile::{ComponentProfile, LayoutPart, StepItems};
use protocol::{Division, Phase, Residency, StorageType};

use super::made_up::{Case, component, segment};
use super::*;
use crate::inventory::{Device, DeviceKind, Inventory, Part, Rate};
use crate::policy::pins::Params;
use crate::solve::component_ms::ComponentMs;
use crate::solve::lanes::{LaneSet, SlotCounts};
use crate::solve::time::{CallBound, SegmentTimes, Timing};

/// Devices of 1000, 2000, 4000 operations a second, behind links of 100, 200, 400 B/s; storage of
/// 50 B/s; memory is never slow.
fn machine(devices: usize) -> Case {
    let mut case = Case::plain(devices, Bytes::gib(1), Vec::new());
    for (index, device) in case.inventory.devices.iter_mut().enumerate() {
        let times = f64::from(1 << index);
        device.speeds.f32_flops_per_s = Rate::declared(1e3 * times);
        device.link_bytes_per_s = Rate::declared(1e2 * times);
        device.link_back_bytes_per_s = Rate::declared(1e2 * times);
        device.speeds.memory_bytes_per_s = Rate::declared(1e12);
    }
    let host = &mut case.inventory.host;
    host.speeds.f32_flops_per_s = Rate::declared(500.0);
    host.speeds.memory_bytes_per_s = Rate::declared(1e12);
    host.storage_bytes_per_s = Rate::declared(50.0);
    host.page_cache_bytes_per_s = Rate::declared(1e9);
    case
}

/// Four segments of 1000 B and 4000 operations each, twice a job.
pub(super) fn four() -> ComponentProfile {
    let segments =
        (0..4).map(|_| segment("block", Bytes(1000), StorageType::F32, 4000.0)).collect();
    ComponentProfile { calls: 2, ..component("dit", Phase::Denoise, segments) }
}

/// Each of four segments on the device that has its weights.
fn layers(devices: &[Option<usize>], parts: &[[u64; 4]]) -> ComponentLayout {
    let of = |segment: usize| parts.iter().position(|part| part[segment] > 0).unwrap_or(0) as u32;
    spread(Division::Layer { segments: (0..4).map(of).collect() }, devices, parts)
}

pub(super) fn spread(
    division: Division,
    devices: &[Option<usize>],
    parts: &[[u64; 4]],
) -> ComponentLayout {
    let part = |bytes: &[u64; 4]| LayoutPart {
        compute_bytes: Bytes::ZERO,
        segment_bytes: bytes.iter().map(|bytes| Bytes(*bytes)).collect(),
    };
    ComponentLayout {
        devices: devices.to_vec(),
        division,
        parts: parts.iter().map(part).collect(),
        crossing_bytes: Bytes(300),
    }
}

fn ms(inventory: &Inventory, spread: &ComponentLayout, held: &WeightResidency) -> ComponentMs {
    let component = four();
    let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
    Timing::new(&times, spread).ms(held)
}

/// Milliseconds of seconds to load, of the first read, and to compute.
fn assert_s(found: ComponentMs, load: f64, first_read: f64, compute: f64) {
    let expected = [load, first_read, compute].map(|s| 1e3 * s);
    for (found, expected) in [found.load, found.first_read, found.compute].iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{found} ms, expected {expected} ms");
    }
}

const RESIDENT: WeightResidency = WeightResidency::All(Residency::Resident);

#[test]
fn layers_run_one_after_the_other_and_cross_the_slowest_link() {
    let inventory = machine(2).inventory;
    let halves = layers(&[Some(0), Some(1)], &[[1000, 1000, 0, 0], [0, 0, 1000, 1000]]);
    // 2 × 4 s, 2 × 2 s, 300 B at 100 B/s; 4000 B from one storage at 50 B/s.
    assert_s(ms(&inventory, &halves, &RESIDENT), 80.0, 0.0, 2.0 * (8.0 + 4.0 + 3.0));
    // A faster storage leaves the slower link: 2000 B at 100 B/s, beside the other's.
    let mut fast = inventory.clone();
    fast.host.storage_bytes_per_s = Rate::declared(1e9);
    assert_s(ms(&fast, &halves, &RESIDENT), 20.0, 0.0, 30.0);
    // The host has a part of it: 2 × 8 s there.
    let hosted = layers(&[Some(0), None], &[[1000, 1000, 0, 0], [0, 0, 1000, 1000]]);
    assert_s(ms(&inventory, &hosted, &RESIDENT), 80.0, 0.0, 2.0 * (8.0 + 16.0 + 3.0));
    // More than its RAM has room for is read for every call, and need not be loaded.
    let mut small = inventory;
    small.host.available_bytes = Bytes(1999);
    assert_s(ms(&small, &hosted, &RESIDENT), 40.0, 0.0, 2.0 * (8.0 + 16.0 + 3.0 + 40.0));
}

#[test]
fn replicas_compute_their_items_beside_each_other() {
    let mut inventory = machine(2).inventory;
    inventory.devices.iter_mut().for_each(|device| device.threads = Some(1));
    // Two pictures in two passes, in a call each or all in one.
    let items = StepItems { passes: 2, batch: 2, run_min: 1 };
    let component = ComponentProfile { items, ..four() };
    let ms = |inventory: &Inventory, counts: [u32; 2], held: &WeightResidency| {
        let division = Division::Items { counts: counts.to_vec() };
        let spread = spread(division, &[Some(0), Some(1)], &[[1000; 4]; 2]);
        let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
        Timing::new(&times, &spread).ms(held)
    };
    let compute = |inventory: &Inventory, counts| ms(inventory, counts, &RESIDENT).compute;
    // A segment takes 4 s or 2 s for two pictures. 300 B cross at 100 B/s.
    for (counts, seconds) in [([2, 2], 4.0), ([1, 3], 3.0), ([3, 1], 6.0)] {
        let found = compute(&inventory, counts);
        assert!((found - 1e3 * (4.0 * seconds + 3.0)).abs() < 1e-6, "{counts:?}: {found} ms");
    }
    // Where they share the host's threads they take turns.
    let mut shared = inventory.clone();
    shared.devices.iter_mut().for_each(|device| device.threads = None);
    assert!((compute(&shared, [2, 2]) - 1e3 * (4.0 * 6.0 + 3.0)).abs() < 1e-6);
    // Both have all weights, which are read once from the storage, at 50 B/s.
    let page_cache = inventory.host.page_cache_bytes_per_s.value;
    let load = ms(&inventory, [2, 2], &RESIDENT).load;
    assert!((load - 1e3 * (80.0 + 4000.0 / page_cache)).abs() < 1e-6, "{load} ms");
}

#[test]
fn replicas_stream_over_their_own_links() {
    let mut inventory = machine(2).inventory;
    inventory.devices.iter_mut().for_each(|device| device.threads = Some(1));
    inventory.host.storage_bytes_per_s = Rate::declared(1e12);
    inventory.host.page_cache_bytes_per_s = Rate::declared(1e12);
    inventory.host.speeds.memory_bytes_per_s = Rate::declared(1e12);
    let items = StepItems { passes: 1, batch: 4, run_min: 1 };
    let component = ComponentProfile { items, calls: 100, ..four() };
    let held = streamed([false; 4]);
    let step = |links: [f64; 2]| {
        let mut inventory = inventory.clone();
        for (device, link) in inventory.devices.iter_mut().zip(links) {
            device.link_bytes_per_s = Rate::declared(link);
            device.link_back_bytes_per_s = Rate::declared(link);
        }
        let division = Division::Items { counts: vec![2, 2] };
        let spread = ComponentLayout {
            crossing_bytes: Bytes::ZERO,
            ..spread(division, &[Some(0), Some(1)], &[[1000; 4]; 2])
        };
        let times = SegmentTimes::new(&inventory, &component, ATTENTION_CHUNK);
        Timing::new(&times, &spread).ms(&held).compute / 100.0
    };
    // Of 2 s and 1 s a segment for two pictures of four: the first ends last, unless what the
    // second one waits for takes longer.
    let near = |found: f64, seconds: f64| (found / (1e3 * seconds) - 1.05).abs() < 0.01;
    assert!(near(step([1e6, 1e6]), 8.0), "{} ms", step([1e6, 1e6]));
    assert!(near(step([1e6, 1000.0 / 1.5]), 8.0), "{} ms", step([1e6, 1000.0 / 1.5]));
    assert!(near(step([1e6, 250.0]), 16.0), "{} ms", step([1e6, 250.0]));
}

#[test]
fn rows_wait_for_the_slowest_device() {
    let mut inventory = machine(2).inventory;
    let rows = |inventory: &Inventory, first| {
        let parts = [[first; 4], [1000 - first; 4]];
        ms(
            inventory,
            &spread(Division::Row { shares: vec![1, 1] }, &[Some(0), Some(1)], &parts),
            &RESIDENT,
        )
        .compute
    };
    // Virtual devices take turns: of 4 s and 2 s a segment each does a half.
    assert!((rows(&inventory, 500) - 2e3 * (4.0 * 3.0 + 3.0)).abs() < 1e-6);
    // With threads of its own, the second one computes its half beside the first: 4 s or 2 s.
    inventory.devices[1].threads = Some(1);
    assert!((rows(&inventory, 500) - 2e3 * (4.0 * 2.0 + 3.0)).abs() < 1e-6);
    // The first one is given its half last, when the second has computed in turns.
    inventory.devices.swap(0, 1);
    let turned = rows(&inventory, 500);
    inventory.devices.swap(0, 1);
    inventory.devices.iter_mut().for_each(|device| device.threads = Some(1));
    let beside = rows(&inventory, 500);
    assert!(turned > beside + 1.0, "{turned} ms in turns, {beside} ms beside each other");
    assert!((beside - 2e3 * (4.0 * 2.0 + 3.0)).abs() < 1e-6);
    inventory.devices.iter_mut().for_each(|device| {
        (device.kind, device.threads) = (DeviceKind::Cuda, None);
    });
    assert_eq!(rows(&inventory, 500), beside);
    let rows = |first| rows(&inventory, first);
    // Of 4 s or 2 s a segment each has a half; in proportion to their speed both take a third of 4
    // s.
    assert!((rows(500) - 2e3 * (4.0 * 2.0 + 3.0)).abs() < 1e-6);
    assert!((rows(250) - 2e3 * (4.0 * 1.5 + 3.0)).abs() < 1e-6);
    assert!(rows(333) < rows(250) && rows(333) < rows(500));
}

#[test]
fn heads_run_beside_each_other_and_cross_over_all_links() {
    let mut inventory = machine(2).inventory;
    let heads = |inventory: &Inventory, first| {
        let shares = Division::Tensor { shares: vec![1, 1] };
        let parts = [[first; 4], [1000 - first; 4]];
        ms(inventory, &spread(shares, &[Some(0), Some(1)], &parts), &RESIDENT).compute
    };
    // Virtual devices take turns: of 4 s and 2 s a segment each does a half. Summands go both ways
    // over each link, the slower one at 100 B/s. Then each adds 150 B, an operation for each 4 B.
    let [first_adds, second_adds] = [37.5 / 1e3, 37.5 / 2e3];
    let in_turns = first_adds + second_adds;
    let near = |found: f64, seconds: f64| {
        assert!((found - 2e3 * seconds).abs() < 1e-5, "{found} ms, not twice {seconds} s");
    };
    near(heads(&inventory, 500), 4.0 * 3.0 + 3.0 + in_turns);
    inventory.devices.iter_mut().for_each(|device| device.threads = Some(1));
    near(heads(&inventory, 500), 4.0 * 2.0 + 3.0 + first_adds);
    near(heads(&inventory, 250), 4.0 * 1.5 + 3.0 + first_adds);
    // What is no block is on the first one.
    near(heads(&inventory, 1000), 4.0 * 4.0 + 3.0 + first_adds);
    // Links of GPUs carry both ways at once.
    let gpus = |device: &mut Device| (device.kind, device.threads) = (DeviceKind::Cuda, None);
    inventory.devices.iter_mut().for_each(gpus);
    near(heads(&inventory, 500), 4.0 * 2.0 + 1.5 + first_adds);
}

#[test]
fn summands_pass_through_the_memory_of_the_host_and_are_added() {
    let mut inventory = gpus();
    let heads = |inventory: &Inventory| {
        let shares = Division::Tensor { shares: vec![1, 1] };
        ms(inventory, &spread(shares, &[Some(0), Some(1)], &[[500; 4]; 2]), &RESIDENT).compute
    };
    // 150 B each way are written and read: 600 B at 100 B/s in place of 1.5 s over the slower link.
    inventory.host.speeds.memory_bytes_per_s = Rate::declared(100.0);
    assert!((heads(&inventory) - 2e3 * (4.0 * 2.0 + 6.0 + 37.5 / 1e3)).abs() < 1e-5);
    // Each adds 150 B: 450 B of its memory at 1000 B/s take longer than 38 operations.
    inventory.devices[0].speeds.memory_bytes_per_s = Rate::declared(1e3);
    assert!((heads(&inventory) - 2e3 * (4.0 * 2.0 + 6.0 + 0.45)).abs() < 1e-5);
}

#[test]
fn summands_share_links_and_memory_with_streamed_weights() {
    let mut inventory = gpus();
    let component = ComponentProfile { calls: 100, ..four() };
    let step = |inventory: &Inventory| {
        let shares = Division::Tensor { shares: vec![1, 1] };
        let spread = spread(shares, &[Some(0), Some(1)], &[[500; 4]; 2]);
        let held = streamed([false; 4]);
        let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
        Timing::new(&times, &spread).ms(&held).compute / 100.0
    };
    inventory.host.storage_bytes_per_s = Rate::declared(1e12);
    let near = |found: f64, seconds: f64| {
        assert!((found / (1.05e3 * seconds) - 1.0).abs() < 0.01, "{found} ms, not {seconds} s");
    };
    // 2000 B of weights and 150 B of summands at 100 B/s.
    near(step(&inventory), 21.5);
    // 4000 B of weights are read from the page cache and written, and 300 B of summands written and
    // read: all of it at 200 B/s.
    inventory.host.speeds.memory_bytes_per_s = Rate::declared(200.0);
    near(step(&inventory), 43.0);
}

#[test]
fn parts_of_a_gpu_take_turns_at_it_and_at_its_link() {
    let mut inventory = gpus();
    inventory.devices[1].speeds = inventory.devices[0].speeds.clone();
    inventory.devices[1].link_bytes_per_s = inventory.devices[0].link_bytes_per_s;
    inventory.host.storage_bytes_per_s = Rate::declared(1e9);
    let parts = [[500; 4]; 2];
    let of = |inventory: &Inventory, division, held: &WeightResidency| {
        ms(inventory, &spread(division, &[Some(0), Some(1)], &parts), held)
    };
    let heads = || Division::Tensor { shares: vec![1, 1] };
    let rows = || Division::Row { shares: vec![1, 1] };
    // Halves of 4 s beside each other, and each device has 2000 B at 100 B/s.
    let adds = 37.5 / 1e3;
    assert_s(of(&inventory, heads(), &RESIDENT), 20.0, 0.0, 2.0 * (8.0 + 1.5 + adds));
    assert_s(of(&inventory, rows(), &RESIDENT), 20.0, 0.0, 2.0 * (8.0 + 3.0));
    let beside = of(&inventory, rows(), &streamed([false; 4])).compute;
    for (index, device) in inventory.devices.iter_mut().enumerate() {
        let (gpu, bytes) = ("GPU-1".to_owned(), Bytes::gib(1));
        let [room_bytes, gpu_total_bytes, gpu_free_bytes] = [bytes; 3];
        device.part = Some(Part { gpu, index, room_bytes, gpu_total_bytes, gpu_free_bytes });
    }
    // One after the other; summands stay in its memory, which is never slow.
    assert_s(of(&inventory, heads(), &RESIDENT), 40.0, 0.0, 2.0 * (16.0 + 2.0 * adds));
    assert_s(of(&inventory, rows(), &RESIDENT), 40.0, 0.0, 2.0 * (16.0 + 3.0));
    let in_turns = of(&inventory, rows(), &streamed([false; 4])).compute;
    assert!(in_turns > 1.8 * beside, "{in_turns} ms over one link, {beside} ms over two");
}

/// Two GPUs, the first and the second of the machine.
pub(super) fn gpus() -> Inventory {
    let mut inventory = machine(2).inventory;
    inventory.devices.iter_mut().for_each(|device| device.kind = DeviceKind::Cuda);
    inventory
}

/// Two slots for what does not stay.
fn streamed(stays: [bool; 4]) -> WeightResidency {
    WeightResidency::Some {
        residency: Residency::Lazy,
        stays: stays.map(LaneSet::all_if).to_vec().into(),
        locked: None,
        slots: SlotCounts::alike(2),
    }
}

#[test]
fn what_the_host_does_for_a_device_comes_after_it() {
    let inventory = machine(1).inventory;
    let helped = spread(Division::One, &[Some(0)], &[[1000, 500, 1000, 1000], [0, 500, 0, 0]]);
    // The second segment takes half of 4 s, and half of 8 s.
    assert_s(ms(&inventory, &helped, &RESIDENT), 80.0, 0.0, 2.0 * (12.0 + 2.0 + 4.0 + 3.0));
}

#[test]
fn a_ring_reads_files_once_and_ram_then() {
    let inventory = machine(1).inventory;
    let whole = spread(Division::One, &[Some(0)], &[[1000; 4]]);
    let held = streamed;
    // Two copies of 10 s a call, hidden by nothing but 4 s a segment and 3 s of crossing; from
    // storage they take 20 s each. The link is busy all the time: 20 s a call, less what the last
    // segment and the crossing give.
    let found = ms(&inventory, &whole, &held([true, false, true, false]));
    assert!((found.load - 40e3).abs() < 1e-6, "2000 B are held");
    // First: held 4 s beside 10 s of copying, 10 + 4, 14 + 4 | 20 + 4 + 3 = 27 s; second: copies at
    // 30 and 40, 47 s.
    assert!((found.compute - 1.05 * 47e3).abs() < 1e-6, "{found:?}");
    // From storage: 20 + 4, 28 | 40 + 4 + 3 = 47 s in place of 27 s.
    assert!((found.first_read - 1.05 * 20e3).abs() < 1e-6, "{found:?}");
    // What is held may leave RAM once it is loaded.
    let mut small = inventory;
    small.host.available_bytes = Bytes(2000);
    assert_eq!(ms(&small, &whole, &held([true, false, true, false])), found);
    // Without room for what is streamed every call reads it from its file, and the first one no
    // longer than others.
    small.host.available_bytes = Bytes(1999);
    let reread = ms(&small, &whole, &held([true, false, true, false]));
    assert!((reread.compute - 1.05 * 87e3).abs() < 1e-6 && reread.first_read == 0.0, "{reread:?}");
}

#[test]
fn what_is_mapped_and_what_is_streamed_share_the_page_cache() {
    let mut inventory = machine(1).inventory;
    let hosted = layers(&[Some(0), None], &[[1000, 1000, 0, 0], [0, 0, 1000, 1000]]);
    let streams_one = streamed([true, false, true, true]);
    inventory.host.available_bytes = Bytes(3000);
    let both_fit = ms(&inventory, &hosted, &streams_one);
    // Each alone still would.
    inventory.host.available_bytes = Bytes(2999);
    let neither = ms(&inventory, &hosted, &streams_one);
    // 2000 B in place are read at 50 B/s in both calls, and need not be loaded.
    assert_eq!(both_fit.load - neither.load, 40e3);
    assert!(neither.compute > both_fit.compute + 2.0 * 40e3, "{both_fit:?}, {neither:?}");
    // 1000 B are streamed at 50 B/s too.
    assert!(neither.storage_again - both_fit.storage_again >= 2.0 * (40e3 + 20e3) - 1e-6);
}

#[test]
fn a_call_is_bound_by_what_takes_longest() {
    let component = four();
    let whole = spread(Division::One, &[Some(0)], &[[1000; 4]]);
    let bound = |inventory: &Inventory, stays: [bool; 4], locked: Option<[bool; 4]>| {
        let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
        Timing::new(&times, &whole)
            .call_bound(&stays.map(LaneSet::all_if), locked.as_ref().map(|locked| &locked[..]))
    };
    // A call computes for 19 s; 1000 B take 10 s over the link.
    let mut inventory = machine(1).inventory;
    assert_eq!(bound(&inventory, [true, true, true, false], None), CallBound::Computing);
    assert_eq!(bound(&inventory, [false; 4], None), CallBound::Link(0));
    inventory.host.page_cache_bytes_per_s = Rate::declared(80.0);
    assert_eq!(bound(&inventory, [false; 4], None), CallBound::PageCache(0));
    assert_eq!(bound(&inventory, [false; 4], Some([true; 4])), CallBound::Link(0));
    // Of 4000 B from 100 B/s each is read and written: 80 s.
    inventory = machine(1).inventory;
    inventory.host.speeds.memory_bytes_per_s = Rate::declared(100.0);
    assert_eq!(bound(&inventory, [false; 4], None), CallBound::Memory);
    inventory.host.available_bytes = Bytes(3999);
    assert_eq!(bound(&inventory, [false; 4], None), CallBound::Storage);
}

#[test]
fn the_page_cache_counts_where_its_state_is_known() {
    let mut inventory = machine(1).inventory;
    let whole = spread(Division::One, &[Some(0)], &[[1000; 4]]);
    inventory.devices[0].link_bytes_per_s = Rate::declared(1e6);
    inventory.host.page_cache_bytes_per_s = Rate::declared(1000.0);
    let load = |cached, inventory: &Inventory| {
        let component = ComponentProfile { cached_bytes: Bytes(cached), ..four() };
        let times = SegmentTimes::new(inventory, &component, ATTENTION_CHUNK);
        Timing::new(&times, &whole).ms(&RESIDENT).load
    };
    assert_eq!(load(4000, &inventory), 80e3);
    inventory.host.page_cache = true;
    assert_eq!((load(4000, &inventory), load(0, &inventory)), (4e3, 80e3));
    assert!((load(2000, &inventory) - 42e3).abs() < 1e-6);
}

#[test]
fn corrections_and_short_attention_lengthen_what_they_are_about() {
    let mut inventory = machine(1).inventory;
    let whole = spread(Division::One, &[Some(0)], &[[1000; 4]]);
    let plain = ms(&inventory, &whole, &RESIDENT).compute;
    inventory.devices[0].speeds.corrections.insert("vae".to_owned(), 3.0);
    assert_eq!(ms(&inventory, &whole, &RESIDENT).compute, plain);
    inventory.devices[0].speeds.corrections.insert("dit".to_owned(), 1.5);
    // 2 × 16 s of computing, 2 × 3 s of crossing.
    assert!((ms(&inventory, &whole, &RESIDENT).compute - (plain + 16e3)).abs() < 1e-6);
    let times = SegmentTimes::new(&inventory, &four(), SHORT_ATTENTION_CHUNK).once_s(Some(0));
    assert_eq!(times, 24.0, "products do not depend on how attention is cut");
}

/// T5, a DiT and a VAE that load for 20 s, 40 s and 20 s and compute for 10 s each, all lazy on one
/// device.
fn early(budget: u64, objective: Objective, prefetch: bool) -> (Vec<bool>, f64) {
    let sized = |name, phase, bytes| {
        component(name, phase, vec![segment("all", Bytes(bytes), StorageType::F32, 10_000.0)])
    };
    let components = vec![
        sized("t5", Phase::Condition, 1024),
        sized("dit", Phase::Denoise, 2048),
        sized("vae", Phase::Decode, 1024),
    ];
    let mut case =
        Case { inventory: machine(1).inventory, ..Case::plain(1, Bytes(budget), components) };
    case.inventory.host.storage_bytes_per_s = Rate::declared(51.2);
    case.inventory.host.compute = false;
    case.pins = vec![Pin { params: Some(Params::Disk), ..Pin::FREE }; 3];
    case.prefetch = prefetch;
    let plan = case.solve(objective).expect("it fits").plan;
    check(&plan).expect("a good plan");
    (plan.components.iter().map(|c| c.prefetch).collect(), plan.predicted_ms.total / 1e3)
}

#[test]
fn lazy_weights_come_early_where_the_phase_before_has_room() {
    // 80 s to load and 30 s to compute: 10 s of each later load are hidden by the phase before.
    let room = 2048 + 1024 + 512;
    assert_eq!(early(room, Objective::Latency, true), (vec![false, true, true], 90.0));
    // A byte less, and there is no room for two of them.
    assert_eq!(early(room - 1, Objective::Latency, true), (vec![false; 3], 110.0));
    // Least bytes are not spent on time.
    assert_eq!(early(room, Objective::Memory, true), (vec![false; 3], 110.0));
    assert_eq!(early(room, Objective::Latency, false), (vec![false; 3], 110.0));
}
