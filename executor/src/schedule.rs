//! The schedule of one component on one kind of backend: where every byte of its arena lies, and when.
//!
//! Pure, and the same code for measuring and for running: a measurement is a schedule whose arena is
//! never allocated. Made beside the graph, which it does not change.
//!
//! ```text
//! Graph ──lifetime──► buffers with live ranges ──arena──► offsets, one size
//! ```
//! Invariants: two buffers that are alive at one node do not overlap (asserted when made); every
//! buffer and every weight starts at a multiple of the plan's alignment.

mod arena;
mod lifetime;

use protocol::plan::ALIGNMENT_BYTES;
use protocol::profile::{BackendBytes, SegmentProfile, StorageBytes};
use protocol::{BackendKind, Bytes, StorageType};

pub use lifetime::Buffer;

use crate::backend::workspace_bytes;
use crate::graph::{Graph, ValueId, WeightId};

/// A graph with the place of everything in it.
#[derive(Debug)]
pub struct Schedule {
    /// The graph.
    pub graph: Graph,
    /// What the schedule was made for.
    pub backend: BackendKind,
    /// Worker threads of the host's kernels.
    pub threads: usize,
    /// Size of the arena.
    pub arena_bytes: Bytes,
    /// Size of the region that holds the weights.
    pub weights_bytes: Bytes,
    value_offsets: Vec<Bytes>,
    workspaces: Vec<(Bytes, Bytes)>,
    weight_offsets: Vec<Bytes>,
    buffers: Vec<Buffer>,
}

impl Schedule {
    /// Places everything.
    pub fn new(graph: Graph, backend: BackendKind, threads: usize) -> Schedule {
        let lifetimes = lifetime::buffers(&graph, backend, threads);
        let (offsets, arena_bytes) = arena::place(&lifetimes.buffers);
        arena::assert_disjoint(&lifetimes.buffers, &offsets);
        let value_offsets = lifetimes.value_buffer.iter().map(|&buffer| offsets[buffer]).collect();
        let workspaces = lifetimes
            .workspace_buffer
            .iter()
            .map(|buffer| match buffer {
                Some(buffer) => (offsets[*buffer], lifetimes.buffers[*buffer].bytes),
                None => (Bytes::ZERO, Bytes::ZERO),
            })
            .collect();
        let mut weights_bytes = Bytes::ZERO;
        let mut weight_offsets = Vec::with_capacity(graph.weights.len());
        for weight in &graph.weights {
            weight_offsets.push(weights_bytes);
            weights_bytes += weight.tensor.size().align_up(ALIGNMENT_BYTES);
        }
        Schedule {
            graph,
            backend,
            threads,
            arena_bytes,
            weights_bytes,
            value_offsets,
            workspaces,
            weight_offsets,
            buffers: lifetimes.buffers,
        }
    }

    /// Where a value lies in the arena.
    pub fn value_offset(&self, value: ValueId) -> Bytes {
        self.value_offsets[value.0]
    }

    /// Where a node's workspace lies in the arena, and its size.
    pub fn workspace(&self, node: usize) -> (Bytes, Bytes) {
        self.workspaces[node]
    }

    /// Where a weight lies in the weights' region.
    pub fn weight_offset(&self, weight: WeightId) -> Bytes {
        self.weight_offsets[weight.0]
    }

    /// Bytes of the weights as in the file.
    pub fn tensor_bytes(&self) -> Bytes {
        self.graph.weights.iter().map(|weight| weight.tensor.size()).sum()
    }

    /// What each segment needs. `other` are schedules of the same graph for other kinds of backend,
    /// whose workspaces are stated beside this one's.
    pub fn segments(&self, other: &[&Schedule]) -> Vec<SegmentProfile> {
        let kinds: Vec<&Schedule> = std::iter::once(self).chain(other.iter().copied()).collect();
        (0..self.graph.segments.len()).map(|index| self.segment(index, &kinds)).collect()
    }

    fn segment(&self, index: usize, kinds: &[&Schedule]) -> SegmentProfile {
        let graph = &self.graph;
        let nodes = || graph.nodes.iter().enumerate().filter(|(_, node)| node.segment == index);
        let weights = || graph.weights.iter().filter(|weight| weight.segment == index);
        let first = nodes().map(|(at, _)| at).next().unwrap_or(0);
        let last = nodes().map(|(at, _)| at).next_back().unwrap_or(first);
        let storage = [StorageType::F32, StorageType::F16, StorageType::BF16]
            .into_iter()
            .map(|storage| StorageBytes {
                storage,
                bytes: weights()
                    .filter(|weight| weight.tensor.storage() == storage)
                    .map(|weight| weight.tensor.size())
                    .sum(),
            })
            .filter(|entry| entry.bytes > Bytes::ZERO)
            .collect();
        let workspace = kinds
            .iter()
            .map(|schedule| BackendBytes {
                backend: schedule.backend,
                bytes: nodes().map(|(at, _)| schedule.workspaces[at].1).max().unwrap_or_default(),
            })
            .collect();
        SegmentProfile {
            name: graph.segments[index].clone(),
            weights_bytes: weights().map(|w| w.tensor.size().align_up(ALIGNMENT_BYTES)).sum(),
            storage,
            arena_bytes: lifetime::most_alive(&self.buffers, first, last),
            carried_bytes: lifetime::carried(&self.buffers, last),
            workspace,
            flops: nodes().map(|(_, node)| graph.flops(node)).sum(),
            moved_bytes: nodes().map(|(_, node)| graph.moved_bytes(node)).sum(),
        }
    }
}

/// The workspace of a node in bytes; shared by lifetimes here and by the kernels when they run.
fn node_workspace(graph: &Graph, node: usize, backend: BackendKind, threads: usize) -> Bytes {
    workspace_bytes(graph, &graph.nodes[node], backend, threads)
}

#[cfg(test)]
mod tests;
