//! The ring of stream slots, simulated: how long calls of a streamed component take.
//!
//! Each device has slots of its own, and copies streamed segments one after the other, in the order
//! in which they run. A copy begins when its link is free, which parts of one GPU share, and its
//! slot is: the segment that had the slot has been computed. A segment is computed when the one
//! before it is, and when all of its own copies are there. After the last segment the ring goes on
//! with the first one of the next call.
//!
//! What is read passes in turns through what all devices share: the storage, or the host's memory.

use super::lanes::{LaneSet, SlotCounts};

/// What the segments of one call take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stages {
    /// The segments that wait for copies, in order.
    waiting: Vec<Waiting>,
    copies: Vec<Copy>,
    /// How many of them each device makes.
    counts: [usize; LaneSet::LANES_MAX],
    /// Computing the segments after the last of these.
    rest_s: f64,
}

/// A segment that waits for copies.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Waiting {
    /// Computing the segments before it that do not wait.
    before_s: f64,
    compute_s: f64,
    /// How many copies it waits for.
    copies: usize,
}

/// A copy that a segment waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copy {
    /// Which one waits, by its index.
    pub segment: usize,
    /// The index of the device.
    pub lane: usize,
    /// The index of its link: of the first device that has it.
    pub link: usize,
    /// Its time over that link.
    pub link_s: f64,
    /// Its time of what all devices share: the storage, or the host's memory.
    pub shared_s: f64,
}

impl Stages {
    /// Segments that take so long to compute each, with their copies in the order of the segments.
    pub fn new(compute_s: &[f64], copies: Vec<Copy>) -> Stages {
        let mut stages = Stages { waiting: Vec::with_capacity(copies.len()), ..Stages::default() };
        let (mut next, mut counts) = (0, [0; LaneSet::LANES_MAX]);
        for copies in copies.chunk_by(|copy, other| copy.segment == other.segment) {
            let segment = copies[0].segment;
            let before_s = compute_s[next..segment].iter().sum();
            let (compute_s, copies_count) = (compute_s[segment], copies.len());
            stages.waiting.push(Waiting { before_s, compute_s, copies: copies_count });
            copies.iter().for_each(|copy| counts[copy.lane] += 1);
            next = segment + 1;
        }
        stages.rest_s = compute_s[next..].iter().sum();
        Stages { copies, counts, ..stages }
    }

    /// The most copies that any device makes in a call.
    pub fn copies_max(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or_default()
    }
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

/// Simulates calls over `lanes` devices, once for each of these numbers of stream slots, which a
/// ring has at most. Times in milliseconds.
///
/// A simulation waits for its own sums most of the time: a processor does several at once in about
/// the time of one.
pub fn calls_ms<const N: usize>(
    stages: &Stages,
    lanes: usize,
    slots: &[SlotCounts; N],
    calls: u32,
) -> [CallsMs; N] {
    let mut engines = Engines::new(stages, lanes, slots);
    let (mut now_s, mut first_s, mut last_s) = ([0.0_f64; N], [0.0; N], [0.0; N]);
    for call in 0..calls.min(SIMULATED) {
        let began_s = now_s;
        let mut copies = stages.copies.as_slice();
        for waiting in &stages.waiting {
            let (own, rest) = copies.split_at(waiting.copies);
            now_s.iter_mut().for_each(|now_s| *now_s += waiting.before_s);
            for copy in own {
                engines.copy(copy, &mut now_s);
            }
            now_s.iter_mut().for_each(|now_s| *now_s += waiting.compute_s);
            for copy in own {
                engines.used(copy.lane, now_s);
            }
            copies = rest;
        }
        now_s.iter_mut().for_each(|now_s| *now_s += stages.rest_s);
        last_s = std::array::from_fn(|one| now_s[one] - began_s[one]);
        if call == 0 {
            first_s = last_s;
        }
    }
    let rest = f64::from(calls.saturating_sub(SIMULATED));
    let ms = |one: usize| CallsMs {
        first: 1e3 * first_s[one],
        total: 1e3 * (now_s[one] + rest * last_s[one]),
    };
    std::array::from_fn(ms)
}

/// The slots of all devices, their links, and what they share, of `N` simulations.
struct Engines<const N: usize> {
    of: Vec<Engine<N>>,
    /// When each link is free.
    links_free_s: Vec<[f64; N]>,
    /// When the segments of the last copies have been computed: of each device as many as are
    /// looked back at, one device after the other.
    used_s: Vec<[f64; N]>,
    shared_free_s: [f64; N],
}

/// The slots of one device.
#[derive(Clone, Copy)]
struct Engine<const N: usize> {
    /// The index of its first entry in `used_s`.
    first: usize,
    /// How many entries it has there, less one: these are a power of two.
    mask: usize,
    /// The number of its oldest copy whose segment has not been computed.
    number: usize,
    /// How many slots it has: a copy gets the slot of the copy that came so many before it.
    slots: [usize; N],
}

impl<const N: usize> Engines<N> {
    fn new(stages: &Stages, lanes: usize, slots: &[SlotCounts; N]) -> Engines<N> {
        let mut first = 0;
        let of = (0..lanes).map(|lane| {
            let count = stages.counts[lane];
            let slots = slots.each_ref().map(|slots| count.min(slots.on(lane) as usize));
            let entries = slots.iter().copied().max().unwrap_or(0).next_power_of_two();
            first += entries;
            Engine { first: first - entries, mask: entries - 1, number: 0, slots }
        });
        let (of, links_free_s) = (of.collect(), vec![[0.0; N]; lanes]);
        Engines { of, links_free_s, used_s: vec![[0.0; N]; first], shared_free_s: [0.0; N] }
    }

