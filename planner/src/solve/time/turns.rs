//! The least that any split takes whose devices compute one after the other, whatever its shares
//! and whatever room there is.

use super::super::component_ms::ComponentMs;
use super::{RING_TIME, SegmentTime, SegmentTimes};

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
