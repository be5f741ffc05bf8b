//! The ring: weights of streamed segments, copied ahead of the computation by as many bytes as its
//! slots have.
//!
//! ```text
//! region   │ item 2 ─────── │ item 3 ── │ item 4 ── │ free ─────│  item n: 0 of the next call
//!            computing        ready       on its way   item 5 when it fits: here or at the start
//! ```
//! The region has room for some slots of the largest item; smaller items take only their own bytes
//! of it, so that more of them are on their way. Two events an item: *ready* (the copy has ended:
//! the computation waits for it) and *used* (the segment has been computed: only then a copy into
//! its bytes is handed out). The ring wraps into the next call, be it of the next step, prompt,
//! tile or picture, and ends with the phase's last.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use protocol::Bytes;

use super::copies::{LockedCopy, Queue, WeightLoad, WeightMove};
use super::ticket::Ticket;
use crate::backend::Backend;
use crate::backend::cancel::CancelFlag;
use crate::backend::memory::Region;
use crate::backend::stopped::Stopped;
use crate::race::{Edge, Tracer};
use crate::weights::WeightFiles;

/// The weights of one segment.
pub struct RingItem {
    /// Which weights, and where they go from the item's start.
    pub moves: Arc<[WeightMove]>,
    /// Bytes that they take.
    pub bytes: Bytes,
    /// The copy in RAM from which they come, where one is kept.
    pub locked: Option<LockedCopy>,
}

/// What a ring copies, and how often.
pub struct RingPlan {
    /// The region; at least as large as the largest item.
    pub region: Arc<Region>,
    /// From where the bytes are mapped.
    pub files: Arc<WeightFiles>,
    /// The items of one call, in order.
    pub items: Vec<RingItem>,
    /// Calls of the phase.
    pub calls: u32,
}

/// A ring in use.
pub struct Ring {
    plan: RingPlan,
    /// Items of all calls of the phase.
    total: usize,
    stop: CancelFlag,
    tracer: Option<Arc<Tracer>>,
    state: RefCell<RingState>,
}

/// How far the ring is, through all calls.
#[derive(Default)]
struct RingState {
    /// Items that are in the region or on their way, the one that is computed first.
    live: VecDeque<LiveItem>,
    /// Items copied or on their way.
    submitted: usize,
    /// Items computed.
    used: usize,
    /// Copies that ended or were left, for which the ring's end waits.
    last: Option<Ticket>,
    /// Weights that were handed out to be copied, each time that they were.
    sent: Bytes,
}

/// An item in the region.
struct LiveItem {
    start: Bytes,
    bytes: Bytes,
    /// The copy: its end is the item's *ready* event.
    ready: Ticket,
}

impl Ring {
    /// Starts to copy for the first call.
    pub fn start(
        backend: &dyn Backend,
        plan: RingPlan,
        cancel: &CancelFlag,
        tracer: Option<Arc<Tracer>>,
    ) -> Ring {
        let largest = plan.items.iter().map(|item| item.bytes).max().unwrap_or_default();
        assert!(largest <= plan.region.len(), "an item that never fits");
        let total = plan.items.len() * plan.calls as usize;
        let (stop, state) = (cancel.child(), RefCell::default());
        let ring = Ring { plan, total, stop, tracer, state };
        ring.submit(backend);
        ring
    }

    /// Weights that were handed out to be copied so far, each time that they were.
    pub fn sent_bytes(&self) -> Bytes {
        self.state.borrow().sent
    }

    /// The region of all slots.
    pub fn region(&self) -> &Region {
        &self.plan.region
    }

    /// Lets what is computed from now on have the next item's weights.
    pub fn acquire(&self, backend: &dyn Backend, item: usize) -> Result<(), Stopped> {
        let ready = {
            let state = self.state.borrow();
            self.assert_next(&state, item);
            let next = state.live.front().expect("more calls than the ring was started for");
            next.ready.clone()
        };
        if let Some(tracer) = &self.tracer {
            tracer.filled(backend.memory().device(), ready.event());
        }
        backend.join(&ready, Edge::Ready)
    }

    /// Gives the present item's bytes back, and starts the copies that fit then.
    pub fn release(&self, backend: &dyn Backend, item: usize) {
        {
            let mut state = self.state.borrow_mut();
            self.assert_next(&state, item);
            state.live.pop_front();
            state.used += 1;
        }
        self.submit(backend);
    }

