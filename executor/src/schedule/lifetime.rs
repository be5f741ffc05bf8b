//! Lifetimes: which values share a buffer, and from which node to which each buffer is alive.

use protocol::plan::ALIGNMENT_BYTES;
use protocol::{BackendKind, Bytes};

use super::node_workspace;
use crate::graph::Graph;

/// A piece of the arena and the nodes, both ends included, during which it is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Size, a multiple of the alignment.
    pub bytes: Bytes,
    /// The node that first writes it.
    pub first: usize,
    /// The last node that reads it.
    pub last: usize,
    /// Whether it is a node's workspace and no value.
    pub workspace: bool,
}

/// The buffers of a graph, and who uses which.
pub struct Lifetimes {
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// The buffer of each value.
    pub value_buffer: Vec<usize>,
    /// The workspace of each node, where it needs one.
    pub workspace_buffer: Vec<Option<usize>>,
}

/// Computes the buffers. Inputs and outputs live from the first node to the last: inputs are given once
/// for several runs, outputs are read after one. An operation that can work in place takes its
/// first input's buffer when nothing reads that input later.
pub fn buffers(graph: &Graph, backend: BackendKind, threads: usize) -> Lifetimes {
    let end = graph.nodes.len().saturating_sub(1);
    let mut last_use = vec![0; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            last_use[input.0] = at;
        }
    }
    let mut pinned = vec![false; graph.values.len()];
    for port in graph.inputs.iter().chain(&graph.outputs) {
        pinned[port.value.0] = true;
    }

    let mut buffers = Vec::new();
    let mut value_buffer = vec![usize::MAX; graph.values.len()];
    for port in &graph.inputs {
        let bytes = graph.value(port.value).bytes().align_up(ALIGNMENT_BYTES);
        value_buffer[port.value.0] = push(&mut buffers, bytes, 0, end, false);
    }
    let mut workspace_buffer = Vec::with_capacity(graph.nodes.len());
    for (at, node) in graph.nodes.iter().enumerate() {
        let output = node.output.0;
        let bytes = graph.values[output].bytes().align_up(ALIGNMENT_BYTES);
        let last = if pinned[output] { end } else { last_use[output].max(at) };
        let reusable = node.inputs.first().filter(|input| {
            node.op.in_place() && !pinned[input.0] && !pinned[output] && last_use[input.0] == at
                // A second operand that is the same value would be overwritten while it is read.
                && !node.inputs[1..].contains(input)
        });
        value_buffer[output] = match reusable {
            Some(input) => {
                let buffer = value_buffer[input.0];
                buffers[buffer].last = last;
                buffer
            }
            None => {
                // Outputs that live to the end must not be overwritten by an earlier node of the next run.
                let first = if pinned[output] { 0 } else { at };
                push(&mut buffers, bytes, first, last, false)
            }
        };
        let workspace = node_workspace(graph, at, backend, threads).align_up(ALIGNMENT_BYTES);
        let needed = workspace > Bytes::ZERO;
        workspace_buffer.push(needed.then(|| push(&mut buffers, workspace, at, at, true)));
    }
    Lifetimes { buffers, value_buffer, workspace_buffer }
}

fn push(
    buffers: &mut Vec<Buffer>,
    bytes: Bytes,
    first: usize,
    last: usize,
    workspace: bool,
) -> usize {
    buffers.push(Buffer { bytes, first, last, workspace });
    buffers.len() - 1
}

/// The most bytes of values alive at any one node of a range.
pub fn most_alive(buffers: &[Buffer], first: usize, last: usize) -> Bytes {
    let alive = |at: usize| {
        buffers
            .iter()
            .filter(|b| !b.workspace && b.first <= at && at <= b.last)
            .map(|b| b.bytes)
            .sum()
    };
    (first..=last).map(alive).max().unwrap_or_default()
}

/// Bytes of values written at or before a node and read after it.
pub fn carried(buffers: &[Buffer], at: usize) -> Bytes {
    let crosses = |b: &&Buffer| !b.workspace && b.first <= at && at < b.last;
    buffers.iter().filter(crosses).map(|b| b.bytes).sum()
}
