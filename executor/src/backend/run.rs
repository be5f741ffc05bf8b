//! Runs a node with the host's kernels, over whichever memory holds its lane's arena.
//!
//! Nothing is allocated here that grows with the job: values and workspaces lie in the arena.

use super::NodeCall;
use super::kernels::{
    self, AttentionShape, Columns, ConvShape, GroupNormShape, InputNorm, Modulation, Workers,
};
use super::workspace::integer_products;
use crate::graph::{Activation, AttentionOp, ConvNorm, ConvOp, Graph, Node, Normalization, Op};
use crate::schedule::Run;
use crate::weights::TensorRef;
use crate::weights::view::WeightView;

/// Computes a node.
pub fn run(call: &NodeCall<'_>, workers: &Workers) {
    let threads = call.schedule.assignment.threads;
    assert_eq!(workers.count(), threads, "workspaces were made for other workers");
    Running { call, node: call.node() }.run(workers);
}

/// The shape of an attention node.
pub(super) fn attention_shape(
    graph: &Graph,
    node: &Node,
    op: &AttentionOp,
    query_chunk: usize,
) -> AttentionShape {
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
        query_chunk,
    }
}

/// The shape of a convolution node.
pub(super) fn conv_shape(graph: &Graph, node: &Node, op: &ConvOp) -> ConvShape {
    let input = node.inputs.last().expect("a convolution has an input");
    let input = &graph.value(*input).shape;
    ConvShape {
        batch: input[0],
        height: input[1],
        width: input[2],
        in_channels: input[3],
        out_channels: graph.value(node.output).features(),
        kernel_height: op.kernel,
        kernel_width: op.kernel,
        stride: op.stride,
        pad_top: op.pad_before,
        pad_left: op.pad_before,
        pad_bottom: op.pad_after,
        pad_right: op.pad_after,
        upsample: op.upsample,
        norm: op.norm.map(|ConvNorm { groups, eps, silu }| InputNorm { groups, eps, silu }),
        accumulate: op.accumulate,
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
    call: &'a NodeCall<'a>,
    node: &'a Node,
}

impl Running<'_> {
    fn run(&self, workers: &Workers) {
        let graph = &self.call.schedule.graph;
        let node = self.node;
        let narrow = matches!(&node.op, Op::Conv2d(op) if op.narrow);
        if node.op.in_place() && !narrow && !self.call.is_taken_over() {
            self.output().copy_from_slice(self.input(0));
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
            Op::ScaledAdd { scale, first_feature } => {
                let features = graph.value(node.output).features();
                let y_features = graph.value(node.inputs[1]).features();
                let added = *first_feature..first_feature + y_features;
                kernels::scaled_add(workers, out, features, added, self.input(1), *scale);
            }
            Op::Rope { heads } => {
                let shape = &graph.value(node.output).shape; // [batch, tokens, heads × head_dim]
                let head_dim = shape[2] / heads;
                kernels::rope(workers, out, self.input(1), shape[1], *heads, head_dim);
            }
            Op::Attention(op) => {
                let chunk = self.call.schedule.assignment.attention_chunk;
                let shape = attention_shape(graph, node, op, chunk);
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
            Op::Conv2d(op) => self.convolve(workers, op),
        }
    }

    fn convolve(&self, workers: &Workers, op: &ConvOp) {
        let shape = conv_shape(&self.call.schedule.graph, self.node, op);
        let (weight, bias) = (self.weight(0), Some(self.weight(1)));
        let norm = op.norm.map(|_| [self.weight(2), self.weight(3)]);
        let workspace = self.workspace();
        if op.narrow && self.call.is_taken_over() {
            kernels::narrow(workers, &shape, self.input_mut(), weight, bias, workspace);
            return;
        }
        let input = self.input(self.node.inputs.len() - 1);
        kernels::conv2d(workers, &shape, input, norm, weight, bias, self.output(), workspace);
    }

    fn linear(&self, workers: &Workers, activation: Activation, out: &mut [f32]) {
        let rows = self.call.slice(0).rows.len();
        let (tensor, bytes) = self.weight_bytes(0);
        // A 1 x 1 convolution's [out, in, 1, 1] is a matrix too.
        let shape = [rows, tensor.shape()[1..].iter().product()];
        let weight = tensor.view_of(&shape, bytes);
        let bias_shape = [rows];
        let bias = (self.node.weights.len() > 1).then(|| {
            let (tensor, bytes) = self.weight_bytes(1);
            tensor.view_of(&bias_shape, bytes)
        });
        let Run { output_features, columns, .. } = self.call.run;
        let columns = Columns { stride: *output_features, from: columns.start };
        let workspace = self.workspace();
        let integer = integer_products(weight.storage, &self.call.schedule.assignment);
        let kernel = if integer { kernels::integer_linear } else { kernels::linear };
        let one = [self.input(0)];
        match self.node.inputs.len() {
            1 => kernel(workers, &one, weight, bias, activation, out, columns, workspace),
            2 => {
                let two = [self.input(0), self.input(1)];
                kernel(workers, &two, weight, bias, activation, out, columns, workspace);
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

    fn input(&self, index: usize) -> &[f32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    fn ids(&self, index: usize) -> &[i32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    fn input_bytes(&self, index: usize) -> &[u8] {
        let (value, offset) = (self.call.input(index), self.call.run.inputs[index]);
        // SAFETY: a node's inputs are alive at it and so overlap neither its result (except the one that
        // is taken over, which is not read then) nor its workspace: asserted when the arena was made.
        unsafe { self.call.arena().bytes(offset, value.bytes().as_usize()) }
    }

    /// The first input, whose place the result takes.
    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    fn input_mut(&self) -> &mut [f32] {
        assert!(self.call.is_taken_over());
        let bytes = self.call.input(0).bytes().as_usize();
        // SAFETY: as of `output`, whose range begins where this one does and is not used beside it.
        bytemuck::cast_slice_mut(unsafe {
            self.call.arena().bytes_mut(self.call.run.output, bytes)
        })
    }

    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    fn output(&self) -> &mut [f32] {
        let (output, bytes) = (self.call.run.output, self.call.output_bytes().as_usize());
        // SAFETY: the result's range is disjoint from all that is read while it is written; see above. Of a
        // result that comes from several lanes each writes its own columns.
        bytemuck::cast_slice_mut(unsafe { self.call.arena().bytes_mut(output, bytes) })
    }

    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    fn workspace(&self) -> &mut [f32] {
        let (offset, bytes) = self.call.run.workspace;
        // SAFETY: a workspace is alive at its node only, and disjoint from all values alive there.
        bytemuck::cast_slice_mut(unsafe { self.call.arena().bytes_mut(offset, bytes.as_usize()) })
    }

    /// A whole weight.
    fn weight(&self, index: usize) -> WeightView<'_> {
        let (tensor, bytes) = self.weight_bytes(index);
        tensor.view_of(tensor.shape(), bytes)
    }

    /// A weight, and the bytes of its rows on this lane.
    fn weight_bytes(&self, index: usize) -> (&TensorRef, &[u8]) {
        let call = self.call;
        let (tensor, length) = (call.tensor(index), call.weight_bytes(index).as_usize());
        let Some((region, offset)) = call.weight_place(index) else {
            let start = call.slice(index).rows.start * tensor.row_bytes().as_usize();
            return (tensor, &tensor.view(call.files).bytes[start..][..length]);
        };
        // SAFETY: weights are written before the computation that waits for them, and a slot not again before
        // it was given back.
        (tensor, unsafe { region.bytes(offset, length) })
    }
}
