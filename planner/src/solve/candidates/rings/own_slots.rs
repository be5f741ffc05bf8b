//! Rings in which each device of a split has a number of slots of its own, and streams what it has
//! no room for beside them.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Residency};
use rayon::prelude::*;

use super::super::super::Problem;
use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::place::WeightResidency;
use super::super::super::search::Allowance;
use super::super::super::streamable::{
    FittingLane, HeldBlocks, Lane, fitting_lanes, fitting_set, stays_whole,
};
use super::super::super::time::Timing;
use super::sets::{
    SMALLER_ROOMS, locked_part, locked_within, own_lanes, room_of_lanes, rooms_of_lanes, streamable,
};
use super::{LOOKAHEAD_MAX, Ring};

/// How often each device's number of slots is looked at anew, while calls get shorter.
const ROUNDS: usize = 4;

/// How many of the best numbers of slots are tried with less room too.
const NUMBERS_MAX: usize = 8;

/// For each way to choose the blocks that stay, rings with own slots, as far as they are within
/// what is allowed. The first has the slots `from`. One device after another then gets the number
/// with which the component takes the least, until no other number saves time. All that were looked
/// at on the way are told, and the best also with a little less room: what is held is loaded first,
/// so of a plan another one may be a part. Up to `locked_max` bytes of what is streamed are
/// page-locked, none where that is `None`.
pub fn rings_with_own_slots(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    timing: &Timing<'_>,
    from: SlotCounts,
    locked_max: Option<Bytes>,
    allowance: Option<&Allowance>,
) -> Vec<Ring> {
    let spread = timing.spread();
    let rooms = rooms_of_lanes(problem, spread, SMALLER_ROOMS);
    let segments = streamable(component, spread);
    let ways = HeldBlocks::of(&segments).par_iter().flat_map_iter(|staying| {
        let lanes = own_lanes(component, spread, &segments, *staying);
        descend(timing, &lanes, &rooms, locked_max, from)
    });
    let allowed = ways.filter(|tried| allowance.is_none_or(|allowance| allowance.has(tried.ms)));
    let ring = |tried: Tried| {
        Ring::alone(timing, (tried.stays.into(), tried.locked), tried.slots, tried.ms)
    };
    allowed.map(ring).collect()
}

/// A split's devices, each with what it may stream and the room that it has for weights and slots.
pub struct StreamingSplit<'s> {
    timing: &'s Timing<'s>,
    /// For each way to choose the blocks that stay.
    ways: Vec<Vec<Lane>>,
    room: Vec<u64>,
    fits: bool,
}

impl<'s> StreamingSplit<'s> {
    /// `None` where a device has no room for its arena.
    pub fn new(
        problem: &Problem<'_>,
        component: &ComponentProfile,
        timing: &'s Timing<'s>,
    ) -> Option<StreamingSplit<'s>> {
        let spread = timing.spread();
        let room = room_of_lanes(problem, spread)?;
        let segments = streamable(component, spread);
        let ways = HeldBlocks::of(&segments).iter();
        let ways = ways.map(|staying| own_lanes(component, spread, &segments, *staying)).collect();
        let mut parts = room.iter().enumerate();
        let fits = parts.all(|(lane, room)| spread.part_bytes(lane).0 <= *room);
        Some(StreamingSplit { timing, ways, room, fits })
    }

    /// What the component takes that has this number of slots on each device, and streams what it
    /// has no room for beside them, in whichever way takes the least; all lazy, where there is room
    /// for it. Up to `locked_max` bytes of what is streamed are page-locked. `None` where a device
    /// has no room for its slots.
    pub fn ms(&self, slots: SlotCounts, locked_max: Option<Bytes>) -> Option<ComponentMs> {
        if self.fits {
            return Some(self.timing.ms(&WeightResidency::All(Residency::Lazy)));
        }
        let ways = self.ways.iter().filter_map(|lanes| {
            Tried::new(self.timing, &fitting_lanes(lanes, &self.room), locked_max, slots)
        });
        ways.map(|tried| tried.ms).min_by(|a, b| a.alone().total_cmp(&b.alone()))
    }
}

/// What was looked at: with all of the room, the shortest first, then with less.
fn descend(
    timing: &Timing<'_>,
    lanes: &[Lane],
    rooms: &[Vec<u64>],
    locked_max: Option<Bytes>,
    from: SlotCounts,
) -> Vec<Tried> {
    let mut rooms = rooms.iter().map(|room| fitting_lanes(lanes, room));
    let Some(room) = rooms.next() else { return Vec::new() };
    let tried = |slots| Tried::new(timing, &room, locked_max, slots);
    let Some(first) = tried(from).or_else(|| tried(SlotCounts::alike(1))) else {
        return Vec::new();
    };
    let (mut best, mut best_ms, mut seen) = (first.slots, first.all_ms(), vec![first]);
    // Whether the device streams anything with some numbers that were looked at.
    let mut looked_at = BTreeMap::new();
    for _ in 0..ROUNDS {
        let before_ms = best_ms;
        for lane in 0..lanes.len() {
            for number in 1..=LOOKAHEAD_MAX {
                let slots = best.with(lane, number);
                let streams = *looked_at.entry((lane, slots)).or_insert_with(|| {
                    let Some(other) = tried(slots) else { return true };
                    let streams = other.stays.iter().any(|stays| !stays.has(lane));
                    if other.all_ms() < best_ms {
                        (best, best_ms) = (other.slots, other.all_ms());
                    }
                    seen.push(other);
                    streams
                });
                if !streams {
                    break;
                }
            }
        }
        if best_ms >= before_ms {
            break;
        }
    }
    seen.sort_by(|a, b| a.all_ms().total_cmp(&b.all_ms()));
    // More slots than it takes, and those of a device that streams nothing, make no difference.
    seen.dedup_by(|a, b| a.all_ms() == b.all_ms() && a.stays == b.stays);
    let numbers: Vec<SlotCounts> = seen.iter().take(NUMBERS_MAX).map(|tried| tried.slots).collect();
    for room in rooms {
        let tried = |slots: &SlotCounts| Tried::new(timing, &room, locked_max, *slots);
        seen.extend(numbers.iter().filter_map(tried));
    }
    seen
}

/// What is streamed with some numbers of slots, and what the component takes so.
struct Tried {
    slots: SlotCounts,
    stays: Vec<LaneSet>,
    locked: Option<Arc<[bool]>>,
    ms: ComponentMs,
}

impl Tried {
    /// `None` where a device has no room for its slots, or where nothing is streamed.
    fn new(
        timing: &Timing<'_>,
        lanes: &[FittingLane<'_>],
        locked_max: Option<Bytes>,
        slots: SlotCounts,
    ) -> Option<Tried> {
        let stays = fitting_set(lanes, |at| u64::from(slots.on(at)))?;
        if stays_whole(&stays) {
            return None;
        }
        let locked = locked_max.map(|most| {
            locked_within(timing, &stays, most).unwrap_or_else(|| locked_part(timing, &stays, 1, 1))
        });
        let ms = timing.streamed(&stays, locked.as_deref()).ms(slots);
        Some(Tried { slots, stays, locked, ms })
    }

    fn all_ms(&self) -> f64 {
        self.ms.alone()
    }
}
