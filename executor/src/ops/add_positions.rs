//! Adds a table's first rows to each batch item: x `[batch, tokens, features]`,
//! w `[tokens_max, features]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, Operation, ValueId};
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "AddPositions";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddPositionsOp;

impl GraphBuilder<'_> {
    /// x `[batch, tokens, features]` plus the first rows of a table `[tokens_max, features]`.
    pub fn add_positions(
        &mut self,
        x: ValueId,
        table: &str,
        tokens_max: usize,
    ) -> Result<ValueId, WeightsError> {
        let [_, tokens, features] = *self.shape(x) else {
            panic!("x is [batch, tokens, features]")
        };
        assert!(tokens <= tokens_max, "more tokens than positions");
        let weight = self.weight(table, &[tokens_max, features])?;
        Ok(self.same_shape(AddPositionsOp, vec![x], vec![weight]))
    }
}

impl Operation for AddPositionsOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }
}

impl HostOperation for AddPositionsOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let shape = &on.view().output().shape; // [batch, tokens, features]
        let out = on.output_of_first();
        kernels::add_rows(on.workers(), out, shape[1], shape[2], on.weight(0));
    }
}

impl CudaOperation for AddPositionsOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = TokenShape::of(on.view().output());
        tokens::add_positions(on.launcher(), on.output(), on.input(0), shape, on.weight(0))
    }
}