    /// Where the present item begins; `None` behind the last one.
    pub fn slot(&self) -> Option<(Arc<Region>, Bytes)> {
        let state = self.state.borrow();
        state.live.front().map(|item| (Arc::clone(&self.plan.region), item.start))
    }

    fn assert_next(&self, state: &RingState, item: usize) {
        assert_eq!(item, state.used % self.plan.items.len(), "segments keep the ring's order");
    }

    /// Hands out copies as long as there is room for the next.
    fn submit(&self, backend: &dyn Backend) {
        let mut state = self.state.borrow_mut();
        while state.submitted < self.total {
            let item = &self.plan.items[state.submitted % self.plan.items.len()];
            let Some(start) = state.room(self.plan.region.len(), item.bytes) else { return };
            let load = WeightLoad {
                files: Arc::clone(&self.plan.files),
                moves: Arc::clone(&item.moves),
                region: Arc::clone(&self.plan.region),
                base: start,
                stop: self.stop.clone(),
                once: false,
                locked: item.locked.clone(),
            };
            let tracer = self.tracer.as_ref();
            let event =
                tracer.and_then(|tracer| tracer.fill(backend.memory().device(), &load.writes()));
            state.sent += load.len();
            let ready = backend.load(load, Queue::Slots).with_event(event);
            state.last = Some(ready.clone());
            state.live.push_back(LiveItem { start, bytes: item.bytes, ready });
            state.submitted += 1;
        }
    }
}

impl RingState {
    /// Where so many bytes are free: behind the last item, or, where that is at the region's end,
    /// before the first.
    fn room(&self, capacity: Bytes, bytes: Bytes) -> Option<Bytes> {
        let (Some(first), Some(last)) = (self.live.front(), self.live.back()) else {
            return Some(Bytes::ZERO);
        };
        let behind = last.start + last.bytes;
        let wrapped = last.start < first.start;
        let end = if wrapped { first.start } else { capacity };
        if behind + bytes <= end {
            return Some(behind);
        }
        (!wrapped && bytes <= first.start).then_some(Bytes::ZERO)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop.set();
        // The region is free only when no copy holds it any more; they end in their order.
        if let Some(last) = &self.state.get_mut().last {
            // How a copy ended that nobody reads is of no interest.
            let _ = last.wait();
            if let Some(tracer) = &self.tracer {
                tracer.join(last.event());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn live(start: u64, bytes: u64) -> LiveItem {
        LiveItem { start: Bytes(start), bytes: Bytes(bytes), ready: Ticket::default() }
    }

    proptest! {
        #[test]
        fn items_never_overlap_and_always_go_on(
            sizes in prop::collection::vec(1..40_u64, 1..12),
            slots in 1..5_u64,
        ) {
            let capacity = Bytes(slots * sizes.iter().max().unwrap());
            let mut state = RingState::default();
            let mut next = 0;
            for _ in 0..100 {
                while let Some(start) = state.room(capacity, Bytes(sizes[next % sizes.len()])) {
                    let item = live(start.0, sizes[next % sizes.len()]);
                    prop_assert!(item.start + item.bytes <= capacity);
                    for other in &state.live {
                        let apart = item.start >= other.start + other.bytes
                            || other.start >= item.start + item.bytes;
                        prop_assert!(apart, "{} in {}", item.start, other.start);
                    }
                    state.live.push_back(item);
                    next += 1;
                }
                prop_assert!(!state.live.is_empty(), "an item that never fits");
                state.live.pop_front();
            }
        }
    }

    #[test]
    fn small_items_share_what_large_ones_need() {
        let mut state = RingState::default();
        for expected in [0, 10, 20, 30] {
            assert_eq!(state.room(Bytes(40), Bytes(10)), Some(Bytes(expected)));
            state.live.push_back(live(expected, 10));
        }
        assert_eq!(state.room(Bytes(40), Bytes(10)), None);
        state.live.pop_front();
        assert_eq!(state.room(Bytes(40), Bytes(10)), Some(Bytes::ZERO));
        assert_eq!(state.room(Bytes(40), Bytes(20)), None);
        state.live.pop_front();
        assert_eq!(state.room(Bytes(40), Bytes(20)), Some(Bytes::ZERO));
    }
}
