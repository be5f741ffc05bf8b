//! The time model: how long a component takes in a place, in milliseconds.
//!
//! A segment's work takes its time on its device's processor ([`crate::inventory::speeds`]). Over
//! several devices:
//! - layers run one after the other, and what crosses between devices goes over the slowest of
//!   their links;
//! - rows run beside each other on GPUs, and on virtual devices with threads of their own: products
//!   with weights take as long as the slowest device with its part of them, and everything else is
//!   done by the first device. Other virtual devices share the host's threads and take turns;
//! - heads run beside each other too: products and attention as long as the slowest device with its
//!   part of the weights, everything else in about half of its time, as half of it is on heads and
//!   half on each device. Each starts all operations. Summands go over all links at once, each
//!   through the host's memory, which streamed weights then wait for, and are added on each device;
//! - replicas with some of the items each run beside each other, and a call ends with the last of
//!   them;
//! - groups of items follow one another through a pipeline's devices, each of which has one at a
//!   time; all go on to the next one together, and what crosses is waited for;
//! - what the host computes in place of a device takes its part of the segment's weights, after the
//!   device's.
//!
//! Parts of one GPU take turns at its processor and at its link.
//!
//! Streamed weights are simulated by [`super::ring`]. The storage and the host's memory are shared:
//! what several devices read goes through them in turns. Rates come from the inventory, which says
//! of each whether it was measured, declared or assumed.

mod heads;
mod items;
mod least;
mod pipeline;
mod streamed;
mod turns;

use protocol::Residency;
use protocol::profile::{ComponentProfile, Work, WorkKind};

use super::component_ms::ComponentMs;
use super::lanes::LaneSet;
use super::place::{ComponentLayout, WeightResidency};
use crate::inventory::speeds::Speeds;
use crate::inventory::{DeviceKind, Inventory};
use heads::Summands;
pub use streamed::{CallBound, PAGE_LOCK_BYTES_PER_S, StreamedTiming};

/// The queries at a time that are tried beside the usual ones, where these take too much.
pub const SHORT_ATTENTION_CHUNK: u32 = 64;

/// How much longer attention takes with these on the host's kernels: 0.97 against 0.86 of the
/// processor's rate (`executor/benches/kernels.rs`, 24 heads of 128 over 1536 tokens).
const SHORT_ATTENTION_TIME: f64 = 0.97 / 0.86;

/// How much longer calls take than the ring's simulation says, which knows of no waiting between
/// threads: measured at 1.00 to 1.07 with 2 slots (docs/streaming.md).
const RING_TIME: f64 = 1.05;

/// Bytes of a memory that move for each byte that is copied in it: it is read and written. So is
/// what is copied from the page cache to page-locked memory, and what goes from one device through
/// the host's memory to another one.
pub const MOVED_PER_COPIED: f64 = 2.0;

/// Of what is no product and no attention, the part that is on heads: of the elements that blocks
/// of transformers read and write so, about half are of queries, keys and the feed-forward layer,
/// and half of the stream that each device has.
const ON_HEADS: f64 = 0.5;

fn sum_s(times: &[f64]) -> f64 {
    times.iter().sum()
}

/// What one segment takes on one processor, in one call.
#[derive(Debug, Clone, Copy, Default)]
struct SegmentTime {
    /// Multiplying by weights, in seconds.
    products_s: f64,
    /// Everything else.
    others_s: f64,
    /// Of all, what devices divide that have some of the heads each.
    on_heads_s: f64,
}

impl SegmentTime {
    fn all_s(self) -> f64 {
        self.products_s + self.others_s
    }

    /// On a device with such a part of the heads.
    fn with_heads_s(self, part: f64) -> f64 {
        self.all_s() - (1.0 - part) * self.on_heads_s
    }
}

/// How fast a processor does a component's work.
struct Processor<'a> {
    speeds: &'a Speeds,
    correction: f64,
    /// How much longer attention takes, with so many queries at a time.
    attention: f64,
}

impl Processor<'_> {
    fn segment_time(&self, works: impl Iterator<Item = Work>) -> SegmentTime {
        let mut time = SegmentTime::default();
        for work in works {
            let slower = match work.kind {
                WorkKind::Attention => self.correction * self.attention,
                _ => self.correction,
            };
            let work_s = slower * self.speeds.seconds(&work);
            // Each device starts all operations.
            let started_s = work_s - slower * self.speeds.starting_s(&work);
            match work.kind {
                WorkKind::Matmul(_) => time.products_s += work_s,
                _ => time.others_s += work_s,
            }
            time.on_heads_s += match work.kind {
                WorkKind::Matmul(_) | WorkKind::Attention => started_s,
                _ => ON_HEADS * started_s,
            };
        }
        time
    }
}

