//! Rings in which each device of a split has a number of slots of its own, and streams what it has
//! no room for beside them.

use std::collections::BTreeMap;

use protocol::profile::ComponentProfile;
use protocol::{Bytes, Residency};
use rayon::prelude::*;

use super::super::super::Problem;
use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::SlotCounts;
use super::super::super::place::WeightResidency;
use super::super::super::search::Allowance;
use super::super::super::streamable::{HeldBlocks, Lane, fitting_lanes};
use super::super::super::time::Timing;
use super::exchanges::{Effort, Exchanges};
use super::sets::{SMALLER_ROOMS, own_lanes, room_of_lanes, rooms_of_lanes, streamable};
use super::tried::Tried;
use super::{LOOKAHEAD_MAX, Ring};

/// How often each device's number of slots is looked at anew, while calls get shorter.
const ROUNDS: usize = 4;

/// More slots are tried until the component takes more than this times as long as with the best
/// number.
const LONGER_MAX: f64 = 1.05;

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
    let ways = HeldBlocks::of(&segments).par_iter().map(|staying| {
        let lanes = own_lanes(component, spread, &segments, *staying);
        descend(timing, &lanes, &rooms, locked_max, from)
    });
    let mut tried = ways.collect::<Vec<_>>().concat();
    let fastest = tried.iter().min_by(|a, b| a.all_ms().total_cmp(&b.all_ms()));
    let reading = fastest.filter(|tried| tried.ms.reads_again()).zip(rooms.first());
    if let Some((fastest, room)) = reading {
        let exchanges = Exchanges::new(component, timing, room, locked_max);
        tried.push(exchanges.from(fastest, Effort::FULL));
    }
    let allowed = tried.into_iter();
    let allowed = allowed.filter(|tried| allowance.is_none_or(|allowance| allowance.has(tried.ms)));
    let ring = |tried: Tried| {
        Ring::alone(timing, (tried.stays.into(), tried.locked), tried.slots, tried.ms)
    };
    allowed.map(ring).collect()
}

/// A split's devices, each with what it may stream and the room that it has for weights and slots.
pub struct StreamingSplit<'s> {
    component: &'s ComponentProfile,
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
        component: &'s ComponentProfile,
        timing: &'s Timing<'s>,
    ) -> Option<StreamingSplit<'s>> {
        let spread = timing.spread();
        let room = room_of_lanes(problem, spread)?;
        let segments = streamable(component, spread);
        let ways = HeldBlocks::of(&segments).iter();
        let ways = ways.map(|staying| own_lanes(component, spread, &segments, *staying)).collect();
        let mut parts = room.iter().enumerate();
        let fits = parts.all(|(lane, room)| spread.part_bytes(lane).0 <= *room);
        Some(StreamingSplit { component, timing, ways, room, fits })
    }

    /// What the component takes that has this number of slots on each device, and streams what it
    /// has no room for beside them, in whichever way takes the least; all lazy, where there is room
    /// for it. Up to `locked_max` bytes of what is streamed are page-locked. `None` where a device
    /// has no room for its slots.
    pub fn ms(&self, slots: SlotCounts, locked_max: Option<Bytes>) -> Option<ComponentMs> {
        if self.fits {
            return Some(self.timing.ms(&WeightResidency::All(Residency::Lazy)));
        }
        Some(self.fastest(slots, locked_max)?.ms)
    }

    /// The same where calls read from the storage, after [`Exchanges`] with a little effort.
    pub fn exchanged_ms(
        &self,
        slots: SlotCounts,
        locked_max: Option<Bytes>,
    ) -> Option<ComponentMs> {
        let fastest = self.fastest(slots, locked_max)?;
        let exchanges = Exchanges::new(self.component, self.timing, &self.room, locked_max);
        Some(exchanges.from(&fastest, Effort::LITTLE).ms)
    }

    /// In whichever way takes the least.
    fn fastest(&self, slots: SlotCounts, locked_max: Option<Bytes>) -> Option<Tried> {
        let ways = self.ways.iter().filter_map(|lanes| {
            Tried::new(self.timing, &fitting_lanes(lanes, &self.room), locked_max, slots)
        });
        ways.min_by(|a, b| a.all_ms().total_cmp(&b.all_ms()))
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
    // Whether more slots than some that were looked at may make a difference.
    let mut looked_at = BTreeMap::new();
    for _ in 0..ROUNDS {
        let before_ms = best_ms;
        for lane in 0..lanes.len() {
            for number in 1..=LOOKAHEAD_MAX {
                let slots = best.with(lane, number);
                let goes_on = *looked_at.entry((lane, slots)).or_insert_with(|| {
                    let Some(other) = tried(slots) else { return true };
                    if other.all_ms() < best_ms {
                        (best, best_ms) = (other.slots, other.all_ms());
                    }
                    let streams = other.stays.iter().any(|stays| !stays.has(lane));
                    let is_long = other.all_ms() > LONGER_MAX * best_ms;
                    seen.push(other);
                    streams && !(is_long && number > best.on(lane))
                });
                if !goes_on {
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
