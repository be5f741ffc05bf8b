//! Which segments of a component are streamed, and which of these are page-locked: the sets that
//! rings are made of.

use std::sync::Arc;

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Division};
use rustc_hash::FxHashSet;

use super::super::super::Problem;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::place::ComponentLayout;
use super::super::super::streamable::{
    HeldBlocks, Lane, Streamable, evenly, fill_up, fitting_sets, level_sets, paced_sets,
};
use super::super::super::time::{StreamedTiming, Timing};
use super::{LOOKAHEAD_MAX, SLOT_GAIN, Steps};
use crate::policy::pins::{Params, Pin};

/// Page-locked are quarters of what is streamed: one, two, three, or all.
const LOCKED_PARTS: usize = 4;

/// Where page-locked weights are not waited for, every fourth set is tried: these sets differ only
/// in what they take of RAM.
const LOCKED_STRIDE: usize = 4;

/// A step of budgets is about such a part of the largest device's weights.
const ROOM_STEPS: u64 = 64;

/// How many steps smaller than they are budgets are tried.
pub(super) const SMALLER_ROOMS: usize = 6;

/// Which segments stay, and which of the others are page-locked, if any.
pub(super) struct StreamedSet {
    pub stays: Arc<[LaneSet]>,
    pub locked: Option<Arc<[bool]>>,
    /// How much is page-locked: a number below [`LOCKED_WAYS`], the same for as large a part.
    pub way: usize,
}

/// How many parts may be page-locked: none, each number of [`LOCKED_PARTS`], or what there is room
/// for.
pub(super) const LOCKED_WAYS: usize = LOCKED_PARTS + 2;

/// Which segments may be streamed: none that the host computes, or that has no weights. Where
/// several devices have a part of each, all of them do alike.
pub(super) fn streamable(
    component: &ComponentProfile,
    spread: &ComponentLayout,
) -> Vec<Option<Streamable>> {
    let segments = component.segments.iter().enumerate().map(|(index, segment)| {
        let bytes = spread.parts[..spread.devices.len()].iter();
        let bytes = bytes.map(|part| part.segment_bytes[index].0).sum();
        let lane = spread.lane(index);
        (!spread.is_mapped(index)).then_some(Streamable { lane, block: segment.block, bytes })
    });
    segments.collect()
}

/// The lanes of a split, with what each may stream: in a split by layers its own segments, else its
/// parts of all segments.
pub(super) fn own_lanes(
    component: &ComponentProfile,
    spread: &ComponentLayout,
    segments: &[Option<Streamable>],
    staying: HeldBlocks,
) -> Vec<Lane> {
    let own = |lane: usize| {
        if is_in_layers(spread) {
            return Lane::of(segments, lane, staying);
        }
        let parts = component.segments.iter().zip(&spread.parts[lane].segment_bytes);
        let parts =
            parts.map(|(s, bytes)| Some(Streamable { lane, block: s.block, bytes: bytes.0 }));
        Lane::apart(&parts.collect::<Vec<_>>(), lane, staying)
    };
    (0..spread.devices.len()).map(own).collect()
}

/// Runs of sets. Each set of a run streams more than the one before it. No set is in two runs.
#[derive(Default)]
pub(super) struct SetRuns {
    pub all: Vec<Vec<Arc<[LaneSet]>>>,
    seen: FxHashSet<Arc<[LaneSet]>>,
}

impl SetRuns {
    /// A new run of the sets that no run has yet.
    fn add_new(&mut self, sets: impl Iterator<Item = Vec<LaneSet>>) {
        let new = sets.filter(|set| !self.seen.contains(set.as_slice()));
        let new: Vec<Arc<[LaneSet]>> = new.map(Arc::from).collect();
        self.seen.extend(new.iter().cloned());
        self.all.push(new);
    }
}

