//! What calls take of which some weights are streamed: where these come from, and what they share
//! their way with.

mod bound;
mod least;

use std::cell::OnceCell;

use super::super::component_ms::ComponentMs;
use super::super::lanes::{LaneSet, SlotCounts};
use super::super::ring::{CallsMs, Copy, Stages, calls_ms};
use super::{MOVED_PER_COPIED, RING_TIME, Timing};
use crate::inventory::HostFacts;
pub use bound::CallBound;

/// How fast memory is page-locked, in bytes per second, as it is found, cleared and locked page by
/// page: 32 MB in 11.6 ms by `cuMemHostAlloc` (rapidsai/dask-cuda, issue 106). Ordinary memory is
/// touched for the first time at 1.6 to 1.8 GB/s on a virtual machine (docs/streaming.md).
pub const PAGE_LOCK_BYTES_PER_S: f64 = 2.8e9;

/// Where streamed weights come from, in bytes per second.
#[derive(Debug, Clone, Copy)]
struct WeightSource {
    /// For each device.
    each: f64,
    /// For all devices together.
    shared: f64,
    /// The host's memory, where that is what they share; else without an end.
    memory: f64,
}

/// Bytes of weights that are streamed in a call.
#[derive(Debug, Clone, Copy, Default)]
struct StreamedBytes {
    files: EachAndOnce,
    copies: EachAndOnce,
}

/// Bytes of weights that devices have.
#[derive(Debug, Clone, Copy, Default)]
struct EachAndOnce {
    /// Of all devices.
    each: u64,
    /// What several of an item split have is counted once, as it is read once from the files.
    once: u64,
}

impl EachAndOnce {
    /// Adds another one's, which has nothing then.
    fn take(&mut self, other: &mut EachAndOnce) {
        let EachAndOnce { each, once } = std::mem::take(other);
        (self.each, self.once) = (self.each + each, self.once + once);
    }
}

/// Where a component's streamed weights come from after the first call.
struct WeightSources<'s> {
    host: &'s HostFacts,
    locked: Option<&'s [bool]>,
    /// Of an item split, for each segment how many devices stream it: they share the host's memory,
    /// as each is looked at alone. Nothing for other splits.
    sharers: Vec<f64>,
    /// Bytes that come from files; bytes of all page-locked copies; and of these what is read from
    /// the files once.
    file_bytes: f64,
    locked_bytes: f64,
    locked_once_bytes: f64,
    /// Whether all fits in RAM, together with what the host reads in place: files are read from it
    /// then.
    cached: bool,
}

impl<'s> WeightSources<'s> {
    fn of(
        timing: &'s Timing<'_>,
        stays: &[LaneSet],
        locked: Option<&'s [bool]>,
    ) -> WeightSources<'s> {
        let sharers = |segment| f64::from(timing.streamed_to(stays, segment).count());
        let sharers = match timing.replicas_s.is_empty() {
            true => Vec::new(),
            false => (0..stays.len()).map(sharers).collect(),
        };
        let mut bytes = StreamedBytes::default();
        for segment in timing.streamed_segments(stays) {
            bytes.add(timing, stays, segment, is_locked(locked, segment));
        }
        WeightSources { locked, sharers, ..WeightSources::of_bytes(timing, bytes) }
    }

    /// The same from sums of bytes: where single segments come from is not known then.
    fn of_bytes(timing: &'s Timing<'_>, bytes: StreamedBytes) -> WeightSources<'s> {
        let host = &timing.times.inventory.host;
        let file_bytes = timing.tensor_bytes(bytes.files.once);
        // Each device has copies of its own.
        let locked_bytes = timing.tensor_bytes(bytes.copies.each) * timing.copies_of_all();
        let locked_once_bytes = timing.tensor_bytes(bytes.copies.once);
        let mapped_bytes = timing.tensor_bytes(timing.mapped_bytes);
        let cached = file_bytes + locked_bytes + mapped_bytes <= host.available_bytes.0 as f64;
        let (locked, sharers) = (None, Vec::new());
        WeightSources { host, locked, sharers, file_bytes, locked_bytes, locked_once_bytes, cached }
    }

    /// How many devices share what a segment comes through, of those that are looked at alone.
    fn sharers_of(&self, segment: usize) -> f64 {
        self.sharers.get(segment).copied().unwrap_or(1.0)
    }

    /// Where a streamed segment comes from.
    fn at(&self, segment: usize) -> WeightSource {
        let sharers = self.sharers_of(segment);
        self.source(is_locked(self.locked, segment), sharers)
    }

    /// The source of weights that `sharers` devices stream at once.
    fn source(&self, locked: bool, sharers: f64) -> WeightSource {
        // What several devices stream is read once from the storage, by each from memory.
        let memory = self.host.speeds.memory_bytes_per_s.value / sharers;
        let each = self.host.page_cache_bytes_per_s.value;
        match (locked, self.cached) {
            (true, _) => WeightSource { each: f64::INFINITY, shared: memory, memory },
            (false, true) => WeightSource { each, shared: memory / MOVED_PER_COPIED, memory },
            (false, false) => {
                let shared = self.host.storage_bytes_per_s.value;
                WeightSource { each, shared, memory: f64::INFINITY }
            }
        }
    }
}

