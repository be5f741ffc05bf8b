//! Workspaces: what a node needs beside its inputs and its result, on each kind of backend.

use protocol::{BackendKind, Bytes};

use super::kernels;
use super::run::{attention_shape, conv_shape, group_norm_shape};
use crate::graph::{Graph, Node, Normalization, Op};

/// What a CUDA device will give to cuBLASLt for one product: the size that NVIDIA recommends for
/// `cublasSetWorkspace` on Hopper (cuBLAS documentation, section 2.1.14); older ones take less.
const CUBLASLT_WORKSPACE: Bytes = Bytes::mib(32);

/// Workspace of a node in bytes. On the host and on virtual devices it is what the kernels assert that
/// they get. For CUDA it is the contract that its backend has to keep: attention and convolution
/// without workspaces in memory, products with a fixed one.
pub fn workspace_bytes(graph: &Graph, node: &Node, backend: BackendKind, threads: usize) -> Bytes {
    match backend {
        BackendKind::Host | BackendKind::Virtual => {
            Bytes(4 * kernel_scratch_len(graph, node, threads) as u64)
        }
        BackendKind::Cuda => match node.op {
            Op::Linear(_) => CUBLASLT_WORKSPACE,
            _ => Bytes::ZERO,
        },
    }
}

/// Workspace of the host's kernels in f32 elements.
fn kernel_scratch_len(graph: &Graph, node: &Node, threads: usize) -> usize {
    match &node.op {
        Op::Linear(_) => {
            let in_features: Vec<usize> =
                node.inputs.iter().map(|&x| graph.value(x).features()).collect();
            let output = graph.value(node.output);
            let shape = kernels::LinearShape {
                rows: output.elements() / output.features(),
                in_features: &in_features,
                out_features: output.features(),
            };
            kernels::linear_scratch_len(&shape, threads)
        }
        Op::Attention(op) => {
            kernels::attention_scratch_len(&attention_shape(graph, node, op), threads)
        }
        Op::Conv2d(op) => kernels::conv2d_scratch_len(&conv_shape(graph, node, op), threads),
        Op::Norm(Normalization::Group { groups, eps, .. }) => {
            kernels::group_norm_scratch_len(&group_norm_shape(graph, node, *groups, *eps))
        }
        _ => 0,
    }
}
