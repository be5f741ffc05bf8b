//! Layer splits that may take the least with given budgets: over which devices, in which order, and
//! where each one begins. They follow from sums over segments, without any simulation.
//!
//! A device holds what it has room for beside its slots, and streams the rest. In its turn it
//! computes, and copies what its slots had no room for while others computed: the longer of both
//! counts. So what a run of segments takes depends on its device alone, and the best split over a
//! set of devices, in whatever order, is that over one device less with a run at its end.

mod runs;

use std::collections::{BTreeMap, BTreeSet};

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Division};
use rayon::prelude::*;

use super::super::Problem;
use super::super::place::ComponentLayout;
use super::super::time::SegmentTimes;
use super::lists::choosable;
use super::neighbours::query;
use super::{LayoutQuery, lacks};
use crate::policy::pins::Params;
use runs::DeviceRuns;

/// Numbers of slots that are looked at.
const SLOTS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Sets of devices at most, where those that are alike count once: all sets of six unlike ones.
const SETS_MAX: usize = 64;

/// Layouts at most, each set with as many as any other: four unlike cards have eleven sets.
const LAYOUTS_MAX: usize = 24;
const LAYOUTS_MIN_OF_SET: usize = 4;

/// How many times what page-locking takes each streamed byte counts: more and more, until no more
/// are streamed than RAM has room for. From the storage they may take a hundred times as long.
const PRICES: [f64; 4] = [1.0, 4.0, 16.0, 64.0];

/// The layer splits of a component whose calls may take less than `longest_ms` together, the best
/// of each set of devices; `known` are some of its layouts, whose arenas and crossings are taken
/// for those of others. None where its devices are pinned, or nothing may be streamed.
pub fn likely_layers(
    problem: &Problem<'_>,
    index: usize,
    known: &[&ComponentLayout],
    longest_ms: f64,
) -> Vec<LayoutQuery> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let streams = !matches!(pin.params, Some(Params::Device | Params::Disk));
    let known = known.iter().filter(|known| matches!(known.division, Division::Layer { .. }));
    let known: Vec<&ComponentLayout> = known.copied().collect();
    if !(pin.devices.is_empty() && streams) || known.is_empty() || component.calls == 0 {
        return Vec::new();
    }
    let limit_s = 1e-3 * longest_ms / f64::from(component.calls);
    let mut cuts = cuts_within(problem, index, &known, limit_s);
    cuts.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let set = |cut: &Cut| -> BTreeSet<usize> { cut.iter().map(|turn| turn.device).collect() };
    let sets: BTreeSet<BTreeSet<usize>> = cuts.iter().map(|(cut, _)| set(cut)).collect();
    let each = (LAYOUTS_MAX / sets.len().max(1)).max(LAYOUTS_MIN_OF_SET);
    let mut of_set: BTreeMap<BTreeSet<usize>, usize> = BTreeMap::new();
    cuts.retain(|(cut, _)| {
        let count = of_set.entry(set(cut)).or_default();
        *count += 1;
        *count <= each
    });
    cuts.truncate(LAYOUTS_MAX);
    let layout = |(cut, _): (Cut, f64)| {
        let devices = cut.iter().map(|turn| Some(turn.device)).collect();
        let lanes = (0..).zip(&cut);
        let segments = lanes.flat_map(|(lane, turn)| vec![lane; turn.end - turn.begin]).collect();
        query(problem, index, devices, Division::Layer { segments })
    };
    cuts.into_iter().map(layout).collect()
}

