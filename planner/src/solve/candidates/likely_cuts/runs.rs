//! What runs of segments take on each kind of device, and which of them make up the best splits.

use std::ops::Range;

use protocol::profile::ComponentProfile;

use super::super::super::Problem;
use super::super::super::time::{MOVED_PER_COPIED, PAGE_LOCK_BYTES_PER_S};
use super::{Cut, DeviceTurn, Kind};

/// What a run of segments takes of a call.
#[derive(Debug, Clone, Copy)]
struct Run {
    turn_s: f64,
    streamed_bytes: f64,
}

/// A run for which there is no room, or no time.
const NEVER: Run = Run { turn_s: f64::INFINITY, streamed_bytes: 0.0 };

/// What each run of segments takes on each kind of device, where a device has a given number of
/// slots.
pub(super) struct DeviceRuns<'a> {
    component: &'a ComponentProfile,
    kinds: &'a [Kind],
    /// Whether what is streamed is page-locked, as far as it may be.
    locks: bool,
    /// By kind, first segment, and end.
    of: Vec<Vec<Run>>,
}

/// The least sum of turns of some devices up to a segment.
#[derive(Clone, Copy)]
struct Least {
    sum_s: f64,
    /// The kind of the last device, and where it begins.
    kind: usize,
    begin: usize,
}

impl<'a> DeviceRuns<'a> {
    /// A run that computes or copies for longer than the limit counts as one without room.
    pub(super) fn of(
        component: &'a ComponentProfile,
        kinds: &'a [Kind],
        slots: u64,
        locks: bool,
        limit_s: f64,
    ) -> DeviceRuns<'a> {
        let of_kind = |kind: &Kind| {
            let ends = component.segments.len() + 1;
            let copy_s = if locks { kind.copy_s } else { kind.file_s };
            let mut runs = vec![NEVER; ends * ends];
            for begin in 0..component.segments.len() {
                let mut weights = RunWeights::default();
                for end in begin + 1..ends {
                    let segment = &component.segments[end - 1];
                    weights.add(end - 1, segment.weights_bytes.0, segment.block);
                    let computes_s = |run: Range<usize>| {
                        kind.before_s[run.end.max(run.start)] - kind.before_s[run.start]
                    };
                    let ways = weights.streamed(kind.room, slots);
                    let turn = |streamed: Streamed| {
                        let among = &streamed.among;
                        let computes = Computes {
                            all_s: computes_s(begin..end),
                            outside_s: computes_s(begin..among.start) + computes_s(among.end..end),
                            segments: end - begin,
                        };
                        Run {
                            turn_s: streamed.turn_s(computes, copy_s, slots),
                            streamed_bytes: streamed.bytes as f64,
                        }
                    };
                    let turns = ways.into_iter().flatten().map(turn);
                    let best = turns.min_by(|a, b| a.turn_s.total_cmp(&b.turn_s));
                    let in_time =
                        |run: &Run| run.turn_s.max(run.streamed_bytes * copy_s) <= limit_s;
                    runs[begin * ends + end] = best.filter(in_time).unwrap_or(NEVER);
                }
            }
            runs
        };
        DeviceRuns { component, kinds, locks, of: kinds.iter().map(of_kind).collect() }
    }

    /// For each set of two or more devices the cut with the least sum of turns, and of the price of
    /// what is streamed.
    pub(super) fn best_cuts(&self, price: f64) -> Vec<Cut> {
        // What is read from files costs nothing by itself.
        let byte_s = match self.locks || price > 1.0 {
            true => price / PAGE_LOCK_BYTES_PER_S / f64::from(self.component.calls),
            false => 0.0,
        };
        let ends = self.component.segments.len() + 1;
        let counts: Vec<usize> = self.kinds.iter().map(|kind| kind.devices.len() + 1).collect();
        // A set is a number whose digits say how many of each kind it has.
        let units = counts.iter().scan(1, |unit, count| {
            let own = *unit;
            *unit *= count;
            Some(own)
        });
        let units: Vec<usize> = units.collect();
        let sets: usize = counts.iter().product();
        let none = Least { sum_s: f64::INFINITY, kind: 0, begin: 0 };
        let mut least = vec![none; sets * ends];
        least[0].sum_s = 0.0;
        let of_kind = |set: usize, kind: usize| set / units[kind] % counts[kind];
        for set in 0..sets {
            let kinds = 0..counts.len();
            for kind in kinds.filter(|kind| of_kind(set, *kind) + 1 < counts[*kind]) {
                let next = (set + units[kind]) * ends;
                for begin in 0..ends - 1 {
                    let before_s = least[set * ends + begin].sum_s;
                    if before_s == f64::INFINITY {
                        continue;
                    }
                    for end in begin + 1..ends {
                        let Run { turn_s, streamed_bytes } = self.of[kind][begin * ends + end];
                        let sum_s = before_s + turn_s + byte_s * streamed_bytes;
                        if sum_s < least[next + end].sum_s {
                            least[next + end] = Least { sum_s, kind, begin };
                        }
                    }
                }
            }
        }
        let cut = |mut set: usize| {
            let (mut cut, mut end) = (Vec::new(), ends - 1);
            while end > 0 {
                let Least { sum_s, kind, begin } = least[set * ends + end];
                if sum_s == f64::INFINITY {
                    return None;
                }
                let device = self.kinds[kind].devices[of_kind(set, kind) - 1];
                cut.push(DeviceTurn { device, kind, begin, end });
                (set, end) = (set - units[kind], begin);
            }
            cut.reverse();
            (cut.len() > 1).then_some(cut)
        };
        (0..sets).filter_map(cut).collect()
    }

    fn run(&self, turn: &DeviceTurn) -> Run {
        self.of[turn.kind][turn.begin * (self.component.segments.len() + 1) + turn.end]
    }

    pub(super) fn streamed_bytes(&self, cut: &Cut) -> f64 {
        cut.iter().map(|turn| self.run(turn).streamed_bytes).sum()
    }

    /// About what a call takes, with its part of what is page-locked once.
    pub(super) fn call_s(&self, problem: &Problem<'_>, cut: &Cut, crossing_bytes: f64) -> f64 {
        let host = &problem.inventory.host;
        let memory = host.speeds.memory_bytes_per_s.value;
        let all_bytes = self.streamed_bytes(cut);
        let locked_bytes =
            if self.locks { all_bytes.min(problem.locked_max(&[]).0 as f64) } else { 0.0 };
        let file_bytes = all_bytes - locked_bytes;
        let locked = locked_bytes / all_bytes.max(1.0);
        let copies_s = cut.iter().map(|turn| {
            let Kind { file_s, copy_s, .. } = self.kinds[turn.kind];
            self.run(turn).streamed_bytes * (locked * copy_s + (1.0 - locked) * file_s)
        });
        let links = cut
            .iter()
            .map(|turn| problem.inventory.devices[turn.device].link_both_ways_bytes_per_s());
        let turns_s = cut.iter().map(|turn| self.run(turn).turn_s).sum::<f64>()
            + crossing_bytes / links.fold(f64::INFINITY, f64::min);
        let shared_s = (locked_bytes + MOVED_PER_COPIED * file_bytes) / memory;
        let cached = all_bytes <= host.available_bytes.0 as f64;
        let storage_s = if cached { 0.0 } else { file_bytes / host.storage_bytes_per_s.value };
        let locking_s = locked_bytes / PAGE_LOCK_BYTES_PER_S / f64::from(self.component.calls);
        copies_s.fold(turns_s, f64::max).max(shared_s).max(storage_s) + locking_s
    }
}

