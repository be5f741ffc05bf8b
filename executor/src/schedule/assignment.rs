//! An assignment: which lane each segment of a component computes on, and where its weights wait.
//!
//! A lane is one device as a component sees it, by index: kinds and abilities, no memory and no
//! name. What is decided here is decided by the plan; this is its translation for one graph.

use std::ops::Range;

use protocol::division::ItemRun;
use protocol::profile::{BackendKind, Lane};
use protocol::{Division, Residency};

use crate::graph::{Graph, Node, NodeOp};

/// Rows of a split matrix come in multiples of this: a tile of the widest kernels (64 columns of
/// AVX-512, and the 16 to 64 of CUDA's tensor core tiles) is then never shared between two devices
/// for long.
const ROW_MULTIPLE: usize = 32;

/// Matrices with a side below this are not split by rows: their copies would cost more than their
/// product.
const SPLIT_SIDE_MIN: usize = 256;

/// How a graph is laid out over lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The lanes, in order.
    pub lanes: Vec<Lane>,
    /// What of the graph computes on which of them.
    pub division: Division,
    /// For each lane, where the weights of each segment wait.
    pub residencies: Vec<Vec<Residency>>,
    /// Worker threads of the host's kernels.
    pub threads: usize,
    /// Queries that one worker attends with at a time.
    pub attention_chunk: usize,
    /// Whether products with quantised weights are formed in f32.
    pub exact_matmul: bool,
}

impl Assignment {
    /// All of a graph on one device of a kind, its weights resident.
    pub fn on_one(graph: &Graph, backend: BackendKind, threads: usize) -> Assignment {
        let segments = graph.segments.len();
        Assignment {
            lanes: vec![Lane { backend, unsupported: Vec::new() }],
            division: Division::One,
            residencies: vec![vec![Residency::Resident; segments]],
            threads,
            attention_chunk: protocol::plan::ATTENTION_CHUNK as usize,
            exact_matmul: false,
        }
    }

