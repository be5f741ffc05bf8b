//! What GPUs' kernels read and write: the element types of a node's inputs and result, and which results may take an input's place.
//!
//! Host and virtual devices know values as graphs have them.

use protocol::BackendKind;

use super::cuda;
use super::cuda::ops::linear::AfterSums;
use super::cuda::ops::{Products, attention, conv, linear};
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
            let Some(weight) = node.weights.first() else { return Reading::As(own) };
            let storage = graph.weights[weight.0].tensor.storage();
            let in_features = in_features(graph, node);
            let shape =
                linear_shape(graph, node, &in_features, graph.value(node.output).features());
            let exact = products() == Products::Exact;
            Reading::WithOthersAs(linear::reads(&shape, storage, exact))
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

/// Whether a GPU best writes a node's result in such elements, where these are not those that the graph says.
pub fn writes(graph: &Graph, node: &Node, element: ElementType, assignment: &Assignment) -> bool {
    let products = || cuda::products(graph, node, assignment);
    match &node.op {
        Op::Linear(activation) => {
            let storages = |at: usize| {
                node.weights.get(at).map(|weight| graph.weights[weight.0].tensor.storage())
            };
            let Some(storage) = storages(0) else { return false };
            let in_features = in_features(graph, node);
            let shape =
                linear_shape(graph, node, &in_features, graph.value(node.output).features());
            let after = AfterSums { bias: storages(1), activation: *activation };
            linear::writes(&shape, storage, products() == Products::Exact, &after, element)
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
