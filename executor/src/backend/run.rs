//! Runs the nodes of a schedule with the host's kernels, over whichever memory holds its arena.
//!
//! Nothing is allocated here that grows with the job: values and workspaces lie in the arena.

use std::sync::Arc;

use protocol::Bytes;

use super::kernels::{self, AttentionShape, ConvShape, GroupNormShape, Modulation, Workers};
use super::{CancelFlag, Cancelled, Region};
use crate::graph::{
    Activation, AttentionOp, ConvOp, Graph, Node, Normalization, Op, ValueId, WeightId,
};
use crate::schedule::Schedule;
use crate::weights::WeightFiles;
use crate::weights::view::WeightView;

/// Where the weights of a call are.
#[derive(Clone, Copy)]
pub enum WeightPlace<'a> {
    /// In the mapping of their files.
    Mapped,
    /// In a region, at the schedule's offsets.
    Region(&'a Arc<Region>),
}

/// One run of a schedule.
pub struct Call<'a> {
    /// What to run.
    pub schedule: &'a Schedule,
    /// The memory of its values; at least as large as the schedule says.
    pub arena: &'a Arc<Region>,
    /// Where its weights are.
    pub weights: WeightPlace<'a>,
    /// Their files.
    pub files: &'a WeightFiles,
}

/// Runs all nodes in order; between two nodes it may be cancelled.
pub fn run(call: &Call<'_>, workers: &Workers, cancel: &CancelFlag) -> Result<(), Cancelled> {
    assert_eq!(workers.count(), call.schedule.threads, "workspaces were made for other workers");
    for (index, node) in call.schedule.graph.nodes.iter().enumerate() {
        cancel.check()?;
        Running { call, index, node }.run(workers);
    }
    Ok(())
}

/// The shape of an attention node.
pub(super) fn attention_shape(graph: &Graph, node: &Node, op: &AttentionOp) -> AttentionShape {
    let (q, k) = (graph.value(node.inputs[0]), graph.value(node.inputs[1]));
    // NHWC values are taken as [batch, height × width, channels].
    let tokens = |value: &crate::graph::Value| value.elements() / value.shape[0] / value.features();
    AttentionShape {
        batch: q.shape[0],
        query_tokens: tokens(q),
        key_tokens: tokens(k),
        heads: op.heads,
        head_dim: q.features() / op.heads,
        scale: op.scale,
        causal: op.causal,
    }
}

/// The shape of a convolution node.
pub(super) fn conv_shape(graph: &Graph, node: &Node, op: &ConvOp) -> ConvShape {
    let input = &graph.value(node.inputs[0]).shape;
    let pad = (op.kernel - 1) / 2;
    ConvShape {
        batch: input[0],
        height: input[1],
        width: input[2],
        in_channels: input[3],
        out_channels: graph.value(node.output).features(),
        kernel_height: op.kernel,
        kernel_width: op.kernel,
        stride: 1,
        pad_top: pad,
        pad_left: pad,
        pad_bottom: pad,
        pad_right: pad,
        upsample: op.upsample,
    }
}

/// The shape of a group normalisation node.
pub(super) fn group_norm_shape(
    graph: &Graph,
    node: &Node,
    groups: usize,
    eps: f32,
) -> GroupNormShape {
    let x = graph.value(node.inputs[0]);
    let batch = x.shape[0];
    let channels = x.features();
    GroupNormShape { batch, pixels: x.elements() / batch / channels, channels, groups, eps }
}

struct Running<'a> {
    call: &'a Call<'a>,
    index: usize,
    node: &'a Node,
}

