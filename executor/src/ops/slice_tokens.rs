//! Some tokens of each batch item: of x `[batch, tokens, features]`, `[batch, count, features]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Cutting, ElementType, GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::{Assignment, Reading};

/// Its name.
pub const NAME: &str = "SliceTokens";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SliceTokensOp {
    /// The first token taken.
    pub from: usize,
}

impl GraphBuilder<'_> {
    /// `count` tokens of each batch item, starting at `from`.
    pub fn slice_tokens(&mut self, x: ValueId, from: usize, count: usize) -> ValueId {
        let mut shape = self.shape(x).to_vec(); // [batch, tokens, features]
        assert!(from + count <= shape[1], "slice beyond the tokens");
        shape[1] = count;
        self.node(SliceTokensOp { from }, vec![x], vec![], &shape)
    }
}

impl Operation for SliceTokensOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 1, units: node.output().features() }
    }
}

impl HostOperation for SliceTokensOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let shape = &on.view().output().shape; // [batch, count, features]
        let (x, out) = (on.input(0), on.output());
        kernels::slice_tokens(on.workers(), x, shape[0], shape[2], self.from, out);
    }
}

impl CudaOperation for SliceTokensOp {
    fn cuda_reading(&self, _: NodeView<'_>, _: usize, _: &Assignment) -> Reading {
        Reading::AsResult
    }

    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        true
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = TokenShape::of(on.view().input(0));
        let (out, x, count) = (on.output_at(), on.input(0), on.view().output().shape[1]);
        tokens::slice_tokens(on.launcher(), out, x, shape, self.from, count)
    }
}
