//! x + y, element by element.

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::elementwise;
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{Cutting, GraphBuilder, NodeView, Operation, ValueId};

/// Its name.
pub const NAME: &str = "Add";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddOp;

impl GraphBuilder<'_> {
    /// x + y, of one shape.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.same_shape(AddOp, vec![x, y], vec![])
    }
}

impl Operation for AddOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn in_place(&self) -> bool {
        true
    }

    fn is_by_token(&self) -> bool {
        true
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 2, units: node.output().features() }
    }
}

impl HostOperation for AddOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        kernels::add(on.workers(), on.output_of_first(), on.input(1));
    }
}

impl CudaOperation for AddOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let elements = on.view().tokens() * on.view().output().features();
        elementwise::add(on.launcher(), on.output(), [on.input(0), on.input(1)], elements)
    }
}