impl StreamedBytes {
    /// With another segment.
    fn add(&mut self, timing: &Timing<'_>, stays: &[LaneSet], segment: usize, locked: bool) {
        let each = timing.streamed_bytes(stays, segment);
        let once = match timing.replicas_s.is_empty() {
            true => each,
            false => timing.segment_bytes[segment],
        };
        let source = if locked { &mut self.copies } else { &mut self.files };
        source.take(&mut EachAndOnce { each, once });
    }
}

fn is_locked(locked: Option<&[bool]>, segment: usize) -> bool {
    locked.is_some_and(|locked| locked[segment])
}

impl Timing<'_> {
    /// The lanes to which a segment is streamed, where these stay.
    fn streamed_to(&self, stays: &[LaneSet], segment: usize) -> LaneSet {
        self.streamable[segment].without(stays[segment])
    }

    /// The segments that are streamed to any lane.
    pub fn streamed_segments(&self, stays: &[LaneSet]) -> impl Iterator<Item = usize> {
        let all = 0..self.segment_bytes.len();
        all.filter(|segment| !self.streamed_to(stays, *segment).is_empty())
    }

    /// A segment's weights but for those that stay on their lanes.
    pub fn streamed_bytes(&self, stays: &[LaneSet], segment: usize) -> u64 {
        let streamed = self.streamed_to(stays, segment);
        let held = self.streamable[segment].without(streamed);
        let held = held.iter().map(|lane| self.spread.parts[lane].segment_bytes[segment].0);
        self.segment_bytes[segment] - held.sum::<u64>()
    }

    /// With a ring, these segments held, and these of the others page-locked.
    pub fn streamed<'t>(
        &'t self,
        stays: &'t [LaneSet],
        locked: Option<&[bool]>,
    ) -> StreamedTiming<'t> {
        StreamedTiming::new(self, stays, locked)
    }

    /// The stages of a call, each segment from its source: of each device of an item split its own,
    /// of another split all together.
    fn stages(&self, stays: &[LaneSet], source: impl Fn(usize) -> WeightSource) -> Vec<Stages> {
        let copies = self.copies(stays, source);
        if self.replicas_s.is_empty() {
            return vec![Stages::new(&self.segments_s, copies)];
        }
        let replicas = self.replicas_s.iter().enumerate();
        let stages = replicas.map(|(lane, segments_s)| {
            let own = copies.iter().filter(|copy| copy.lane == lane).copied().collect();
            Stages::new(segments_s, own)
        });
        stages.collect()
    }

    /// What is copied in one call, to each lane each segment from its source. Summands that cross
    /// meanwhile take their time of the link, and of the host's memory.
    fn copies(&self, stays: &[LaneSet], source: impl Fn(usize) -> WeightSource) -> Vec<Copy> {
        let summands = self.summands.as_ref().map(|summands| {
            let since = self.lanes().map(|lane| {
                summands.since_copies(|segment| self.streamed_to(stays, segment).has(lane))
            });
            (&summands.received_bytes, since.collect::<Vec<_>>())
        });
        let link = |(lane, device): (usize, &Option<usize>)| {
            device.map(|device| self.link(device) / self.replicas_beside(lane))
        };
        let links: Vec<Option<f64>> = self.spread.devices.iter().enumerate().map(link).collect();
        let segments = 0..stays.len();
        let count = segments.map(|segment| self.streamed_to(stays, segment).count()).sum::<u32>();
        let mut copies = Vec::with_capacity(count as usize);
        for segment in self.streamed_segments(stays) {
            let source = source(segment);
            for lane in self.streamed_to(stays, segment).iter() {
                let Some(link) = links[lane] else { continue };
                let bytes = self.spread.parts[lane].segment_bytes[segment].0 as f64;
                let mut copy = Copy {
                    segment,
                    lane,
                    link: self.gpus[lane],
                    link_s: bytes / link.min(source.each),
                    shared_s: bytes / source.shared,
                };
                if let Some((received_bytes, since)) = &summands {
                    let bytes = received_bytes[lane] * since[lane][segment];
                    copy.link_s += bytes / link;
                    copy.shared_s += MOVED_PER_COPIED * bytes / source.memory;
                }
                copies.push(copy);
            }
        }
        copies
    }

    /// How many replicas have one GPU, and so one link, with one of them: the copies of each are
    /// looked at alone. 1 for other splits.
    fn replicas_beside(&self, lane: usize) -> f64 {
        let beside = self.gpus.iter().filter(|gpu| **gpu == self.gpus[lane]).count();
        if self.replicas_s.is_empty() { 1.0 } else { beside as f64 }
    }
}

