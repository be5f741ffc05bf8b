//! Rows of a table by id: x `[batch, tokens]` of ids, w `[vocabulary, features]`, result
//! `[batch, tokens, features]`.

use protocol::Bytes;

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, NodeView, Operation, ValueId};
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "Embedding";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingOp;

impl GraphBuilder<'_> {
    /// ids `[batch, tokens]` → `[batch, tokens, features]`.
    pub fn embedding(
        &mut self,
        ids: ValueId,
        table: &str,
        vocabulary: usize,
        features: usize,
    ) -> Result<ValueId, WeightsError> {
        let weight = self.weight(table, &[vocabulary, features])?;
        let mut shape = self.shape(ids).to_vec(); // [batch, tokens]
        shape.push(features);
        Ok(self.node(EmbeddingOp, vec![ids], vec![weight], &shape))
    }
}

impl Operation for EmbeddingOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moved_bytes(&self, node: NodeView<'_>) -> Bytes {
        // A table is read a row for each token, not whole.
        node.input_bytes() + node.output().bytes() + node.output().bytes()
    }
}

impl HostOperation for EmbeddingOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        kernels::embedding(on.workers(), on.ids(0), on.weight(0), on.output());
    }
}

impl CudaOperation for EmbeddingOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let out = on.view().output();
        let (rows, features) = (out.rows(), out.features());
        tokens::embedding(on.launcher(), on.output(), on.input(0), on.weight(0), rows, features)
    }
}
