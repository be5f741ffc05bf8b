//! The ways to hold a spread component's weights: when they are there, and which of them are
//! streamed.

use std::sync::Arc;

use protocol::plan::LOOKAHEAD;
use protocol::profile::ComponentProfile;
use protocol::{Division, Residency};

use super::super::Problem;
use super::super::layouts::SEEDS;
use super::super::place::{ComponentLayout, WeightResidency, residency_of};
use super::super::streamable::{Streamable, held_in_lane, held_sets};
use super::lists::{DEVICES_EXACT, DeviceList};
use crate::policy::Objective;
use crate::policy::pins::{Params, Pin, Split};

/// Stream slots that are tried on one device where nobody says how many.
const LOOKAHEADS: [u32; 3] = [LOOKAHEAD, 2 * LOOKAHEAD, 1];

/// Layouts with some segments streamed, of one component over all lists of devices: each takes a
/// microsecond or two to simulate.
const STREAMED_MAX: usize = 800;

/// Row splits of one list that also have streamed segments: those by speed, by memory, and the
/// equal one.
const STREAMED_ROWS: usize = 3;

/// Up to so many segments every number of streamed ones is tried.
const STEPS_ALL: usize = 64;

/// A way to hold a component's weights.
pub struct ResidencyChoice {
    pub held: WeightResidency,
    /// Whether what is held comes early.
    pub early: bool,
    /// Whether it differs from the way before it only in when what stays is there.
    pub as_before: bool,
}

/// Which numbers of streamed segments are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    /// Every number; of very many segments, the fine steps.
    All,
    /// Every number up to 16, then steps of about an eighth.
    Fine,
    /// Powers of two.
    Coarse,
}

impl Steps {
    /// The numbers from 1 to `most`, which is among them.
    fn numbers(self, most: usize) -> Vec<usize> {
        let next = |number: usize| match self {
            Steps::All if most <= STEPS_ALL => number + 1,
            Steps::All | Steps::Fine => number + (number / 8).max(1),
            Steps::Coarse => 2 * number,
        };
        let mut numbers: Vec<usize> = std::iter::successors(Some(1), |number| Some(next(*number)))
            .take_while(|number| *number < most)
            .collect();
        if most > 0 {
            numbers.push(most);
        }
        numbers
    }
}

/// Which of a list's layouts also have streamed segments.
pub struct Quota {
    stride: usize,
    layouts: usize,
    steps: Steps,
}

impl Quota {
    /// A list's part of what all lists of the component may have.
    pub fn of(lists: &[DeviceList], list: &DeviceList, layouts: usize) -> Quota {
        let splits = lists.iter().filter(|other| other.split == list.split).count();
        let steps = if splits == 1 { Steps::Fine } else { Steps::Coarse };
        match list.split {
            None => {
                let steps = if splits <= DEVICES_EXACT + 1 { Steps::All } else { Steps::Fine };
                Quota { stride: 1, layouts, steps }
            }
            _ if list.pinned => Quota { stride: 1, layouts, steps: Steps::All },
            Some(Split::Row) => Quota { stride: 1, layouts: layouts.min(STREAMED_ROWS), steps },
            Some(Split::Layer) if list.devices.len() > DEVICES_EXACT => {
                Quota { stride: 1, layouts: layouts.min(SEEDS), steps: Steps::Fine }
            }
            Some(Split::Layer) => {
                // A list's devices take turns to stream, about so many numbers each.
                let numbers = if splits == 1 { 12 } else { 5 } * list.devices.len();
                let most = (STREAMED_MAX / splits / numbers).max(1);
                Quota { stride: layouts.div_ceil(most).max(1), layouts, steps }
            }
        }
    }

    /// The steps of a layout, if it also has streamed segments.
    pub fn has(&self, layout: usize) -> Option<Steps> {
        (layout < self.layouts && layout.is_multiple_of(self.stride)).then_some(self.steps)
    }
}

/// When the weights of a spread component may be there, in the order in which ties are broken.
pub fn ways_to_hold(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    spread: &ComponentLayout,
    streams: Option<Steps>,
) -> Vec<ResidencyChoice> {
    let first = problem.job.timeline()[0];
    let on_host = spread.is_on_host();
    let early = problem.prefetch && !on_host && component.phase != first;
    let all = |residencies: &[Residency]| {
        let held = residencies.iter().map(|residency| WeightResidency::All(*residency));
        held.flat_map(|held| timed(held, early)).collect::<Vec<ResidencyChoice>>()
    };
    let streamed = || match streams {
        Some(steps) => streamed(problem, component, pin, spread, steps, early),
        None => Vec::new(),
    };
    match pin.params {
        Some(Params::Cpu) => streamed(),
        Some(Params::Device) => all(&[Residency::Resident]),
        Some(Params::Disk) => all(&[Residency::Lazy]),
        None if on_host => all(&[Residency::Mapped, Residency::Resident, Residency::Lazy]),
        None => {
            let mut ways = all(&[Residency::Resident, Residency::Lazy]);
            ways.extend(streamed());
            ways
        }
    }
}

