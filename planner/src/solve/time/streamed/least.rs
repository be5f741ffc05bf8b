//! The least that calls take with given segments streamed, without a simulation.

use protocol::{Bytes, Division};

use super::super::super::component_ms::ComponentMs;
use super::super::super::lanes::LaneSet;
use super::super::Timing;
use super::{PAGE_LOCK_BYTES_PER_S, StreamedBytes, WeightSources, is_locked};

/// What is streamed to one device in a call.
#[derive(Clone, Copy, Default)]
struct LaneCopies {
    /// What is read from files for it.
    file_bytes: f64,
    /// What comes from its page-locked copies.
    locked_bytes: f64,
    /// Of its largest segment.
    largest: f64,
    /// How long it computes these segments.
    computes_s: f64,
}

/// What calls stream, summed up.
pub struct StreamedSums<'t> {
    timing: &'t Timing<'t>,
    bytes: StreamedBytes,
    lanes: Vec<LaneCopies>,
    /// What devices have of files: of what several share, each has its part.
    shared_file_bytes: f64,
}

impl Timing<'_> {
    /// With these segments held, and these of the others page-locked.
    pub fn streamed_sums(&self, stays: &[LaneSet], locked: Option<&[bool]>) -> StreamedSums<'_> {
        let mut bytes = StreamedBytes::default();
        let mut lanes = vec![LaneCopies::default(); self.spread.devices.len()];
        let mut shared_file_bytes = 0.0;
        for segment in self.streamed_segments(stays) {
            let (to, is_locked) = (self.streamed_to(stays, segment), is_locked(locked, segment));
            bytes.add(self, stays, segment, is_locked);
            let sharers = if self.replicas_s.is_empty() { 1.0 } else { f64::from(to.count()) };
            for lane in to.iter().filter(|lane| self.spread.devices[*lane].is_some()) {
                let bytes = self.spread.parts[lane].segment_bytes[segment].0 as f64;
                let copies = &mut lanes[lane];
                if is_locked {
                    copies.locked_bytes += bytes;
                } else {
                    copies.file_bytes += bytes;
                    shared_file_bytes += bytes / sharers;
                }
                copies.largest = copies.largest.max(bytes);
                copies.computes_s += self.replicas_s.get(lane).unwrap_or(&self.segments_s)[segment];
            }
        }
        StreamedSums { timing: self, bytes, lanes, shared_file_bytes }
    }
}

impl StreamedSums<'_> {
    /// Of all devices.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes.files.each + self.bytes.copies.each)
    }

    /// With all of it page-locked.
    pub fn all_locked(mut self) -> Self {
        let StreamedBytes { files, copies } = &mut self.bytes;
        copies.take(files);
        for lane in &mut self.lanes {
            lane.locked_bytes += std::mem::take(&mut lane.file_bytes);
        }
        self.shared_file_bytes = 0.0;
        self
    }

    /// The least times with this number of slots on each device.
    ///
    /// With one slot a device copies nothing while it computes a streamed segment. By layers a
    /// device fills its slots while others compute, and copies the rest while it computes itself.
    /// The first call takes at least as long as computing.
    pub fn least(&self, slots: u32) -> ComponentMs {
        let StreamedSums { timing, bytes, lanes, shared_file_bytes } = self;
        let sources = WeightSources::of_bytes(timing, *bytes);
        let WeightSources { files, copies, .. } = sources;
        let of_files = match sources.cached {
            true => lanes.iter().map(|lane| lane.file_bytes).sum(),
            false => *shared_file_bytes,
        };
        let of_copies: f64 = lanes.iter().map(|lane| lane.locked_bytes).sum();
        let shared_s = of_files * files.shared + of_copies * copies.shared;
        let copies_s = lanes.iter().zip(&timing.spread.devices).map(|(lane, device)| {
            let link = device.map_or(0.0, |device| 1.0 / timing.link(device));
            lane.file_bytes * link.max(files.each) + lane.locked_bytes * link
        });
        let copies_s: Vec<f64> = copies_s.collect();
        let once_s: f64 = timing.segments_s.iter().sum();
        let mut call_s = f64::max(once_s, shared_s);
        if let Division::Layer { segments } = &timing.spread.division {
            let mut computes_s = vec![0.0; lanes.len()];
            for (lane, segment_s) in segments.iter().zip(&timing.segments_s) {
                computes_s[*lane as usize] += segment_s;
            }
            let in_turns = computes_s.into_iter().zip(lanes.iter().zip(&copies_s));
            let in_turns = in_turns.map(|(computes_s, (lane, copies_s))| {
                let bytes = lane.file_bytes + lane.locked_bytes;
                let beyond_slots = (bytes - f64::from(slots) * lane.largest).max(0.0);
                f64::max(computes_s, copies_s * beyond_slots / bytes.max(1.0))
            });
            call_s = call_s.max(in_turns.sum());
        } else if slots == 1 {
            let alone_s =
                lanes.iter().zip(&copies_s).map(|(lane, copies_s)| copies_s + lane.computes_s);
            call_s = alone_s.fold(call_s, f64::max);
        }
        let mut links_s = vec![0.0; lanes.len()];
        for (copies_s, gpu) in copies_s.iter().zip(&timing.gpus) {
            links_s[*gpu] += copies_s;
        }
        call_s = links_s.into_iter().fold(call_s, f64::max);
        let again = f64::from(timing.calls.saturating_sub(1));
        let least = timing.least_ms(once_s, once_s + again * call_s);
        let locking_ms = 1e3 * sources.locked_bytes / PAGE_LOCK_BYTES_PER_S;
        ComponentMs { first_read: least.first_read + locking_ms, ..least }
    }
}
