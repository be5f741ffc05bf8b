//! The operands of a node on a GPU: addresses of its inputs, its result, its workspace and its
//! weights, at the schedule's places.

use super::launch::{Address, Launcher, StoredWeight};
use super::ops::elementwise::ChunksAt;
use super::ops::{Products, ValueAt, products};
use crate::backend::NodeCall;
use crate::backend::kernels::Columns;
use crate::graph::NodeView;
use crate::schedule::Assignment;

/// What an operation's kernels are started with.
pub struct CudaOperands<'a> {
    call: &'a NodeCall<'a>,
    on: &'a Launcher<'a>,
}

impl<'a> CudaOperands<'a> {
    /// The operands of a node, for kernels that go to this launcher's stream.
    pub(super) fn new(call: &'a NodeCall<'a>, on: &'a Launcher<'a>) -> Self {
        CudaOperands { call, on }
    }

    /// Where kernels are started.
    pub fn launcher(&self) -> &'a Launcher<'a> {
        self.on
    }

    /// The node in its graph.
    pub fn view(&self) -> NodeView<'a> {
        self.call.view()
    }

    /// What the schedule was made for.
    pub fn assignment(&self) -> &'a Assignment {
        &self.call.schedule.assignment
    }

    /// How its products are formed.
    pub fn products(&self) -> Products {
        products(self.view(), self.assignment())
    }

    /// Where an operand begins, counted as the node's inputs are.
    pub fn input(&self, index: usize) -> Address {
        let bytes = self.call.input_bytes(index).as_usize();
        self.call.arena().address(self.call.run.inputs[index], bytes)
    }

    /// An input with what its elements are.
    pub fn input_at(&self, index: usize) -> ValueAt {
        ValueAt { address: self.input(index), element: self.call.input_element(index) }
    }

    /// Chunks of features of an input of one row a batch item.
    pub fn chunks(&self, index: usize) -> ChunksAt {
        let chunks = self.call.input(index).features() / self.call.output().features();
        ChunksAt { address: self.input(index), chunks }
    }

    /// Whether the schedule gave the result its first input's place.
    pub fn is_taken_over(&self) -> bool {
        self.call.is_taken_over()
    }

    /// The result.
    pub fn output(&self) -> Address {
        let bytes = self.call.output_bytes().as_usize();
        self.call.arena().address(self.call.run.output, bytes)
    }

    /// The result with what its elements are.
    pub fn output_at(&self) -> ValueAt {
        ValueAt { address: self.output(), element: self.call.output_element() }
    }

    /// Which columns of the result are computed here.
    pub fn columns(&self) -> Columns {
        Columns { stride: self.call.run.output_features, from: self.call.run.columns.start }
    }

    /// The workspace, as large as the operation said.
    pub fn workspace(&self) -> Address {
        let (offset, bytes) = self.call.run.workspace;
        self.call.arena().address(offset, bytes.as_usize())
    }

    /// The dimensions of a whole weight, outermost first.
    pub fn weight_shape(&self, index: usize) -> &[usize] {
        self.call.tensor(index).shape()
    }

    /// How many rows of a weight are this lane's.
    pub fn weight_rows(&self, index: usize) -> usize {
        self.call.slice(index).rows.len()
    }

    /// Those rows of a weight that are this lane's.
    pub fn weight(&self, index: usize) -> StoredWeight {
        let call = self.call;
        let (region, offset) = call.weight_place(index).expect("a GPU computes from its memory");
        let tensor = call.tensor(index);
        StoredWeight {
            address: region.address(offset, call.weight_bytes(index).as_usize()),
            storage: tensor.storage(),
            scale: tensor.scale(),
        }
    }
}
