//! x + gate × y normalised by its root mean square with w `[features]`; the gate is the hyperbolic
//! tangent of a chunk of a third input `[batch, chunks × features]`, or 1 without one.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::modulated_norm::{self, FactorsAt};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::Assignment;
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "GatedNormAdd";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedNormAddOp {
    /// Added to the mean square.
    pub eps: f32,
    /// Index of the chunk that gates, if there is one.
    pub gate_chunk: Option<usize>,
}

impl GraphBuilder<'_> {
    /// x plus y, both `[batch, tokens, features]`, y after RMS normalisation with `prefix.weight`;
    /// gated by a chunk of a modulation `[batch, chunks × features]`, where one is given.
    pub fn gated_norm_add(
        &mut self,
        x: ValueId,
        y: ValueId,
        prefix: &str,
        gate: Option<(ValueId, usize)>,
        eps: f32,
    ) -> Result<ValueId, WeightsError> {
        let weight = self.weight(&format!("{prefix}.weight"), &[self.features(x)])?;
        let op = GatedNormAddOp { eps, gate_chunk: gate.map(|(_, chunk)| chunk) };
        let inputs = [x, y].into_iter().chain(gate.map(|(modulation, _)| modulation)).collect();
        Ok(self.same_shape(op, inputs, vec![weight]))
    }
}

impl Operation for GatedNormAddOp {
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

impl HostOperation for GatedNormAddOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, _: &Assignment) -> usize {
        let x = node.output();
        kernels::modulated_scratch_len(x.shape[0], x.features())
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let gate = self.gate_chunk.map(|chunk| (on.modulation(2), chunk));
        let (workers, out, y, weight) =
            (on.workers(), on.output_of_first(), on.input(1), on.weight(0));
        kernels::gated_norm_add(workers, out, y, weight, gate, self.eps, on.workspace());
    }
}

impl CudaOperation for GatedNormAddOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let by = FactorsAt {
            weight: Some(on.weight(0)),
            modulation: self.gate_chunk.map(|chunk| (on.chunks(2), chunk)),
        };
        let (shape, terms) = (TokenShape::of(on.view().output()), [on.input(0), on.input(1)]);
        modulated_norm::gated_norm_add(on.launcher(), on.output(), terms, shape, by, self.eps)
    }
}
