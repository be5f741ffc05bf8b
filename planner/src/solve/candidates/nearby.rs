//! Splits near one that was found, which may take less: some heads, features or segments are on
//! another device, and devices have other numbers of slots. Both have to change together, as slots
//! are as large as the largest share that passes through them.
//!
//! Bytes are [estimated](super::estimated), so that a step costs no question to the executor: only
//! where the steps end is a layout worth one.

use protocol::Division;
use protocol::profile::ComponentProfile;
use rayon::prelude::*;

use super::super::Problem;
use super::super::lanes::SlotCounts;
use super::super::layouts::in_lowest_terms;
use super::super::place::{ComponentLayout, Place, WeightResidency};
use super::super::time::{SegmentTimes, Timing};
use super::estimated::{divided, with_first};
use super::neighbours::{MOVES_OF_HEADS, layers, moved, parts_of_heads, query, segment_counts};
use super::rings::{LOOKAHEAD_MAX, StreamingSplit};
use super::{LayoutQuery, kinds_of};
use crate::policy::pins::Params;

/// How many segments move from one device to another.
const MOVES_OF_SEGMENTS: [u32; 2] = [1, 2];

/// Slots on each device, at first, of a split that holds all of its weights.
const SLOTS_FIRST: u32 = 2;

/// Steps from one split at most.
const STEPS_MAX: usize = 32;

/// An estimate must be shorter by this part to be asked for.
const GAIN: f64 = 5e-4;

/// A split that may take less than the one it is near.
#[derive(Debug, Clone)]
pub struct NearbySplit {
    pub query: LayoutQuery,
    /// Slots on each device.
    pub slots: SlotCounts,
    /// Whether some of what is streamed is page-locked.
    pub locks: bool,
}

/// Splits near one over several devices that may take less than `longest_ms` by themselves: one at
/// most for each device that may be first. None where devices or slots are pinned.
pub fn nearby(
    problem: &Problem<'_>,
    index: usize,
    place: &Place,
    longest_ms: f64,
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
    let found = starts.filter_map(|(split, slots)| descent.from(split, slots));
    let found = found.filter(|found| found.ms < (1.0 - GAIN) * longest_ms);
    let near = found.map(|TimedSplit { split, slots, .. }| {
        let query = query(problem, index, split.devices, split.division);
        NearbySplit { query, slots, locks: descent.locks }
    });
    near.collect()
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
    ms: f64,
    split: ComponentLayout,
    slots: SlotCounts,
}

impl Descent<'_, '_> {
    /// Where the steps from a split end; `None` where it has no room for its slots.
    fn from(&self, split: ComponentLayout, slots: SlotCounts) -> Option<TimedSplit> {
        let mut best = TimedSplit { ms: self.ms(&split, slots)?, split, slots };
        for _ in 0..STEPS_MAX {
            let moved = self.moved(&best.split).into_iter().map(|split| (split, best.slots));
            let slots = self.other_slots(&best).into_iter();
            let slots = slots.map(|slots| (best.split.clone(), slots));
            let next: Vec<(ComponentLayout, SlotCounts)> = moved.chain(slots).collect();
            let times = next.par_iter().map(|(split, slots)| self.ms(split, *slots));
            let times: Vec<Option<f64>> = times.collect();
            let timed = next.into_iter().zip(times);
            let timed =
                timed.filter_map(|((split, slots), ms)| Some(TimedSplit { ms: ms?, split, slots }));
            let fastest = timed.min_by(|a, b| a.ms.total_cmp(&b.ms));
            let Some(fastest) = fastest.filter(|found| found.ms < best.ms) else { break };
            best = fastest;
        }
        Some(best)
    }

    /// With some heads and features, or some segments, on another device.
    fn moved(&self, split: &ComponentLayout) -> Vec<ComponentLayout> {
        let divisions: Vec<Division> = match &split.division {
            Division::Tensor { shares } => {
                let own = parts_of_heads(self.component, shares);
                let moved = moved(&own, &MOVES_OF_HEADS).into_iter();
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

    fn ms(&self, split: &ComponentLayout, slots: SlotCounts) -> Option<f64> {
        let timing = Timing::new(self.times, split);
        let locked_max = self.locks.then(|| self.problem.locked_max());
        let split = StreamingSplit::new(self.problem, self.component, &timing)?;
        Some(split.ms(slots, locked_max)?.alone())
    }
}