impl Running<'_> {
    fn run(&self, workers: &Workers) {
        let graph = &self.call.schedule.graph;
        let node = self.node;
        if node.op.in_place() {
            self.take_over();
        }
        let out = self.output();
        match &node.op {
            Op::Embedding => kernels::embedding(workers, self.ids(0), self.weight(0), out),
            Op::AddPositions => {
                let shape = &graph.value(node.output).shape; // [batch, tokens, features]
                kernels::add_rows(workers, out, shape[1], shape[2], self.weight(0));
            }
            Op::Linear(activation) => self.linear(workers, *activation, out),
            Op::Activate(activation) => kernels::activate(workers, out, *activation),
            Op::Norm(norm) => self.norm(workers, norm, out),
            Op::AdaLayerNorm { eps, shift_chunk, scale_chunk } => {
                let modulation = self.modulation(1);
                kernels::ada_layer_norm(workers, out, modulation, *shift_chunk, *scale_chunk, *eps);
            }
            Op::Add => kernels::add(workers, out, self.input(1)),
            Op::Mul => kernels::mul(workers, out, self.input(1)),
            Op::GatedAdd { gate_chunk } => {
                kernels::gated_add(workers, out, self.input(1), self.modulation(2), *gate_chunk);
            }
            Op::Rope { heads } => {
                let shape = &graph.value(node.output).shape; // [batch, tokens, heads × head_dim]
                let head_dim = shape[2] / heads;
                kernels::rope(workers, out, self.input(1), shape[1], *heads, head_dim);
            }
            Op::Attention(op) => {
                let shape = attention_shape(graph, node, op);
                let bias = (node.inputs.len() > 3).then(|| self.input(3));
                let (q, k, v) = (self.input(0), self.input(1), self.input(2));
                kernels::attention(workers, &shape, q, k, v, bias, out, self.workspace());
            }
            Op::RelativePositionBias { max_distance } => {
                let table = self.weight(0);
                let tokens = graph.value(node.output).shape[1].div_ceil(2);
                kernels::relative_position_bias(tokens, table.shape[0], *max_distance, table, out);
            }
            Op::ConcatTokens => {
                let shape = &graph.value(node.output).shape; // [batch, tokens, features]
                let (a, b) = (self.input(0), self.input(1));
                kernels::concat_tokens(workers, a, b, shape[0], shape[2], out);
            }
            Op::SliceTokens { from } => {
                let shape = &graph.value(node.output).shape; // [batch, tokens, features]
                kernels::slice_tokens(workers, self.input(0), shape[0], shape[2], *from, out);
            }
            Op::Sinusoid => {
                kernels::sinusoid(self.input(0), graph.value(node.output).features(), out)
            }
            Op::Conv2d(op) => {
                let shape = conv_shape(graph, node, op);
                let bias = Some(self.weight(1));
                let workspace = self.workspace();
                kernels::conv2d(
                    workers,
                    &shape,
                    self.input(0),
                    self.weight(0),
                    bias,
                    out,
                    workspace,
                );
            }
        }
    }

    fn linear(&self, workers: &Workers, activation: Activation, out: &mut [f32]) {
        let bias = (self.node.weights.len() > 1).then(|| self.weight(1));
        let weight = self.weight(0);
        let workspace = self.workspace();
        match self.node.inputs.len() {
            1 => {
                kernels::linear(workers, &[self.input(0)], weight, bias, activation, out, workspace)
            }
            2 => {
                let inputs = [self.input(0), self.input(1)];
                kernels::linear(workers, &inputs, weight, bias, activation, out, workspace);
            }
            more => unreachable!("no family joins {more} inputs"),
        }
    }

    fn norm(&self, workers: &Workers, norm: &Normalization, out: &mut [f32]) {
        let graph = &self.call.schedule.graph;
        match norm {
            Normalization::Layer { eps } => {
                let affine = Some((self.weight(0), self.weight(1)));
                let features = graph.value(self.node.output).features();
                kernels::layer_norm(workers, out, features, *eps, affine);
            }
            Normalization::Rms { eps } => {
                let weight = self.weight(0);
                kernels::rms_norm(workers, out, weight.shape[0], *eps, weight);
            }
            Normalization::Group { groups, eps, silu } => {
                let shape = group_norm_shape(graph, self.node, *groups, *eps);
                let (scale, shift) = (self.weight(0), self.weight(1));
                kernels::group_norm(workers, out, &shape, scale, shift, *silu, self.workspace());
            }
        }
    }

    fn modulation(&self, input: usize) -> Modulation<'_> {
        let graph = &self.call.schedule.graph;
        let x = graph.value(self.node.output);
        Modulation { values: self.input(input), batch: x.shape[0], features: x.features() }
    }

    /// Where the schedule did not give the result its first input's place, copies the input there.
    fn take_over(&self) {
        let schedule = self.call.schedule;
        let input = schedule.value_offset(self.node.inputs[0]);
        if input != schedule.value_offset(self.node.output) {
            self.output().copy_from_slice(self.input(0));
        }
    }

    fn span(&self, value: ValueId) -> (Bytes, usize) {
        let schedule = self.call.schedule;
        (schedule.value_offset(value), schedule.graph.value(value).bytes().as_usize())
    }

    fn input(&self, index: usize) -> &[f32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    fn ids(&self, index: usize) -> &[i32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    fn input_bytes(&self, index: usize) -> &[u8] {
        let (offset, bytes) = self.span(self.node.inputs[index]);
        // SAFETY: a node's inputs are alive at it and so overlap neither its result (except the one that
        // is taken over, which is not read then) nor its workspace: asserted when the arena was made.
        unsafe { self.call.arena.bytes(offset, bytes) }
    }

    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    fn output(&self) -> &mut [f32] {
        let (offset, bytes) = self.span(self.node.output);
        // SAFETY: the result's range is disjoint from all that is read while it is written; see above.
        bytemuck::cast_slice_mut(unsafe { self.call.arena.bytes_mut(offset, bytes) })
    }

    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    fn workspace(&self) -> &mut [f32] {
        let (offset, bytes) = self.call.schedule.workspace(self.index);
        // SAFETY: a workspace is alive at its node only, and disjoint from all values alive there.
        bytemuck::cast_slice_mut(unsafe { self.call.arena.bytes_mut(offset, bytes.as_usize()) })
    }

    fn weight(&self, index: usize) -> WeightView<'_> {
        let id: WeightId = self.node.weights[index];
        let tensor = &self.call.schedule.graph.weights[id.0].tensor;
        match self.call.weights {
            WeightPlace::Mapped => tensor.view(self.call.files),
            WeightPlace::Region(region) => {
                let offset = self.call.schedule.weight_offset(id);
                // SAFETY: weights are written before the first call and never while one runs.
                let bytes = unsafe { region.bytes(offset, tensor.size().as_usize()) };
                WeightView { storage: tensor.storage(), shape: tensor.shape(), bytes }
            }
        }
    }
}
