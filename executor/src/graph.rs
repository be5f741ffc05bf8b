//! The graph of one component for one job shape: what is computed, from which weights, in which
//! order.
//!
//! Pure data. It says nothing of devices, memory or kernels, and is never changed once built: the
//! schedule is made beside it. Invariants, kept by [`GraphBuilder`]:
//! - nodes stand in the order in which they run; a node's inputs are graph inputs or earlier
//!   outputs;
//! - each value has one producer; each weight has one name and belongs to the segment that first
//!   uses it;
//! - segments are contiguous ranges of nodes: in a graph that is joined, of the nodes of each run.

mod activation;
mod builder;
mod cost;
mod joined;
mod operation;

pub use activation::Activation;
pub use builder::GraphBuilder;
pub use operation::{AnyOperation, Cutting, NodeOp, Operation};

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::division::ItemRun;
use protocol::{Bytes, StorageType};
use smallvec::SmallVec;

use crate::weights::TensorRef;

/// A value of a graph, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// A weight of a graph, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// What the elements of a value are. In a graph they are f32 or i32; a schedule may hold a value of
/// f32 in 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// Activations.
    F32,
    /// Token ids.
    I32,
    /// Activations as binary16; what is too large is the largest number.
    F16,
    /// Activations as bfloat16.
    BF16,
}

impl ElementType {
    /// How much one of them takes.
    pub const fn bytes(self) -> u64 {
        match self {
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F16 | ElementType::BF16 => 2,
        }
    }
}

/// A list that is nearly always short: up to four stand in it, and take no allocation. A plan looks
/// at a hundred graphs of thousands of nodes each.
pub type Few<T> = SmallVec<[T; 4]>;

/// An activation, an input or an output.
#[derive(Debug, Clone)]
pub struct Value {
    /// Dimensions, outermost first.
    pub shape: Few<usize>,
    /// What its elements are.
    pub element: ElementType,
}

impl Value {
    /// The product of its dimensions.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in memory, alignment not counted.
    pub fn bytes(&self) -> Bytes {
        self.bytes_as(self.element)
    }

    /// The same if its elements were others.
    pub fn bytes_as(&self, element: ElementType) -> Bytes {
        Bytes(element.bytes() * self.elements() as u64)
    }

    /// The innermost dimension.
    pub fn features(&self) -> usize {
        *self.shape.last().expect("values have at least one dimension")
    }

    /// How often its features stand there: the product of all other dimensions.
    pub fn rows(&self) -> usize {
        let (_, others) = self.shape.split_last().expect("values have at least one dimension");
        others.iter().product()
    }
}

/// A weight, where it lies in the files, and the segment it belongs to.
#[derive(Debug, Clone)]
pub struct Weight {
    /// Its name in the checkpoint.
    pub name: Arc<str>,
    /// Where its bytes are.
    pub tensor: TensorRef,
    /// Index of its segment.
    pub segment: usize,
}

/// A run of nodes that can be placed, or whose weights can be streamed, on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its name, usually its block's.
    pub name: String,
    /// Whether it is a block: one of several alike.
    pub block: bool,
}

/// One operation.
#[derive(Debug, Clone)]
pub struct Node {
    /// What is computed.
    pub op: NodeOp,
    /// Its activations.
    pub inputs: Few<ValueId>,
    /// Its parameters.
    pub weights: Few<WeightId>,
    /// Its result.
    pub output: ValueId,
    /// Index of its segment.
    pub segment: usize,
    /// Where it computes whatever its segment's place is: in a graph that is cut over devices, on
    /// which of them. `None` for what is left whole.
    pub lane: Option<usize>,
    /// In a graph that is joined, for which of its runs of items; else 0.
    pub item_run: usize,
    /// In how many parts its tokens are computed, one after the other: more than one in a graph
    /// that is cut over devices, where some parts cross while others are computed.
    pub token_parts: usize,
}

/// A node with the graph around it: the shapes and the weights that its operation is asked about.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// Of this the node is one.
    pub graph: &'a Graph,
    /// What is looked at.
    pub node: &'a Node,
    tokens: Option<usize>,
}

