//! Where the weights of a schedule lie on each lane: in a region for all phases, in one for the
//! component's phase, in a slot of the ring, or in the mapping of their files.

use std::ops::Range;

use protocol::plan::ALIGNMENT_BYTES;
use protocol::profile::BackendKind;
use protocol::{Bytes, Residency};

use super::Assignment;
use crate::graph::{Graph, WeightId};

/// Where a weight lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightPlace {
    /// In the region that is held in all phases, at this offset.
    Resident(Bytes),
    /// In the region that is held in the component's phase, at this offset.
    Lazy(Bytes),
    /// In whichever slot the ring gives to this item, at this offset of the slot.
    Slot {
        /// Index among the lane's items.
        item: usize,
        /// From the slot's start.
        offset: Bytes,
    },
    /// In the mapping of its file.
    Mapped,
}

/// A weight, or some rows of it, on one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSlice {
    /// The tensor in its graph.
    pub weight: WeightId,
    /// Which of its rows are here.
    pub rows: Range<usize>,
    /// Where they lie.
    pub place: WeightPlace,
}

/// All weights of one lane.
#[derive(Debug, Clone, Default)]
pub struct LaneWeights {
    /// In the order of their first use.
    pub slices: Vec<WeightSlice>,
    /// Size of the region that is held in all phases.
    pub resident_bytes: Bytes,
    /// Size of the region that is held in the component's phase.
    pub lazy_bytes: Bytes,
    /// The segments that pass through the ring, in order: its items.
    pub items: Vec<usize>,
    /// Those of them that come from page-locked copies.
    pub locked: Vec<usize>,
    /// Size of a slot: that of the largest item.
    pub slot_bytes: Bytes,
    /// Bytes of each segment's weights, wherever they lie.
    pub segment_bytes: Vec<Bytes>,
    /// For each weight the index of its first slice, and for each slice that of the next one of the
    /// same weight.
    firsts: Vec<Option<usize>>,
    nexts: Vec<Option<usize>>,
}

impl LaneWeights {
    /// No weights, of a graph of so many segments.
    pub fn new(segments: usize) -> LaneWeights {
        LaneWeights { segment_bytes: vec![Bytes::ZERO; segments], ..LaneWeights::default() }
    }

    /// Gives rows of a weight a place, unless they have one; the answer is their slice's index.
    pub fn place(
        &mut self,
        graph: &Graph,
        assignment: &Assignment,
        lane: usize,
        weight: WeightId,
        rows: Range<usize>,
    ) -> usize {
        let number = match self.find(graph, weight, &rows) {
            Ok(number) => return number,
            Err(number) => number,
        };
        let segment = graph.weights[weight.0].segment;
        let bytes = slice_bytes(graph, weight, &rows).align_up(ALIGNMENT_BYTES);
        self.segment_bytes[segment] += bytes;
        let on_host = assignment.lanes.get(lane).is_none_or(|l| l.backend == BackendKind::Host);
        let residency = match on_host && !assignment.is_whole_on(lane) {
            // The host computes from the mapping what was meant for a device.
            true => Residency::Mapped,
            false => assignment.residencies[lane][segment],
        };
        let place = match residency {
            Residency::Resident => WeightPlace::Resident(take(&mut self.resident_bytes, bytes)),
            Residency::Lazy => WeightPlace::Lazy(take(&mut self.lazy_bytes, bytes)),
            Residency::Mapped => WeightPlace::Mapped,
            Residency::Streamed | Residency::Locked => {
                if self.items.last() != Some(&segment) {
                    self.items.push(segment);
                    self.locked.extend((residency == Residency::Locked).then_some(segment));
                }
                self.slot_bytes = self.slot_bytes.max(self.segment_bytes[segment]);
                let offset = self.segment_bytes[segment] - bytes;
                WeightPlace::Slot { item: self.items.len() - 1, offset }
            }
        };
        self.slices.push(WeightSlice { weight, rows, place });
        number
    }

    /// The index of the slice of these rows, or the one that it gets.
    fn find(
        &mut self,
        graph: &Graph,
        weight: WeightId,
        rows: &Range<usize>,
    ) -> Result<usize, usize> {
        self.firsts.resize(graph.weights.len(), None);
        let new = self.slices.len();
        let mut next = &mut self.firsts[weight.0];
        while let Some(number) = *next {
            if self.slices[number].rows == *rows {
                return Ok(number);
            }
            next = &mut self.nexts[number];
        }
        *next = Some(new);
        self.nexts.push(None);
        Err(new)
    }

    /// Size of the page-locked copies.
    pub fn locked_bytes(&self) -> Bytes {
        self.locked.iter().map(|segment| self.segment_bytes[*segment]).sum()
    }

    /// The slots that the ring has where a plan states `planned`: one at least, as many as items at
    /// most.
    pub fn slots(&self, planned: u32) -> u32 {
        planned.max(1).min(self.items.len() as u32)
    }
}

/// Bytes of some rows of a weight, without alignment.
pub fn slice_bytes(graph: &Graph, weight: WeightId, rows: &Range<usize>) -> Bytes {
    let tensor = &graph.weights[weight.0].tensor;
    if rows.len() == tensor.shape().first().copied().unwrap_or(1) {
        // Blocks may run over the ends of rows where nothing is cut.
        return tensor.size();
    }
    Bytes(tensor.row_bytes().0 * rows.len() as u64)
}

/// Takes bytes from the end of a growing region; the answer is where they begin.
fn take(end: &mut Bytes, bytes: Bytes) -> Bytes {
    let offset = *end;
    *end += bytes;
    offset
}