/// A component on each processor of an inventory: what its places have in common.
pub struct SegmentTimes<'a> {
    inventory: &'a Inventory,
    component: &'a ComponentProfile,
    /// By device, the host last.
    processors: Vec<Processor<'a>>,
    /// By device, the host last; then by segment.
    times: Vec<Vec<SegmentTime>>,
}

impl<'a> SegmentTimes<'a> {
    /// The paces of a component that attends with so many queries at a time.
    pub fn new(
        inventory: &'a Inventory,
        component: &'a ComponentProfile,
        attention_chunk: u32,
    ) -> SegmentTimes<'a> {
        let devices = inventory.devices.iter();
        let devices = devices.map(|device| (&device.speeds, device.kind == DeviceKind::Cuda));
        let processors = devices.chain([(&inventory.host.speeds, false)]);
        let processors = processors.map(|(speeds, cuda)| {
            let short = attention_chunk == SHORT_ATTENTION_CHUNK && !cuda;
            let attention = if short { SHORT_ATTENTION_TIME } else { 1.0 };
            Processor { speeds, correction: speeds.correction(&component.name), attention }
        });
        let processors: Vec<Processor<'_>> = processors.collect();
        let times = processors.iter().map(|processor| {
            let works = component.segments.iter().map(|segment| segment.work.iter().copied());
            works.map(|works| processor.segment_time(works)).collect()
        });
        let times = times.collect();
        SegmentTimes { inventory, component, processors, times }
    }

    /// One call on a device alone, or on the host for `None`.
    pub fn once_s(&self, device: Option<usize>) -> f64 {
        self.on(device).iter().map(|pace| pace.all_s()).sum()
    }

    /// One call of each segment on a device alone, or on the host for `None`.
    pub fn segments_s(&self, device: Option<usize>) -> impl Iterator<Item = f64> {
        self.on(device).iter().map(|time| time.all_s())
    }

    fn on(&self, device: Option<usize>) -> &[SegmentTime] {
        &self.times[device.unwrap_or(self.inventory.devices.len())]
    }

    fn processor(&self, device: Option<usize>) -> &Processor<'a> {
        &self.processors[device.unwrap_or(self.inventory.devices.len())]
    }

    /// Whether all of the component's files are known to be in the page cache.
    fn is_in_page_cache(&self) -> bool {
        let component = self.component;
        self.inventory.host.page_cache && component.cached_bytes >= component.tensor_bytes
    }

    /// How fast the component's files are read: in part from the page cache, where its state is
    /// known.
    fn source_bytes_per_s(&self) -> f64 {
        let host = &self.inventory.host;
        let component = self.component;
        let all = component.tensor_bytes.0 as f64;
        let cached = match host.page_cache && all > 0.0 {
            true => (component.cached_bytes.0 as f64 / all).min(1.0),
            false => 0.0,
        };
        let (page_cache, storage) = (host.page_cache_bytes_per_s, host.storage_bytes_per_s);
        1.0 / (cached / page_cache.value + (1.0 - cached) / storage.value)
    }
}

/// A component that is spread over devices, with what each of its segments takes there.
pub struct Timing<'a> {
    times: &'a SegmentTimes<'a>,
    spread: &'a ComponentLayout,
    /// For each device the first one that is a part of the same GPU.
    gpus: Vec<usize>,
    /// For each device, the seconds in which a streamed byte passes its link, which replicas of one
    /// GPU share; 0 for the host.
    link_s_per_byte: Vec<f64>,
    /// One call of each segment, of a pipeline what it adds to one; the last one also has what
    /// crosses between devices, but for summands.
    segments_s: Vec<f64>,
    /// Of an item split, one call of each segment on each device; of another, nothing.
    replicas_s: Vec<Vec<f64>>,
    /// Of a tensor split, what its devices add up.
    summands: Option<Summands>,
    /// Weights of each segment on all devices.
    segment_bytes: Vec<u64>,
    /// The same of all segments.
    weights_bytes: u64,
    /// Which segments the host computes from their mapping.
    mapped: Vec<bool>,
    /// Weights of these.
    mapped_bytes: u64,
    /// For each segment the lanes with weights of it that may be streamed.
    streamable: Vec<LaneSet>,
    calls: u32,
}

