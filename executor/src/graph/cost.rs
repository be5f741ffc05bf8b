//! What a node costs: floating-point operations and bytes moved, for the time model.

use std::collections::BTreeMap;

use protocol::Bytes;
use protocol::profile::{Work, WorkKind};

use super::{Graph, Node, Op};

impl Graph {
    /// The work of nodes, by kind.
    pub fn work<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Vec<Work> {
        let mut kinds: BTreeMap<WorkKind, Work> = BTreeMap::new();
        for node in nodes {
            let kind = self.work_kind(node);
            let none = Work { kind, operations: 0, flops: 0.0, moved_bytes: Bytes::ZERO };
            let work = kinds.entry(kind).or_insert(none);
            work.operations += 1;
            work.flops += self.flops(node);
            work.moved_bytes += self.moved_bytes(node);
        }
        kinds.into_values().collect()
    }

    fn work_kind(&self, node: &Node) -> WorkKind {
        match &node.op {
            Op::Linear(_) => {
                let weight = node.weights.first().expect("a linear layer has weights");
                WorkKind::Matmul(self.weights[weight.0].tensor.storage())
            }
            Op::Attention(_) => WorkKind::Attention,
            Op::Conv2d(_) => WorkKind::Convolution,
            _ => WorkKind::Elementwise,
        }
    }

    /// Floating-point operations of a node; a multiply-add counts two. Element-wise work is counted as
    /// one operation an element: it is bound by bytes, not by arithmetic.
    pub fn flops(&self, node: &Node) -> f64 {
        let out = self.value(node.output);
        let elements = out.elements() as f64;
        match &node.op {
            Op::Linear(_) => {
                let inner: usize = node.inputs.iter().map(|&x| self.value(x).features()).sum();
                2.0 * elements * inner as f64
            }
            Op::Attention(_) => {
                let keys = self.value(node.inputs[1]).shape[1] as f64;
                4.0 * elements * keys
            }
            Op::Conv2d(conv) => {
                let input = node.inputs.last().expect("a convolution has an input");
                let channels = self.value(*input).features();
                2.0 * elements * (conv.kernel * conv.kernel * channels) as f64
            }
            Op::ScaledAdd { .. } => self.value(node.inputs[1]).elements() as f64,
            _ => elements,
        }
    }

    /// Bytes that a node reads and writes once: activations, weights, result.
    pub fn moved_bytes(&self, node: &Node) -> Bytes {
        if let Op::ScaledAdd { .. } = node.op {
            // Of the first input only what is added to.
            return Bytes(3 * self.value(node.inputs[1]).bytes().0);
        }
        let inputs: Bytes = node.inputs.iter().map(|&x| self.value(x).bytes()).sum();
        let weights: Bytes = match node.op {
            // A table is read a row for each token, not whole.
            Op::Embedding => self.value(node.output).bytes(),
            _ => node.weights.iter().map(|&w| self.weights[w.0].tensor.size()).sum(),
        };
        inputs + weights + self.value(node.output).bytes()
    }
}
