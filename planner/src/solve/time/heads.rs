//! What devices take that have some heads and features of each block: their own parts, one beside
//! the other, what all of them compute, and the summands that each has of the others.

use protocol::Bytes;
use protocol::profile::{SummandProfile, Work, WorkKind};

use super::{MOVED_PER_COPIED, SegmentTimes, Timing};
use crate::inventory::DeviceKind;
use crate::inventory::efficiency::MEMORY;

/// Bytes that move in a device's memory for each byte that is added: the sum is read and written,
/// the summand is read.
const MOVED_PER_ADDED: f64 = 3.0;

/// Sums of a block for each attention: of its result and of the feed-forward layer's. Blocks of two
/// streams have four and blocks that add both at once one; this is about their average.
const SUMS_PER_ATTENTION: u32 = 2;

/// Operations that a device starts for each part of a summand of another one: a copy, a wait for
/// it, and adding it. The product that makes its own starts once more for each part but the first.
const STARTS_PER_SUMMAND: u32 = 3;

/// A summand's element.
const F32_BYTES: f64 = 4.0;

/// The summands of a tensor split, in one call.
pub(super) struct Summands {
    /// For each device, what it receives of devices that are no parts of its own GPU. It sends as
    /// much.
    pub received_bytes: Vec<f64>,
    /// Until all are there, and added, after the products that make them.
    wait_s: f64,
    /// For each segment, which part of them is of it: that of its weights in those of all blocks.
    pub parts: Vec<f64>,
}

impl Timing<'_> {
    /// The summands of a tensor split; `None` for another one.
    ///
    /// Each device sends what it makes to each other one, and adds what it has of all. Of one GPU's
    /// parts that is a copy in its memory. From one device to another it is written to the host's
    /// memory and read there: links of GPUs send and receive at once. But for the last part of
    /// each, that is while the products make what crosses next.
    pub(super) fn summands(&self) -> Option<Summands> {
        self.spread.division.tensor_shares()?;
        let (times, lanes) = (self.times, self.spread.devices.len());
        let inventory = times.inventory;
        let each = self.spread.crossing_bytes.0 as f64 / (lanes * (lanes - 1)).max(1) as f64;
        let (mut links_s, mut memories_s) = (vec![0.0; lanes], vec![0.0; lanes]);
        let (mut adding_s, mut added_in_turns_s) = (vec![0.0; lanes], 0.0);
        let (mut products_s, mut products_in_turns_s) = (f64::INFINITY, 0.0);
        let SummandProfile { bytes, last_bytes, .. } = times.component.summands;
        let in_parts = ((bytes - last_bytes).0 as f64 / each.max(1.0)).min(1.0);
        let mut received_bytes = Vec::new();
        for (lane, &at) in self.spread.devices.iter().enumerate() {
            let device = &inventory.devices[at.expect("heads are on devices")];
            let gpu = self.gpus[lane];
            let near = self.gpus.iter().filter(|other| **other == gpu).count() - 1;
            let far_bytes = (lanes - 1 - near) as f64 * each;
            received_bytes.push(far_bytes);
            let [to, from] = [device.link_bytes_per_s, device.link_back_bytes_per_s];
            links_s[gpu] += match device.kind {
                DeviceKind::Cuda => far_bytes / to.value.min(from.value),
                DeviceKind::Virtual => far_bytes / to.value + far_bytes / from.value,
            };
            let memory = device.speeds.memory_bytes_per_s.reaches(MEMORY);
            memories_s[gpu] += MOVED_PER_COPIED * near as f64 * each / memory;
            let own_products_s = self.part_of_heads(lane) * times.summands_s(at);
            match device.computes_apart() {
                true => {
                    adding_s[gpu] += times.adding_s(at, lanes - 1, each);
                    products_s = products_s.min(own_products_s);
                }
                false => {
                    added_in_turns_s += times.adding_s(at, lanes - 1, each);
                    products_in_turns_s += own_products_s;
                }
            }
        }
        let products_s = match products_s.is_finite() {
            true => products_s + products_in_turns_s,
            false => products_in_turns_s,
        };
        let host_memory = inventory.host.speeds.memory_bytes_per_s.value;
        let host_s = MOVED_PER_COPIED * received_bytes.iter().sum::<f64>() / host_memory;
        let longest = |each_s: &[f64]| each_s.iter().copied().fold(0.0, f64::max);
        let copied_s = host_s.max(longest(&links_s)).max(longest(&memories_s));
        let waited_s = copied_s - in_parts * copied_s.min(products_s);
        let wait_s = waited_s + added_in_turns_s.max(longest(&adding_s));
        Some(Summands { received_bytes, wait_s, parts: self.parts_of_blocks() })
    }

    /// A device's part of all blocks' weights.
    fn part_of_heads(&self, lane: usize) -> f64 {
        let segments = self.times.component.segments.iter().zip(&self.segment_bytes);
        let blocks = segments.zip(&self.spread.parts[lane].segment_bytes);
        let blocks = blocks.filter(|((segment, _), _)| segment.block);
        let (mut all, mut own) = (0, 0);
        for ((_, bytes), part) in blocks {
            all += bytes;
            own += part.0;
        }
        own as f64 / (all as f64).max(1.0)
    }

    /// For each segment its part of all blocks' weights; without any, all is of the last segment.
    fn parts_of_blocks(&self) -> Vec<f64> {
        let segments = self.times.component.segments.iter().zip(&self.segment_bytes);
        let of_blocks = segments.map(|(s, bytes)| if s.block { *bytes as f64 } else { 0.0 });
        let mut parts: Vec<f64> = of_blocks.collect();
        let all: f64 = parts.iter().sum();
        match all > 0.0 {
            true => parts.iter_mut().for_each(|part| *part /= all),
            false => parts.iter_mut().rev().take(1).for_each(|last| *last = 1.0),
        }
        parts
    }

    /// One call of a segment whose heads several devices have, with its summands. Devices that
    /// share the host's threads take turns, and so do parts of one GPU.
    pub(super) fn heads_s(&self, index: usize, summands: &Summands) -> f64 {
        let weights = self.segment_bytes[index] as f64;
        let (mut in_turns_s, mut apart_s) = (0.0, vec![0.0_f64; self.gpus.len()]);
        for (lane, device) in self.spread.devices.iter().enumerate() {
            let bytes = self.spread.parts[lane].segment_bytes[index].0 as f64;
            let time = self.times.on(*device)[index];
            let own_s = match bytes / weights {
                // What is no block is on the first device.
                _ if weights == 0.0 && lane > 0 => 0.0,
                _ if weights == 0.0 => time.all_s(),
                0.0 => 0.0,
                part => time.with_heads_s(part),
            };
            match self.computes_apart(*device) {
                true => apart_s[self.gpus[lane]] += own_s,
                false => in_turns_s += own_s,
            }
        }
        apart_s.into_iter().fold(in_turns_s, f64::max) + summands.parts[index] * summands.wait_s
    }
}

