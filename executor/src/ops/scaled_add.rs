//! x + scale × y, y added to as many of x's features as it has.

use protocol::Bytes;

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise::{self, ScaledPart};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Cutting, GraphBuilder, NodeView, Operation, ValueId};

/// Its name.
pub const NAME: &str = "ScaledAdd";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledAddOp {
    /// The factor.
    pub scale: f32,
    /// The first of x's features that is added to.
    pub first_feature: usize,
}

impl GraphBuilder<'_> {
    /// x plus scale × y, added to x's features from `first_feature`.
    pub fn scaled_add(
        &mut self,
        x: ValueId,
        y: ValueId,
        scale: f32,
        first_feature: usize,
    ) -> ValueId {
        self.same_shape(ScaledAddOp { scale, first_feature }, vec![x, y], vec![])
    }
}

impl Operation for ScaledAddOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn flops(&self, node: NodeView<'_>) -> f64 {
        node.input(1).elements() as f64
    }

    fn moved_bytes(&self, node: NodeView<'_>) -> Bytes {
        // Of the first input only what is added to.
        Bytes(3 * node.input(1).bytes().0)
    }

    fn in_place(&self) -> bool {
        true
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        // Features beside those that are added to would be cut otherwise.
        match node.input(0).features() == node.input(1).features() {
            true => Cutting::Along { inputs: 2, units: node.output().features() },
            false => Cutting::Whole,
        }
    }
}

impl HostOperation for ScaledAddOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let features = on.view().output().features();
        let added = self.first_feature..self.first_feature + on.view().input(1).features();
        let out = on.output_of_first();
        kernels::scaled_add(on.workers(), out, features, added, on.input(1), self.scale);
    }
}

impl CudaOperation for ScaledAddOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let out = on.view().output();
        let part = ScaledPart {
            features: out.features(),
            first_feature: self.first_feature,
            y_features: on.view().input(1).features(),
            scale: self.scale,
        };
        let terms = [on.input(0), on.input(1)];
        elementwise::scaled_add(on.launcher(), on.output(), terms, out.rows(), part)
    }
}
