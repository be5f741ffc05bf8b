//! Layer normalisation without weights, then × (1 + scale) + shift, both chunks of a second input
//! `[batch, chunks × features]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::norm::{self, ShiftAndScale};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{ElementType, GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::Assignment;

/// Its name.
pub const NAME: &str = "AdaLayerNorm";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaLayerNormOp {
    /// Added to the variance.
    pub eps: f32,
    /// Index of the chunk that is added.
    pub shift_chunk: usize,
    /// Index of the chunk that scales.
    pub scale_chunk: usize,
}

impl GraphBuilder<'_> {
    /// Layer normalisation of x `[batch, tokens, features]`, scaled and shifted by chunks of
    /// `modulation` `[batch, chunks × features]`.
    pub fn ada_layer_norm(
        &mut self,
        x: ValueId,
        modulation: ValueId,
        shift_chunk: usize,
        scale_chunk: usize,
        eps: f32,
    ) -> ValueId {
        let op = AdaLayerNormOp { eps, shift_chunk, scale_chunk };
        self.same_shape(op, vec![x, modulation], vec![])
    }
}

impl Operation for AdaLayerNormOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }
}

impl HostOperation for AdaLayerNormOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let AdaLayerNormOp { eps, shift_chunk, scale_chunk } = *self;
        let (out, modulation) = (on.output_of_first(), on.modulation(1));
        kernels::ada_layer_norm(on.workers(), out, modulation, shift_chunk, scale_chunk, eps);
    }
}

impl CudaOperation for AdaLayerNormOp {
    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        true
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let by = ShiftAndScale {
            modulation: on.chunks(1),
            shift_chunk: self.shift_chunk,
            scale_chunk: self.scale_chunk,
        };
        let shape = TokenShape::of(on.view().output());
        norm::ada_layer_norm(on.launcher(), on.output_at(), on.input(0), shape, by, self.eps)
    }
}
