//! Rings in which each device of a split has a number of slots of its own, and streams what it has
//! no room for beside them.

use std::sync::Arc;

use protocol::Bytes;
use protocol::profile::ComponentProfile;
use rayon::prelude::*;

use super::super::super::Problem;
use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::streamable::{FittingLane, HeldBlocks, Lane, fitting_set, stays_whole};
use super::super::super::time::Timing;
use super::sets::{locked_part, locked_within, own_lanes, room_of_lanes, streamable};
use super::{LOOKAHEAD_MAX, Ring};

/// How often each device's number of slots is looked at anew, while calls get shorter.
const ROUNDS: usize = 4;

/// For each way to choose the blocks that stay, a ring with own slots. It starts with the slots
/// `from`. One device after another then gets the number with which the component takes the least,
/// until no other number saves time. Up to `locked_max` bytes of what is streamed are page-locked,
/// none where that is `None`.
pub fn rings_with_own_slots(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    timing: &Timing<'_>,
    from: SlotCounts,
    locked_max: Option<Bytes>,
) -> Vec<Ring> {
    let spread = timing.spread();
    let Some(room) = room_of_lanes(problem, spread) else { return Vec::new() };
    let segments = streamable(component, spread);
    let ways = HeldBlocks::of(&segments).par_iter().filter_map(|staying| {
        let lanes = own_lanes(component, spread, &segments, *staying);
        descend(timing, &lanes, &room, locked_max, from)
    });
    ways.collect()
}

fn descend(
    timing: &Timing<'_>,
    lanes: &[Lane],
    room: &[u64],
    locked_max: Option<Bytes>,
    from: SlotCounts,
) -> Option<Ring> {
    let lanes = lanes.iter().zip(room).map(|(lane, room)| lane.fitting(*room));
    let lanes: Vec<FittingLane<'_>> = lanes.collect();
    let tried = |slots| Tried::new(timing, &lanes, locked_max, slots);
    let mut best = tried(from).or_else(|| tried(SlotCounts::alike(1)))?;
    for _ in 0..ROUNDS {
        let before_ms = best.all_ms();
        for lane in 0..lanes.len() {
            for number in 1..=LOOKAHEAD_MAX {
                let other = tried(best.slots.with(lane, number));
                if let Some(other) = other.filter(|other| other.all_ms() < best.all_ms()) {
                    best = other;
                }
            }
        }
        if best.all_ms() >= before_ms {
            break;
        }
    }
    Some(Ring::alone(timing, (best.stays.into(), best.locked), best.slots, best.ms))
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
        self.ms.load + self.ms.first_read + self.ms.compute
    }
}