/// The best cut of each set of devices for each number of slots, from files and from page-locked
/// copies, with about what a call takes in seconds: those within the limit.
fn cuts_within(
    problem: &Problem<'_>,
    index: usize,
    known: &[&ComponentLayout],
    limit_s: f64,
) -> Vec<(Cut, f64)> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let kinds = kinds(problem, index, known);
    let crossing_bytes = crossing_bytes(component, known);
    let slots = pin.lookahead.map_or(SLOTS.to_vec(), |slots| vec![u64::from(slots)]);
    let sources: &[bool] = match pin.params {
        Some(Params::Locked) => &[true],
        _ => &[false, true],
    };
    let ways = sources.iter().flat_map(|locks| slots.iter().map(move |slots| (*locks, *slots)));
    let found = ways.collect::<Vec<_>>().into_par_iter().map(|(locks, slots)| {
        let streamed_max = match locks {
            true => problem.locked_max(&[]),
            false => problem.inventory.host.available_bytes,
        };
        let runs = DeviceRuns::of(component, &kinds, slots, locks, limit_s);
        let mut found = Vec::new();
        for price in PRICES {
            let cuts = runs.best_cuts(price);
            let fits = cuts.iter().all(|cut| runs.streamed_bytes(cut) <= streamed_max.0 as f64);
            found.extend(cuts);
            if fits {
                break;
            }
        }
        (runs, found)
    });
    let (ways, found): (Vec<DeviceRuns<'_>>, Vec<Vec<Cut>>) = found.unzip();
    // What is the best in one way may be better in another.
    let cuts: BTreeSet<Cut> = found.into_iter().flatten().collect();
    let timed = cuts.into_iter().map(|cut| {
        let crossing_bytes = crossing_bytes(cut.len());
        let each_s = ways.iter().map(|runs| runs.call_s(problem, &cut, crossing_bytes));
        let call_s = each_s.fold(f64::INFINITY, f64::min);
        (cut, call_s)
    });
    timed.filter(|(_, call_s)| *call_s <= limit_s).collect()
}

/// Devices that are alike and have the same room.
struct Kind {
    /// Indices in the inventory.
    devices: Vec<usize>,
    /// For weights that stay and for slots, in bytes.
    room: u64,
    /// What the segments before each one, and before the end, take to compute.
    before_s: Vec<f64>,
    /// Seconds a byte takes from a file, and from a page-locked copy.
    file_s: f64,
    copy_s: f64,
}

/// The devices that may be chosen, by kinds, the fastest first, as long as they have few enough
/// sets.
fn kinds(problem: &Problem<'_>, index: usize, known: &[&ComponentLayout]) -> Vec<Kind> {
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let page_cache = problem.inventory.host.page_cache_bytes_per_s.value;
    let mut usable = choosable(problem, &problem.pins[index]);
    usable.retain(|device| !lacks(problem, *device));
    usable.sort_by(|a, b| times.once_s(Some(*a)).total_cmp(&times.once_s(Some(*b))));
    let mut kinds: Vec<Kind> = Vec::new();
    for at in usable {
        let device = &problem.inventory.devices[at];
        let arenas = known.iter().filter_map(|layout| {
            let lane = layout.devices.iter().position(|other| *other == Some(at))?;
            Some(layout.parts[lane].compute_bytes)
        });
        let arena = arenas.max().unwrap_or_default();
        let Some(Bytes(room)) = problem.room_for_weights(at, arena) else { continue };
        let is_like = |kind: &&mut Kind| {
            kind.room == room && problem.inventory.devices[kind.devices[0]].is_like(device)
        };
        let sets: usize = kinds.iter().map(|kind| kind.devices.len() + 1).product();
        let like = kinds.iter_mut().find(is_like);
        let count = like.as_ref().map_or(1, |kind| kind.devices.len() + 1);
        if sets / count * (count + 1) > SETS_MAX {
            break;
        }
        if let Some(kind) = like {
            kind.devices.push(at);
            continue;
        }
        let mut before_s = vec![0.0];
        for segment_s in times.segments_s(Some(at)) {
            before_s.push(before_s[before_s.len() - 1] + segment_s);
        }
        let link = device.link_bytes_per_s.value;
        let (file_s, copy_s) = (1.0 / link.min(page_cache), 1.0 / link);
        kinds.push(Kind { devices: vec![at], room, before_s, file_s, copy_s });
    }
    kinds
}

/// How much crosses in a call, by the number of devices. Other layouts say what crosses from one
/// device to the next.
fn crossing_bytes(
    component: &ComponentProfile,
    known: &[&ComponentLayout],
) -> impl Fn(usize) -> f64 {
    let boundary = component.boundary_bytes.0 as f64;
    let of_each = known.iter().map(|layout| {
        (layout.crossing_bytes.0 as f64 - boundary).max(0.0) / (layout.devices.len() - 1) as f64
    });
    let of_each = of_each.fold(0.0, f64::max);
    move |devices| boundary + (devices - 1) as f64 * of_each
}

/// A layer split: the turns of its devices, in order.
type Cut = Vec<DeviceTurn>;

/// A device with a run of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceTurn {
    device: usize,
    /// Its index among the kinds.
    kind: usize,
    begin: usize,
    end: usize,
}
