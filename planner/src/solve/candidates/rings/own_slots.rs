//! Rings in which each device of a split has a number of slots of its own, and streams what it has
//! no room for beside them.

use std::sync::Arc;

use protocol::Bytes;
use protocol::profile::ComponentProfile;
use rayon::prelude::*;

use super::super::super::Problem;
use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::streamable::{FittingLane, HeldBlocks, Lane};
use super::super::super::time::Timing;
use super::sets::{locked_part, locked_within, own_lanes, room_of_lanes, streamable};
use super::{LOOKAHEAD_MAX, Ring};

/// How often each device's number of slots is looked at anew, while calls get shorter.
const ROUNDS: usize = 4;

/// The ring that is found from one with so many slots, for each way to choose the blocks that stay.
/// Of one device after another the number of slots is changed to that with which the component
/// takes the least, as long as that gets less. As many bytes as `locked_max` are page-locked of
/// what is streamed; nothing where it is `None`.
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
            let others = (1..=LOOKAHEAD_MAX).map(|number| best.slots.with(lane, number));
            for other in others.collect::<Vec<_>>().into_iter().filter_map(tried) {
                if other.all_ms() < best.all_ms() {
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
    /// `None` where there is no room for so many slots.
    fn new(
        timing: &Timing<'_>,
        lanes: &[FittingLane<'_>],
        locked_max: Option<Bytes>,
        slots: SlotCounts,
    ) -> Option<Tried> {
        let mut stays = vec![LaneSet::ALL; timing.spread().segments()];
        let mut each = lanes.iter().enumerate();
        let fits = each.all(|(at, lane)| lane.hold_with(u64::from(slots.on(at)), &mut stays));
        let streams = stays.iter().any(|lanes| *lanes != LaneSet::ALL);
        if !fits || !streams {
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
