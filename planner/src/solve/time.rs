//! The time model: how long a component takes in a place, in milliseconds.
//!
//! A segment takes max(FLOPs / rate, bytes / bandwidth) on its device. Over several devices:
//! - layers run one after the other, and what crosses between devices goes over the slowest of their links;
//! - rows run beside each other: the slowest device counts, each with the part of the segment that it has of its weights;
//! - what the host computes in place of a device takes its part of the segment's weights, after the device's.
//!
//! Streamed weights are simulated by [`super::ring`]. Rates come from the inventory, which says of each whether it was
//! measured, declared or assumed.

use protocol::profile::{ComponentProfile, SegmentProfile};
use protocol::{Placement, Residency, StorageType};

use super::place::{Held, Spread, residency_of};
use super::ring::{Stage, calls_ms};
use crate::inventory::{DeviceKind, Inventory};
use crate::policy::Objective;

/// Times of one component in one place, for one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComponentMs {
    /// The weights that it holds on their way, once.
    pub load: f64,
    /// What the first call takes longer than a later one would in its place: it reads streamed weights from their
    /// files.
    pub first_read: f64,
    /// All of its calls, with streamed weights in RAM where that has room for them.
    pub compute: f64,
}

impl ComponentMs {
    /// What counts for an objective: a warm executor keeps what is resident or in the page cache.
    pub fn counted(&self, objective: Objective, reloads: bool) -> f64 {
        match objective {
            Objective::Throughput if !reloads => self.compute,
            Objective::Throughput => self.load + self.compute,
            _ => self.load + self.first_read + self.compute,
        }
    }
}

/// A component that is spread over devices, with what each of its segments takes there.
pub struct Timing<'a> {
    inventory: &'a Inventory,
    component: &'a ComponentProfile,
    spread: &'a Spread,
    segments_s: Vec<f64>,
}

