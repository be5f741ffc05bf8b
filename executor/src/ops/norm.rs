//! Normalisation with weights: of rows, of heads, or of groups of channels.

use protocol::Bytes;

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::norm::{self, group};
use crate::backend::kernels::{self, GroupNormShape};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation};
use crate::graph::{Cutting, ElementType, GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::{Assignment, Elements};
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "Norm";

/// The operation: which normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormOp {
    /// Mean and variance of each row; w scale and shift `[features]`.
    Layer {
        /// Added to the variance.
        eps: f32,
    },
    /// Root mean square over w's length, which divides the features: whole rows, or each head.
    Rms {
        /// Added to the mean square.
        eps: f32,
    },
    /// Mean and variance of each group of channels over the whole picture; w scale and shift
    /// `[channels]`.
    Group {
        /// Into how many the channels are divided.
        groups: usize,
        /// Added to the variance.
        eps: f32,
        /// Whether x · sigmoid(x) follows.
        silu: bool,
    },
}

impl GraphBuilder<'_> {
    /// Layer normalisation with `prefix.weight` and `prefix.bias`.
    pub fn layer_norm(
        &mut self,
        x: ValueId,
        prefix: &str,
        eps: f32,
    ) -> Result<ValueId, WeightsError> {
        let weights = self.scale_and_shift(x, prefix)?;
        Ok(self.same_shape(NormOp::Layer { eps }, vec![x], weights))
    }

    /// Group normalisation with `prefix.weight` and `prefix.bias`, then SiLU where asked.
    pub fn group_norm(
        &mut self,
        x: ValueId,
        prefix: &str,
        groups: usize,
        eps: f32,
        silu: bool,
    ) -> Result<ValueId, WeightsError> {
        let weights = self.scale_and_shift(x, prefix)?;
        Ok(self.same_shape(NormOp::Group { groups, eps, silu }, vec![x], weights))
    }

    /// RMS normalisation over `features` with `prefix.weight`: the whole row, or each head of it.
    pub fn rms_norm(
        &mut self,
        x: ValueId,
        prefix: &str,
        features: usize,
        eps: f32,
    ) -> Result<ValueId, WeightsError> {
        assert_eq!(self.features(x) % features, 0, "heads do not divide the row");
        let weight = self.weight(&format!("{prefix}.weight"), &[features])?;
        Ok(self.same_shape(NormOp::Rms { eps }, vec![x], vec![weight]))
    }

    /// RMS normalisation of each pixel's channels with the factors `name`, of this shape: one
    /// dimension of the channels, and some of 1.
    pub fn pixel_norm(
        &mut self,
        x: ValueId,
        name: &str,
        shape: &[usize],
        eps: f32,
    ) -> Result<ValueId, WeightsError> {
        assert_eq!(shape.iter().product::<usize>(), self.features(x), "a factor for each channel");
        let factors = self.weight_part(name, shape, |tensor| Some(tensor.as_vector()))?;
        Ok(self.same_shape(NormOp::Rms { eps }, vec![x], vec![factors]))
    }
}

impl Operation for NormOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }

    fn matrices(&self) -> usize {
        0
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        match self {
            NormOp::Rms { .. } => {
                let (all, normalised) = (node.output().features(), node.weight_shape(0)[0]);
                Cutting::Along { inputs: 1, units: all / normalised }
            }
            NormOp::Layer { .. } | NormOp::Group { .. } => Cutting::Whole,
        }
    }
}

/// The shape of a group normalisation.
fn group_norm_shape(node: NodeView<'_>, groups: usize, eps: f32) -> GroupNormShape {
    let x = node.input(0);
    let (batch, channels) = (x.shape[0], x.features());
    GroupNormShape { batch, pixels: x.elements() / batch / channels, channels, groups, eps }
}

impl HostOperation for NormOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, _: &Assignment) -> usize {
        match *self {
            NormOp::Group { groups, eps, .. } => {
                kernels::group_norm_scratch_len(&group_norm_shape(node, groups, eps))
            }
            NormOp::Layer { .. } | NormOp::Rms { .. } => 0,
        }
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let (workers, out) = (on.workers(), on.output_of_first());
        match *self {
            NormOp::Layer { eps } => {
                let affine = Some((on.weight(0), on.weight(1)));
                kernels::layer_norm(workers, out, on.view().output().features(), eps, affine);
            }
            NormOp::Rms { eps } => {
                let weight = on.weight(0);
                kernels::rms_norm(workers, out, weight.shape[0], eps, weight);
            }
            NormOp::Group { groups, eps, silu } => {
                let shape = group_norm_shape(on.view(), groups, eps);
                let (scale, shift) = (on.weight(0), on.weight(1));
                kernels::group_norm(workers, out, &shape, scale, shift, silu, on.workspace());
            }
        }
    }
}

impl CudaOperation for NormOp {
    fn cuda_workspace_bytes(
        &self,
        node: NodeView<'_>,
        _: &Elements,
        _: usize,
        _: &Assignment,
    ) -> Bytes {
        match *self {
            NormOp::Group { groups, eps, .. } => {
                let shape = group_norm_shape(node, groups, eps);
                Bytes(group::group_norm_workspace_bytes(&shape) as u64)
            }
            NormOp::Layer { .. } | NormOp::Rms { .. } => Bytes::ZERO,
        }
    }

    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        !matches!(self, NormOp::Group { .. })
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let (to, out, x) = (on.launcher(), on.view().output(), on.input(0));
        match *self {
            NormOp::Layer { eps } => {
                let sizes = [out.rows(), out.features()];
                let affine = [on.weight(0), on.weight(1)];
                norm::layer_norm(to, on.output_at(), x, sizes, eps, affine)
            }
            NormOp::Rms { eps } => {
                let features = on.weight_shape(0)[0];
                let sizes = [out.elements() / features, features];
                norm::rms_norm(to, on.output_at(), x, sizes, eps, on.weight(0))
            }
            NormOp::Group { groups, eps, silu } => {
                let shape = group_norm_shape(on.view(), groups, eps);
                let affine = [on.weight(0), on.weight(1)];
                group::group_norm(to, on.output(), x, &shape, affine, silu, on.workspace())
            }
        }
    }
}