/// A component with a ring: what its calls take with any number of slots. The first call reads the
/// files; the others find what is streamed in RAM, where that has room for it.
pub struct StreamedTiming<'t> {
    timing: &'t Timing<'t>,
    /// Of each device of an item split its own, of another split all together.
    warm: Vec<Stages>,
    /// The first call, made when it is asked for; `None` where it is as the others.
    cold: OnceCell<Option<Vec<Stages>>>,
    stays: &'t [LaneSet],
    /// From where the first call reads, where it reads the files.
    first: Option<WeightSource>,
    load: f64,
    /// Making room for page-locked copies.
    locking: f64,
    reread: f64,
    storage: f64,
    storage_again: f64,
}

impl<'t> StreamedTiming<'t> {
    fn new(
        timing: &'t Timing<'t>,
        stays: &'t [LaneSet],
        locked: Option<&[bool]>,
    ) -> StreamedTiming<'t> {
        let inventory = timing.times.inventory;
        let host = &inventory.host;
        let is_mapped = |segment: usize| timing.mapped[segment];
        let sources = WeightSources::of(timing, stays, locked);
        let WeightSources { file_bytes, locked_bytes, locked_once_bytes, cached, .. } = sources;
        let cold_rate = timing.times.source_bytes_per_s();
        let each = host.page_cache_bytes_per_s.value;
        let first = WeightSource { each, shared: cold_rate, memory: f64::INFINITY };
        let reread_s = timing.reread_s(timing.mapped_bytes, file_bytes + locked_bytes);
        let devices = timing.lanes().len();
        // What the host has of a segment comes with what is streamed of it.
        let is_streamed = |part: usize, segment: usize| match part < devices {
            true => timing.streamed_to(stays, segment).has(part),
            false => !timing.streamed_to(stays, segment).is_empty(),
        };
        let loads = |part: usize, segment: usize| {
            !is_streamed(part, segment) && (!is_mapped(segment) || reread_s == 0.0)
        };
        let calls = f64::from(timing.calls);
        let reread = 1e3 * calls * reread_s;
        let again = if cached { 0.0 } else { 1e3 * file_bytes / host.storage_bytes_per_s.value };
        let read_bytes = file_bytes + locked_once_bytes;
        let is_read_first = locked.is_some() || !timing.times.is_in_page_cache();
        StreamedTiming {
            timing,
            warm: timing.stages(stays, |segment| sources.at(segment)),
            cold: OnceCell::new(),
            stays,
            first: is_read_first.then_some(first),
            load: 1e3 * timing.load_s(loads),
            locking: 1e3 * locked_bytes / PAGE_LOCK_BYTES_PER_S,
            reread,
            storage: 1e3 * read_bytes / cold_rate + (calls - 1.0) * again + reread,
            storage_again: calls * again + reread,
        }
    }

    /// Whether the calls take no longer than computing does, with so many slots on each device: a
    /// part of it more is as good.
    pub fn is_hidden(&self, slots: SlotCounts, part: f64) -> bool {
        let calls = f64::from(self.timing.calls);
        let computes: f64 = 1e3 * calls * self.timing.segments_s.iter().sum::<f64>();
        let [warm] = self.slowest(&self.warm, &[slots], self.timing.calls);
        let warm_ms = warm.total;
        RING_TIME * warm_ms + self.reread <= RING_TIME * computes * (1.0 + part) + self.reread
    }

    /// Calls of the device that takes longest, for each of these numbers of slots.
    fn slowest<const N: usize>(
        &self,
        stages: &[Stages],
        slots: &[SlotCounts; N],
        calls: u32,
    ) -> [CallsMs; N] {
        let lanes = self.timing.lanes().len();
        let mut slowest = [CallsMs { first: 0.0, total: 0.0 }; N];
        for stages in stages {
            let each = calls_ms(stages, lanes, slots, calls);
            for (slowest, own) in slowest.iter_mut().zip(each) {
                slowest.first = slowest.first.max(own.first);
                slowest.total = slowest.total.max(own.total);
            }
        }
        slowest
    }

    fn cold(&self) -> Option<&[Stages]> {
        let make = || {
            let first = self.first?;
            Some(self.timing.stages(self.stays, |_| first))
        };
        self.cold.get_or_init(make).as_deref()
    }

    /// The most slots that any device has segments for.
    pub fn slots_max(&self) -> u32 {
        self.warm.iter().map(Stages::copies_max).max().unwrap_or_default() as u32
    }

    /// The job's times with so many slots on each device.
    pub fn ms(&self, slots: SlotCounts) -> ComponentMs {
        let [ms] = self.each_ms([slots]);
        ms
    }

    /// The same for each of these numbers of slots: in less time than one after the other.
    pub fn each_ms<const N: usize>(&self, slots: [SlotCounts; N]) -> [ComponentMs; N] {
        let warm = self.slowest(&self.warm, &slots, self.timing.calls);
        let cold = self.cold().map(|cold| self.slowest(cold, &slots, 1));
        std::array::from_fn(|one| {
            let CallsMs { first, total } = warm[one];
            let cold_first = cold.map_or(first, |cold| cold[one].first);
            ComponentMs {
                load: self.load,
                first_read: RING_TIME * (cold_first - first) + self.locking,
                compute: RING_TIME * total + self.reread,
                storage: self.storage,
                storage_again: self.storage_again,
            }
        })
    }
}
