//! Normalisation of rows × (1 + scale), the scale a chunk of a second input `[batch, chunks ×
//! features]`: by the root mean square, with w `[features]`, or by mean and variance without one.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::modulated_norm::{self, FactorsAt};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{ElementType, GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::Assignment;
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "ScaledNorm";

/// The operation: by the root mean square where it has a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledNormOp {
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// Index of the chunk that scales.
    pub scale_chunk: usize,
}

impl GraphBuilder<'_> {
    /// RMS normalisation of x `[batch, tokens, features]` with `prefix.weight`, scaled by a chunk
    /// of `modulation` `[batch, chunks × features]`.
    pub fn scaled_rms_norm(
        &mut self,
        x: ValueId,
        prefix: &str,
        modulation: ValueId,
        scale_chunk: usize,
        eps: f32,
    ) -> Result<ValueId, WeightsError> {
        let weight = self.weight(&format!("{prefix}.weight"), &[self.features(x)])?;
        Ok(self.same_shape(ScaledNormOp { eps, scale_chunk }, vec![x, modulation], vec![weight]))
    }

    /// Layer normalisation of x `[batch, tokens, features]` without weights, scaled by a chunk of
    /// `modulation` `[batch, chunks × features]`.
    pub fn scaled_layer_norm(
        &mut self,
        x: ValueId,
        modulation: ValueId,
        scale_chunk: usize,
        eps: f32,
    ) -> ValueId {
        self.same_shape(ScaledNormOp { eps, scale_chunk }, vec![x, modulation], vec![])
    }
}

impl Operation for ScaledNormOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }

    fn matrices(&self) -> usize {
        0
    }
}

impl HostOperation for ScaledNormOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, _: &Assignment) -> usize {
        let x = node.output();
        kernels::modulated_scratch_len(x.shape[0], x.features())
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let ScaledNormOp { eps, scale_chunk } = *self;
        let weight = on.view().storage(0).map(|_| on.weight(0));
        let (workers, out, scales) = (on.workers(), on.output_of_first(), on.modulation(1));
        kernels::scaled_norm(workers, out, weight, scales, scale_chunk, eps, on.workspace());
    }
}

impl CudaOperation for ScaledNormOp {
    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        true
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let by = FactorsAt {
            weight: on.view().storage(0).map(|_| on.weight(0)),
            modulation: Some((on.chunks(1), self.scale_chunk)),
        };
        let shape = TokenShape::of(on.view().output());
        let (to, out, x) = (on.launcher(), on.output_at(), on.input(0));
        modulated_norm::scaled_norm(to, out, x, shape, by, self.eps)
    }
}
