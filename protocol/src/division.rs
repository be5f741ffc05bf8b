//! How a component is divided over its devices.
//!
//! The one form in which plan, profile, solver and schedule say it. Which devices those are stands
//! beside it; a component on the host is an undivided one on that device.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What of a component computes on which of its devices, by their index in its list of devices.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Division {
    /// All of it on the only one.
    One,
    /// Contiguous segments on several devices, one after the other.
    Layer {
        /// For each segment, the index of its device.
        segments: Vec<u32>,
    },
    /// The rows of each large matrix on several devices; everything else on the first of them.
    Row {
        /// Each device's share of the rows, in proportion.
        shares: Vec<u32>,
    },
    /// The heads and the features of each block on several devices: of attention some heads each,
    /// of the layers after it some features. Their results are summed up on all of them, in the
    /// order of the devices, and what needs all features is done by each. Other large matrices
    /// are split by rows; what is no block is on the first.
    Tensor {
        /// Each device's share of heads and features, in proportion.
        shares: Vec<u32>,
    },
    /// The whole component on each of several devices, for some of the items of a step: its
    /// pictures, once for each pass of classifier-free guidance. All devices compute beside each
    /// other.
    Items {
        /// How many items each device has: first those of the first pass, in the batch's order.
        counts: Vec<u32>,
    },
    /// Contiguous segments on several devices, through which groups of the items of a step follow
    /// one another: while one device computes a group, the device before it has the next one.
    Pipeline {
        /// For each segment, the index of its device.
        segments: Vec<u32>,
        /// How many items each group has: first those of the first pass, in the batch's order.
        counts: Vec<u32>,
    },
}

/// Items of one pass that are computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRun {
    /// Of which part of all items they are, by its index: that of a device of an item split, or a
    /// group of a pipeline.
    pub part: usize,
    /// The pass of the step: 0 for the prompt, 1 for the negative one.
    pub pass: usize,
    /// Which pictures of the batch.
    pub items: Range<usize>,
}

/// The runs of items of which the parts of a step consist, each part so many items: one after the
/// other the passes, in each the pictures of the batch. Counts beyond the last item have no run.
pub fn item_runs(counts: &[u32], batch: usize) -> Vec<ItemRun> {
    let mut runs = Vec::new();
    let mut at = 0;
    for (part, &count) in counts.iter().enumerate() {
        let end = at + count as usize;
        while at < end && batch > 0 {
            let (pass, first) = (at / batch, at % batch);
            let last = batch.min(first + end - at);
            runs.push(ItemRun { part, pass, items: first..last });
            at += last - first;
        }
    }
    runs
}

/// How many of some units each part has by its share: one at least, and each further one where it
/// brings least beyond the share, ties to the first. There are at least as many units as parts.
pub fn dealt(units: u32, shares: &[u64]) -> Vec<u32> {
    let mut counts = vec![1; shares.len()];
    for _ in shares.len() as u32..units {
        let with_one_more =
            |at: usize| (u128::from(counts[at] + 1) << 64) / u128::from(shares[at].max(1));
        let next = (0..shares.len()).min_by_key(|at| with_one_more(*at));
        counts[next.expect("there are parts")] += 1;
    }
    counts
}

impl Division {
    /// The index of the device on which a segment computes: for a row split, and a tensor split,
    /// the one of all that is not split; for an item split, the first of those that have it. `None`
    /// where nothing is said of this segment.
    #[inline]
    pub fn lane(&self, segment: usize) -> Option<usize> {
        match self {
            Division::One
            | Division::Row { .. }
            | Division::Tensor { .. }
            | Division::Items { .. } => Some(0),
            Division::Layer { segments } | Division::Pipeline { segments, .. } => {
                segments.get(segment).map(|&lane| lane as usize)
            }
        }
    }

    /// The index of each segment's device, where they are on several one after the other; of no
    /// other division.
    pub fn segments(&self) -> Option<&[u32]> {
        match self {
            Division::Layer { segments } | Division::Pipeline { segments, .. } => Some(segments),
            Division::One
            | Division::Row { .. }
            | Division::Tensor { .. }
            | Division::Items { .. } => None,
        }
    }

    /// Shares of a row split or of a tensor split, by device; of no other division.
    pub fn shares(&self) -> Option<&[u32]> {
        match self {
            Division::Row { shares } | Division::Tensor { shares } => Some(shares),
            Division::One
            | Division::Layer { .. }
            | Division::Items { .. }
            | Division::Pipeline { .. } => None,
        }
    }

