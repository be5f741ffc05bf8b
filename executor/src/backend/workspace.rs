//! Workspaces: what a node needs beside its inputs and its result, on each kind of backend.

use protocol::{BackendKind, Bytes, StorageType};

use super::kernels;
use super::run::{attention_shape, conv_shape, group_norm_shape};
use crate::graph::{Graph, Node, Normalization, Op};
use crate::schedule::Assignment;

/// What a CUDA device will give to cuBLASLt for one product: the size that NVIDIA recommends for
/// `cublasSetWorkspace` on Hopper (cuBLAS documentation, section 2.1.14); older ones take less.
const CUBLASLT_WORKSPACE: Bytes = Bytes::mib(32);

/// What a normalisation before a convolution keeps of a group between its two passes: mean and scale.
const GROUP_MOMENTS_BYTES: u64 = 8;

/// Workspace of a node in bytes, for as many features of its result as are computed. On the host and on virtual
/// devices it is what the kernels assert that they get. For CUDA it is the contract that its backend has to
/// keep: attention without workspaces in memory, convolution with the moments of its norm, products with a fixed one.
pub fn workspace_bytes(
    graph: &Graph,
    node: &Node,
    out_features: usize,
    backend: BackendKind,
    assignment: &Assignment,
) -> Bytes {
    match backend {
        BackendKind::Host | BackendKind::Virtual => {
            Bytes(4 * kernel_scratch_len(graph, node, out_features, assignment) as u64)
        }
        BackendKind::Cuda => match &node.op {
            Op::Linear(_) => CUBLASLT_WORKSPACE,
            Op::Conv2d(op) => op.norm.map_or(Bytes::ZERO, |norm| {
                let batch = graph.value(node.output).shape[0];
                Bytes((batch * norm.groups) as u64 * GROUP_MOMENTS_BYTES)
            }),
            _ => Bytes::ZERO,
        },
    }
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
            let in_features: Vec<usize> =
                node.inputs.iter().map(|&x| graph.value(x).features()).collect();
            let output = graph.value(node.output);
            let rows = output.elements() / output.features();
            let shape = kernels::LinearShape { rows, in_features: &in_features, out_features };
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
