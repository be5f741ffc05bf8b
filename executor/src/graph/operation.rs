//! What a graph knows of an operation: facts of its node's shapes and weights.
//!
//! The operations themselves stand above the backends, in `ops`, one file each. A node holds one
//! without knowing it; who computes it asks for more than is known here
//! (`backend::operation`).

use std::any::Any;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use protocol::Bytes;
use protocol::profile::WorkKind;

use super::NodeView;

/// What a node computes, seen from its graph. Pure: every answer is a function of the operation's
/// parameters and of the node's shapes and weights.
pub trait Operation: Any + Debug + Send + Sync {
    /// Its name in traces and messages, by which a device is said not to do it.
    fn name(&self) -> &'static str;

    /// Which of a device's speeds its time follows.
    fn work_kind(&self, _node: NodeView<'_>) -> WorkKind {
        WorkKind::Elementwise
    }

    /// Floating-point operations; a multiply-add counts two. Element-wise work is counted as one
    /// an element: it is bound by bytes, not by arithmetic.
    fn flops(&self, node: NodeView<'_>) -> f64 {
        node.output().elements() as f64
    }

    /// Bytes that are read and written once: activations, weights, result.
    fn moved_bytes(&self, node: NodeView<'_>) -> Bytes {
        node.input_bytes() + node.weight_bytes() + node.output().bytes()
    }

    /// Whether the result may take the first input's place, if both have elements of one size.
    /// Whether it does is the schedule's decision.
    fn in_place(&self) -> bool {
        false
    }

    /// Whether it multiplies with a matrix `[out, in]`, its first weight: then each row of that
    /// gives a feature of the result by itself, and adapters may stand beside it.
    fn is_product(&self) -> bool {
        false
    }

    /// Whether a row of its result is made of that row of each input, and so some rows can be
    /// computed without the others.
    fn is_by_token(&self) -> bool {
        false
    }

    /// How it deals with inputs that are cut along their features over several devices.
    fn cutting(&self, _node: NodeView<'_>) -> Cutting {
        Cutting::Whole
    }

    /// The operation that a device does which has `units` of all `of` units of the inputs; `None`
    /// where it is the same one.
    fn on_units(&self, _units: usize, _of: usize) -> Option<NodeOp> {
        None
    }

    /// How many of its weights, from the first, are matrices or tables. Those after them are
    /// vectors: biases, and the scales and shifts of norms.
    fn matrices(&self) -> usize {
        1
    }
}

/// How an operation deals with inputs whose features are on several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cutting {
    /// It needs all features of each input at once.
    Whole,
    /// The first inputs may be cut, all at the same features. The result is then cut there too.
    /// Each device needs all of the other inputs, and of the weights.
    Along {
        /// How many inputs may be cut.
        inputs: usize,
        /// The most parts into which their features can be cut: heads, or single features.
        units: usize,
    },
    /// It multiplies with a matrix. From whole inputs each device makes some features of the
    /// result, with some rows; from cut ones a summand of it, with some columns.
    Product {
        /// Whether the sum of such summands is the result: nothing is done to it after that.
        sums: bool,
    },
}

/// An operation together with what graphs do not know of it.
pub trait AnyOperation: Any + Debug + Send + Sync {
    /// What a graph knows of it.
    fn as_operation(&self) -> &(dyn Operation + 'static);
}

/// The operation of a node.
#[derive(Debug, Clone)]
pub struct NodeOp(Arc<dyn AnyOperation>);

impl NodeOp {
    /// Holds an operation with what layers above know of it.
    pub fn new(operation: impl AnyOperation) -> NodeOp {
        NodeOp(Arc::new(operation))
    }

    /// The operation as a type of its own; `None` where it is another one.
    pub fn get<T: Operation>(&self) -> Option<&T> {
        let operation: &dyn Any = self.0.as_operation();
        operation.downcast_ref()
    }

    /// What it was made of, if that was a `T`.
    pub fn held<T: AnyOperation>(&self) -> Option<&T> {
        let held: &dyn Any = self.0.as_ref();
        held.downcast_ref()
    }
}

impl Deref for NodeOp {
    type Target = dyn Operation;

    fn deref(&self) -> &(dyn Operation + 'static) {
        self.0.as_operation()
    }
}