    /// Shares of a row split, by device; of no other division.
    pub fn row_shares(&self) -> Option<&[u32]> {
        self.shares().filter(|_| matches!(self, Division::Row { .. }))
    }

    /// Shares of a tensor split, by device; of no other division.
    pub fn tensor_shares(&self) -> Option<&[u32]> {
        self.shares().filter(|_| matches!(self, Division::Tensor { .. }))
    }

    /// How many items each device of an item split has, or each group of a pipeline; of no other
    /// division.
    pub fn item_counts(&self) -> Option<&[u32]> {
        match self {
            Division::Items { counts } | Division::Pipeline { counts, .. } => Some(counts),
            Division::One
            | Division::Layer { .. }
            | Division::Row { .. }
            | Division::Tensor { .. } => None,
        }
    }

    /// Whether each of several devices has something of every segment.
    pub const fn is_on_each(&self) -> bool {
        matches!(self, Division::Row { .. } | Division::Tensor { .. } | Division::Items { .. })
    }

    /// Whether all of it is on each of several devices.
    pub const fn is_replicated(&self) -> bool {
        matches!(self, Division::Items { .. })
    }

    /// Whether weights lie alike in both: how many items a device, or a group, has makes no
    /// difference to them.
    pub fn holds_as(&self, other: &Division) -> bool {
        match (self, other) {
            (Division::Items { counts }, Division::Items { counts: other }) => {
                counts.len() == other.len()
            }
            _ => match (self.segments(), other.segments()) {
                (Some(segments), Some(other)) => segments == other,
                _ => self == other,
            },
        }
    }

    /// Its name in documents. `on_host`: whether its only device is the host.
    pub const fn placement(&self, on_host: bool) -> Placement {
        match self {
            Division::One if on_host => Placement::Host,
            Division::One => Placement::One,
            Division::Layer { .. } => Placement::Layer,
            Division::Row { .. } => Placement::Row,
            Division::Tensor { .. } => Placement::Tensor,
            Division::Items { .. } => Placement::Items,
            Division::Pipeline { .. } => Placement::Pipeline,
        }
    }
}

/// Where a component computes, in a word for documents and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one device.
    One,
    /// [`Division::Layer`].
    Layer,
    /// [`Division::Row`].
    Row,
    /// Heads and features of each block on several devices.
    Tensor,
    /// On several devices as a whole, on each for some of what a step computes.
    Items,
    /// As by layers, with groups of items that follow one another.
    Pipeline,
    /// On the host's processor, in its RAM.
    Host,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::One => "one",
            Placement::Layer => "layer",
            Placement::Row => "row",
            Placement::Tensor => "tensor",
            Placement::Items => "items",
            Placement::Pipeline => "pipeline",
            Placement::Host => "host",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_dealt_in_order_pass_by_pass() {
        let runs = |counts: &[u32], batch| -> Vec<(usize, usize, Range<usize>)> {
            let runs = item_runs(counts, batch).into_iter();
            runs.map(|run| (run.part, run.pass, run.items)).collect()
        };
        assert_eq!(runs(&[2, 1], 3), [(0, 0, 0..2), (1, 0, 2..3)]);
        assert_eq!(runs(&[1, 1], 1), [(0, 0, 0..1), (1, 1, 0..1)]);
        assert_eq!(runs(&[3, 1], 2), [(0, 0, 0..2), (0, 1, 0..1), (1, 1, 1..2)]);
        assert_eq!(runs(&[1, 3], 2), [(0, 0, 0..1), (1, 0, 1..2), (1, 1, 0..2)]);
    }

    #[test]
    fn weights_lie_alike_in_layers_however_items_follow_one_another_through_them() {
        let layers = |segments: &[u32]| Division::Layer { segments: segments.to_vec() };
        let pipeline = |segments: &[u32], counts: &[u32]| Division::Pipeline {
            segments: segments.to_vec(),
            counts: counts.to_vec(),
        };
        let two = pipeline(&[0, 0, 1], &[1, 1]);
        assert!(two.holds_as(&pipeline(&[0, 0, 1], &[2, 2, 1])));
        assert!(two.holds_as(&layers(&[0, 0, 1])) && layers(&[0, 0, 1]).holds_as(&two));
        assert!(!two.holds_as(&pipeline(&[0, 1, 1], &[1, 1])));
        assert!(!two.holds_as(&layers(&[0, 1, 1])));
        assert!(!two.holds_as(&Division::Items { counts: vec![1, 1] }));
    }
}
