//! What is streamed with some numbers of slots.

use std::sync::Arc;

use protocol::Bytes;

use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::{LaneSet, SlotCounts};
use super::super::super::streamable::{FittingLane, fitting_set, stays_whole};
use super::super::super::time::Timing;
use super::sets::{locked_part, locked_within};

/// What is streamed with some numbers of slots, and what the component takes so.
#[derive(Clone)]
pub(super) struct Tried {
    pub slots: SlotCounts,
    pub stays: Vec<LaneSet>,
    pub locked: Option<Arc<[bool]>>,
    pub ms: ComponentMs,
}

impl Tried {
    /// `None` where a device has no room for its slots, or where nothing is streamed.
    pub fn new(
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

    pub fn all_ms(&self) -> f64 {
        self.ms.alone()
    }
}
