//! The operations that graphs are made of.
//!
//! Each has a file of its own with everything of it: its parameters, the builder's method that adds
//! it to a graph with its shapes and checks, what its time follows (`Operation`), what it takes and
//! how it runs on the host's kernels (`HostOperation`) and on those of GPUs (`CudaOperation`). A
//! new one is a file, its `mod` and its line in [`NAMES`], and its kernels.
//!
//! Shapes are written with the outermost dimension first.
//!
//! Not here: the kernels (`backend::kernels`, `backend::cuda::ops`), and where values lie.

pub mod activate;
pub mod ada_layer_norm;
pub mod add;
pub mod add_positions;
pub mod attention;
pub mod concat_tokens;
pub mod conv2d;
pub mod embedding;
pub mod gated_add;
pub mod gated_norm_add;
pub mod known_attention;
pub mod linear;
pub mod mul;
pub mod norm;
pub mod pad_tokens;
pub mod relative_position_bias;
pub mod rope;
pub mod rope_halves;
pub mod scaled_add;
pub mod scaled_norm;
pub mod sinusoid;
pub mod slice_tokens;

use protocol::{BackendKind, Bytes};

use crate::backend::operation::computed;
use crate::graph::{ElementType, NodeView};
use crate::schedule::{Assignment, Elements, Needs, Reading};

/// The names of all operations.
pub const NAMES: [&str; 22] = [
    embedding::NAME,
    add_positions::NAME,
    linear::NAME,
    activate::NAME,
    norm::NAME,
    ada_layer_norm::NAME,
    add::NAME,
    mul::NAME,
    gated_add::NAME,
    rope::NAME,
    attention::NAME,
    relative_position_bias::NAME,
    concat_tokens::NAME,
    slice_tokens::NAME,
    sinusoid::NAME,
    conv2d::NAME,
    scaled_add::NAME,
    rope_halves::NAME,
    pad_tokens::NAME,
    scaled_norm::NAME,
    gated_norm_add::NAME,
    known_attention::NAME,
];

/// What schedules ask of the nodes of a graph, answered by their operations.
pub struct OperationNeeds;

impl Needs for OperationNeeds {
    fn operations(&self) -> &'static [&'static str] {
        &NAMES
    }

    fn workspace_bytes(
        &self,
        node: NodeView<'_>,
        elements: &Elements,
        out_features: usize,
        backend: BackendKind,
        assignment: &Assignment,
    ) -> Bytes {
        let op = computed(&node.node.op);
        match backend {
            BackendKind::Host | BackendKind::Virtual => {
                Bytes(4 * op.host_workspace_len(node, out_features, assignment) as u64)
            }
            BackendKind::Cuda => op.cuda_workspace_bytes(node, elements, out_features, assignment),
        }
    }

    fn reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading {
        computed(&node.node.op).cuda_reading(node, index, assignment)
    }

    fn writes(&self, node: NodeView<'_>, element: ElementType, assignment: &Assignment) -> bool {
        computed(&node.node.op).cuda_writes(node, element, assignment)
    }

    fn in_place(
        &self,
        node: NodeView<'_>,
        [input, output]: [ElementType; 2],
        backend: BackendKind,
        assignment: &Assignment,
    ) -> bool {
        let op = computed(&node.node.op);
        match backend {
            BackendKind::Host | BackendKind::Virtual => {
                op.in_place() && input.bytes() == output.bytes()
            }
            BackendKind::Cuda => op.cuda_in_place(node, [input, output], assignment),
        }
    }
}