/// The weights of a run of segments.
#[derive(Default)]
struct RunWeights {
    bytes: u64,
    blocks_bytes: u64,
    /// Of each block, in order.
    sizes: Vec<u64>,
    /// For each size of blocks the segments from the first to the last block of that size.
    blocks: Vec<(u64, Range<usize>)>,
}

/// What of a run is streamed.
struct Streamed {
    bytes: u64,
    slot_bytes: u64,
    /// As a part of the run.
    part: f64,
    /// From the first to the last segment that may be streamed.
    among: Range<usize>,
}

/// How long the segments of a run compute.
struct Computes {
    all_s: f64,
    /// Those before the first and behind the last one that may be streamed.
    outside_s: f64,
    segments: usize,
}

impl RunWeights {
    fn add(&mut self, segment: usize, bytes: u64, block: bool) {
        self.bytes += bytes;
        if block {
            self.blocks_bytes += bytes;
            let at = self.sizes.partition_point(|other| *other < bytes);
            self.sizes.insert(at, bytes);
            match self.blocks.iter_mut().find(|(size, _)| *size == bytes) {
                Some((_, range)) => range.end = segment + 1,
                None => self.blocks.push((bytes, segment..segment + 1)),
            }
        }
    }

    /// From the first to the last block up to a size.
    fn blocks_up_to(&self, bytes: u64) -> Range<usize> {
        let small = self.blocks.iter().filter(|(size, _)| *size <= bytes);
        let ranges = small.map(|(_, range)| range.clone());
        ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or_default()
    }

    /// The blocks that are streamed, where `room` bytes are for weights and slots: blocks of any
    /// size, or the smallest ones; `None` where there is too little room.
    fn streamed(&self, room: u64, slots: u64) -> [Option<Streamed>; 2] {
        let streamed = |bytes: u64, slot_bytes: u64| {
            let part = bytes as f64 / self.bytes.max(1) as f64;
            Streamed { bytes, slot_bytes, part, among: self.blocks_up_to(slot_bytes) }
        };
        if self.bytes <= room {
            return [Some(streamed(0, 0)), None];
        }
        let beyond = self.bytes - room;
        let count = self.sizes.len() as u64;
        let largest = self.sizes.last().copied().unwrap_or_default();
        let mean = (self.blocks_bytes / count.max(1)).max(1);
        let some = (beyond + slots * largest).div_ceil(mean);
        let any = match some < count {
            true => Some(streamed(some * mean, largest)),
            false => {
                let all = self.bytes - self.blocks_bytes + slots.min(count) * largest;
                (all <= room).then(|| streamed(self.blocks_bytes, largest))
            }
        };
        let mut sum = 0;
        let smallest = (1..).zip(&self.sizes).find_map(|(count, size)| {
            sum += size;
            (sum >= beyond + slots.min(count) * size).then(|| streamed(sum, *size))
        });
        [any, smallest]
    }
}

impl Streamed {
    /// How long the turn of a device lasts that has these segments.
    fn turn_s(&self, computes: Computes, copy_s: f64, slots: u64) -> f64 {
        let Computes { all_s, outside_s, segments } = computes;
        let beyond_slots = self.bytes.saturating_sub(slots * self.slot_bytes);
        let copies_s = beyond_slots as f64 * copy_s;
        if copies_s == 0.0 {
            return all_s;
        }
        match slots {
            // Nothing is copied while a streamed segment computes.
            1 => all_s * self.part + copies_s.max(all_s * (1.0 - self.part)),
            // No slot is free before the first of them has computed: the link waits for it. The
            // last waits for the link, and one that stays for the last.
            _ => {
                let waits = if self.part < 1.0 { 3.0 } else { 2.0 };
                all_s.max(outside_s + copies_s + waits * all_s / segments as f64)
            }
        }
    }
}