    /// Waits until the next copy of a device is there.
    fn copy(&mut self, copy: &Copy, now_s: &mut [f64; N]) {
        let Engine { first, mask, number, slots } = self.of[copy.lane];
        let link_free_s = &mut self.links_free_s[copy.link];
        for one in 0..N {
            // Of a slot that no copy has had yet the entry is still 0.
            let slot_free_s = self.used_s[first + (number.wrapping_sub(slots[one]) & mask)][one];
            let begins_s = later(link_free_s[one], slot_free_s);
            let shared_s = later(self.shared_free_s[one], begins_s) + copy.shared_s;
            self.shared_free_s[one] = shared_s;
            link_free_s[one] = later(begins_s + copy.link_s, shared_s);
            now_s[one] = later(now_s[one], link_free_s[one]);
        }
    }

    /// The segment of a device's oldest copy has been computed: its slot is free.
    fn used(&mut self, lane: usize, now_s: [f64; N]) {
        let engine = &mut self.of[lane];
        self.used_s[engine.first + (engine.number & engine.mask)] = now_s;
        engine.number += 1;
    }
}

/// The later of two times. Neither is NaN. `f64::max` looks for NaN too, and takes several
/// instructions; this takes one.
fn later(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(segment: usize, lane: usize, link_s: f64) -> Copy {
        Copy { segment, lane, link: lane, link_s, shared_s: 0.0 }
    }

    /// Segments by their times to compute, and to be copied to the first device where that is above
    /// 0.
    fn stages(times: &[(f64, f64)]) -> Stages {
        let copies = times.iter().enumerate().filter(|(_, (_, copy_s))| *copy_s > 0.0);
        let copies = copies.map(|(segment, &(_, copy_s))| alone(segment, 0, copy_s)).collect();
        Stages::new(&times.iter().map(|(compute_s, _)| *compute_s).collect::<Vec<_>>(), copies)
    }

    fn of_calls(stages: &Stages, lanes: usize, lookahead: u32, calls: u32) -> CallsMs {
        let [ms] = calls_ms(stages, lanes, &[SlotCounts::alike(lookahead)], calls);
        ms
    }

    /// The first call, and each after the ring has wrapped around.
    fn first_and_steady(stages: &Stages, lanes: usize, lookahead: u32) -> (f64, f64) {
        let total = |calls| of_calls(stages, lanes, lookahead, calls).total;
        (of_calls(stages, lanes, lookahead, 1).first, total(10) - total(9))
    }

    #[test]
    fn nothing_streamed_is_the_sum_of_computing() {
        let calls = of_calls(&stages(&[(1.0, 0.0), (2.0, 0.0)]), 1, 2, 5);
        assert_eq!((calls.first, calls.total), (3e3, 15e3));
        assert_eq!(of_calls(&stages(&[]), 1, 2, 0).total, 0.0);
    }

    #[test]
    fn one_slot_hides_nothing() {
        // Each copy waits until the segment before it has been computed.
        let calls = of_calls(&stages(&[(1.0, 2.0), (1.0, 2.0)]), 1, 1, 4);
        assert_eq!((calls.first, calls.total), (6e3, 24e3));
    }

    #[test]
    fn two_slots_hide_the_shorter_of_copying_and_computing() {
        for (compute, copy, first, steady) in [(1.0, 3.0, 13e3, 12e3), (3.0, 1.0, 13e3, 12e3)] {
            let stages = stages(&[(compute, copy); 4]);
            assert_eq!(first_and_steady(&stages, 1, 2), (first, steady));
            assert_eq!(of_calls(&stages, 1, 2, 10).total, first + 9.0 * steady);
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
            let copy = |(segment, lane)| alone(segment, lane, 3.0);
            let copies = lanes.into_iter().enumerate().map(copy).collect();
            first_and_steady(&Stages::new(&[1.0; 2], copies), 2, 1).1
        };
        // Each device has the time of the other's segment for its copy.
        assert_eq!((both([0, 1]), both([0, 0])), (4e3, 8e3));
        // A row split waits for the slowest of its copies.
        let copy = |(lane, copy_s)| alone(0, lane, copy_s);
        let copies = [1.0, 3.0].into_iter().enumerate().map(copy).collect();
        assert_eq!(first_and_steady(&Stages::new(&[1.0], copies), 2, 1).1, 4e3);
    }

    #[test]
    fn parts_of_a_gpu_take_turns_at_its_link() {
        let both = |links: [usize; 2]| {
            let copy = |lane: usize| Copy { link: links[lane], ..alone(0, lane, 3.0) };
            first_and_steady(&Stages::new(&[1.0], [0, 1].map(copy).to_vec()), 2, 1)
        };
        assert_eq!((both([0, 1]), both([0, 0])), ((4e3, 4e3), (7e3, 7e3)));
    }

    #[test]
    fn devices_take_turns_at_what_they_share() {
        let both = |shared_s| {
            let copy = |lane| Copy { segment: 0, lane, link: lane, link_s: 1.0, shared_s };
            let copies = [0, 1].map(copy).to_vec();
            first_and_steady(&Stages::new(&[1.0], copies), 2, 1)
        };
        // Over their links at the same time; from the storage one after the other.
        assert_eq!(both(0.0), (2e3, 2e3));
        assert_eq!(both(0.25), (2e3, 2e3));
        assert_eq!(both(2.0), (5e3, 5e3));
    }

    #[test]
    fn simulations_beside_each_other_are_what_each_is_alone() {
        let copy = |(segment, lane): (usize, usize)| Copy {
            shared_s: 0.3,
            ..alone(segment, lane, 1.0 + 0.1 * (segment * 7 % 5) as f64 + 0.2 * lane as f64)
        };
        let copies = (0..9).flat_map(|segment| [0, 1].map(|lane| (segment, lane)));
        let copies = copies.filter(|(segment, lane)| segment % 3 != *lane).map(copy).collect();
        let stages = Stages::new(&[1.1; 10], copies);
        let slots = [1, 2, 3, 7, 64].map(SlotCounts::alike);
        let slots = [slots[0], slots[1], slots[2].with(1, 1), slots[3], slots[4]];
        let together = calls_ms(&stages, 2, &slots, 8);
        for (slots, together) in slots.into_iter().zip(together) {
            assert_eq!(calls_ms(&stages, 2, &[slots], 8), [together]);
        }
        assert!(together[0].total > together[4].total);
    }
}
