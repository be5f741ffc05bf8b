//! Workspaces: what a node needs beside its inputs and its result, on each kind of backend.

use protocol::{BackendKind, Bytes, StorageType};

use super::cuda;
use super::cuda::ops::{Products, attention, conv, linear, norm};
use super::kernels::{self, LinearShape};
use super::run::{attention_shape, conv_shape, group_norm_shape};
use crate::graph::{Graph, Node, Normalization, Op};
use crate::schedule::{Assignment, Elements};

/// Workspace of a node in bytes, for as many features of its result as are computed: what the kernels of its backend
/// take, from shapes alone.
pub fn workspace_bytes(
    graph: &Graph,
    elements: &Elements,
    node: &Node,
    out_features: usize,
    backend: BackendKind,
    assignment: &Assignment,
) -> Bytes {
    match backend {
        BackendKind::Host | BackendKind::Virtual => {
            Bytes(4 * kernel_scratch_len(graph, node, out_features, assignment) as u64)
        }
        BackendKind::Cuda => cuda_workspace_bytes(graph, elements, node, out_features, assignment),
    }
}

/// Workspace of a GPU's kernels.
fn cuda_workspace_bytes(
    graph: &Graph,
    elements: &Elements,
    node: &Node,
    out_features: usize,
    assignment: &Assignment,
) -> Bytes {
    let products = cuda::products(graph, node, assignment);
    let storage = node.weights.first().map(|weight| graph.weights[weight.0].tensor.storage());
    match &node.op {
        Op::Linear(_) => {
            let in_features = in_features(graph, node);
            let shape = linear_shape(graph, node, &in_features, out_features);
            let storage = storage.expect("a linear layer has weights");
            let element = elements.of(node.inputs[0]);
            linear::linear_workspace_bytes(&shape, storage, products == Products::Exact, element)
        }
        Op::Attention(op) => {
            let shape = attention_shape(graph, node, op, assignment.attention_chunk);
            let qkv = [0, 1, 2].map(|index| elements.of(node.inputs[index]));
            attention::attention_workspace_bytes(&shape, products, qkv)
        }
        Op::Conv2d(op) => {
            let shape = conv_shape(graph, node, op);
            let storage = storage.expect("a convolution has weights");
            conv::conv_workspace_bytes(&shape, storage, products, op.narrow)
        }
        Op::Norm(Normalization::Group { groups, eps, .. }) => {
            let shape = group_norm_shape(graph, node, *groups, *eps);
            Bytes(norm::group::group_norm_workspace_bytes(&shape) as u64)
        }
        _ => Bytes::ZERO,
    }
}

/// The features of each input of a linear layer.
pub(super) fn in_features(graph: &Graph, node: &Node) -> Vec<usize> {
    node.inputs.iter().map(|&input| graph.value(input).features()).collect()
}

pub(super) fn linear_shape<'a>(
    graph: &Graph,
    node: &Node,
    in_features: &'a [usize],
    out_features: usize,
) -> LinearShape<'a> {
    let output = graph.value(node.output);
    LinearShape { rows: output.elements() / output.features(), in_features, out_features }
}

/// Whether the host's products with weights of a type are formed of bytes.
pub(super) fn integer_products(storage: StorageType, assignment: &Assignment) -> bool {
    !assignment.exact_matmul && storage.has_integer_products()
}

/// Workspace of the host's kernels in f32 elements.
fn kernel_scratch_len(
    graph: &Graph,
    node: &Node,
    out_features: usize,
    assignment: &Assignment,
) -> usize {
    let threads = assignment.threads;
    match &node.op {
        Op::Linear(_) => {
            let in_features = in_features(graph, node);
            let shape = linear_shape(graph, node, &in_features, out_features);
            let weight = node.weights.first();
            let storage = weight.map(|weight| graph.weights[weight.0].tensor.storage());
            match storage {
                Some(storage) if integer_products(storage, assignment) => {
                    kernels::integer_linear_scratch_len(&shape, storage, threads)
                }
                _ => kernels::linear_scratch_len(&shape, threads),
            }
        }
        Op::Attention(op) => {
            let shape = attention_shape(graph, node, op, assignment.attention_chunk);
            kernels::attention_scratch_len(&shape, threads)
        }
        Op::Conv2d(op) => {
            let shape = conv_shape(graph, node, op);
            let apart = kernels::conv2d_scratch_len(&shape, threads);
            // Whether it stands in its input's place is known only when the lifetimes are.
            let in_place = if op.narrow { kernels::narrow_scratch_len(&shape, threads) } else { 0 };
            apart.max(in_place)
        }
        Op::Norm(Normalization::Group { groups, eps, .. }) => {
            kernels::group_norm_scratch_len(&group_norm_shape(graph, node, *groups, *eps))
        }
        _ => 0,
    }
}
