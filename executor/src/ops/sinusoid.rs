//! Sines and cosines of x `[batch]`, as `[batch, features]`: a time's embedding.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::tokens;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, Operation, ValueId};

/// Its name.
pub const NAME: &str = "Sinusoid";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SinusoidOp {
    /// Of the products of x and frequencies.
    pub scale: f32,
}

impl GraphBuilder<'_> {
    /// x `[batch]` → `[batch, features]`.
    pub fn sinusoid(&mut self, x: ValueId, features: usize) -> ValueId {
        self.scaled_sinusoid(x, features, 1.0)
    }

    /// As [`GraphBuilder::sinusoid`], of products with the frequencies that are scaled afterwards.
    pub fn scaled_sinusoid(&mut self, x: ValueId, features: usize, scale: f32) -> ValueId {
        let batch = self.shape(x)[0];
        self.node(SinusoidOp { scale }, vec![x], vec![], &[batch, features])
    }
}

impl Operation for SinusoidOp {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl HostOperation for SinusoidOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let features = on.view().output().features();
        kernels::sinusoid(on.input(0), self.scale, features, on.output());
    }
}

impl CudaOperation for SinusoidOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let out = on.view().output();
        let sizes = [out.rows(), out.features()];
        tokens::sinusoid(on.launcher(), on.output(), on.input(0), self.scale, sizes)
    }
}
