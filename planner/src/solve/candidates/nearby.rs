//! Splits near one that was found, which may take less: some heads, features or segments are on
//! another device, and devices have other numbers of slots. Both have to change together, as slots
//! are as large as the largest share that passes through them.
//!
//! Bytes are [estimated](super::estimated), so that a step costs no question to the executor: only
//! where the steps end is a layout worth one.

use std::collections::BTreeSet;

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Division, Placement};
use rayon::prelude::*;

use super::super::Problem;
use super::super::component_ms::ComponentMs;
use super::super::lanes::SlotCounts;
use super::super::layouts::in_lowest_terms;
use super::super::place::{ComponentLayout, Place, WeightResidency};
use super::super::time::{SegmentTimes, Timing};
use super::estimated::{divided, with_first};
use super::neighbours::{
    HEAD_PARTS, MOVES_OF_HEADS, layers, moved, parts_of_heads, query, segment_counts,
};
use super::rings::{LOOKAHEAD_MAX, StreamingSplit};
use super::{LayoutQuery, kinds_of};
use crate::policy::pins::Params;

/// How many segments move from one device to another.
const MOVES_OF_SEGMENTS: [u32; 2] = [1, 2];

/// Slots on each device, at first, of a split that holds all of its weights, and of equal shares.
const SLOTS_FIRST: u32 = 2;

/// Steps from one split at most.
const STEPS_MAX: usize = 32;

/// A step must save this part of a component's time.
const STEP_GAIN: f64 = 1e-5;

/// The parts of a head that move where calls read from the storage, as what these take has many
/// hills.
const MOVES_WHERE_READING: [u32; 10] = [HEAD_PARTS, 1, 2, 3, 4, 6, 11, 12, 16, 24];

/// Where calls read from the storage, segments are exchanged in the fastest splits: in this many.
/// There a split's time depends on how well segments fill the devices, more than on shares. Of 17
/// plans of drawn hosts with 3 and 4 GiB of each card 12 made one 1.4 % shorter than 8 did, and 16
/// none shorter still.
const EXCHANGED_MAX: usize = 12;

/// How many of the splits whose segments were exchanged are sized by the executor.
const READING_MAX: usize = 6;

/// There an estimate may be longer by this part: more is exchanged where bytes are known.
const READING_LONGER: f64 = 0.01;

/// An estimate must be shorter by this part to be asked for.
const GAIN: f64 = 5e-4;

/// A split that may take less than the one it is near.
#[derive(Debug, Clone)]
pub struct NearbySplit {
    pub query: LayoutQuery,
    /// About what it takes.
    pub ms: ComponentMs,
    /// Slots on each device.
    pub slots: SlotCounts,
    /// Whether some of what is streamed is page-locked.
    pub locks: bool,
}

impl NearbySplit {
    /// Whether only slots differ: these are looked at anew once bytes are known.
    pub fn is_like(&self, other: &NearbySplit) -> bool {
        self.query == other.query && self.locks == other.locks
    }
}

/// Splits near one over several devices that may take less than `longest_ms` by themselves: for
/// each device that may be first the one where the steps end. Where calls read from the storage,
/// some others that were looked at too, and by heads those near equal shares. None where devices or
/// slots are pinned, and none near the splits where `steps` began before.
pub fn nearby(
    problem: &Problem<'_>,
    index: usize,
    (place, longest_ms): (&Place, f64),
    steps: &mut StepsBegun,
) -> Vec<NearbySplit> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let (slots, locks) = match &place.held {
        WeightResidency::Some { slots, locked, .. } => (*slots, locked.is_some()),
        WeightResidency::All(_) => (SlotCounts::alike(SLOTS_FIRST), true),
    };
    let is_pinned = !pin.devices.is_empty() || pin.lookahead.is_some();
    let is_split = place.spread.devices.len() > 1;
    if !is_split || is_pinned || matches!(pin.params, Some(Params::Device | Params::Disk)) {
        return Vec::new();
    }
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let descent = Descent { problem, component, times: &times, locks };
    let split = &*place.spread;
    let (kinds, _) = kinds_of(problem, &split.devices);
    // By heads the first device does more than its share.
    let others = (1..kinds.len()).filter(|at| !kinds[..*at].contains(&kinds[*at]));
    let others_first = others.filter_map(|first| {
        let slots = slots.with(0, slots.on(first)).with(first, slots.on(0));
        Some((with_first(split, first)?, slots))
    });
    let starts = std::iter::once((split.clone(), slots)).chain(others_first);
    let reads_again = place.ms.reads_again();
    let equal = Division::Tensor { shares: vec![1; kinds.len()] };
    let equal =
        divided(split, equal).filter(|equal| reads_again && equal.division != split.division);
    let starts = starts.chain(equal.map(|equal| (equal, SlotCounts::alike(SLOTS_FIRST))));
    let new = starts.filter(|(split, slots)| {
        steps.0.insert((split.placement(), descent.on_each(split, *slots), locks))
    });
    let found = new.flat_map(|(split, slots)| descent.from(split, slots));
    let found = found.filter(|found| found.may_take_less_than(longest_ms));
    let near = found.map(|TimedSplit { ms, split, slots }| {
        let query = query(problem, index, split.devices, split.division);
        NearbySplit { query, ms, slots, locks: descent.locks }
    });
    near.collect()
}

