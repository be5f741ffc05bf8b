//! The operands of a node in memory that the host addresses: slices of its inputs, its result, its
//! workspace and its weights, over whichever memory holds its lane's arena.
//!
//! Nothing is allocated here that grows with the job.

use crate::backend::NodeCall;
use crate::backend::kernels::{Columns, Filters, Modulation, Workers};
use crate::graph::NodeView;
use crate::schedule::Assignment;
use crate::weights::TensorRef;
use crate::weights::view::WeightView;

/// What an operation computes with on the host.
pub struct HostOperands<'a> {
    call: &'a NodeCall<'a>,
    workers: &'a Workers,
}

impl<'a> HostOperands<'a> {
    /// The operands of a node, computed by these workers.
    ///
    /// # Panics
    /// If the schedule's workspaces were made for fewer workers.
    pub(in crate::backend) fn new(call: &'a NodeCall<'a>, workers: &'a Workers) -> Self {
        let threads = call.schedule.assignment.threads;
        assert!(workers.count() <= threads, "workspaces were made for fewer workers");
        HostOperands { call, workers }
    }

    /// The threads that compute.
    pub fn workers(&self) -> &'a Workers {
        self.workers
    }

    /// The node in its graph.
    pub fn view(&self) -> NodeView<'a> {
        self.call.view()
    }

    /// What the schedule was made for.
    pub fn assignment(&self) -> &'a Assignment {
        &self.call.schedule.assignment
    }

    /// The elements of an operand, counted as the node's inputs are.
    pub fn input(&self, index: usize) -> &[f32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    /// An input of ids.
    pub fn ids(&self, index: usize) -> &[i32] {
        bytemuck::cast_slice(self.input_bytes(index))
    }

    fn input_bytes(&self, index: usize) -> &[u8] {
        let (bytes, offset) = (self.call.input_bytes(index), self.call.run.inputs[index]);
        // SAFETY: a node's inputs are alive at it and so overlap neither its result (except the
        // one that is taken over, which is not read then) nor its workspace: asserted when the
        // arena was made.
        unsafe { self.call.arena().bytes(offset, bytes.as_usize()) }
    }

    /// An input `[batch, chunks × features]` of which chunks are taken for each batch item.
    pub fn modulation(&self, index: usize) -> Modulation<'_> {
        let x = self.call.output();
        Modulation { values: self.input(index), batch: x.shape[0], features: x.features() }
    }

    /// Whether the schedule gave the result its first input's place.
    pub fn is_taken_over(&self) -> bool {
        self.call.is_taken_over()
    }

    /// The first input, whose place the result takes.
    ///
    /// # Panics
    /// If it does not take it.
    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    pub fn taken_over(&self) -> &mut [f32] {
        assert!(self.is_taken_over());
        let bytes = self.call.input_bytes(0).as_usize();
        // SAFETY: as of `output`, whose range begins where this one does and is not used beside it.
        bytemuck::cast_slice_mut(unsafe {
            self.call.arena().bytes_mut(self.call.run.output, bytes)
        })
    }

    /// The result.
    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    pub fn output(&self) -> &mut [f32] {
        let (output, bytes) = (self.call.run.output, self.call.output_bytes().as_usize());
        // SAFETY: the result's range is disjoint from all that is read while it is written; see
        // above. Of a result that comes from several lanes each writes its own columns.
        bytemuck::cast_slice_mut(unsafe { self.call.arena().bytes_mut(output, bytes) })
    }

    /// The result with the first input in it, to be changed there: copied, unless the result took
    /// its place.
    pub fn output_of_first(&self) -> &mut [f32] {
        let output = self.output();
        if !self.is_taken_over() {
            output.copy_from_slice(self.input(0));
        }
        output
    }

    /// Which columns of the result are computed here.
    pub fn columns(&self) -> Columns {
        Columns { stride: self.call.run.output_features, from: self.call.run.columns.start }
    }

    /// The workspace, as long as the operation said.
    #[expect(clippy::mut_from_ref, reason = "the arena's ranges are disjoint, not its borrows")]
    pub fn workspace(&self) -> &mut [f32] {
        let (offset, bytes) = self.call.run.workspace;
        // SAFETY: a workspace is alive at its node only, and disjoint from all values alive there.
        bytemuck::cast_slice_mut(unsafe { self.call.arena().bytes_mut(offset, bytes.as_usize()) })
    }

    /// All rows of a tensor, counted as the node's weights are.
    pub fn weight(&self, index: usize) -> WeightView<'_> {
        let (tensor, bytes) = self.weight_bytes(index);
        tensor.view_of(tensor.shape(), bytes)
    }

    /// The filters of a convolution, counted as the node's weights are.
    pub fn filters(&self, index: usize) -> Filters<'_> {
        let (tensor, shape) = (self.call.tensor(index), self.call.tensor(index).shape());
        let in_place = self.call.weight_place(index).is_none();
        match tensor.spread(self.call.files).filter(|_| in_place) {
            Some((bytes, stride)) => Filters {
                weight: tensor.view_of(shape, bytes),
                stride: stride / tensor.storage().element_bytes(),
            },
            None => self.weight(index).into(),
        }
    }

    /// Those rows of a weight that are this lane's: the weight, how many rows, their bytes.
    pub fn weight_rows(&self, index: usize) -> (&TensorRef, usize, &[u8]) {
        let (tensor, bytes) = self.weight_bytes(index);
        (tensor, self.call.slice(index).rows.len(), bytes)
    }

    fn weight_bytes(&self, index: usize) -> (&TensorRef, &[u8]) {
        let call = self.call;
        let (tensor, length) = (call.tensor(index), call.weight_bytes(index).as_usize());
        let Some((region, offset)) = call.weight_place(index) else {
            let start = call.slice(index).rows.start * tensor.row_bytes().as_usize();
            return (tensor, &tensor.view(call.files).bytes[start..][..length]);
        };
        // SAFETY: weights are written before the computation that waits for them, and a slot not
        // again before it was given back.
        (tensor, unsafe { region.bytes(offset, length) })
    }
}
