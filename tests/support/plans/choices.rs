//! Choices at random: any placement, cut and residency of a component over any devices.

use std::collections::BTreeMap;

use executor::models::ComponentGraph;
use executor::models::cut::Cuts;
use executor::schedule::assignment::splits_rows;
use protocol::profile::StepItems;
use protocol::{Division, Residency};

use super::Choice;
use crate::support::wide::SplitMix64 as Random;

/// Different devices, in any order.
fn some_devices(random: &mut Random, all: usize, count: usize) -> Vec<usize> {
    let mut devices: Vec<usize> = (0..all).collect();
    for index in (1..all).rev() {
        devices.swap(index, random.below(index + 1));
    }
    devices.truncate(count);
    devices
}

/// Contiguous segments over lanes, each of which has at least one.
fn cuts(random: &mut Random, segments: usize, lanes: usize) -> Vec<u32> {
    let mut starts: Vec<usize> = some_devices(random, segments - 1, lanes - 1);
    starts.sort_unstable();
    let lane = |segment| starts.iter().filter(|&&start| start < segment).count() as u32;
    (0..segments).map(lane).collect()
}

fn residencies(random: &mut Random, segments: usize) -> Vec<Residency> {
    match random.below(3) {
        0 => vec![Residency::Resident; segments],
        1 => vec![Residency::Lazy; segments],
        _ => {
            let (streamed, locked) = (random.below(100), [0, 50, 100][random.below(3)]);
            let ring = |random: &mut Random| match random.chance(locked) {
                true => Residency::Locked,
                false => Residency::Streamed,
            };
            let held = if random.chance(50) { Residency::Lazy } else { Residency::Resident };
            let mut all: Vec<Residency> = (0..segments)
                .map(|_| if random.chance(streamed) { ring(random) } else { held })
                .collect();
            all[random.below(segments)] = ring(random);
            all
        }
    }
}

/// What some of the devices have elsewhere of each segment.
fn own_residencies(
    random: &mut Random,
    segments: usize,
    lanes: usize,
) -> BTreeMap<(usize, usize), Residency> {
    let own = (0..lanes).flat_map(|lane| {
        let on_lane = residencies(random, segments);
        on_lane.into_iter().enumerate().map(move |(at, residency)| ((lane, at), residency))
    });
    let own: Vec<_> = own.collect();
    own.into_iter().filter(|_| random.chance(50)).collect()
}

/// Items of a step over so many devices, each of which has at least one.
fn item_counts(random: &mut Random, items: usize, lanes: usize) -> Vec<u32> {
    let cuts = cuts(random, items, lanes);
    (0..lanes as u32).map(|lane| cuts.iter().filter(|at| **at == lane).count() as u32).collect()
}

/// What of a component can be divided.
#[derive(Debug, Clone, Copy)]
pub struct Divisible {
    /// Into how many layers.
    pub segments: usize,
    /// Whether large matrices are, over devices.
    pub rows: bool,
    /// The most devices that can share its attention.
    pub heads: usize,
    /// Which items of a step.
    pub items: StepItems,
}

impl Divisible {
    /// Of a component, on devices that can do all, or lack operations.
    pub fn of(graph: &ComponentGraph, able: bool) -> Divisible {
        let first = &graph.variants[0];
        Divisible {
            segments: first.segments.len(),
            rows: able && splits_rows(first),
            heads: if able { Cuts::of(first).parts_max() } else { 1 },
            items: graph.items,
        }
    }
}

/// Any choice for a component; `first` if its phase is the first.
pub fn choice(random: &mut Random, devices: usize, of: Divisible, first: bool) -> Choice {
    let Divisible { segments, rows, heads, items } = of;
    let mut choice = Choice::host(segments);
    let kind = random.below(10);
    if kind == 0 {
        let of_host = [Residency::Mapped, Residency::Resident, Residency::Lazy];
        choice.residencies = vec![of_host[random.below(3)]; segments];
        return choice;
    }
    let lanes_max = devices.min(segments);
    let items = items.count() as usize;
    let replicas_max = devices.min(items);
    if replicas_max >= 2 && random.chance(30) {
        let lanes = 2 + random.below(replicas_max - 1);
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        choice.division = Division::Items { counts: item_counts(random, items, lanes) };
    } else if items.min(lanes_max) >= 2 && random.chance(25) {
        let lanes = 2 + random.below(lanes_max.min(4) - 1);
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        let groups = 2 + random.below(items - 1);
        let (segments, counts) =
            (cuts(random, segments, lanes), item_counts(random, items, groups));
        choice.division = Division::Pipeline { segments, counts };
    } else if devices.min(heads) >= 2 && random.chance(25) {
        let lanes = 2 + random.below(devices.min(heads).min(4) - 1);
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        let shares = (0..lanes).map(|_| 1 + random.below(5) as u32).collect();
        choice.division = Division::Tensor { shares };
    } else if kind <= 3 || lanes_max < 2 {
        choice.devices = vec![Some(random.below(devices))];
    } else if kind <= 6 && rows {
        let lanes = 2 + random.below(devices.min(4) - 1);
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        let shares = (0..lanes).map(|_| 1 + random.below(5) as u32).collect();
        choice.division = Division::Row { shares };
    } else {
        let lanes = 2 + random.below(lanes_max - 1);
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        choice.division = Division::Layer { segments: cuts(random, segments, lanes) };
    }
    choice.residencies = match &choice.division {
        // Groups that follow one another need weights that stay.
        Division::Pipeline { .. } => {
            vec![[Residency::Resident, Residency::Lazy][random.below(2)]; segments]
        }
        _ => residencies(random, segments),
    };
    if matches!(choice.division, Division::Layer { .. }) && random.chance(20) {
        let on_host = random.below(choice.devices.len());
        choice.devices[on_host] = None;
        for (segment, residency) in choice.residencies.iter_mut().enumerate() {
            if choice.division.lane(segment) == Some(on_host) {
                *residency = Residency::Mapped;
            }
        }
    }
    if choice.residencies.iter().any(|residency| residency.is_streamed()) {
        choice.lookahead = 1 + random.below(4) as u32;
        let lanes = choice.devices.len();
        if choice.division.is_on_each() && random.chance(60) {
            choice.own_residencies = own_residencies(random, segments, lanes);
            // At least one is streamed.
            let (at, any) = (random.below(lanes), random.below(segments));
            choice.own_residencies.insert((at, any), Residency::Streamed);
        }
        if random.chance(50) {
            let slots = |_| 1 + random.below(choice.lookahead as usize) as u32;
            choice.own_slots = (0..lanes).map(slots).collect();
        }
    }
    let streams = choice.streams();
    // Nothing but weights that wait for their phase can be prefetched in the first.
    let early = streams || choice.residencies.contains(&Residency::Lazy);
    choice.prefetch = random.chance(50) && !(first && early);
    choice
}