impl<'a> NodeView<'a> {
    /// The same, of which only so many rows of the result are computed.
    pub fn of_tokens(self, tokens: usize) -> NodeView<'a> {
        NodeView { tokens: Some(tokens), ..self }
    }

    /// How many rows of its result are computed.
    pub fn tokens(self) -> usize {
        self.tokens.unwrap_or(self.output().rows())
    }

    /// One of its inputs.
    pub fn input(self, index: usize) -> &'a Value {
        self.graph.value(self.node.inputs[index])
    }

    /// All of its inputs, in order.
    pub fn inputs(self) -> impl Iterator<Item = &'a Value> {
        self.node.inputs.iter().map(move |&input| self.graph.value(input))
    }

    /// Its result.
    pub fn output(self) -> &'a Value {
        self.graph.value(self.node.output)
    }

    /// How one of its weights is stored; `None` where it has fewer.
    pub fn storage(self, index: usize) -> Option<StorageType> {
        let weight = self.node.weights.get(index)?;
        Some(self.graph.weights[weight.0].tensor.storage())
    }

    /// The dimensions of one of its weights, outermost first.
    pub fn weight_shape(self, index: usize) -> &'a [usize] {
        self.graph.weights[self.node.weights[index].0].tensor.shape()
    }

    /// Bytes of all inputs, with elements as the graph has them.
    pub fn input_bytes(self) -> Bytes {
        self.inputs().map(Value::bytes).sum()
    }

    /// Bytes of all weights, as they are stored.
    pub fn weight_bytes(self) -> Bytes {
        let sizes =
            self.node.weights.iter().map(|weight| self.graph.weights[weight.0].tensor.size());
        sizes.sum()
    }
}

/// A named input or output.
#[derive(Debug, Clone)]
pub struct Port {
    /// The name that the pipeline uses.
    pub name: &'static str,
    /// What stands there, by its index.
    pub value: ValueId,
    /// In a graph that is joined, for which of its runs of items; else 0.
    pub item_run: usize,
    /// The element of all that is given or taken under this name with which it begins.
    pub begin: usize,
}

/// A component's computation.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Activations, inputs and outputs, by their ids.
    pub values: Vec<Value>,
    /// All weights, in order of first use.
    pub weights: Vec<Weight>,
    /// All nodes, in running order.
    pub nodes: Vec<Node>,
    /// The segments, in running order.
    pub segments: Vec<Segment>,
    /// What must be given before a run.
    pub inputs: Vec<Port>,
    /// What is there after a run.
    pub outputs: Vec<Port>,
    /// Of a graph that is joined of several, which items each of them is for; of another, none.
    pub item_runs: Vec<ItemRun>,
}

impl Graph {
    /// A value by id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// A node of this graph with what is around it.
    pub fn view<'a>(&'a self, node: &'a Node) -> NodeView<'a> {
        NodeView { graph: self, node, tokens: None }
    }

    /// The input of this name. A wrong name is a bug of the caller.
    pub fn input(&self, name: &str) -> ValueId {
        port(&self.inputs, name)
    }

    /// The output of this name. A wrong name is a bug of the caller.
    pub fn output(&self, name: &str) -> ValueId {
        port(&self.outputs, name)
    }

    /// The ports of a list with this name: several in a graph that is joined.
    pub fn ports<'a>(ports: &'a [Port], name: &'a str) -> impl Iterator<Item = &'a Port> {
        ports.iter().filter(move |port| port.name == name)
    }

    /// For which of its runs of items a value is, in a graph that is joined; else 0.
    pub fn item_run_of(&self, value: ValueId) -> usize {
        // Each of the graphs has as many values.
        value.0 * self.item_runs.len() / self.values.len()
    }

    /// The weights that linear layers multiply with, in order of first use.
    pub fn linear_weights(&self) -> impl Iterator<Item = &Weight> {
        let products = self.nodes.iter().filter(|node| node.op.is_product());
        let used: BTreeSet<WeightId> = products.map(|node| node.weights[0]).collect();
        used.into_iter().map(|id| &self.weights[id.0])
    }

    /// Their names, each with where its bytes are.
    pub fn linear_tensors(&self) -> impl Iterator<Item = (&str, TensorRef)> {
        self.linear_weights().map(|weight| (&*weight.name, weight.tensor))
    }

    /// Takes each matrix as if it were stored in another type, for a look at what that would take.
    pub fn store_as(&mut self, storage: StorageType) {
        self.weights.iter_mut().for_each(|weight| weight.tensor = weight.tensor.stored_as(storage));
    }

    /// Bytes of inputs and outputs together: what crosses between host and device in one call.
    pub fn boundary_bytes(&self) -> Bytes {
        self.inputs.iter().chain(&self.outputs).map(|port| self.value(port.value).bytes()).sum()
    }
}

fn port(ports: &[Port], name: &str) -> ValueId {
    match ports.iter().find(|port| port.name == name) {
        Some(port) => port.value,
        None => panic!("no port named {name}"),
    }
}
