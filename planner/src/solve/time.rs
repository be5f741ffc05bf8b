//! The time model: how long a component takes in a place, in milliseconds.
//!
//! A segment's work takes its time on its device's processor ([`crate::inventory::speeds`]). Over
//! several devices:
//! - layers run one after the other, and what crosses between devices goes over the slowest of
//!   their links;
//! - rows run beside each other on GPUs: products with weights take as long as the slowest device
//!   with its part of them, and everything else is done by the first device. Virtual devices share
//!   the host's threads and take turns;
//! - what the host computes in place of a device takes its part of the segment's weights, after the
//!   device's.
//!
//! Streamed weights are simulated by [`super::ring`]. Rates come from the inventory, which says of
//! each whether it was measured, declared or assumed.

use protocol::profile::{ComponentProfile, WorkKind};
use protocol::{Placement, Residency};

use super::place::{Held, Spread, residency_of};
use super::ring::{Copy, Stages, calls_ms};
use crate::inventory::{DeviceKind, Inventory};

/// The queries at a time that are tried beside the usual ones, where these take too much.
pub const SHORT_ATTENTION_CHUNK: u32 = 64;

/// How much longer attention takes with these on the host's kernels: 0.97 against 0.86 of the
/// processor's rate (`executor/benches/kernels.rs`, 24 heads of 128 over 1536 tokens).
const SHORT_ATTENTION_TIME: f64 = 0.97 / 0.86;

/// How much longer calls take than the ring's simulation says, which knows of no waiting between
/// threads: measured at 1.00 to 1.07 with 2 slots (docs/streaming.md).
const RING_TIME: f64 = 1.05;

/// Times of one component in one place, for one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComponentMs {
    /// The weights that it holds on their way, once.
    pub load: f64,
    /// What the first call takes longer than a later one would in its place: it reads streamed
    /// weights from their files.
    pub first_read: f64,
    /// All of its calls, with streamed weights in RAM where that has room for them.
    pub compute: f64,
    /// How long of `first_read` and `compute` the storage is busy with its weights: nothing else is
    /// loaded then.
    pub storage: f64,
    /// The same in a job whose files are in RAM as far as that has room for them.
    pub storage_again: f64,
}

impl ComponentMs {
    /// The same in a job that finds its files in RAM, and what is not loaded anew (`reloads`) in
    /// its place.
    pub fn again(self, reloads: bool) -> ComponentMs {
        let load = if reloads { self.load } else { 0.0 };
        ComponentMs { load, first_read: 0.0, storage: self.storage_again, ..self }
    }
}

/// What one segment takes on one processor, in one call.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Products with weights.
    products_s: f64,
    /// Everything else.
    others_s: f64,
}

impl Pace {
    fn all_s(self) -> f64 {
        self.products_s + self.others_s
    }
}

/// A component on each processor of an inventory: what its places have in common.
pub struct Paces<'a> {
    inventory: &'a Inventory,
    component: &'a ComponentProfile,
    /// By device, the host last; then by segment.
    paces: Vec<Vec<Pace>>,
}

impl<'a> Paces<'a> {
    /// The paces of a component that attends with so many queries at a time.
    pub fn new(
        inventory: &'a Inventory,
        component: &'a ComponentProfile,
        attention_chunk: u32,
    ) -> Paces<'a> {
        let devices = inventory.devices.iter();
        let devices = devices.map(|device| (&device.speeds, device.kind == DeviceKind::Cuda));
        let processors = devices.chain([(&inventory.host.speeds, false)]);
        let paces = processors.map(|(speeds, cuda)| {
            let correction = speeds.correction(&component.name);
            let short = attention_chunk == SHORT_ATTENTION_CHUNK && !cuda;
            let attention = if short { SHORT_ATTENTION_TIME } else { 1.0 };
            let segments = component.segments.iter().map(|segment| {
                let mut pace = Pace::default();
                for work in &segment.work {
                    let work_s = correction * speeds.seconds(work);
                    match work.kind {
                        WorkKind::Matmul(_) => pace.products_s += work_s,
                        WorkKind::Attention => pace.others_s += attention * work_s,
                        _ => pace.others_s += work_s,
                    }
                }
                pace
            });
            segments.collect()
        });
        Paces { inventory, component, paces: paces.collect() }
    }

    /// One call on a device alone, or on the host for `None`.
    pub fn once_s(&self, device: Option<usize>) -> f64 {
        self.on(device).iter().map(|pace| pace.all_s()).sum()
    }

    fn on(&self, device: Option<usize>) -> &[Pace] {
        &self.paces[device.unwrap_or(self.inventory.devices.len())]
    }
}