/// From which splits steps began: how each is made, what its devices have, and whether any of what
/// is streamed is page-locked.
#[derive(Default)]
pub struct StepsBegun(BTreeSet<(Placement, Vec<OnDevice>, bool)>);

/// Of splits near several ones those that are worth their bytes: where calls read from the storage
/// some of the fastest, else all.
pub fn most_promising(mut splits: Vec<NearbySplit>) -> Vec<NearbySplit> {
    splits.sort_by(|a, b| a.ms.alone().total_cmp(&b.ms.alone()));
    let mut first = Vec::with_capacity(splits.len());
    for split in splits {
        if !first.iter().any(|other| split.is_like(other)) {
            first.push(split);
        }
    }
    let mut reading = 0;
    first.retain(|split| {
        reading += usize::from(split.ms.reads_again());
        !split.ms.reads_again() || reading <= READING_MAX
    });
    first
}

/// Steps to splits that take less.
struct Descent<'d, 'p> {
    problem: &'d Problem<'p>,
    component: &'d ComponentProfile,
    times: &'d SegmentTimes<'d>,
    locks: bool,
}

/// A split with the numbers of slots with which it takes this long.
struct TimedSplit {
    ms: ComponentMs,
    split: ComponentLayout,
    slots: SlotCounts,
}

impl TimedSplit {
    fn may_take_less_than(&self, longest_ms: f64) -> bool {
        let longer = if self.ms.reads_again() { READING_LONGER } else { -GAIN };
        self.ms.alone() < (1.0 + longer) * longest_ms
    }
}

impl Descent<'_, '_> {
    /// The fastest splits on the way from one; none where it has no room for its slots.
    fn from(&self, split: ComponentLayout, slots: SlotCounts) -> Vec<TimedSplit> {
        let Some(ms) = self.ms(&split, slots) else { return Vec::new() };
        let mut fastest = vec![TimedSplit { ms, split, slots }];
        for _ in 0..STEPS_MAX {
            let best = &fastest[0];
            let (best_ms, reads_again) = (best.ms.alone(), best.ms.reads_again());
            let moved = self.moved(best).into_iter().map(|split| (split, best.slots));
            let slots = self.other_slots(best).into_iter();
            let slots = slots.map(|slots| (best.split.clone(), slots));
            let mut next: Vec<(ComponentLayout, SlotCounts)> = moved.chain(slots).collect();
            let mut known = BTreeSet::new();
            next.retain(|(split, slots)| known.insert(self.on_each(split, *slots)));
            let timed = next.into_par_iter().filter_map(|(split, slots)| {
                Some(TimedSplit { ms: self.ms(&split, slots)?, split, slots })
            });
            let timed: Vec<TimedSplit> = timed.collect();
            let all = fastest.drain(..).chain(timed).collect();
            fastest = self.fastest_divisions(all, if reads_again { EXCHANGED_MAX } else { 1 });
            if fastest[0].ms.alone() >= best_ms * (1.0 - STEP_GAIN) {
                break;
            }
        }
        self.exchanged(fastest)
    }

    /// The best of these where calls read from the storage, with some segments exchanged; others as
    /// they are.
    fn exchanged(&self, splits: Vec<TimedSplit>) -> Vec<TimedSplit> {
        let exchanged = splits.into_par_iter().with_max_len(1).map(|mut timed| {
            if timed.ms.reads_again()
                && let Some(ms) = self.exchanged_ms(&timed.split, timed.slots)
            {
                timed.ms = ms;
            }
            timed
        });
        self.fastest_divisions(exchanged.collect(), READING_MAX)
    }

