//! What calls take of which some weights are streamed: where these come from, and what they share
//! their way with.

mod bound;
mod least;

use std::cell::OnceCell;

use super::super::component_ms::ComponentMs;
use super::super::lanes::{LaneSet, SlotCounts};
use super::super::ring::{CallsMs, Copy, Stages, calls_ms};
use super::{MOVED_PER_COPIED, RING_TIME, Timing};
pub use bound::CallBound;

/// How fast memory is page-locked, in bytes per second, as it is found, cleared and locked page by
/// page: 32 MB in 11.6 ms by `cuMemHostAlloc` (rapidsai/dask-cuda, issue 106). Ordinary memory is
/// touched for the first time at 1.6 to 1.8 GB/s on a virtual machine (docs/streaming.md).
pub const PAGE_LOCK_BYTES_PER_S: f64 = 2.8e9;

/// Where streamed weights come from, in seconds per byte.
#[derive(Debug, Clone, Copy)]
struct WeightSource {
    /// For each device.
    each: f64,
    /// For all devices together.
    shared: f64,
    /// The host's memory, where that is what they share; else 0.
    memory: f64,
}

impl WeightSource {
    /// The same for each of `sharers` devices that stream at once: what these stream is read once
    /// from the storage, by each from memory.
    fn shared_by(self, sharers: f64) -> WeightSource {
        match self.memory > 0.0 {
            true => WeightSource {
                shared: sharers * self.shared,
                memory: sharers * self.memory,
                ..self
            },
            false => self,
        }
    }
}