/// Which segments stay, for any budgets. Within a run each set streams more than the one before it.
/// In a split by layers either one device streams, and the others hold all of theirs; or all of
/// them stream for about as long; or all of them hold as much.
pub(super) fn sets(
    problem: &Problem<'_>,
    spread: &ComponentLayout,
    segments: &[Option<Streamable>],
    pin: &Pin,
    steps: Steps,
) -> SetRuns {
    let lanes = if is_in_layers(spread) { spread.devices.len() } else { 1 };
    let alone = if lanes > 2 && pin.devices.is_empty() { Steps::Coarse } else { steps };
    let mut runs = SetRuns::default();
    if steps != Steps::Last || lanes == 1 {
        for lane in 0..lanes {
            let here = segments.iter().flatten().filter(|s| s.lane == lane && s.bytes > 0).count();
            for staying in HeldBlocks::of(segments) {
                let lane = Lane::of(segments, lane, *staying);
                let numbers = alone.numbers(here).into_iter();
                runs.add_new(numbers.filter_map(|streamed| lane.streaming(streamed)));
            }
        }
    }
    if lanes > 1 {
        let rates = spread.devices.iter().map(|device| match device {
            Some(index) => problem.inventory.devices[*index].link_bytes_per_s.value,
            None => f64::INFINITY,
        });
        let rates: Vec<f64> = rates.collect();
        for growing in [paced_sets(segments, &rates), level_sets(segments, lanes)] {
            let numbers = steps.numbers(growing.len()).into_iter();
            runs.add_new(numbers.map(|number| growing[number - 1].clone()));
        }
    }
    runs
}

/// Adds to the runs those in which each device of a split streams what it has no room for, with the
/// problem's budgets and with some that are smaller.
pub(super) fn add_fitting(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    spread: &ComponentLayout,
    segments: &[Option<Streamable>],
    runs: &mut SetRuns,
    smaller: usize,
) {
    if spread.devices.len() < 2 {
        return;
    }
    let rooms = rooms_of_lanes(problem, spread, smaller);
    for staying in HeldBlocks::of(segments) {
        let lanes = own_lanes(component, spread, segments, *staying);
        for room in &rooms {
            let sets = fitting_sets(&lanes, room, u64::from(LOOKAHEAD_MAX));
            runs.add_new(sets.into_iter());
        }
    }
}

/// What each device's budget leaves for weights and slots; then what it would leave if none were
/// above a limit, for the next lower limits. The limits are the same with any budgets. What is held
/// is loaded first, so a device may be better off with less of it.
pub(super) fn rooms_of_lanes(
    problem: &Problem<'_>,
    spread: &ComponentLayout,
    smaller: usize,
) -> Vec<Vec<u64>> {
    let Some(all) = room_of_lanes(problem, spread) else { return Vec::new() };
    let parts = (0..spread.devices.len()).map(|lane| spread.part_bytes(lane).0);
    let step = (parts.max().unwrap_or(0) / ROOM_STEPS).next_power_of_two();
    let budget = |device: Option<usize>| device.map_or(0, |at| problem.budgets.devices[at].0);
    let largest = spread.devices.iter().map(|device| budget(*device)).max().unwrap_or(0);
    let below = (1..=largest.saturating_sub(1) / step).rev().take(smaller);
    let below = below.map_while(|number| {
        let lanes = all.iter().zip(&spread.devices);
        let room = lanes
            .map(|(room, device)| room.checked_sub(budget(*device).saturating_sub(number * step)));
        room.collect::<Option<Vec<u64>>>()
    });
    std::iter::once(all.clone()).chain(below).collect()
}

/// What each device's budget leaves for weights and slots, the host's without an end; `None` where
/// one has no room for its arena.
pub(super) fn room_of_lanes(problem: &Problem<'_>, spread: &ComponentLayout) -> Option<Vec<u64>> {
    let room = spread.devices.iter().zip(spread.parts.iter()).map(|(device, part)| match device {
        Some(device) => Some(problem.room_for_weights(*device, part.compute_bytes)?.0),
        None => Some(u64::MAX),
    });
    room.collect()
}

pub(super) fn is_in_layers(spread: &ComponentLayout) -> bool {
    matches!(spread.division, Division::Layer { .. })
}