    /// With some heads and features, or some segments, on another device.
    fn moved(&self, from: &TimedSplit) -> Vec<ComponentLayout> {
        let split = &from.split;
        let moves_of_heads: &[u32] = match from.ms.reads_again() {
            true => &MOVES_WHERE_READING,
            false => &MOVES_OF_HEADS,
        };
        let divisions: Vec<Division> = match &split.division {
            Division::Tensor { shares } => {
                let own = parts_of_heads(self.component, shares);
                let moved = moved(&own, moves_of_heads).into_iter();
                moved.map(|shares| Division::Tensor { shares: in_lowest_terms(shares) }).collect()
            }
            Division::Layer { segments } => {
                let counts = segment_counts(split.devices.len(), segments);
                let moved = moved(&counts, &MOVES_OF_SEGMENTS).into_iter();
                moved.map(|counts| Division::Layer { segments: layers(counts) }).collect()
            }
            _ => Vec::new(),
        };
        divisions.into_iter().filter_map(|division| divided(split, division)).collect()
    }

    /// With a slot more or less on one device.
    fn other_slots(&self, TimedSplit { split, slots, .. }: &TimedSplit) -> Vec<SlotCounts> {
        let mut others = Vec::new();
        for lane in 0..split.devices.len() {
            let own = slots.on(lane);
            let near = [own.saturating_sub(1), own + 1].into_iter();
            let near = near.filter(|number| (1..=LOOKAHEAD_MAX).contains(number));
            others.extend(near.map(|number| slots.with(lane, number)));
        }
        others
    }

    fn ms(&self, split: &ComponentLayout, slots: SlotCounts) -> Option<ComponentMs> {
        let timing = Timing::new(self.times, split);
        let split = StreamingSplit::new(self.problem, self.component, &timing)?;
        split.ms(slots, self.locked_max(timing.spread()))
    }

    fn exchanged_ms(&self, split: &ComponentLayout, slots: SlotCounts) -> Option<ComponentMs> {
        let timing = Timing::new(self.times, split);
        let split = StreamingSplit::new(self.problem, self.component, &timing)?;
        split.exchanged_ms(slots, self.locked_max(timing.spread()))
    }

    fn locked_max(&self, split: &ComponentLayout) -> Option<Bytes> {
        self.locks.then(|| self.problem.locked_max(&split.devices))
    }

    /// The fastest of some splits, in order: no division twice, and at most `most` of them.
    fn fastest_divisions(&self, mut splits: Vec<TimedSplit>, most: usize) -> Vec<TimedSplit> {
        splits.sort_by(|a, b| a.ms.alone().total_cmp(&b.ms.alone()));
        let (mut fastest, mut known) = (Vec::new(), BTreeSet::new());
        for timed in splits {
            let any_slots = SlotCounts::alike(0);
            if fastest.len() < most && known.insert(self.on_each(&timed.split, any_slots)) {
                fastest.push(timed);
            }
        }
        fastest
    }

    /// What each device has. By heads those behind the first are in an order of their own: splits
    /// that differ in which of several alike devices has which share take the same.
    fn on_each(&self, split: &ComponentLayout, slots: SlotCounts) -> Vec<OnDevice> {
        let (kinds, gpus) = kinds_of(self.problem, &split.devices);
        let shares = match &split.division {
            Division::Tensor { shares } | Division::Row { shares } => shares.clone(),
            Division::Layer { segments } | Division::Pipeline { segments, .. } => {
                segment_counts(kinds.len(), segments)
            }
            Division::One | Division::Items { .. } => vec![1; kinds.len()],
        };
        let on_device = |(at, (kind, share)): (usize, (&Option<usize>, u32))| {
            (*kind, self.problem.budget(split.devices[at]), share, slots.on(at))
        };
        let each = kinds.iter().zip(shares).enumerate().map(on_device);
        let mut each: Vec<OnDevice> = each.collect();
        // Parts of one GPU share its link.
        let are_apart = gpus.iter().enumerate().all(|(at, gpu)| at == *gpu);
        if are_apart && matches!(split.division, Division::Tensor { .. }) {
            each[1..].sort_unstable();
        }
        each
    }
}

/// A device's kind, its budget, its share or the number of its segments, and its slots.
type OnDevice = (Option<usize>, Bytes, u32, u32);
