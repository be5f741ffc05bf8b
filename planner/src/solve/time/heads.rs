//! What devices take that have some heads and features of each block: their own parts, one beside
//! the other, and what all of them compute.

use super::Timing;
use crate::inventory::{Device, DeviceKind};

/// Of what is no product and no attention, the part that is on heads: of the elements that blocks
/// of transformers read and write so, about half are of queries, keys and the feed-forward layer,
/// and half of the stream that each device has.
const ON_HEADS: f64 = 0.5;

impl Timing<'_> {
    /// One call of a segment whose heads several devices have. Devices that share the host's
    /// threads take turns.
    pub(super) fn heads_s(&self, index: usize) -> f64 {
        let weights = self.segment_bytes[index] as f64;
        let (mut in_turns_s, mut apart_s) = (0.0, 0.0_f64);
        for (lane, device) in self.spread.devices.iter().enumerate() {
            let bytes = self.spread.parts[lane].segment_bytes[index].0 as f64;
            let time = self.times.on(*device)[index];
            let own_s = match bytes / weights {
                // What is no block is on the first device.
                _ if weights == 0.0 && lane > 0 => 0.0,
                _ if weights == 0.0 => time.all_s(),
                part if part == 0.0 || part == 1.0 => part * time.all_s(),
                part => {
                    let others = ON_HEADS * part + (1.0 - ON_HEADS);
                    let others_s = others * (time.others_s - time.attention_s);
                    part * (time.products_s + time.attention_s) + others_s
                }
            };
            match device.is_some_and(|at| self.device(at).computes_apart()) {
                true => apart_s = apart_s.max(own_s),
                false => in_turns_s += own_s,
            }
        }
        apart_s.max(in_turns_s)
    }

    /// The part of the copied bytes that any one link carries. In a tensor split each device sends
    /// to all others and receives of them, so each link carries its own part; links of GPUs send
    /// and receive at once. In other splits one link carries all.
    pub(super) fn part_of_crossing(&self) -> f64 {
        let devices = &self.spread.devices;
        if self.spread.division.tensor_shares().is_none() {
            return 1.0;
        }
        let both_ways =
            devices.iter().flatten().all(|at| self.device(*at).kind == DeviceKind::Cuda);
        if both_ways { 1.0 / devices.len() as f64 } else { 2.0 / devices.len() as f64 }
    }

    fn device(&self, index: usize) -> &Device {
        &self.times.inventory.devices[index]
    }
}
