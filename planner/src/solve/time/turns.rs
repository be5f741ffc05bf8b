//! The least that any split takes whose devices compute one after the other, or as a pipeline,
//! whatever its shares and whatever room there is.

use std::collections::BTreeMap;

use protocol::profile::StepItems;

use super::super::component_ms::ComponentMs;
use super::{RING_TIME, SegmentTime, SegmentTimes, sum_s};

/// What sums of times in another order may differ by, as a part of them.
pub(super) const ROUNDING: f64 = 1e-9;

/// The least times of a component's splits in turns.
pub struct LeastInTurns {
    /// With all weights there before the first call.
    pub held: ComponentMs,
    /// With some of them streamed.
    pub streamed: ComponentMs,
}

impl SegmentTimes<'_> {
    /// Over any of these devices: products on the one that is fastest at them, everything else on
    /// the one that is fastest at that, nothing crosses, no link is waited for, and all that is
    /// read may be read early.
    pub fn least_in_turns(&self, devices: &[Option<usize>]) -> LeastInTurns {
        let segments = 0..self.component.segments.len();
        let fastest_s = |segment: usize| {
            let each = devices.iter().map(|device| self.on(*device)[segment]);
            let least = |s: fn(&SegmentTime) -> f64| {
                each.clone().map(|time| s(&time)).fold(f64::INFINITY, f64::min)
            };
            least(|time| time.products_s) + least(|time| time.others_s)
        };
        let once_ms = 1e3 * (1.0 - ROUNDING) * segments.map(fastest_s).sum::<f64>();
        let calls = f64::from(self.component.calls);
        let least = |load, first_read, compute| ComponentMs {
            load,
            first_read,
            compute,
            storage: 0.0,
            storage_again: 0.0,
        };
        let (ring_reads_ms, first_read_ms) = self.least_reads_ms(once_ms);
        LeastInTurns {
            held: least(self.read_ms(), 0.0, calls * once_ms),
            streamed: least(ring_reads_ms, first_read_ms, calls * RING_TIME * once_ms),
        }
    }

    /// As a pipeline over any of these devices, with all weights there: no processor computes for
    /// longer than need be, nothing crosses, and of the other processors each computes for one item
    /// while this one waits.
    pub fn least_pipelined(&self, devices: &[Option<usize>]) -> ComponentMs {
        let StepItems { passes, .. } = self.component.items;
        let mut processors: BTreeMap<Option<usize>, Vec<Option<usize>>> = BTreeMap::new();
        for (device, gpu) in devices.iter().zip(self.inventory.gpus(devices)) {
            let apart = device.is_some_and(|at| self.inventory.devices[at].computes_apart());
            processors.entry(apart.then_some(gpu)).or_default().push(*device);
        }
        let segments = 0..self.component.segments.len();
        let fastest_s = |devices: &Vec<Option<usize>>| -> Vec<f64> {
            let least_s = |segment: usize| {
                let each = devices.iter().map(|device| self.on(*device)[segment].all_s());
                each.fold(f64::INFINITY, f64::min)
            };
            segments.clone().map(least_s).collect()
        };
        let each_s: Vec<Vec<f64>> = processors.values().map(fastest_s).collect();
        let alone_s: Vec<f64> = each_s.iter().map(|segments_s| sum_s(segments_s)).collect();
        let least = |part_of: &dyn Fn(usize) -> f64| -> f64 {
            let least = |segment: usize| {
                let each = each_s.iter().enumerate();
                let each = each.map(|(at, segments_s)| part_of(at) * segments_s[segment]);
                each.fold(f64::INFINITY, f64::min)
            };
            segments.clone().map(least).sum()
        };
        let in_turns_s = least(&|_| 1.0);
        // Whatever weights the processors are given, the one that computes longest takes no less
        // than the weighted mean of all: those that are equal where all have the same rates.
        let rates: f64 = alone_s.iter().map(|alone_s| 1.0 / alone_s).sum();
        let longest_s = match in_turns_s > 0.0 {
            true => least(&|at| 1.0 / (alone_s[at] * rates)),
            false => 0.0,
        };
        let items = f64::from(self.component.items.count());
        // Those that share a processor may have what is between its segments.
        let others_s = match processors.len() == devices.len() {
            true => (in_turns_s - longest_s).max(0.0) / items,
            false => 0.0,
        };
        let once_ms = 1e3 * (1.0 - ROUNDING) * (longest_s + others_s);
        let steps = self.component.calls / passes.max(1);
        ComponentMs {
            load: self.read_ms(),
            first_read: 0.0,
            compute: f64::from(steps) * f64::from(passes) * once_ms,
            storage: 0.0,
            storage_again: 0.0,
        }
    }

    /// What a ring reads at least, and what its first call takes longer then: it hides behind what
    /// it reads, or that behind the call, but for what a ring takes longer. Several devices read
    /// what is in the page cache beside each other.
    pub(super) fn least_reads_ms(&self, once_ms: f64) -> (f64, f64) {
        match self.is_in_page_cache() {
            true => (0.0, 0.0),
            false => (self.read_ms(), -once_ms.min(self.read_ms())),
        }
    }

    /// All weights from their source.
    fn read_ms(&self) -> f64 {
        let bytes = self.component.tensor_bytes.0 as f64;
        1e3 * (1.0 - ROUNDING) * bytes / self.source_bytes_per_s()
    }
}
