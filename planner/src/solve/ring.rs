//! The ring of stream slots, simulated: how long calls of a streamed component take.
//!
//! Each device has a copy engine of its own, which copies streamed segments one after the other, in the order in which
//! they run. A copy begins when the engine is free and its slot is: the segment that had the slot has been computed. A
//! segment is computed when the one before it is, and when all of its own copies are there. After the last segment the
//! ring goes on with the first one of the next call.

/// What a segment takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Computing it.
    pub compute_s: f64,
    /// Copies that it waits for: the index of a device, and the copy's time.
    pub copies: Vec<(usize, f64)>,
}

/// Times of calls one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallsMs {
    /// The first call, whose first copies nothing hides.
    pub first: f64,
    /// Each call after the ring has wrapped around.
    pub steady: f64,
    /// All of them.
    pub total: f64,
}

/// Calls that are simulated: what the ring carries from one call into the next is the same from the third on, or
/// nearly so. Later ones are taken to be as long.
const SIMULATED: u32 = 3;

/// Simulates calls over `lanes` devices with a ring of at most `lookahead` slots each. Times in milliseconds.
pub fn calls_ms(stages: &[Stage], lanes: usize, lookahead: u32, calls: u32) -> CallsMs {
    let slots = |lane: usize| {
        let copies = stages.iter().flat_map(|stage| &stage.copies);
        copies.filter(|(at, _)| *at == lane).count().min(lookahead as usize)
    };
    let mut engines: Vec<Engine> = (0..lanes).map(|lane| Engine::new(slots(lane))).collect();
    let mut now_s = 0.0_f64;
    let mut ends_s = vec![0.0];
    for _ in 0..calls.min(SIMULATED) {
        for stage in stages {
            for (lane, copy_s) in &stage.copies {
                now_s = now_s.max(engines[*lane].copy(*copy_s));
            }
            now_s += stage.compute_s;
            for (lane, _) in &stage.copies {
                engines[*lane].used(now_s);
            }
        }
        ends_s.push(now_s);
    }
    let spans: Vec<f64> = ends_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (first, steady) = (spans.first().unwrap_or(&0.0), spans.last().unwrap_or(&0.0));
    let rest = f64::from(calls.saturating_sub(SIMULATED));
    CallsMs { first: 1e3 * first, steady: 1e3 * steady, total: 1e3 * (now_s + rest * steady) }
}

/// The copy engine of one device, with its slots.
struct Engine {
    /// When each slot is free again, the oldest copy's at `next`.
    slots_free_s: Vec<f64>,
    next: usize,
    free_s: f64,
}

impl Engine {
    fn new(slots: usize) -> Engine {
        Engine { slots_free_s: vec![0.0; slots], next: 0, free_s: 0.0 }
    }

    /// When the next copy is there.
    fn copy(&mut self, copy_s: f64) -> f64 {
        self.free_s = self.free_s.max(self.slots_free_s[self.next]) + copy_s;
        self.free_s
    }

    /// The segment of the copy made last has been computed: its slot is free.
    fn used(&mut self, now_s: f64) {
        self.slots_free_s[self.next] = now_s;
        self.next = (self.next + 1) % self.slots_free_s.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(times: &[(f64, f64)]) -> Vec<Stage> {
        let stage = |&(compute_s, copy_s): &(f64, f64)| Stage {
            compute_s,
            copies: if copy_s > 0.0 { vec![(0, copy_s)] } else { Vec::new() },
        };
        times.iter().map(stage).collect()
    }

    #[test]
    fn nothing_streamed_is_the_sum_of_computing() {
        let calls = calls_ms(&stages(&[(1.0, 0.0), (2.0, 0.0)]), 1, 2, 5);
        assert_eq!((calls.first, calls.steady, calls.total), (3e3, 3e3, 15e3));
        assert_eq!(calls_ms(&[], 1, 2, 0).total, 0.0);
    }

    #[test]
    fn one_slot_hides_nothing() {
        // Each copy waits until the segment before it has been computed.
        let calls = calls_ms(&stages(&[(1.0, 2.0), (1.0, 2.0)]), 1, 1, 4);
        assert_eq!((calls.first, calls.steady, calls.total), (6e3, 6e3, 24e3));
    }

    #[test]
    fn two_slots_hide_the_shorter_of_copying_and_computing() {
        for (compute, copy, first, steady) in [(1.0, 3.0, 13.0, 12.0), (3.0, 1.0, 13.0, 12.0)] {
            let calls = calls_ms(&stages(&[(compute, copy); 4]), 1, 2, 10);
            assert_eq!((calls.first, calls.steady), (1e3 * first, 1e3 * steady));
            assert_eq!(calls.total, 1e3 * (first + 9.0 * steady));
        }
    }

    #[test]
    fn held_segments_give_the_link_time() {
        // Copies of 2 s each, one every other segment of 1 s: the link is just busy.
        let spread = calls_ms(&stages(&[(1.0, 2.0), (1.0, 0.0), (1.0, 2.0), (1.0, 0.0)]), 1, 2, 9);
        assert_eq!(spread.steady, 4e3);
        // In a run two slots do not reach far enough.
        let streams = [true, true, true, true, false, false, false, false];
        let run = streams.map(|streams| (1.0, if streams { 2.0 } else { 0.0 }));
        assert_eq!(calls_ms(&stages(&run), 1, 2, 9).steady, 10e3);
        assert_eq!(calls_ms(&stages(&run), 1, 4, 9).steady, 8e3);
    }

    #[test]
    fn devices_copy_beside_each_other() {
        let both = |lanes: [usize; 2]| {
            let stage = |lane| Stage { compute_s: 1.0, copies: vec![(lane, 3.0)] };
            calls_ms(&lanes.map(stage), 2, 1, 9).steady
        };
        // Each device has the time of the other's segment for its copy.
        assert_eq!((both([0, 1]), both([0, 0])), (4e3, 8e3));
        // A row split waits for the slowest of its copies.
        let rows = Stage { compute_s: 1.0, copies: vec![(0, 1.0), (1, 3.0)] };
        assert_eq!(calls_ms(&[rows], 2, 1, 9).steady, 4e3);
    }
}
