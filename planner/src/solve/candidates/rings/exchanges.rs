//! Which segments stay and which are page-locked, where calls read what is streamed from the
//! storage: exchanged a segment at a time, while calls get shorter.
//!
//! The storage waits while slots are full of what comes from elsewhere, so what calls take depends
//! on where each kind of segment is among all. Evenly spread ones are near the best, not at it.

use std::cmp::Reverse;
use std::sync::Arc;

use protocol::Bytes;
use protocol::profile::ComponentProfile;

use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::time::Timing;
use super::sets::is_in_layers;
use super::tried::Tried;

/// An exchange must save this part of a component's time.
const GAIN: f64 = 1e-5;

/// How much is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// How often each segment is looked at, while calls get shorter.
    rounds: usize,
    /// With how many others each is exchanged, until calls are shorter.
    others: usize,
}

impl Effort {
    /// Until no exchange makes calls shorter, or often enough.
    pub const FULL: Effort = Effort { rounds: 8, others: 8 };

    /// What tells which of several splits is worth more.
    pub const LITTLE: Effort = Effort { rounds: 1, others: 3 };
}

/// What may be exchanged in a layout.
pub(super) struct Exchanges<'e> {
    timing: &'e Timing<'e>,
    /// Bytes for weights and slots on each device.
    room: &'e [u64],
    locked_max: Option<Bytes>,
    /// The segments that are blocks: others stay.
    blocks: Vec<usize>,
}

impl<'e> Exchanges<'e> {
    pub fn new(
        component: &ComponentProfile,
        timing: &'e Timing<'e>,
        room: &'e [u64],
        locked_max: Option<Bytes>,
    ) -> Exchanges<'e> {
        let segments = component.segments.iter().enumerate();
        let blocks = segments.filter(|(_, segment)| segment.block).map(|(index, _)| index);
        Exchanges { timing, room, locked_max, blocks: blocks.collect() }
    }

    /// What exchanges end at, with the same slots.
    pub fn from(&self, first: &Tried, effort: Effort) -> Tried {
        let mut best = first.clone();
        for _ in 0..effort.rounds {
            let before_ms = best.all_ms();
            for lane in 0..self.room.len() {
                for &more in &self.blocks {
                    self.hold(&mut best, lane, more, effort);
                }
            }
            for &more in &self.blocks {
                self.lock(&mut best, more, effort);
            }
            if best.all_ms() >= before_ms {
                break;
            }
        }
        best
    }

    /// A streamed segment stays on a device, in place of another one that is as large at most.
    fn hold(&self, best: &mut Tried, lane: usize, more: usize, effort: Effort) {
        let size = |segment: usize| self.bytes(lane, segment);
        if size(more) == 0 || best.stays[more].has(lane) {
            return;
        }
        // In a split by layers no other device has anything of its segments.
        let in_layers = is_in_layers(self.timing.spread());
        let decides = if in_layers { LaneSet::ALL } else { LaneSet::from(lane) };
        let stays = |less: Option<usize>, before: &Tried| {
            let mut stays = before.stays.clone();
            stays[more].set(decides, true);
            if let Some(less) = less {
                stays[less].set(decides, false);
            }
            (stays, before.locked.clone())
        };
        let is_held = |segment: usize| size(segment) > 0 && best.stays[segment].has(lane);
        let held = self.in_place_of(more, is_held, size, effort);
        self.first_better(best, Some(lane), held, stays);
    }

    /// A streamed segment is page-locked, in place of another one that is as large at most.
    fn lock(&self, best: &mut Tried, more: usize, effort: Effort) {
        let Some(before) = best.locked.clone() else { return };
        let size = |segment: usize| self.timing.streamed_bytes(&best.stays, segment);
        if before[more] || size(more) == 0 {
            return;
        }
        let locked = |less: Option<usize>, tried: &Tried| {
            let mut locked = before.to_vec();
            locked[more] = true;
            if let Some(less) = less {
                locked[less] = false;
            }
            (tried.stays.clone(), Some(Arc::from(locked)))
        };
        let is_locked = |segment: usize| before[segment] && size(segment) > 0;
        let others = self.in_place_of(more, is_locked, size, effort);
        self.first_better(best, None, others, locked);
    }

    /// Nothing, then the blocks in whose place a larger one may be: those that leave the least
    /// room, of these the nearest, first.
    fn in_place_of(
        &self,
        more: usize,
        is: impl Fn(usize) -> bool,
        size: impl Fn(usize) -> u64,
        effort: Effort,
    ) -> Vec<Option<usize>> {
        let most = size(more);
        let others = self.blocks.iter().copied().filter(|at| is(*at) && size(*at) <= most);
        let mut others: Vec<usize> = others.collect();
        others.sort_by_key(|other| (Reverse(size(*other)), other.abs_diff(more)));
        std::iter::once(None).chain(others.into_iter().take(effort.others).map(Some)).collect()
    }

    /// Goes on to the first exchange that fits and takes less. If any, `lane` has other segments
    /// then.
    fn first_better(
        &self,
        best: &mut Tried,
        lane: Option<usize>,
        in_place_of: Vec<Option<usize>>,
        exchanged: impl Fn(Option<usize>, &Tried) -> (Vec<LaneSet>, Option<Arc<[bool]>>),
    ) {
        let slots = best.slots;
        let better = in_place_of.into_iter().find_map(|less| {
            let (stays, locked) = exchanged(less, best);
            let fits_held = lane.is_none_or(|lane| self.has_room(lane, &stays, slots));
            if !fits_held || !self.may_lock(&stays, locked.as_deref()) {
                return None;
            }
            let streamed = self.timing.streamed(&stays, locked.as_deref());
            let ms = streamed.ms_below(slots, best.all_ms() * (1.0 - GAIN))?;
            Some(Tried { slots, stays, locked, ms })
        });
        if let Some(better) = better {
            *best = better;
        }
    }

    /// Whether a device has room for what stays there, beside its slots.
    fn has_room(&self, lane: usize, stays: &[LaneSet], slots: SlotCounts) -> bool {
        let (mut held, mut streamed, mut largest) = (0, 0, 0);
        for (segment, stays) in stays.iter().enumerate() {
            let bytes = self.bytes(lane, segment);
            if stays.has(lane) {
                held += bytes;
            } else if bytes > 0 {
                (streamed, largest) = (streamed + 1, bytes.max(largest));
            }
        }
        held + u64::from(slots.on(lane)).min(streamed) * largest <= self.room[lane]
    }

    /// Whether so much of what is streamed may be page-locked.
    fn may_lock(&self, stays: &[LaneSet], locked: Option<&[bool]>) -> bool {
        let (Some(most), Some(locked)) = (self.locked_max, locked) else { return true };
        let locked = locked.iter().enumerate().filter(|(_, is_locked)| **is_locked);
        let bytes = locked.map(|(segment, _)| self.timing.streamed_bytes(stays, segment));
        bytes.sum::<u64>() <= most.0
    }

    /// What a device has of a segment's weights.
    fn bytes(&self, lane: usize, segment: usize) -> u64 {
        self.timing.spread().parts[lane].segment_bytes[segment].0
    }
}
