//! The least that calls with streamed weights take in one layout, whatever is streamed and through
//! how many slots.

use std::collections::BTreeMap;

use protocol::Bytes;

use super::super::component_ms::ComponentMs;
use super::streamed::PAGE_LOCK_BYTES_PER_S;
use super::turns::ROUNDING;
use super::{RING_TIME, Timing};

impl Timing<'_> {
    /// With room for so many bytes of weights and slots on each device: what has none is copied in
    /// each call.
    pub fn least_streamed(&self, room: impl Fn(usize) -> Bytes) -> ComponentMs {
        let (mut all_bytes, mut gpus) = (0.0, BTreeMap::<usize, (f64, f64)>::new());
        for (lane, device) in self.spread.devices.iter().enumerate() {
            let Some(device) = *device else { continue };
            let bytes = streamed_bytes(&self.spread.parts[lane].segment_bytes, room(lane)) as f64;
            // Replicas on parts of one GPU share its link, and so do its parts.
            gpus.entry(self.gpus[lane]).or_insert((0.0, self.link(device))).0 += bytes;
            all_bytes += bytes;
        }
        let host = &self.times.inventory.host;
        let once_s: f64 = self.segments_s.iter().sum();
        let again = f64::from(self.calls.saturating_sub(1));
        let call_s = once_s.max(all_bytes / host.speeds.memory_bytes_per_s.value);
        // Of what a GPU has no room for, a part may be page-locked, which takes its time once: as
        // much as makes the sum least.
        let with_copies_s = |&(bytes, link): &(f64, f64)| {
            let file_s = bytes / link.min(host.page_cache_bytes_per_s.value);
            let copy_s = bytes / link;
            let all_s = |part: f64| {
                again * call_s.max(file_s + part * (copy_s - file_s))
                    + part * bytes / PAGE_LOCK_BYTES_PER_S
            };
            let hidden = ((file_s - call_s) / (file_s - copy_s)).clamp(0.0, 1.0);
            let parts = [0.0, 1.0, if hidden.is_finite() { hidden } else { 0.0 }];
            parts.into_iter().map(all_s).fold(f64::INFINITY, f64::min)
        };
        let calls_s = once_s + gpus.values().map(with_copies_s).fold(again * call_s, f64::max);
        self.least_ms(once_s, calls_s)
    }

    /// A component whose calls take `calls_s` together. One call computes for `once_s`.
    pub(super) fn least_ms(&self, once_s: f64, calls_s: f64) -> ComponentMs {
        let once_ms = 1e3 * (1.0 - ROUNDING) * once_s;
        let (load, first_read) = self.times.least_reads_ms(once_ms);
        ComponentMs {
            load,
            first_read,
            compute: 1e3 * (1.0 - ROUNDING) * RING_TIME * calls_s,
            storage: 0.0,
            storage_again: 0.0,
        }
    }
}

/// The least bytes that a device streams, where `room` is for the weights that stay and for a slot.
/// The slot has room for the largest streamed segment, so all others of them have
/// the bytes for which there is no room.
fn streamed_bytes(segments: &[Bytes], room: Bytes) -> u64 {
    let all: u64 = segments.iter().map(|bytes| bytes.0).sum();
    let without_room = all.saturating_sub(room.0);
    if without_room == 0 {
        return 0;
    }
    let mut sizes: Vec<u64> = segments.iter().map(|bytes| bytes.0).collect();
    sizes.sort_unstable();
    let mut smaller = 0;
    for size in sizes {
        if smaller >= without_room {
            return without_room + size;
        }
        smaller += size;
    }
    all
}
