//! Joins tokens: `[batch, a, features]` and `[batch, b, features]` become
//! `[batch, a + b, features]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Cutting, ElementType, GraphBuilder, NodeView, Operation, ValueId};
use crate::schedule::{Assignment, Reading};

/// Its name.
pub const NAME: &str = "ConcatTokens";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConcatTokensOp;

impl GraphBuilder<'_> {
    /// a's tokens, then b's, in each batch item.
    pub fn concat_tokens(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let mut shape = self.shape(a).to_vec(); // [batch, a, features]
        shape[1] += self.shape(b)[1];
        self.node(ConcatTokensOp, vec![a, b], vec![], &shape)
    }
}

impl Operation for ConcatTokensOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 2, units: node.output().features() }
    }
}

impl HostOperation for ConcatTokensOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let shape = &on.view().output().shape; // [batch, a + b, features]
        let (a, b) = (on.input(0), on.input(1));
        kernels::concat_tokens(on.workers(), a, b, shape[0], shape[2], on.output());
    }
}

impl CudaOperation for ConcatTokensOp {
    fn cuda_reading(&self, _: NodeView<'_>, _: usize, _: &Assignment) -> Reading {
        Reading::AsResult
    }

    fn cuda_writes(&self, _: NodeView<'_>, _: ElementType, _: &Assignment) -> bool {
        true
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let TokenShape { batch, features, .. } = TokenShape::of(on.view().output());
        let counts = [0, 1].map(|index| on.view().input(index).shape[1]);
        let values = [on.input(0), on.input(1)];
        tokens::concat_tokens(on.launcher(), on.output_at(), values, counts, batch, features)
    }
}
