//! x + gate × y, the gate a chunk of a third input `[batch, chunks × features]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::{self, TokenShape};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, Operation, ValueId};

/// Its name.
pub const NAME: &str = "GatedAdd";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedAddOp {
    /// Index of the chunk.
    pub gate_chunk: usize,
}

impl GraphBuilder<'_> {
    /// x + gate × y, of one shape `[batch, tokens, features]`; the gate is a chunk of `modulation`
    /// `[batch, chunks × features]`.
    pub fn gated_add(
        &mut self,
        x: ValueId,
        y: ValueId,
        modulation: ValueId,
        gate_chunk: usize,
    ) -> ValueId {
        self.same_shape(GatedAddOp { gate_chunk }, vec![x, y, modulation], vec![])
    }
}

impl Operation for GatedAddOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }
}

impl HostOperation for GatedAddOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let (out, modulation) = (on.output_of_first(), on.modulation(2));
        kernels::gated_add(on.workers(), out, on.input(1), modulation, self.gate_chunk);
    }
}

impl CudaOperation for GatedAddOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = TokenShape::of(on.view().output());
        let (terms, gates) = ([on.input(0), on.input(1)], on.chunks(2));
        elementwise::gated_add(on.launcher(), on.output(), terms, shape, gates, self.gate_chunk)
    }
}
