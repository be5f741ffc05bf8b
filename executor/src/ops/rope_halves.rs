//! Rotary positions of language models: rotates each feature of the first half of a head with the
//! one of its second half, in x `[batch, tokens, features]`, by a table `[tokens, head_dim / 2, 2]`
//! of cosines and sines.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::rope_halves;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Cutting, ElementType, GraphBuilder, NodeOp, NodeView, Operation, ValueId};
use crate::schedule::Assignment;

/// Its name.
pub const NAME: &str = "RopeHalves";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeHalvesOp {
    /// Number of heads in x's features.
    pub heads: usize,
}

impl GraphBuilder<'_> {
    /// x with the halves of its heads rotated against each other by a table `[tokens, head_dim / 2,
    /// 2]`.
    pub fn rope_halves(&mut self, x: ValueId, table: ValueId, heads: usize) -> ValueId {
        self.same_shape(RopeHalvesOp { heads }, vec![x, table], vec![])
    }
}

impl Operation for RopeHalvesOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }

    fn cutting(&self, _: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 1, units: self.heads }
    }

    fn on_units(&self, units: usize, of: usize) -> Option<NodeOp> {
        Some(RopeHalvesOp { heads: self.heads * units / of }.into())
    }
}

impl HostOperation for RopeHalvesOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let shape = &on.view().output().shape; // [batch, tokens, heads × head_dim]
        let (tokens, head_dim) = (shape[1], shape[2] / self.heads);
        let out = on.output_of_first();
        kernels::rope_halves(on.workers(), out, on.input(1), tokens, self.heads, head_dim);
    }
}

impl CudaOperation for RopeHalvesOp {
    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        true
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = TokenShape::of(on.view().output());
        let operands = [on.input(0), on.input(1)];
        rope_halves::rope_halves(on.launcher(), on.output_at(), operands, shape, self.heads)
    }
}
