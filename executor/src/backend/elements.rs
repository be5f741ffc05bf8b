//! What GPUs' kernels read and write: the element types of a node's inputs and result, and which results may take an input's place.
//!
//! Host and virtual devices know values as graphs have them.

use protocol::{BackendKind, StorageType};

use super::cuda;
use super::cuda::ops::linear::AfterSums;
use super::cuda::ops::{Products, attention, conv, linear};
use super::kernels::LinearShape;
use super::run::{attention_shape, conv_shape};
use super::workspace::{in_features, linear_shape};
use crate::graph::{ElementType, Graph, Node, Normalization, Op};
use crate::schedule::Assignment;

/// How a node reads an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Rounded to these elements, in which it may lie already.
    As(ElementType),
    /// The same, if all other inputs lie so too.
    WithOthersAs(ElementType),
    /// As the elements of its result: it computes nothing.
    AsResult,
}

/// How a GPU reads an input of a node.
pub fn reading(graph: &Graph, node: &Node, index: usize, assignment: &Assignment) -> Reading {
    let own = graph.value(node.inputs[index]).element;
    let products = || cuda::products(graph, node, assignment);
    match &node.op {
        Op::Linear(_) => {
            let reads = |shape: &LinearShape<'_>, storage| {
                linear::reads(shape, storage, products() == Products::Exact)
            };
            of_layer(graph, node, reads).map_or(Reading::As(own), Reading::WithOthersAs)
        }
        Op::Attention(op) if index < 3 => {
            let shape = attention_shape(graph, node, op, assignment.attention_chunk);
            Reading::As(attention::reads(&shape, products()))
        }
        Op::Conv2d(op) => {
            let shape = conv_shape(graph, node, op);
            Reading::As(conv::reads(&shape, products(), index))
        }
        Op::ConcatTokens | Op::SliceTokens { .. } => Reading::AsResult,
        _ => Reading::As(own),
    }
}

/// What something says of a linear layer's sizes and of how its matrix is stored; `None` where it has no matrix.
fn of_layer<T>(
    graph: &Graph,
    node: &Node,
    says: impl FnOnce(&LinearShape<'_>, StorageType) -> T,
) -> Option<T> {
    let storage = graph.weights[node.weights.first()?.0].tensor.storage();
    let in_features = in_features(graph, node);
    let out_features = graph.value(node.output).features();
    Some(says(&linear_shape(graph, node, &in_features, out_features), storage))
}

/// Whether a GPU best writes a node's result in such elements, where these are not those that the graph says.
pub fn writes(graph: &Graph, node: &Node, element: ElementType, assignment: &Assignment) -> bool {
    let products = || cuda::products(graph, node, assignment);
    match &node.op {
        Op::Linear(activation) => {
            let bias = node.weights.get(1).map(|id| graph.weights[id.0].tensor.storage());
            let after = AfterSums { bias, activation: *activation };
            let writes = |shape: &LinearShape<'_>, storage| {
                linear::writes(shape, storage, products() == Products::Exact, &after, element)
            };
            of_layer(graph, node, writes).unwrap_or(false)
        }
        Op::AdaLayerNorm { .. } | Op::Rope { .. } => true,
        Op::Norm(norm) => !matches!(norm, Normalization::Group { .. }),
        Op::ConcatTokens | Op::SliceTokens { .. } => true,
        Op::Attention(_) => products() == Products::Half && element == ElementType::BF16,
        // What is added to another value is added in its place.
        Op::Conv2d(op) => products() == Products::Half && !op.accumulate,
        _ => false,
    }
}

/// Whether a node's result may take its first input's place, if they have these elements.
pub fn in_place(
    graph: &Graph,
    node: &Node,
    [input, output]: [ElementType; 2],
    backend: BackendKind,
    assignment: &Assignment,
) -> bool {
    match &node.op {
        Op::Conv2d(op) if op.narrow && backend == BackendKind::Cuda => {
            let products = cuda::products(graph, node, assignment);
            let narrows = conv::narrows(&conv_shape(graph, node, op), products, input);
            output == ElementType::F32 && narrows
        }
        op => op.in_place() && input.bytes() == output.bytes(),
    }
}