/// A way to hold weights, early and not: what is resident is early wherever that may be, as it is
/// there anyway.
fn timed(held: WeightResidency, early: bool) -> Vec<ResidencyChoice> {
    let lazy = match &held {
        WeightResidency::All(residency) => *residency == Residency::Lazy,
        WeightResidency::Some { residency, .. } => *residency == Residency::Lazy,
    };
    let way = |early, as_before| ResidencyChoice { held: held.clone(), early, as_before };
    match (early, lazy) {
        (true, true) => vec![way(true, false), way(false, true)],
        _ => vec![way(early, false)],
    }
}

/// Numbers of streamed segments, each with the others resident, then with them lazy.
fn streamed(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    spread: &ComponentLayout,
    steps: Steps,
    early: bool,
) -> Vec<ResidencyChoice> {
    let segments = streamable(component, spread);
    let lookaheads = match (pin.lookahead, &spread.division) {
        (Some(slots), _) => vec![slots],
        (None, Division::One) if !spread.is_on_host() => LOOKAHEADS.to_vec(),
        (None, _) => vec![LOOKAHEAD],
    };
    // What a split holds for all jobs and what for one are the same to a job that starts cold.
    let cold = problem.objective != Objective::Throughput && pin.devices.is_empty();
    let residencies: &[Residency] = match spread.division {
        Division::Layer { .. } | Division::Row { .. } if cold => &[Residency::Lazy],
        _ => &[Residency::Resident, Residency::Lazy],
    };
    let mut ways: Vec<ResidencyChoice> = Vec::new();
    for &lookahead in &lookaheads {
        // Other numbers of slots are worth less: they are tried with fewer numbers of streamed
        // segments.
        let steps = match steps {
            Steps::All if Some(&lookahead) != lookaheads.first() => Steps::Fine,
            steps => steps,
        };
        for stays in sets(spread, &segments, pin, steps, lookahead) {
            let stays: Arc<[bool]> = stays.into();
            // Lazy, where anything is held that can be.
            let held = segments.iter().zip(stays.iter());
            let any =
                held.filter(|(s, stays)| **stays && s.is_some_and(|s| s.bytes > 0)).count() > 0;
            let residencies = if any { residencies } else { &residencies[..1] };
            for (index, residency) in residencies.iter().enumerate() {
                let stays = Arc::clone(&stays);
                let held = WeightResidency::Some { residency: *residency, stays, lookahead };
                let mut timed = timed(held, early && any);
                timed[0].as_before = index > 0;
                ways.extend(timed);
            }
        }
    }
    ways
}

/// Which segments may be streamed: none that the host computes, or that has no weights.
fn streamable(component: &ComponentProfile, spread: &ComponentLayout) -> Vec<Option<Streamable>> {
    let segments = component.segments.iter().enumerate().map(|(index, segment)| {
        // Rows of a segment are streamed on all devices, or on none.
        let lane = spread.lane(index);
        let bytes = spread.parts[..spread.devices.len()].iter();
        let bytes = bytes.map(|part| part.segment_bytes[index].0).sum();
        let mapped = residency_of(spread, &WeightResidency::All(Residency::Lazy), index)
            == Residency::Mapped;
        (!mapped).then_some(Streamable { lane, block: segment.block, bytes })
    });
    segments.collect()
}

/// Which segments stay. Of layers, one device streams and the others hold all of theirs: one ring
/// less, and each device can still be filled to the last segment. Of very many devices it is the
/// one with most weights. What is pinned to be streamed is streamed on all of its devices too.
fn sets(
    spread: &ComponentLayout,
    segments: &[Option<Streamable>],
    pin: &Pin,
    steps: Steps,
    lookahead: u32,
) -> Vec<Vec<bool>> {
    let in_layers = matches!(spread.division, Division::Layer { .. });
    let lanes = if in_layers { spread.devices.len() } else { 1 };
    let lane_bytes = |lane: &usize| {
        let here = segments.iter().flatten().filter(|segment| segment.lane == *lane);
        here.map(|segment| segment.bytes).sum::<u64>()
    };
    let streaming = match (0..lanes).max_by_key(lane_bytes) {
        Some(most) if lanes > DEVICES_EXACT && pin.devices.is_empty() => most..most + 1,
        _ => 0..lanes,
    };
    let mut sets: Vec<Vec<bool>> = Vec::new();
    for lane in streaming {
        let here = segments.iter().flatten().filter(|s| s.lane == lane && s.bytes > 0).count();
        let numbers = steps.numbers(here).into_iter();
        sets.extend(numbers.filter_map(|streamed| held_in_lane(segments, lane, streamed)));
    }
    if lanes > 1 && !pin.devices.is_empty() {
        let everywhere = held_sets(segments, &vec![1; spread.devices.len()], lookahead);
        sets.extend(everywhere.into_iter().filter(|set| !sets.contains(set)).collect::<Vec<_>>());
    }
    sets
}