/// Weights of a segment on their way to a device, in one call.
#[derive(Debug, Clone, Copy)]
struct Streamed {
    segment: usize,
    lane: usize,
    bytes: f64,
    /// Of a tensor split, what the device receives of summands since the copy before it, around the
    /// end of the call too.
    summand_bytes: f64,
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
    files: WeightSource,
    /// What was read from the files once, and is page-locked since then.
    copies: WeightSource,
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
        let each = 1.0 / host.page_cache_bytes_per_s.value;
        let memory = 1.0 / host.speeds.memory_bytes_per_s.value;
        let storage = 1.0 / host.storage_bytes_per_s.value;
        WeightSources {
            files: match cached {
                true => WeightSource { each, shared: MOVED_PER_COPIED * memory, memory },
                false => WeightSource { each, shared: storage, memory: 0.0 },
            },
            copies: WeightSource { each: 0.0, shared: memory, memory },
            locked: None,
            sharers: Vec::new(),
            file_bytes,
            locked_bytes,
            locked_once_bytes,
            cached,
        }
    }

    /// How many devices share what a segment comes through, of those that are looked at alone.
    fn sharers_of(&self, segment: usize) -> f64 {
        self.sharers.get(segment).copied().unwrap_or(1.0)
    }

    /// Where a streamed segment comes from.
    fn at(&self, segment: usize) -> WeightSource {
        let source = if is_locked(self.locked, segment) { self.copies } else { self.files };
        source.shared_by(self.sharers_of(segment))
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

    /// What is streamed in one call, in the order of the segments.
    fn all_streamed(&self, stays: &[LaneSet]) -> Vec<Streamed> {
        let count = (0..stays.len()).map(|segment| self.streamed_to(stays, segment).count());
        let mut streamed = Vec::with_capacity(count.sum::<u32>() as usize);
        // The part of all summands that has crossed, and had at each lane's last copy.
        let (mut crossed, mut at_last) = (0.0, [0.0; LaneSet::LANES_MAX]);
        let mut since_last =
            |lane: usize, crossed| crossed - std::mem::replace(&mut at_last[lane], crossed);
        for segment in 0..stays.len() {
            for lane in self.streamed_to(stays, segment).iter() {
                if self.spread.devices[lane].is_some() {
                    let bytes = self.spread.parts[lane].segment_bytes[segment].0 as f64;
                    let summand_bytes = since_last(lane, crossed);
                    streamed.push(Streamed { segment, lane, bytes, summand_bytes });
                }
            }
            crossed += self.summands.as_ref().map_or(0.0, |summands| summands.parts[segment]);
        }
        if let Some(summands) = &self.summands {
            for Streamed { lane, summand_bytes, .. } in &mut streamed {
                *summand_bytes += since_last(*lane, crossed);
                *summand_bytes *= summands.received_bytes[*lane];
            }
        }
        streamed
    }

    /// How long a copy takes of its link, and of what all devices share. Summands that cross
    /// meanwhile take their time of the link, and of the host's memory.
    fn copy(&self, streamed: &Streamed, source: WeightSource) -> Copy {
        let Streamed { segment, lane, bytes, summand_bytes } = *streamed;
        let link = self.link_s_per_byte[lane];
        Copy {
            segment,
            lane,
            link: self.gpus[lane],
            link_s: bytes * link.max(source.each) + summand_bytes * link,
            shared_s: bytes * source.shared + MOVED_PER_COPIED * summand_bytes * source.memory,
        }
    }

    /// The stages of a call, each segment from its source: of each device of an item split its own,
    /// of another split all together.
    fn stages(&self, streamed: &[Streamed], source: impl Fn(usize) -> WeightSource) -> Vec<Stages> {
        let copy = |streamed: &Streamed| self.copy(streamed, source(streamed.segment));
        if self.replicas_s.is_empty() {
            return vec![Stages::new(&self.segments_s, streamed.iter().map(copy).collect())];
        }
        let replicas = self.replicas_s.iter().enumerate();
        let stages = replicas.map(|(lane, segments_s)| {
            let own = streamed.iter().filter(|streamed| streamed.lane == lane);
            Stages::new(segments_s, own.map(copy).collect())
        });
        stages.collect()
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
    streamed: Vec<Streamed>,
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
        let each = 1.0 / host.page_cache_bytes_per_s.value;
        let first = WeightSource { each, shared: 1.0 / cold_rate, memory: 0.0 };
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
        let streamed = timing.all_streamed(stays);
        StreamedTiming {
            timing,
            warm: timing.stages(&streamed, |segment| sources.at(segment)),
            cold: OnceCell::new(),
            streamed,
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
            Some(self.timing.stages(&self.streamed, |_| first))
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

    /// The same, where the component takes less than `longest_ms` by itself. The first call is only
    /// simulated where the others leave time for it.
    pub fn ms_below(&self, slots: SlotCounts, longest_ms: f64) -> Option<ComponentMs> {
        let [warm] = self.slowest(&self.warm, &[slots], self.timing.calls);
        let is_shorter = |ms: &ComponentMs| ms.alone() < longest_ms;
        Some(self.of_calls(warm, self.least_first_ms().unwrap_or(warm.first)))
            .filter(is_shorter)?;
        let cold = self.cold().map(|cold| self.slowest(cold, &[slots], 1));
        let first = cold.map_or(warm.first, |[cold]| cold.first);
        Some(self.of_calls(warm, first)).filter(is_shorter)
    }

    /// The same for each of these numbers of slots: in less time than one after the other.
    pub fn each_ms<const N: usize>(&self, slots: [SlotCounts; N]) -> [ComponentMs; N] {
        let warm = self.slowest(&self.warm, &slots, self.timing.calls);
        let cold = self.cold().map(|cold| self.slowest(cold, &slots, 1));
        std::array::from_fn(|one| {
            self.of_calls(warm[one], cold.map_or(warm[one].first, |cold| cold[one].first))
        })
    }

    /// What the first call takes at least, where it reads the files: all that is streamed passes
    /// through what devices share, of replicas what is the first one's.
    fn least_first_ms(&self) -> Option<f64> {
        let is_apart = !self.timing.replicas_s.is_empty();
        let first = self.first?;
        let together = self.streamed.iter().filter(|streamed| !is_apart || streamed.lane == 0);
        Some(1e3 * first.shared * together.map(|streamed| streamed.bytes).sum::<f64>())
    }

    /// The job's times where calls take so long with the weights in RAM, and the first one so long.
    fn of_calls(&self, warm: CallsMs, first_ms: f64) -> ComponentMs {
        ComponentMs {
            load: self.load,
            first_read: RING_TIME * (first_ms - warm.first) + self.locking,
            compute: RING_TIME * warm.total + self.reread,
            storage: self.storage,
            storage_again: self.storage_again,
        }
    }
}
