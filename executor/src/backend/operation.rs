//! What backends ask of an operation: what it takes on them, and to be computed by their kernels.
//!
//! Operations stand above, in `ops`; each implements the traits here beside [`Operation`]. A graph
//! that is made of them can be computed: [`computed`] finds what a node holds.
//!
//! Not here: the kernels, and which memory a node touches (`call`).

use protocol::Bytes;

use super::cuda::driver::DriverError;
use super::{CudaOperands, HostOperands};
use crate::graph::{AnyOperation, ElementType, NodeOp, NodeView, Operation};
use crate::schedule::{Assignment, Elements, Reading};

/// An operation on the host's kernels, which virtual devices use too.
pub trait HostOperation {
    /// Workspace in f32 elements, for as many features of each row of the result as are computed.
    fn host_workspace_len(
        &self,
        _node: NodeView<'_>,
        _out_features: usize,
        _assignment: &Assignment,
    ) -> usize {
        0
    }

    /// Computes a node. Nothing is allocated: values and workspace lie in the arena.
    fn run_on_host(&self, on: &HostOperands<'_>);
}

/// An operation on the kernels of NVIDIA GPUs.
pub trait CudaOperation: Operation {
    /// Workspace in bytes, for as many features of each row of the result as are computed.
    fn cuda_workspace_bytes(
        &self,
        _node: NodeView<'_>,
        _elements: &Elements,
        _out_features: usize,
        _assignment: &Assignment,
    ) -> Bytes {
        Bytes::ZERO
    }

    /// How it reads an input, by index: what it rounds to anyway.
    fn cuda_reading(&self, node: NodeView<'_>, index: usize, _assignment: &Assignment) -> Reading {
        Reading::As(node.input(index).element)
    }

    /// Whether it best writes its result in such elements, where these are not the graph's.
    fn cuda_writes(
        &self,
        _node: NodeView<'_>,
        _element: ElementType,
        _assignment: &Assignment,
    ) -> bool {
        false
    }

    /// Whether the result may take the first input's place, if these are their elements.
    fn cuda_in_place(
        &self,
        _node: NodeView<'_>,
        [input, output]: [ElementType; 2],
        _assignment: &Assignment,
    ) -> bool {
        self.in_place() && input.bytes() == output.bytes()
    }

    /// Hands the kernels of a node to the compute stream. Nothing is allocated or waited for.
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError>;
}

/// An operation that every backend computes.
pub trait Computed: Operation + HostOperation + CudaOperation {}

impl<T: Operation + HostOperation + CudaOperation> Computed for T {}

/// What stands behind the operation of each node.
#[derive(Debug)]
struct ComputedOp(Box<dyn Computed>);

impl AnyOperation for ComputedOp {
    fn as_operation(&self) -> &(dyn Operation + 'static) {
        &*self.0
    }
}

impl<T: Computed> From<T> for NodeOp {
    fn from(operation: T) -> NodeOp {
        NodeOp::new(ComputedOp(Box::new(operation)))
    }
}

/// The operation of a node as backends know it.
///
/// # Panics
/// If it is of another making than `NodeOp::from`.
pub fn computed(op: &NodeOp) -> &dyn Computed {
    let held: &ComputedOp = op.held().expect("graphs are made of operations that are computed");
    &*held.0
}