impl SegmentTimes<'_> {
    /// Shares of heads with which some devices compute for about as long, as those of a tensor
    /// split that take turns with none: proportions.
    pub fn balanced(&self, devices: &[Option<usize>]) -> Vec<u64> {
        // On each device a part of one time, and all of another one, as in `heads_s`.
        let times = devices.iter().enumerate().map(|(lane, device)| {
            let (mut parted_s, mut whole_s) = (0.0, 0.0);
            for (time, segment) in self.on(*device).iter().zip(&self.component.segments) {
                match segment.block {
                    true => {
                        parted_s += time.on_heads_s;
                        whole_s += time.with_heads_s(0.0);
                    }
                    false if lane == 0 => whole_s += time.all_s(),
                    false => {}
                }
            }
            (f64::max(parted_s, 1e-12), whole_s)
        });
        let times: Vec<(f64, f64)> = times.collect();
        let (mut rates, mut done) = (0.0, 1.0);
        for (parted_s, whole_s) in &times {
            rates += 1.0 / parted_s;
            done += whole_s / parted_s;
        }
        let part = |(parted_s, whole_s): &(f64, f64)| (done / rates - whole_s) / parted_s;
        // Whole numbers, so that proportions of equal devices are equal.
        times.iter().map(|times| (1e6 * part(times)).max(1.0) as u64).collect()
    }

    /// One call's summands of a tensor split over some devices, at least: their way through the
    /// host's memory.
    pub fn least_summands_s(&self, devices: &[usize]) -> f64 {
        let devices: Vec<Option<usize>> = devices.iter().copied().map(Some).collect();
        let gpus = self.inventory.gpus(&devices);
        let others = |gpu: &usize| gpus.iter().filter(|other| *other != gpu).count();
        let copies: usize = gpus.iter().map(others).sum();
        let bytes = copies as f64 * self.component.summands.bytes.0 as f64;
        MOVED_PER_COPIED * bytes / self.inventory.host.speeds.memory_bytes_per_s.value
    }

    /// The products that make all summands, on a device alone.
    fn summands_s(&self, device: Option<usize>) -> f64 {
        let works = self.component.summands.products.iter().copied();
        self.processor(device).segment_time(works).on_heads_s
    }

    /// Adding the summands of so many other devices, of so many bytes each.
    fn adding_s(&self, device: Option<usize>, others: usize, each: f64) -> f64 {
        let blocks = self.component.segments.iter().filter(|segment| segment.block);
        let attention = blocks.flat_map(|segment| &segment.work);
        let attention = attention.filter(|work| work.kind == WorkKind::Attention);
        let attends = attention.map(|work| work.operations).fold(0, u32::saturating_add);
        let SummandProfile { bytes: all, last_bytes, .. } = self.component.summands;
        let parts = all.0.checked_div(last_bytes.0).and_then(|parts| u32::try_from(parts).ok());
        let parts = parts.map_or(1, |parts| parts.max(1));
        let starts = (STARTS_PER_SUMMAND * others as u32).saturating_mul(parts);
        let starts = starts.saturating_add(parts - 1).saturating_mul(SUMS_PER_ATTENTION);
        let bytes = others as f64 * each;
        let work = Work {
            kind: WorkKind::Elementwise,
            operations: attends.saturating_mul(starts),
            flops: bytes / F32_BYTES,
            moved_bytes: Bytes((MOVED_PER_ADDED * bytes) as u64),
        };
        self.processor(device).segment_time(std::iter::once(work)).all_s()
    }
}
