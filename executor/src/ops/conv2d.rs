//! Convolution of the last input, NHWC, with weights `[out, in, kernel, kernel]` and bias `[out]`;
//! with a norm before it, also that one's scale and shift `[in]`. Where it accumulates, the first
//! of two inputs is added to the result.

use protocol::Bytes;
use protocol::profile::WorkKind;

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::{Products, conv, products};
use crate::backend::kernels::{self, ConvShape, InputNorm};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation};
use crate::graph::{ElementType, GraphBuilder, NodeView, Operation, ValueId, WeightId};
use crate::ops::linear::bf16_products;
use crate::schedule::{Assignment, Elements, Reading};
use crate::weights::{TensorRef, WeightsError};

/// Its name.
pub const NAME: &str = "Conv2d";

/// The operation; its parameters are the same in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvOp {
    /// Height and width of the kernel: 1 or 3.
    pub kernel: usize,
    /// 2 where the input is enlarged by nearest neighbour before the convolution, else 1.
    pub upsample: usize,
    /// From one output pixel to the next.
    pub stride: usize,
    /// Zeros above and to the left.
    pub pad_before: usize,
    /// Zeros below and to the right.
    pub pad_after: usize,
    /// The normalisation of the input, which is done without a result of its own.
    pub norm: Option<ConvNorm>,
    /// Whether the result is added to another value, in whose place it may stand.
    pub accumulate: bool,
    /// Whether it takes at most half of a pixel's features of that pixel alone: then the result may
    /// stand in the input's place.
    pub narrow: bool,
}

/// A group normalisation before a convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvNorm {
    /// Into how many the channels are divided.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether x · sigmoid(x) follows.
    pub silu: bool,
}

impl ConvOp {
    /// A convolution whose padding keeps the size.
    pub const fn same(kernel: usize) -> ConvOp {
        let pad = (kernel - 1) / 2;
        ConvOp {
            kernel,
            upsample: 1,
            stride: 1,
            pad_before: pad,
            pad_after: pad,
            norm: None,
            accumulate: false,
            narrow: false,
        }
    }

    /// Whether output pixels are functions of the input pixels in the same places.
    fn is_of_pixels(&self) -> bool {
        [self.kernel, self.upsample, self.stride] == [1; 3] && self.pad_before + self.pad_after == 0
    }

    /// Length of a side of the output.
    fn output_side(&self, side: usize) -> usize {
        let padded = side * self.upsample + self.pad_before + self.pad_after;
        (padded - self.kernel) / self.stride + 1
    }
}

impl GraphBuilder<'_> {
    /// Convolution with `prefix.weight` `[out, in, kernel, kernel]` and `prefix.bias`.
    pub fn conv2d(
        &mut self,
        x: ValueId,
        prefix: &str,
        out: usize,
        op: ConvOp,
    ) -> Result<ValueId, WeightsError> {
        assert!(op.norm.is_none(), "a norm has weights");
        self.convolve(None, x, (prefix, out), op, vec![])
    }

    /// As [`GraphBuilder::conv2d`] of x normalised with `norm_prefix.weight` and
    /// `norm_prefix.bias`; added to `sum`, if there is one.
    pub fn norm_conv2d(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (norm_prefix, norm): (&str, ConvNorm),
        prefix: (&str, usize),
        op: ConvOp,
    ) -> Result<ValueId, WeightsError> {
        let scale_and_shift = self.scale_and_shift(x, norm_prefix)?;
        self.convolve(sum, x, prefix, ConvOp { norm: Some(norm), ..op }, scale_and_shift)
    }

    /// As [`GraphBuilder::conv2d`] of the only frame of a film, or of its first one, with zeros for
    /// those before it: of `prefix.weight` `[out, in, kernel, kernel, kernel]` the last frame's
    /// taps. Added to `sum`, if there is one.
    pub fn frame_conv2d(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (prefix, out): (&str, usize),
        op: ConvOp,
    ) -> Result<ValueId, WeightsError> {
        assert!(op.norm.is_none(), "a norm has weights");
        let (name, kernel) = (format!("{prefix}.weight"), op.kernel);
        let stored = [out, self.features(x), kernel, kernel, kernel];
        let weight = self.weight_part(&name, &stored, TensorRef::last_frame)?;
        self.convolve_by(sum, x, (prefix, weight, out), op, vec![])
    }

    fn convolve(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (prefix, out): (&str, usize),
        op: ConvOp,
        norm: Vec<WeightId>,
    ) -> Result<ValueId, WeightsError> {
        let shape = [out, self.features(x), op.kernel, op.kernel];
        let weight = self.weight(&format!("{prefix}.weight"), &shape)?;
        self.convolve_by(sum, x, (prefix, weight, out), op, norm)
    }

    fn convolve_by(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (prefix, weight, out): (&str, WeightId, usize),
        op: ConvOp,
        norm: Vec<WeightId>,
    ) -> Result<ValueId, WeightsError> {
        let mut shape = self.shape(x).to_vec(); // [batch, height, width, channels]
        let bias = self.weight(&format!("{prefix}.bias"), &[out])?;
        let narrow = op.is_of_pixels() && op.norm.is_none() && sum.is_none() && 2 * out <= shape[3];
        shape[1] = op.output_side(shape[1]);
        shape[2] = op.output_side(shape[2]);
        shape[3] = out;
        assert!(sum.is_none_or(|sum| self.shape(sum) == shape), "sums have one shape");
        let op = ConvOp { accumulate: sum.is_some(), narrow, ..op };
        let weights = [weight, bias].into_iter().chain(norm).collect();
        Ok(self.node(op, sum.into_iter().chain([x]).collect(), weights, &shape))
    }
}

