//! What takes longest in a call that streams weights.

use std::collections::BTreeMap;

use super::super::super::lanes::LaneSet;
use super::super::Timing;
use super::WeightSources;

/// What a call with streamed weights takes as long as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBound {
    /// The computation: weights come in time, but for the first ones.
    Computing,
    /// The link of a device, by its index in the inventory.
    Link(usize),
    /// The copies from the page cache to page-locked memory, for a device.
    PageCache(usize),
    /// The host's memory, which all devices read.
    Memory,
    /// The storage, as what is streamed does not fit in RAM.
    Storage,
}

impl Timing<'_> {
    /// What a call takes as long as, with these segments held, and these of the others page-locked.
    pub fn call_bound(&self, stays: &[LaneSet], locked: Option<&[bool]>) -> CallBound {
        let sources = WeightSources::of(self, stays, locked);
        let (mut shared_s, mut links_s) = (0.0, BTreeMap::<usize, f64>::new());
        for streamed in self.all_streamed(stays) {
            let copy = self.copy(&streamed, sources.at(streamed.segment));
            // Replicas are looked at one by one.
            let apart = !self.replicas_s.is_empty();
            *links_s.entry(if apart { copy.lane } else { copy.link }).or_default() += copy.link_s;
            shared_s += copy.shared_s / sources.sharers_of(copy.segment);
        }
        let slowest = links_s.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (lane, link_s) = slowest.unwrap_or_default();
        let computing_s: f64 = self.segments_s.iter().sum();
        if computing_s >= f64::max(shared_s, link_s) {
            return CallBound::Computing;
        }
        let device = self.spread.devices[lane];
        let page_cache = self.times.inventory.host.page_cache_bytes_per_s.value;
        match device.filter(|_| link_s >= shared_s) {
            Some(device) if self.link(device) <= page_cache || sources.file_bytes == 0.0 => {
                CallBound::Link(device)
            }
            Some(device) => CallBound::PageCache(device),
            None if sources.cached => CallBound::Memory,
            None => CallBound::Storage,
        }
    }
}
