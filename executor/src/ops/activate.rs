//! An activation alone: a function of each element of x.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Activation, Cutting, GraphBuilder, NodeView, Operation, ValueId};

/// Its name.
pub const NAME: &str = "Activate";

/// The operation, with its function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivateOp(pub Activation);

impl GraphBuilder<'_> {
    /// An activation alone.
    pub fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        self.same_shape(ActivateOp(activation), vec![x], vec![])
    }
}

impl Operation for ActivateOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 1, units: node.output().features() }
    }
}

impl HostOperation for ActivateOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        kernels::activate(on.workers(), on.output_of_first(), self.0);
    }
}

impl CudaOperation for ActivateOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let elements = on.view().output().elements();
        elementwise::activate(on.launcher(), on.output(), on.input(0), elements, self.0)
    }
}