impl<'a> Timing<'a> {
    /// The times of each segment.
    pub fn new(
        inventory: &'a Inventory,
        component: &'a ComponentProfile,
        spread: &'a Spread,
    ) -> Timing<'a> {
        let mut timing = Timing { inventory, component, spread, segments_s: Vec::new() };
        timing.segments_s = (0..spread.segments.len()).map(|i| timing.segment_s(i)).collect();
        timing
    }

    /// One call with all weights there, and without what crosses between devices.
    pub fn once_s(&self) -> f64 {
        self.segments_s.iter().sum()
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
        let calls = f64::from(self.component.calls);
        let once = self.once_s();
        let reread_s = self.reread_s(held);
        let load_s = self.load_s(|segment| !(reread_s > 0.0 && self.is_mapped(held, segment)));
        let compute = 1e3 * calls * (once + self.crossing_s() + reread_s);
        ComponentMs { load: 1e3 * load_s, first_read: 0.0, compute }
    }

    /// Times with a ring. Its first call reads the files; the others find them in RAM, where that has room for them.
    fn streamed(&self, held: &Held, lookahead: u32) -> ComponentMs {
        let storage = self.inventory.host.storage_bytes_per_s.value;
        let cached = self.component.tensor_bytes <= self.inventory.host.available_bytes;
        let calls = |cold: bool, count: u32| {
            let stages = self.stages(held, if cold { storage } else { f64::INFINITY });
            calls_ms(&stages, self.spread.devices.len(), lookahead, count)
        };
        let warm = calls(!cached, self.component.calls);
        let first_read = calls(true, 1).first - warm.first;
        let reread_s = self.reread_s(held);
        let loads = |segment| match residency_of(self.spread, held, segment) {
            Residency::Streamed => false,
            Residency::Mapped => reread_s == 0.0,
            Residency::Resident | Residency::Lazy => true,
        };
        let reread = 1e3 * f64::from(self.component.calls) * reread_s;
        ComponentMs { load: 1e3 * self.load_s(loads), first_read, compute: warm.total + reread }
    }

    /// The segments of one call, with what is copied for each at no more than this rate; the last one also
    /// has what crosses between devices.
    fn stages(&self, held: &Held, rate_max: f64) -> Vec<Stage> {
        let stage = |index: usize| {
            let streams = residency_of(self.spread, held, index) == Residency::Streamed;
            let parts = 0..if streams { self.spread.devices.len() } else { 0 };
            let copies = parts.filter_map(|part| {
                let bytes = self.spread.parts[part].segment_bytes[index].0 as f64;
                let link = self.link(self.spread.devices[part]?);
                (bytes > 0.0).then_some((part, bytes / link.min(rate_max)))
            });
            Stage { compute_s: self.segments_s[index], copies: copies.collect() }
        };
        let mut stages: Vec<Stage> = (0..self.spread.segments.len()).map(stage).collect();
        if let Some(last) = stages.last_mut() {
            last.compute_s += self.crossing_s();
        }
        stages
    }

    /// One call of a segment, on all devices that have a part of it.
    fn segment_s(&self, index: usize) -> f64 {
        let segment = &self.component.segments[index];
        let weights = self.spread.segment_bytes(index).0 as f64;
        let main = self.spread.segments[index] as usize;
        if weights == 0.0 {
            return part_s(self.inventory, segment, self.spread.devices[main], 1.0);
        }
        let times = self.spread.parts.iter().enumerate().map(|(part, bytes)| {
            let fraction = bytes.segment_bytes[index].0 as f64 / weights;
            part_s(self.inventory, segment, self.spread.part_device(part), fraction)
        });
        let (devices, host): (Vec<_>, Vec<_>) =
            times.enumerate().partition(|(part, _)| *part < self.spread.devices.len());
        let slowest = devices.into_iter().map(|(_, s)| s).fold(0.0, f64::max);
        slowest + host.into_iter().map(|(_, s)| s).sum::<f64>()
    }

    /// What crosses between devices in one call.
    fn crossing_s(&self) -> f64 {
        let links = self.spread.devices.iter().flatten().map(|device| self.link(*device));
        match self.spread.placement {
            Placement::Host => 0.0,
            _ => self.spread.crossing_bytes.0 as f64 / links.fold(f64::INFINITY, f64::min),
        }
    }

    /// The weights of some segments on their way, all devices beside each other, all from one storage.
    fn load_s(&self, loads: impl Fn(usize) -> bool) -> f64 {
        let storage = self.inventory.host.storage_bytes_per_s.value;
        let weights = self.spread.weights_bytes().0 as f64;
        // Files have no alignment: the same part of the tensors.
        let tensors = |part: usize| {
            let bytes = &self.spread.parts[part].segment_bytes;
            let here = bytes.iter().enumerate().filter(|(segment, _)| loads(*segment));
            let here = here.map(|(_, bytes)| bytes.0).sum::<u64>() as f64;
            self.component.tensor_bytes.0 as f64 * (here / weights)
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
        linked.fold(total / storage, f64::max)
    }

    /// What is read from storage anew in each call: weights mapped by the host that are more than its RAM has room for.
    fn reread_s(&self, held: &Held) -> f64 {
        let host = &self.inventory.host;
        let all = self.component.tensor_bytes.0 as f64;
        let weights = self.spread.weights_bytes().0 as f64;
        let segments = (0..self.spread.segments.len()).filter(|s| self.is_mapped(held, *s));
        let here: u64 = segments.map(|segment| self.spread.segment_bytes(segment).0).sum();
        let bytes = if weights == 0.0 { 0.0 } else { all * (here as f64 / weights) };
        let cached = bytes <= host.available_bytes.0 as f64;
        if cached { 0.0 } else { bytes / host.storage_bytes_per_s.value }
    }

    fn is_mapped(&self, held: &Held, segment: usize) -> bool {
        residency_of(self.spread, held, segment) == Residency::Mapped
    }

    fn link(&self, device: usize) -> f64 {
        self.inventory.devices[device].link_bytes_per_s.value
    }
}

/// One call of a part of a segment on a device, or on the host for `None`.
fn part_s(
    inventory: &Inventory,
    segment: &SegmentProfile,
    device: Option<usize>,
    part: f64,
) -> f64 {
    let (flops, bandwidth) = match device.map(|index| &inventory.devices[index]) {
        Some(device) => {
            let halves = segment.storage.iter().all(|entry| entry.storage != StorageType::F32);
            let rate = match device.kind {
                DeviceKind::Cuda if halves => device.half_flops_per_s,
                _ => device.f32_flops_per_s,
            };
            (rate.value, device.memory_bytes_per_s.value)
        }
        None => {
            let host = &inventory.host;
            (host.f32_flops_per_s.value, host.memory_bytes_per_s.value)
        }
    };
    part * (segment.flops / flops).max(segment.moved_bytes.0 as f64 / bandwidth)
}
