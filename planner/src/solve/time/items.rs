//! What replicas take that have some of a component's items each: their own times, one beside the
//! other.

use protocol::profile::{SegmentProfile, Work, WorkKind};
use protocol::{Bytes, Division, item_runs};

use super::{SegmentTimes, Timing};

impl Timing<'_> {
    /// For each device of an item split one call of each segment, with its items of all passes;
    /// nothing for other splits.
    pub(super) fn replicas_s(&self) -> Vec<Vec<f64>> {
        let Division::Items { counts } = &self.spread.division else { return Vec::new() };
        let times = self.times;
        let batch = times.component.items.batch;
        let runs = item_runs(counts, batch as usize);
        let mut replicas: Vec<Vec<f64>> = Vec::new();
        for (at, device) in self.spread.devices.iter().enumerate() {
            let own = runs.iter().filter(|run| run.part == at);
            let parts: Vec<f64> =
                own.map(|run| run.items.len() as f64 / f64::from(batch)).collect();
            let segments = (0..self.spread.segments()).map(|segment| {
                parts.iter().map(|part| self.of_items_s(*device, segment, *part)).sum()
            });
            replicas.push(segments.collect());
        }
        self.take_turns(&mut replicas);
        replicas
    }

    /// A segment with a part of the batch; what a device cannot do, the host does.
    pub(super) fn of_items_s(&self, device: Option<usize>, segment: usize, part: f64) -> f64 {
        let weights = self.segment_bytes[segment] as f64;
        let parts = &self.spread.parts;
        let host = parts[self.spread.devices.len()..].iter();
        let host: f64 = host.map(|part| part.segment_bytes[segment].0 as f64).sum();
        let on_host = if weights > 0.0 { host / weights } else { 0.0 };
        let own_s = self.times.of_items_s(device, segment, part);
        (1.0 - on_host) * own_s + on_host * self.times.of_items_s(None, segment, part)
    }

    /// Devices that share the host's threads, and parts of one GPU, each take as long as all of
    /// theirs.
    fn take_turns(&self, replicas: &mut [Vec<f64>]) {
        let processor =
            |lane: usize| self.computes_apart(self.spread.devices[lane]).then_some(self.gpus[lane]);
        let alone = replicas.to_vec();
        for (lane, replica) in replicas.iter_mut().enumerate() {
            let beside = (0..alone.len()).filter(|other| processor(*other) == processor(lane));
            let beside: Vec<&Vec<f64>> = beside.map(|other| &alone[other]).collect();
            for (segment, own_s) in replica.iter_mut().enumerate() {
                *own_s = beside.iter().map(|other| other[segment]).sum();
            }
        }
    }
}

impl SegmentTimes<'_> {
    /// One call of a segment on a processor, with a part of the batch.
    fn of_items_s(&self, device: Option<usize>, segment: usize, part: f64) -> f64 {
        let segment = &self.component.segments[segment];
        let work = segment.work.iter().map(|work| of_items(segment, work, part));
        self.processor(device).segment_time(work).all_s()
    }
}

/// The work of a part of the items: with all weights, and with a part of everything else.
fn of_items(segment: &SegmentProfile, work: &Work, part: f64) -> Work {
    let weights = segment.storage.iter().filter(|weights| {
        // Others than those of products are a small part of what is moved.
        work.kind == WorkKind::Matmul(weights.storage)
    });
    let weights = weights.map(|weights| weights.bytes).sum::<Bytes>().min(work.moved_bytes);
    let activations = (work.moved_bytes - weights).0 as f64;
    let moved_bytes = weights + Bytes((activations * part) as u64);
    Work { flops: work.flops * part, moved_bytes, ..*work }
}
