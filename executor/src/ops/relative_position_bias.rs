//! Biases of attention by distance: no inputs, w `[buckets, heads]`, result
//! `[heads, 2 × tokens - 1]`.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, Operation, ValueId};
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "RelativePositionBias";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelativePositionBiasOp {
    /// Distances beyond this share a bucket.
    pub max_distance: usize,
}

impl GraphBuilder<'_> {
    /// Biases by distance for this many tokens, from a table `[buckets, heads]`.
    pub fn relative_position_bias(
        &mut self,
        table: &str,
        buckets: usize,
        heads: usize,
        tokens: usize,
        max_distance: usize,
    ) -> Result<ValueId, WeightsError> {
        let weight = self.weight(table, &[buckets, heads])?;
        let op = RelativePositionBiasOp { max_distance };
        Ok(self.node(op, vec![], vec![weight], &[heads, 2 * tokens - 1]))
    }
}

impl Operation for RelativePositionBiasOp {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl HostOperation for RelativePositionBiasOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let table = on.weight(0);
        let (tokens, buckets) = (on.view().output().shape[1].div_ceil(2), table.shape[0]);
        kernels::relative_position_bias(tokens, buckets, self.max_distance, table, on.output());
    }
}

impl CudaOperation for RelativePositionBiasOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = &on.view().output().shape; // [heads, 2 × tokens - 1]
        let (heads, tokens) = (shape[0], shape[1].div_ceil(2));
        let (table, sizes) = (on.weight(0), [on.weight_shape(0)[0], heads]);
        let to = on.launcher();
        tokens::relative_position_bias(to, on.output(), table, sizes, tokens, self.max_distance)
    }
}
