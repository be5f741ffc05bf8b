//! The ring of stream slots, simulated: how long calls of a streamed component take.
//!
//! Each device has a copy engine of its own, which copies streamed segments one after the other, in
//! the order in which they run. A copy begins when the engine is free and its slot is: the segment
//! that had the slot has been computed. A segment is computed when the one before it is, and when
//! all of its own copies are there. After the last segment the ring goes on with the first one of
//! the next call.

/// What the segments of one call take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stages {
    /// Computing each.
    pub compute_s: Vec<f64>,
    /// Copies that segments wait for, in the order of the segments.
    pub copies: Vec<Copy>,
}

/// A copy that a segment waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copy {
    /// Which one waits, by its index.
    pub segment: usize,
    /// The index of the device.
    pub lane: usize,
    /// Its time.
    pub copy_s: f64,
}

/// Times of calls one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CallsMs {
    /// The first call, whose first copies nothing hides.
    pub first: f64,
    /// All of them.
    pub total: f64,
}

/// Calls that are simulated: what the ring carries from one call into the next is the same from the
/// third on, or nearly so. Later ones are taken to be as long.
const SIMULATED: u32 = 3;

/// Simulates calls over `lanes` devices with a ring of at most `lookahead` slots each. Times in
/// milliseconds.
pub fn calls_ms(stages: &Stages, lanes: usize, lookahead: u32, calls: u32) -> CallsMs {
    let slots = |lane: usize| {
        let copies = stages.copies.iter().filter(|copy| copy.lane == lane);
        copies.count().min(lookahead as usize)
    };
    let mut engines: Vec<Engine> = (0..lanes).map(|lane| Engine::new(slots(lane))).collect();
    let (mut now_s, mut first_s, mut last_s) = (0.0_f64, 0.0, 0.0);
    for call in 0..calls.min(SIMULATED) {
        let began_s = now_s;
        let mut copies = stages.copies.as_slice();
        for (segment, compute_s) in stages.compute_s.iter().enumerate() {
            let here = copies.iter().take_while(|copy| copy.segment == segment).count();
            let (own, rest) = copies.split_at(here);
            for copy in own {
                now_s = now_s.max(engines[copy.lane].copy(copy.copy_s));
            }
            now_s += compute_s;
            for copy in own {
                engines[copy.lane].used(now_s);
            }
            copies = rest;
        }
        last_s = now_s - began_s;
        if call == 0 {
            first_s = last_s;
        }
    }
    let rest = f64::from(calls.saturating_sub(SIMULATED));
    CallsMs { first: 1e3 * first_s, total: 1e3 * (now_s + rest * last_s) }
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

    /// Segments by their times to compute, and to be copied to the first device where that is above
    /// 0.
    fn stages(times: &[(f64, f64)]) -> Stages {
        let copies = times.iter().enumerate().filter(|(_, (_, copy_s))| *copy_s > 0.0);
        let copies =
            copies.map(|(segment, &(_, copy_s))| Copy { segment, lane: 0, copy_s }).collect();
        Stages { compute_s: times.iter().map(|(compute_s, _)| *compute_s).collect(), copies }
    }

    /// The first call, and each after the ring has wrapped around.
    fn first_and_steady(stages: &Stages, lanes: usize, lookahead: u32) -> (f64, f64) {
        let total = |calls| calls_ms(stages, lanes, lookahead, calls).total;
        (calls_ms(stages, lanes, lookahead, 1).first, total(10) - total(9))
    }

    #[test]
    fn nothing_streamed_is_the_sum_of_computing() {
        let calls = calls_ms(&stages(&[(1.0, 0.0), (2.0, 0.0)]), 1, 2, 5);
        assert_eq!((calls.first, calls.total), (3e3, 15e3));
        assert_eq!(calls_ms(&Stages::default(), 1, 2, 0).total, 0.0);
    }

    #[test]
    fn one_slot_hides_nothing() {
        // Each copy waits until the segment before it has been computed.
        let calls = calls_ms(&stages(&[(1.0, 2.0), (1.0, 2.0)]), 1, 1, 4);
        assert_eq!((calls.first, calls.total), (6e3, 24e3));
    }

    #[test]
    fn two_slots_hide_the_shorter_of_copying_and_computing() {
        for (compute, copy, first, steady) in [(1.0, 3.0, 13e3, 12e3), (3.0, 1.0, 13e3, 12e3)] {
            let stages = stages(&[(compute, copy); 4]);
            assert_eq!(first_and_steady(&stages, 1, 2), (first, steady));
            assert_eq!(calls_ms(&stages, 1, 2, 10).total, first + 9.0 * steady);
        }
    }

    #[test]
    fn held_segments_give_the_link_time() {
        // Copies of 2 s each, one every other segment of 1 s: the link is just busy.
        let spread = stages(&[(1.0, 2.0), (1.0, 0.0), (1.0, 2.0), (1.0, 0.0)]);
        assert_eq!(first_and_steady(&spread, 1, 2).1, 4e3);
        // In a run two slots do not reach far enough.
        let streams = [true, true, true, true, false, false, false, false];
        let run = stages(&streams.map(|streams| (1.0, if streams { 2.0 } else { 0.0 })));
        assert_eq!(first_and_steady(&run, 1, 2).1, 10e3);
        assert_eq!(first_and_steady(&run, 1, 4).1, 8e3);
    }

    #[test]
    fn devices_copy_beside_each_other() {
        let both = |lanes: [usize; 2]| {
            let copy = |(segment, lane)| Copy { segment, lane, copy_s: 3.0 };
            let copies = lanes.into_iter().enumerate().map(copy).collect();
            first_and_steady(&Stages { compute_s: vec![1.0; 2], copies }, 2, 1).1
        };
        // Each device has the time of the other's segment for its copy.
        assert_eq!((both([0, 1]), both([0, 0])), (4e3, 8e3));
        // A row split waits for the slowest of its copies.
        let copy = |(lane, copy_s)| Copy { segment: 0, lane, copy_s };
        let copies = [1.0, 3.0].into_iter().enumerate().map(copy).collect();
        assert_eq!(first_and_steady(&Stages { compute_s: vec![1.0], copies }, 2, 1).1, 4e3);
    }
}
