//! The least that calls take with given segments streamed, without a simulation.

use protocol::Division;

use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::LaneSet;
use super::super::Timing;
use super::{PAGE_LOCK_BYTES_PER_S, WeightSources};

/// What is streamed to one device in a call.
#[derive(Clone, Copy, Default)]
struct LaneCopies {
    bytes: f64,
    /// Of its largest segment.
    largest: f64,
    /// Their time over its link.
    copies_s: f64,
    /// How long it computes these segments.
    computes_s: f64,
}

impl Timing<'_> {
    /// Some segments stay, some of the others are page-locked, and each device has so many slots.
    /// A device with one slot copies nothing while it computes a streamed segment. A device of a
    /// split by layers fills its slots while others compute, and copies the rest while it computes
    /// itself. The first call takes as long as computing, at least.
    pub fn least_with_slots(
        &self,
        stays: &[LaneSet],
        locked: Option<&[bool]>,
        slots: u32,
    ) -> ComponentMs {
        let sources = WeightSources::of(self, stays, locked);
        let mut shared_s = 0.0;
        let mut lanes = vec![LaneCopies::default(); self.spread.devices.len()];
        for segment in self.streamed_segments(stays) {
            let source = sources.at(segment);
            for lane in self.streamed_to(stays, segment).iter() {
                let Some(device) = self.spread.devices[lane] else { continue };
                let bytes = self.spread.parts[lane].segment_bytes[segment].0 as f64;
                shared_s += bytes / source.shared / sources.sharers_of(segment);
                let copies = &mut lanes[lane];
                copies.bytes += bytes;
                copies.largest = copies.largest.max(bytes);
                copies.copies_s += bytes / self.link(device).min(source.each);
                copies.computes_s += self.replicas_s.get(lane).unwrap_or(&self.segments_s)[segment];
            }
        }
        let once_s: f64 = self.segments_s.iter().sum();
        let mut call_s = f64::max(once_s, shared_s);
        if let Division::Layer { segments } = &self.spread.division {
            let mut computes_s = vec![0.0; lanes.len()];
            for (lane, segment_s) in segments.iter().zip(&self.segments_s) {
                computes_s[*lane as usize] += segment_s;
            }
            let in_turns = computes_s.into_iter().zip(&lanes).map(|(computes_s, lane)| {
                let beyond_slots = (lane.bytes - f64::from(slots) * lane.largest).max(0.0);
                f64::max(computes_s, lane.copies_s * beyond_slots / lane.bytes.max(1.0))
            });
            call_s = call_s.max(in_turns.sum());
        } else if slots == 1 {
            let alone_s = lanes.iter().map(|lane| lane.copies_s + lane.computes_s);
            call_s = alone_s.fold(call_s, f64::max);
        }
        let mut links_s = vec![0.0; lanes.len()];
        for (lane, gpu) in lanes.iter().zip(&self.gpus) {
            links_s[*gpu] += lane.copies_s;
        }
        call_s = links_s.into_iter().fold(call_s, f64::max);
        let again = f64::from(self.calls.saturating_sub(1));
        let least = self.least_ms(once_s, once_s + again * call_s);
        let locking_ms = 1e3 * sources.locked_bytes / PAGE_LOCK_BYTES_PER_S;
        ComponentMs { first_read: least.first_read + locking_ms, ..least }
    }
}