impl Operation for ConvOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn work_kind(&self, _: NodeView<'_>) -> WorkKind {
        WorkKind::Convolution
    }

    fn flops(&self, node: NodeView<'_>) -> f64 {
        let channels = node.input(self.convolved()).features();
        let products = self.kernel * self.kernel * channels;
        2.0 * node.output().elements() as f64 * products as f64
    }

    fn in_place(&self) -> bool {
        self.accumulate || self.narrow
    }
}

impl ConvOp {
    /// Index of the input that is convolved.
    fn convolved(&self) -> usize {
        usize::from(self.accumulate)
    }

    fn shape(&self, node: NodeView<'_>) -> ConvShape {
        let input = &node.input(self.convolved()).shape;
        ConvShape {
            batch: input[0],
            height: input[1],
            width: input[2],
            in_channels: input[3],
            out_channels: node.output().features(),
            kernel_height: self.kernel,
            kernel_width: self.kernel,
            stride: self.stride,
            pad_top: self.pad_before,
            pad_left: self.pad_before,
            pad_bottom: self.pad_after,
            pad_right: self.pad_after,
            upsample: self.upsample,
            norm: self.norm.map(|ConvNorm { groups, eps, silu }| InputNorm { groups, eps, silu }),
            accumulate: self.accumulate,
        }
    }
}

impl HostOperation for ConvOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, assignment: &Assignment) -> usize {
        let (shape, threads) = (self.shape(node), assignment.threads);
        let apart = kernels::conv2d_scratch_len(&shape, threads);
        // Whether it stands in its input's place is known only when the lifetimes are.
        let in_place = if self.narrow { kernels::narrow_scratch_len(&shape, threads) } else { 0 };
        apart.max(in_place)
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let (workers, shape) = (on.workers(), self.shape(on.view()));
        let bias = Some(on.weight(1));
        let norm = self.norm.map(|_| [on.weight(2), on.weight(3)]);
        let workspace = on.workspace();
        let filters = on.filters(0);
        let rounds = bf16_products(filters.weight.storage, on.assignment());
        if self.narrow && on.is_taken_over() {
            let (x, weight) = (on.taken_over(), on.weight(0));
            kernels::narrow(workers, &shape, x, weight, bias, rounds, workspace);
            return;
        }
        let out = if self.accumulate { on.output_of_first() } else { on.output() };
        let input = on.input(self.convolved());
        let kernel = if rounds { kernels::bf16_conv2d } else { kernels::conv2d };
        kernel(workers, &shape, input, norm, filters, bias, out, workspace);
    }
}

impl CudaOperation for ConvOp {
    fn cuda_workspace_bytes(
        &self,
        node: NodeView<'_>,
        _: &Elements,
        _: usize,
        assignment: &Assignment,
    ) -> Bytes {
        let storage = node.storage(0).expect("a convolution has weights");
        let products = products(node, assignment);
        conv::conv_workspace_bytes(&self.shape(node), storage, products, self.narrow)
    }

    fn cuda_reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading {
        Reading::As(conv::reads(&self.shape(node), products(node, assignment), index))
    }

    fn cuda_writes(&self, node: NodeView<'_>, _: ElementType, assignment: &Assignment) -> bool {
        // What is added to another value is added in its place.
        products(node, assignment) == Products::Half && !self.accumulate
    }

    fn cuda_in_place(
        &self,
        node: NodeView<'_>,
        [input, output]: [ElementType; 2],
        assignment: &Assignment,
    ) -> bool {
        if self.narrow {
            let narrows = conv::narrows(&self.shape(node), products(node, assignment), input);
            return output == ElementType::F32 && narrows;
        }
        self.accumulate && input.bytes() == output.bytes()
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = self.shape(on.view());
        let operands = conv::ConvOperands {
            input: on.input_at(self.convolved()),
            norm: self.norm.map(|_| [on.weight(2), on.weight(3)]),
            weight: on.weight(0),
            bias: on.weight(1),
            added: self.accumulate.then(|| on.input(0)),
            out: on.output_at(),
        };
        let (to, products, workspace) = (on.launcher(), on.products(), on.workspace());
        if self.narrow && on.is_taken_over() {
            return conv::narrow(to, &shape, products, &operands, workspace);
        }
        conv::conv2d(to, &shape, products, &operands, workspace)
    }
}