/// A component that is spread over devices, with what each of its segments takes there.
pub struct Timing<'a> {
    paces: &'a Paces<'a>,
    spread: &'a Spread,
    segments_s: Vec<f64>,
    crossing_s: f64,
    /// Weights of each segment on all devices.
    segment_bytes: Vec<u64>,
}

impl<'a> Timing<'a> {
    /// The times of each segment.
    pub fn new(paces: &'a Paces<'a>, spread: &'a Spread) -> Timing<'a> {
        let segments = 0..spread.segments.len();
        let segment_bytes = segments.map(|segment| spread.segment_bytes(segment).0).collect();
        let mut timing =
            Timing { paces, spread, segments_s: Vec::new(), crossing_s: 0.0, segment_bytes };
        timing.segments_s = (0..spread.segments.len()).map(|i| timing.segment_s(i)).collect();
        timing.crossing_s = timing.crossing_s();
        timing
    }

    /// The job's times with weights held so.
    pub fn ms(&self, held: &Held) -> ComponentMs {
        match held {
            Held::All(_) => self.all(held),
            Held::Some { lookahead, .. } => self.streamed(held, *lookahead),
        }
    }

    /// Times with all weights there before the first call.
    fn all(&self, held: &Held) -> ComponentMs {
        let calls = f64::from(self.paces.component.calls);
        let once: f64 = self.segments_s.iter().sum();
        let reread_s = self.reread_s(held);
        let load_s = self.load_s(|segment| !(reread_s > 0.0 && self.is_mapped(held, segment)));
        let compute = 1e3 * calls * (once + self.crossing_s + reread_s);
        let storage = 1e3 * calls * reread_s;
        ComponentMs {
            load: 1e3 * load_s,
            first_read: 0.0,
            compute,
            storage,
            storage_again: storage,
        }
    }

    /// Times with a ring. Its first call reads the files; the others find them in RAM, where that
    /// has room for them.
    fn streamed(&self, held: &Held, lookahead: u32) -> ComponentMs {
        let host = &self.paces.inventory.host;
        let component = self.paces.component;
        let cold_rate = self.source_bytes_per_s();
        let cached = component.tensor_bytes <= host.available_bytes;
        let warm_rate =
            if cached { host.page_cache_bytes_per_s.value } else { host.storage_bytes_per_s.value };
        let lanes = self.spread.devices.len();
        let warm = calls_ms(&self.stages(held, warm_rate), lanes, lookahead, component.calls);
        let cold = match cold_rate < warm_rate {
            true => calls_ms(&self.stages(held, cold_rate), lanes, lookahead, 1).first,
            false => warm.first,
        };
        let first_read = RING_TIME * (cold - warm.first);
        let reread_s = self.reread_s(held);
        let loads = |segment| match residency_of(self.spread, held, segment) {
            Residency::Streamed => false,
            Residency::Mapped => reread_s == 0.0,
            Residency::Resident | Residency::Lazy => true,
        };
        let reread = 1e3 * f64::from(component.calls) * reread_s;
        let streamed = 1e3 * self.tensors(|s| self.is(held, s, Residency::Streamed));
        let again = match cached {
            true => 0.0,
            false => streamed / host.storage_bytes_per_s.value,
        };
        let calls = f64::from(component.calls);
        ComponentMs {
            load: 1e3 * self.load_s(loads),
            first_read,
            compute: RING_TIME * warm.total + reread,
            storage: streamed / cold_rate + (calls - 1.0) * again + reread,
            storage_again: calls * again + reread,
        }
    }

    /// The segments of one call, with what is copied for each at no more than this rate; the last
    /// one also has what crosses between devices.
    fn stages(&self, held: &Held, rate_max: f64) -> Stages {
        let mut stages = Stages { compute_s: self.segments_s.clone(), copies: Vec::new() };
        for segment in 0..self.spread.segments.len() {
            if residency_of(self.spread, held, segment) != Residency::Streamed {
                continue;
            }
            for (lane, device) in self.spread.devices.iter().enumerate() {
                let bytes = self.spread.parts[lane].segment_bytes[segment].0 as f64;
                if let Some(device) = device.filter(|_| bytes > 0.0) {
                    let copy_s = bytes / self.link(device).min(rate_max);
                    stages.copies.push(Copy { segment, lane, copy_s });
                }
            }
        }
        if let Some(last_s) = stages.compute_s.last_mut() {
            *last_s += self.crossing_s;
        }
        stages
    }

    /// One call of a segment, on all devices that have a part of it.
    fn segment_s(&self, index: usize) -> f64 {
        let Spread { devices, segments, parts, .. } = self.spread;
        let main = self.paces.on(devices[segments[index] as usize])[index];
        let weights = self.segment_bytes[index] as f64;
        if weights == 0.0 || parts.len() == 1 {
            return main.all_s();
        }
        let fraction = |part: usize| parts[part].segment_bytes[index].0 as f64 / weights;
        let pace = |part: usize| self.paces.on(self.spread.part_device(part))[index];
        let (mut turns_s, mut beside_s) = (0.0, 0.0_f64);
        for part in 0..devices.len() {
            let products_s = fraction(part) * pace(part).products_s;
            match self.spread.part_device(part).map(|d| self.paces.inventory.devices[d].kind) {
                Some(DeviceKind::Cuda) => beside_s = beside_s.max(products_s),
                Some(DeviceKind::Virtual) | None => turns_s += products_s,
            }
        }
        let in_place_of_devices = devices.len()..parts.len();
        let host: f64 = in_place_of_devices.map(|part| fraction(part) * pace(part).all_s()).sum();
        let others: f64 = (0..devices.len()).map(fraction).sum::<f64>() * main.others_s;
        beside_s.max(turns_s) + others + host
    }

    /// What crosses between devices in one call.
    fn crossing_s(&self) -> f64 {
        let devices = &self.paces.inventory.devices;
        let links = self.spread.devices.iter().flatten().map(|device| {
            let device = &devices[*device];
            device.link_bytes_per_s.value.min(device.link_back_bytes_per_s.value)
        });
        match self.spread.placement {
            Placement::Host => 0.0,
            _ => self.spread.crossing_bytes.0 as f64 / links.fold(f64::INFINITY, f64::min),
        }
    }

    /// The weights of some segments on their way, all devices beside each other, all from one
    /// storage.
    fn load_s(&self, loads: impl Fn(usize) -> bool) -> f64 {
        let weights = self.segment_bytes.iter().sum::<u64>() as f64;
        // Files have no alignment: the same part of the tensors.
        let tensors = |part: usize| {
            let bytes = &self.spread.parts[part].segment_bytes;
            let here = bytes.iter().enumerate().filter(|(segment, _)| loads(*segment));
            let here = here.map(|(_, bytes)| bytes.0).sum::<u64>() as f64;
            self.paces.component.tensor_bytes.0 as f64 * (here / weights)
        };
        if weights == 0.0 {
            return 0.0;
        }
        let parts = (0..self.spread.parts.len()).map(|part| (part, tensors(part)));
        let total: f64 = parts.clone().map(|(_, bytes)| bytes).sum();
        let linked = parts.map(|(part, bytes)| match self.spread.part_device(part) {
            Some(device) => bytes / self.link(device),
            None => 0.0,
        });
        linked.fold(total / self.source_bytes_per_s(), f64::max)
    }

    /// How fast the component's files are read: in part from the page cache, where its state is
    /// known.
    fn source_bytes_per_s(&self) -> f64 {
        let host = &self.paces.inventory.host;
        let component = self.paces.component;
        let all = component.tensor_bytes.0 as f64;
        let cached = match host.page_cache && all > 0.0 {
            true => (component.cached_bytes.0 as f64 / all).min(1.0),
            false => 0.0,
        };
        let (page_cache, storage) = (host.page_cache_bytes_per_s, host.storage_bytes_per_s);
        1.0 / (cached / page_cache.value + (1.0 - cached) / storage.value)
    }

    /// What is read from storage anew in each call: weights mapped by the host that are more than
    /// its RAM has room for.
    fn reread_s(&self, held: &Held) -> f64 {
        let host = &self.paces.inventory.host;
        if *held != Held::All(Residency::Mapped) && !self.spread.devices.contains(&None) {
            return 0.0;
        }
        let bytes = self.tensors(|segment| self.is_mapped(held, segment));
        let cached = bytes <= host.available_bytes.0 as f64;
        if cached { 0.0 } else { bytes / host.storage_bytes_per_s.value }
    }

    /// Bytes of some segments' tensors as in the files, which have no alignment: the same part of
    /// all.
    fn tensors(&self, some: impl Fn(usize) -> bool) -> f64 {
        let weights = self.segment_bytes.iter().sum::<u64>() as f64;
        let here = (0..self.segment_bytes.len()).filter(|segment| some(*segment));
        let here: u64 = here.map(|segment| self.segment_bytes[segment]).sum();
        let all = self.paces.component.tensor_bytes.0 as f64;
        if weights == 0.0 { 0.0 } else { all * (here as f64 / weights) }
    }

    fn is(&self, held: &Held, segment: usize, residency: Residency) -> bool {
        residency_of(self.spread, held, segment) == residency
    }

    fn is_mapped(&self, held: &Held, segment: usize) -> bool {
        self.is(held, segment, Residency::Mapped)
    }

    fn link(&self, device: usize) -> f64 {
        self.paces.inventory.devices[device].link_bytes_per_s.value
    }
}