impl<'a> Timing<'a> {
    /// The times of each segment.
    pub fn new(times: &'a SegmentTimes<'a>, spread: &'a ComponentLayout) -> Timing<'a> {
        let segments = 0..spread.segments();
        let segment_bytes: Vec<u64> =
            segments.clone().map(|segment| spread.segment_bytes(segment).0).collect();
        let mapped: Vec<bool> = segments.clone().map(|at| spread.is_mapped(at)).collect();
        let of_mapped = segment_bytes.iter().zip(&mapped).filter(|(_, mapped)| **mapped);
        let mut timing = Timing {
            times,
            spread,
            gpus: times.inventory.gpus(&spread.devices),
            link_s_per_byte: Vec::new(),
            segments_s: Vec::new(),
            replicas_s: Vec::new(),
            summands: None,
            weights_bytes: segment_bytes.iter().sum(),
            mapped_bytes: of_mapped.map(|(bytes, _)| bytes).sum(),
            segment_bytes,
            mapped,
            streamable: segments.clone().map(|segment| spread.streamable(segment)).collect(),
            calls: times.component.calls,
        };
        timing.summands = timing.summands();
        timing.replicas_s = timing.replicas_s();
        timing.link_s_per_byte = timing.link_s_per_byte();
        let by_sum =
            |a: &&Vec<f64>, b: &&Vec<f64>| sum_s(a).partial_cmp(&sum_s(b)).expect("a time");
        let slowest = timing.replicas_s.iter().max_by(by_sum).cloned();
        timing.segments_s = match slowest.or_else(|| timing.in_groups_s()) {
            Some(segments_s) => {
                // All passes of a step go in one call.
                timing.calls /= times.component.items.passes.max(1);
                segments_s
            }
            None => segments.map(|segment| timing.segment_s(segment)).collect(),
        };
        let crossing_s = timing.crossing_s();
        for segments_s in timing.replicas_s.iter_mut().chain([&mut timing.segments_s]) {
            if let Some(last_s) = segments_s.last_mut() {
                *last_s += crossing_s;
            }
        }
        timing
    }

    /// How many devices have all weights.
    fn copies_of_all(&self) -> f64 {
        self.replicas_s.len().max(1) as f64
    }

    fn lanes(&self) -> std::ops::Range<usize> {
        0..self.spread.devices.len()
    }

    /// Where it is.
    pub fn spread(&self) -> &'a ComponentLayout {
        self.spread
    }

    /// The job's times with weights held so.
    pub fn ms(&self, held: &WeightResidency) -> ComponentMs {
        match held {
            WeightResidency::All(residency) => self.all(*residency),
            WeightResidency::Some { stays, locked, slots, .. } => {
                self.streamed(stays, locked.as_deref()).ms(*slots)
            }
        }
    }

    /// Times with all weights there before the first call.
    fn all(&self, residency: Residency) -> ComponentMs {
        let calls = f64::from(self.calls);
        let once: f64 = self.segments_s.iter().sum();
        let mapped_bytes = match residency {
            Residency::Mapped => self.weights_bytes,
            _ => self.mapped_bytes,
        };
        let is_mapped = |segment: usize| residency == Residency::Mapped || self.mapped[segment];
        let reread_s = self.reread_s(mapped_bytes, 0.0);
        let load_s = self.load_s(|_, segment| !(reread_s > 0.0 && is_mapped(segment)));
        let compute = 1e3 * calls * (once + reread_s);
        let storage = 1e3 * calls * reread_s;
        ComponentMs {
            load: 1e3 * load_s,
            first_read: 0.0,
            compute,
            storage,
            storage_again: storage,
        }
    }

    fn computes_apart(&self, device: Option<usize>) -> bool {
        device.is_some_and(|at| self.times.inventory.devices[at].computes_apart())
    }

    /// One call of a segment, on all devices that have a part of it.
    fn segment_s(&self, index: usize) -> f64 {
        let ComponentLayout { devices, parts, .. } = self.spread;
        if let Some(summands) = &self.summands {
            return self.heads_s(index, summands);
        }
        let own = self.spread.lane(index);
        let main = self.times.on(devices[own])[index];
        let weights = self.segment_bytes[index] as f64;
        if parts[own].segment_bytes[index].0 == self.segment_bytes[index] {
            return main.all_s();
        }
        let fraction = |part: usize| parts[part].segment_bytes[index].0 as f64 / weights;
        let pace = |part: usize| self.times.on(self.spread.part_device(part))[index];
        // Handed out in turns, the segment's own device last; what computes in the thread that
        // hands out keeps the rest waiting.
        let (mut handed_out_s, mut ends_s) = (0.0, vec![0.0_f64; devices.len()]);
        for part in (0..devices.len()).filter(|part| *part != own).chain([own]) {
            let products_s = fraction(part) * pace(part).products_s;
            match self.computes_apart(devices[part]) {
                true => {
                    let end_s = &mut ends_s[self.gpus[part]];
                    *end_s = end_s.max(handed_out_s) + products_s;
                }
                false => handed_out_s += products_s,
            }
        }
        let latest_s = ends_s.into_iter().fold(handed_out_s, f64::max);
        let in_place_of_devices = devices.len()..parts.len();
        let host: f64 = in_place_of_devices.map(|part| fraction(part) * pace(part).all_s()).sum();
        let others: f64 = (0..devices.len()).map(fraction).sum::<f64>() * main.others_s;
        latest_s + others + host
    }