/// The sets of a run that may be worth it, each with what is page-locked: nothing, and all where
/// streamed weights are waited for. Parts are page-locked on one device, and on several where
/// `locked_max` bytes are less than all; then also as many as that has room for.
///
/// A set for which nothing is waited for takes no longer than one that streams less, and less
/// memory unless it has more slots.
pub(super) fn waits(
    timing: &Timing<'_>,
    growing: &[Arc<[LaneSet]>],
    pin: &Pin,
    steps: Steps,
    locked_max: Option<Bytes>,
) -> Vec<StreamedSet> {
    let is_hidden = |timing: &StreamedTiming<'_>| {
        let most = timing.slots_max().clamp(1, LOOKAHEAD_MAX);
        timing.is_hidden(SlotCounts::alike(pin.lookahead.unwrap_or(most)), SLOT_GAIN)
    };
    let is_hidden_from_copies = |stays: &[LaneSet]| {
        let all = locked_part(timing, stays, 1, 1);
        is_hidden(&timing.streamed(stays, Some(&all)))
    };
    let is_locked = pin.params == Some(Params::Locked);
    let from_files = match is_locked {
        true => 0,
        false => growing.partition_point(|stays| is_hidden(&timing.streamed(stays, None))),
    };
    let from_copies =
        from_files + growing[from_files..].partition_point(|stays| is_hidden_from_copies(stays));
    let near = |index: usize, hidden: usize| index + LOOKAHEAD_MAX as usize >= hidden;
    let mut held: Vec<StreamedSet> = Vec::new();
    for (index, stays) in growing.iter().enumerate() {
        if !is_locked && near(index, from_files) {
            held.push(StreamedSet { stays: Arc::clone(stays), locked: None, way: 0 });
        }
        if index < from_files || !(near(index, from_copies) || index % LOCKED_STRIDE == 0) {
            continue;
        }
        let count = timing.streamed_segments(stays).count();
        let in_parts = steps == Steps::All && !is_locked && count >= LOCKED_PARTS;
        let fewer = locked_max.filter(|_| in_parts);
        let fewer = fewer.and_then(|most| locked_within(timing, stays, most));
        let mut ways = Vec::new();
        if in_parts && (timing.spread().devices.len() == 1 || fewer.is_some()) {
            let part = |part| (locked_part(timing, stays, part, LOCKED_PARTS), part);
            ways.extend((1..LOCKED_PARTS).map(part));
        }
        ways.push(match fewer {
            Some(fewer) => (fewer, LOCKED_PARTS + 1),
            None => (locked_part(timing, stays, 1, 1), LOCKED_PARTS),
        });
        held.extend(ways.into_iter().map(|(locked, way)| StreamedSet {
            stays: Arc::clone(stays),
            locked: Some(locked),
            way,
        }));
    }
    held
}

/// `part` in every `of` streamed segments, spread evenly.
pub(super) fn locked_part(
    timing: &Timing<'_>,
    stays: &[LaneSet],
    part: usize,
    of: usize,
) -> Arc<[bool]> {
    let mut locked = vec![false; stays.len()];
    for (segment, is_locked) in timing.streamed_segments(stays).zip(evenly(part, of)) {
        locked[segment] = is_locked;
    }
    locked.into()
}

/// Streamed segments whose page-locked copies take `most` bytes at most: as many as there is room
/// for, spread evenly, then exchanged so that little room is left. `None` where all have room.
pub(super) fn locked_within(
    timing: &Timing<'_>,
    stays: &[LaneSet],
    most: Bytes,
) -> Option<Arc<[bool]>> {
    let streamed = timing.streamed_segments(stays);
    let (streamed, sizes): (Vec<usize>, Vec<u64>) =
        streamed.map(|segment| (segment, timing.streamed_bytes(stays, segment))).unzip();
    let count = sizes.len();
    let bytes = |fewer| {
        let sizes = sizes.iter().zip(evenly(fewer, count));
        sizes.map(|(size, is_locked)| if is_locked { *size } else { 0 }).sum::<u64>()
    };
    let smallest = sizes.iter().copied().min().unwrap_or(1).max(1);
    let fewer_max = usize::try_from(most.0 / smallest).map_or(count, |fewer| fewer.min(count));
    let fewer = (0..=fewer_max).rev().find(|fewer| bytes(*fewer) <= most.0);
    let fewer = fewer.expect("none takes nothing");
    if fewer == count {
        return None;
    }
    let mut fill: Vec<bool> = evenly(fewer, count).take(count).collect();
    fill_up(&sizes, &mut fill, most.0 - bytes(fewer));
    let mut locked = vec![false; stays.len()];
    for (segment, is_locked) in streamed.into_iter().zip(fill) {
        locked[segment] = is_locked;
    }
    Some(locked.into())
}