    /// Why this graph cannot be laid out so, if it cannot. `operations` are the names of all that
    /// there are.
    pub fn check(&self, graph: &Graph, operations: &[&str]) -> Result<(), String> {
        let segments = graph.segments.len();
        let placed = match &self.division {
            Division::Layer { segments } | Division::Pipeline { segments, .. } => segments.len(),
            Division::One
            | Division::Row { .. }
            | Division::Tensor { .. }
            | Division::Items { .. } => segments,
        };
        for placed in self.residencies.iter().map(Vec::len).chain([placed]) {
            if placed != segments {
                return Err(format!("{placed} segments are placed of {segments}"));
            }
        }
        if (0..segments).any(|segment| self.lane(segment) >= self.lanes.len()) {
            return Err("a segment is on a device that is not there".to_owned());
        }
        if self.residencies.len() != self.lanes.len() {
            return Err("weights wait on devices that are not there".to_owned());
        }
        for name in self.lanes.iter().flat_map(|lane| &lane.unsupported) {
            if !operations.contains(&name.as_str()) {
                let known = operations.join(", ");
                return Err(format!("there is no operation {name}; hint: one of {known}"));
            }
        }
        if let Division::Row { shares } = &self.division {
            self.check_rows(graph, shares)?;
        }
        if let Division::Tensor { shares } = &self.division {
            self.check_heads(graph, shares)?;
        }
        if let Some(counts) = self.division.item_counts() {
            self.check_items(graph, counts)?;
        }
        for node in &graph.nodes {
            for weight in &node.weights {
                let owner = graph.weights[weight.0].segment;
                let is_any_streamed = || self.is_streamed(owner) || self.is_streamed(node.segment);
                if owner != node.segment && is_any_streamed() {
                    return Err(format!(
                        "segment {} cannot be streamed: others use its weights",
                        graph.segments[owner].name
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_rows(&self, graph: &Graph, shares: &[u32]) -> Result<(), String> {
        if shares.len() != self.lanes.len() {
            return Err("a row split needs a share of each device".to_owned());
        }
        let first = &self.lanes[0];
        if first.backend == BackendKind::Host || self.lanes.iter().any(|lane| lane != first) {
            return Err("rows are split between devices of one kind only".to_owned());
        }
        if !splits_rows(graph) {
            return Err("it has no weights that can be split by rows".to_owned());
        }
        Ok(())
    }

    fn check_heads(&self, graph: &Graph, shares: &[u32]) -> Result<(), String> {
        if shares.len() != self.lanes.len() {
            return Err("a tensor split needs a share of each device".to_owned());
        }
        let first = &self.lanes[0];
        if first.backend == BackendKind::Host || self.lanes.iter().any(|lane| lane != first) {
            return Err("heads are split between devices of one kind only".to_owned());
        }
        if let Some(name) = first.unsupported.first() {
            return Err(format!("heads are split between devices that do all, also {name}"));
        }
        let lanes = || graph.nodes.iter().filter_map(|node| node.lane);
        if lanes().max() != Some(shares.len() - 1) {
            return Err("it is not cut for so many devices".to_owned());
        }
        Ok(())
    }

    fn check_items(&self, graph: &Graph, counts: &[u32]) -> Result<(), String> {
        let is_replicated = self.division.is_replicated();
        if is_replicated && counts.len() != self.lanes.len() {
            return Err("an item split needs a count of each device".to_owned());
        }
        let mut segments = 0..graph.segments.len();
        if !is_replicated && segments.any(|segment| self.is_streamed(segment)) {
            return Err("groups that follow one another need weights that stay".to_owned());
        }
        if self.lanes.iter().any(|lane| lane.backend == BackendKind::Host) {
            return Err("items are split between devices only".to_owned());
        }
        let known = |run: &ItemRun| run.part < counts.len();
        if graph.item_runs.is_empty() || !graph.item_runs.iter().all(known) {
            return Err("it has no items that could be split so".to_owned());
        }
        Ok(())
    }

    /// Whether any lane streams a segment.
    pub fn is_streamed(&self, segment: usize) -> bool {
        self.residencies.iter().any(|on_lane| on_lane[segment].is_streamed())
    }

    /// Whether a lane streams a segment; the host streams none.
    pub fn streams(&self, lane: usize, segment: usize) -> bool {
        let on_device = self.backend(lane) != BackendKind::Host;
        on_device && self.residencies[lane][segment].is_streamed()
    }

    /// The rows of a node's matrix on each lane, where it is split; else `None`.
    pub fn rows(&self, graph: &Graph, node: &Node) -> Option<Vec<Range<usize>>> {
        let shares = self.division.shares()?;
        let split = node.lane.is_none() && can_split(graph, node) && self.can_do(0, &node.op);
        split.then(|| share_rows(graph.value(node.output).features(), shares))
    }

    /// The lane of a segment of the graph.
    pub fn lane(&self, segment: usize) -> usize {
        self.division.lane(segment).expect("each segment of the graph has a lane")
    }

    /// The lane on which a node computes, if that can do it.
    pub fn lane_of(&self, graph: &Graph, node: &Node) -> usize {
        let replica = || match self.division.is_replicated() {
            true => graph.item_runs.get(node.item_run).map(|run| run.part),
            false => None,
        };
        node.lane.or_else(replica).unwrap_or_else(|| self.lane(node.segment))
    }

    /// Whether all segments are on this lane.
    pub fn is_whole_on(&self, lane: usize) -> bool {
        (0..self.residencies[0].len()).all(|segment| self.lane(segment) == lane)
    }

    /// What a lane is: the host's where it is none of these.
    pub fn backend(&self, lane: usize) -> BackendKind {
        self.lanes.get(lane).map_or(BackendKind::Host, |lane| lane.backend)
    }

    /// Whether a lane can do an operation.
    pub fn can_do(&self, lane: usize, op: &NodeOp) -> bool {
        !self.lanes[lane].unsupported.iter().any(|name| name == op.name())
    }
}

/// Whether any weight of a graph can be split by rows.
pub fn splits_rows(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| can_split(graph, node))
}

/// Whether a node is the product with a large matrix within a block.
fn can_split(graph: &Graph, node: &Node) -> bool {
    if !node.op.is_product() || !graph.segments[node.segment].block {
        return false;
    }
    let shape = graph.weights[node.weights[0].0].tensor.shape();
    shape.len() == 2 && shape.iter().all(|&side| side >= SPLIT_SIDE_MIN)
}

/// Deals rows out by shares, in multiples of [`ROW_MULTIPLE`]: each lane gets its part rounded
/// down, and what remains goes, a multiple at a time, to those that were rounded down the most,
/// ties to the first. Rows that make no whole multiple go to the last lane that has any.
fn share_rows(rows: usize, shares: &[u32]) -> Vec<Range<usize>> {
    let units = (rows / ROW_MULTIPLE) as u64;
    let sum: u64 = shares.iter().map(|&share| u64::from(share)).sum();
    let mut dealt: Vec<u64> = shares.iter().map(|&share| units * u64::from(share) / sum).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&lane| std::cmp::Reverse(units * u64::from(shares[lane]) % sum));
    let rest = units - dealt.iter().sum::<u64>();
    order.iter().take(rest as usize).for_each(|&lane| dealt[lane] += 1);
    let last = dealt.iter().rposition(|&units| units > 0).unwrap_or(0);
    let mut start = 0;
    let range = |(lane, units): (usize, u64)| {
        let count = units as usize * ROW_MULTIPLE;
        let end = if lane == last { rows } else { start + count };
        let range = if lane > last { rows..rows } else { start..end };
        start = range.end;
        range
    };
    dealt.into_iter().enumerate().map(range).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_dealt_once_each_near_their_share(
            rows in 256..20_000_usize,
            shares in prop::collection::vec(1..1000_u32, 2..8),
        ) {
            let dealt = share_rows(rows, &shares);
            prop_assert_eq!(dealt.len(), shares.len());
            let sum: u32 = shares.iter().sum();
            let mut at = 0;
            for (range, &share) in dealt.iter().zip(&shares) {
                prop_assert_eq!(range.start, at);
                at = range.end;
                let exact = rows as f64 * f64::from(share) / f64::from(sum);
                let off = (range.len() as f64 - exact).abs();
                prop_assert!(off < 2.0 * ROW_MULTIPLE as f64, "{:?} {}", range, exact);
                prop_assert!(range.start % ROW_MULTIPLE == 0 || range.is_empty());
            }
            prop_assert_eq!(at, rows);
        }
    }

    #[test]
    fn remainders_go_to_those_that_lost_most() {
        assert_eq!(share_rows(256, &[1, 1, 1]), [0..96, 96..192, 192..256]);
        assert_eq!(share_rows(3072, &[3, 1]), [0..2304, 2304..3072]);
        assert_eq!(share_rows(300, &[1, 1]), [0..160, 160..300]);
        assert_eq!(share_rows(256, &[1, 1000]), [0..0, 0..256]);
    }
}