    /// What crosses between devices in one call, but for summands.
    fn crossing_s(&self) -> f64 {
        let devices = &self.times.inventory.devices;
        let links = self
            .spread
            .devices
            .iter()
            .flatten()
            .map(|device| devices[*device].link_both_ways_bytes_per_s());
        if self.spread.is_on_host() || self.summands.is_some() {
            return 0.0;
        }
        let link = links.fold(f64::INFINITY, f64::min);
        self.spread.crossing_bytes.0 as f64 / link
    }

    /// The weights of some segments on their way to each part, all devices beside each other, all
    /// from one storage.
    fn load_s(&self, loads: impl Fn(usize, usize) -> bool) -> f64 {
        let copies = self.copies_of_all();
        let weights = self.weights_bytes as f64 / copies;
        if weights == 0.0 {
            return 0.0;
        }
        let (mut total_bytes, mut links_s) = (0.0, vec![0.0; self.gpus.len()]);
        for (index, part) in self.spread.parts.iter().enumerate() {
            let segments = part.segment_bytes.iter().enumerate();
            let here = segments.filter(|(segment, _)| loads(index, *segment));
            // Files have no alignment: the same part of the tensors.
            let part_of_all = here.map(|(_, bytes)| bytes.0).sum::<u64>() as f64 / weights;
            let tensor_bytes = self.times.component.tensor_bytes.0 as f64 * part_of_all;
            total_bytes += tensor_bytes;
            if let Some(device) = self.spread.part_device(index) {
                links_s[self.gpus[index]] += tensor_bytes / self.link(device);
            }
        }
        // What several devices have is read once, and then found in the page cache.
        let once = match self.replicas_s.is_empty() {
            true => total_bytes,
            false => self.tensors(|segment| self.lanes().any(|lane| loads(lane, segment))),
        };
        let page_cache = self.times.inventory.host.page_cache_bytes_per_s.value;
        let read_s = once / self.times.source_bytes_per_s() + (total_bytes - once) / page_cache;
        links_s.into_iter().fold(read_s, f64::max)
    }

    /// What is read from storage anew in each call: weights mapped by the host that are more than
    /// its RAM has room for, beside so many other bytes of weights.
    fn reread_s(&self, mapped_bytes: u64, beside: f64) -> f64 {
        let host = &self.times.inventory.host;
        let bytes = self.tensor_bytes(mapped_bytes);
        let cached = bytes + beside <= host.available_bytes.0 as f64;
        if cached { 0.0 } else { bytes / host.storage_bytes_per_s.value }
    }

    /// Bytes of some segments' tensors as in the files, which have no alignment: the same part of
    /// all.
    fn tensors(&self, some: impl Fn(usize) -> bool) -> f64 {
        let here = (0..self.segment_bytes.len()).filter(|segment| some(*segment));
        self.tensor_bytes(here.map(|segment| self.segment_bytes[segment]).sum())
    }

    /// Bytes of tensors as in the files, of so many bytes of weights on all devices.
    fn tensor_bytes(&self, held_bytes: u64) -> f64 {
        let weights = self.weights_bytes as f64;
        let all = self.times.component.tensor_bytes.0 as f64;
        if weights == 0.0 { 0.0 } else { all * (held_bytes as f64 / weights) }
    }

    /// For each device, the seconds in which a streamed byte passes its link. The copies of each
    /// replica are looked at alone, so what those of one GPU share takes each of them longer.
    fn link_s_per_byte(&self) -> Vec<f64> {
        let devices = self.spread.devices.iter().zip(&self.gpus);
        let of = devices.map(|(device, gpu)| {
            let beside = self.gpus.iter().filter(|other| *other == gpu).count();
            let sharers = if self.replicas_s.is_empty() { 1.0 } else { beside as f64 };
            device.map_or(0.0, |device| sharers / self.link(device))
        });
        of.collect()
    }

    fn link(&self, device: usize) -> f64 {
        self.times.inventory.devices[device].link_bytes_per_s.value
    }
}
