//! A node on its lane: which memory it reads and writes.
//!
//! Plain arithmetic with places; the bytes are touched by who computes the node.

use std::sync::Arc;

use protocol::Bytes;

use super::Region;
use crate::graph::{ElementType, Node, NodeView, Value};
use crate::race::Span;
use crate::schedule::weights::slice_bytes;
use crate::schedule::{Run, Schedule, WeightPlace, WeightSlice};
use crate::weights::{TensorRef, WeightFiles};

/// The memory of one lane of a component, in its phase.
#[derive(Clone, Default)]
pub struct LaneMemory {
    /// The arena; at least as large as the schedule says.
    pub arena: Option<Arc<Region>>,
    /// Weights that are held in all phases.
    pub resident: Option<Arc<Region>>,
    /// Weights that are held in this phase.
    pub lazy: Option<Arc<Region>>,
    /// Where the weights of the present segment begin, if they pass through.
    pub slot: Option<(Arc<Region>, Bytes)>,
}

/// One computation of a schedule.
pub struct NodeCall<'a> {
    /// What places its operands, for all lanes.
    pub schedule: &'a Arc<Schedule>,
    /// What of it to run.
    pub run: &'a Run,
    /// The memory of its lane.
    pub memory: &'a LaneMemory,
    /// From where its host weights are mapped.
    pub files: &'a Arc<WeightFiles>,
}

/// A computation that is carried out after its call has returned: it holds all that it touches.
pub struct HeldCall {
    schedule: Arc<Schedule>,
    run: Run,
    memory: LaneMemory,
    files: Arc<WeightFiles>,
}

impl HeldCall {
    /// The computation.
    pub fn call(&self) -> NodeCall<'_> {
        let HeldCall { schedule, run, memory, files } = self;
        NodeCall { schedule, run, memory, files }
    }
}

impl NodeCall<'_> {
    /// The same, to be carried out later.
    pub fn held(&self) -> HeldCall {
        HeldCall {
            schedule: Arc::clone(self.schedule),
            run: self.run.clone(),
            memory: self.memory.clone(),
            files: Arc::clone(self.files),
        }
    }

    /// What is computed, as its graph has it.
    pub fn node(&self) -> &Node {
        &self.schedule.graph.nodes[self.run.node]
    }

    /// The node in its graph.
    pub fn view(&self) -> NodeView<'_> {
        let view = self.schedule.graph.view(self.node());
        self.run.tokens.map_or(view, |tokens| view.of_tokens(tokens))
    }

    /// One of its inputs.
    pub fn input(&self, index: usize) -> &Value {
        self.schedule.graph.value(self.node().inputs[index])
    }

    /// Its result, whole.
    pub fn output(&self) -> &Value {
        self.schedule.graph.value(self.node().output)
    }

    /// What the elements of an input are.
    pub fn input_element(&self, index: usize) -> ElementType {
        self.schedule.elements.of(self.node().inputs[index])
    }

    /// What the elements of its result are.
    pub fn output_element(&self) -> ElementType {
        self.schedule.elements.of(self.node().output)
    }

    /// Bytes of an input: of a node in parts, those that are read here.
    pub fn input_bytes(&self, index: usize) -> Bytes {
        let (value, element) = (self.input(index), self.input_element(index));
        match self.run.tokens {
            Some(tokens) => Bytes(element.bytes() * (tokens * value.features()) as u64),
            None => value.bytes_as(element),
        }
    }

    /// Bytes that its result takes here: of a split product, or of a node in parts, those of its
    /// part.
    pub fn output_bytes(&self) -> Bytes {
        let rows = self.view().tokens();
        Bytes(self.output_element().bytes() * (rows * self.run.output_features) as u64)
    }

    /// Whether the schedule gave the result its first input's place.
    pub fn is_taken_over(&self) -> bool {
        self.run.inputs[0] == self.run.output
    }

    /// Where the lane's values and workspaces lie.
    pub fn arena(&self) -> &Region {
        self.memory.arena.as_deref().expect("the phase was entered")
    }

    /// Which rows of a weight it uses.
    pub fn slice(&self, index: usize) -> &WeightSlice {
        let lane = &self.schedule.lanes[self.run.lane];
        &lane.weights.slices[self.run.weights[index]]
    }

    /// The weight.
    pub fn tensor(&self, index: usize) -> &TensorRef {
        &self.schedule.graph.weights[self.slice(index).weight.0].tensor
    }

    /// Bytes of the rows that it uses of a weight.
    pub fn weight_bytes(&self, index: usize) -> Bytes {
        let slice = self.slice(index);
        slice_bytes(&self.schedule.graph, slice.weight, &slice.rows)
    }

    /// Where these are; `None` for in the mapping of their file.
    pub fn weight_place(&self, index: usize) -> Option<(&Region, Bytes)> {
        let memory = self.memory;
        let (region, offset) = match self.slice(index).place {
            WeightPlace::Mapped => return None,
            WeightPlace::Resident(offset) => (memory.resident.as_deref(), offset),
            WeightPlace::Lazy(offset) => (memory.lazy.as_deref(), offset),
            WeightPlace::Slot { offset, .. } => {
                let (region, slot) = memory.slot.as_ref().expect("an item was acquired");
                (Some(&**region), *slot + offset)
            }
        };
        Some((region.expect("weights were loaded"), offset))
    }

    /// What it reads, weights included, and what it writes.
    pub fn spans(&self) -> [Vec<Span>; 2] {
        let node = self.node();
        let arena = self.arena().id();
        let values = self
            .run
            .inputs
            .iter()
            .enumerate()
            .map(|(index, &offset)| Span::new(arena, offset.0, self.input_bytes(index).0));
        let weights = (0..node.weights.len()).filter_map(|index| {
            let (region, offset) = self.weight_place(index)?;
            Some(Span::new(region.id(), offset.0, self.weight_bytes(index).0))
        });
        let Run { output, output_features, columns, workspace, .. } = self.run;
        let rows = self.view().tokens() as u64;
        let of = |columns: usize| self.output_element().bytes() * columns as u64;
        let (row_bytes, stride) = (of(columns.len()), of(*output_features));
        let written = if columns.len() == *output_features {
            vec![Span::new(arena, output.0, rows * stride)]
        } else {
            let start = output.0 + of(columns.start);
            Span::rows(arena, start, row_bytes, stride, rows).collect()
        };
        let workspace = Span::new(arena, workspace.0.0, workspace.1.0);
        [values.chain(weights).collect(), written.into_iter().chain([workspace]).collect()]
    }
}
