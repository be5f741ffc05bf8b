//! The schedule of one component over the lanes of its assignment: what runs where and when, and
//! where every byte of each lane lies.
//!
//! Pure, and the same code for measuring and for running: a measurement is a schedule whose arenas
//! are never allocated. Made beside the graph, which it does not change.
//!
//! ```text
//! Graph + Assignment ──program──► steps and copies ──lifetime──► live ranges ──arena──► offsets
//!                    │                 └─elements──► f32 or 16 bits a value ─┘
//!                    └─weights──► slices of weights, by residency
//! ```
//! Invariants: two buffers that are alive at one step do not overlap (asserted when made), and a
//! copy keeps both its ends alive while it is in flight; every buffer and every weight starts at a
//! multiple of the plan's alignment.

pub mod assignment;
pub mod elements;
pub mod needs;
pub mod program;
pub mod weights;

mod arena;
mod footprint;
mod lifetime;
mod outline;
mod profile;
mod resolve;
mod token_parts;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use protocol::profile::Lane;
use protocol::{BackendKind, Bytes};

pub use assignment::Assignment;
pub use elements::Elements;
pub use footprint::{Footprint, Known};
pub use lifetime::ArenaBuffer;
pub use needs::{Needs, Reading};
pub use outline::Outline;
pub use weights::{LaneWeights, WeightPlace, WeightSlice};

use crate::graph::{Graph, ValueId};
use lifetime::Lifetimes;
use program::{Piece, Program};
use resolve::{PlacedBuffers, Resolver};

/// A graph with the order and the place of everything in it.
#[derive(Debug)]
pub struct Schedule {
    /// What is computed.
    pub graph: Arc<Graph>,
    /// What the schedule was made for.
    pub assignment: Assignment,
    /// Each lane: those of the assignment, then the host's where it does what a device cannot.
    pub lanes: Vec<LaneSchedule>,
    /// What to do, in order.
    pub program: Vec<Instruction>,
    /// What the elements of its values are.
    pub elements: Elements,
    /// The copies of the program, by number.
    pub transfers: Vec<Transfer>,
    /// For each copy, of a graph that is joined, for which of its runs of items it is; else 0.
    pub transfer_runs: Vec<usize>,
    input_lanes: BTreeMap<ValueId, Vec<usize>>,
    home: Vec<usize>,
}

/// The memory of one lane.
#[derive(Debug)]
pub struct LaneSchedule {
    /// What it is.
    pub lane: Lane,
    /// Size of its arena.
    pub arena_bytes: Bytes,
    /// What lies in its region of weights.
    pub weights: LaneWeights,
    offsets: BTreeMap<Piece, Bytes>,
    buffers: Vec<ArenaBuffer>,
}

/// One step, with the place of all that it touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Computes.
    Run(Run),
    /// Starts a copy, by number.
    Start(usize),
    /// Waits for a copy, by number.
    Wait(usize),
    /// Waits until an item's weights are in their slot.
    Acquire {
        /// Whose ring it is in.
        lane: usize,
        /// Index among the lane's items.
        item: usize,
    },
    /// Gives an item's slot back.
    Release {
        /// Whose ring it is in.
        lane: usize,
        /// Index among the lane's items.
        item: usize,
    },
}

/// The computation of a node, of some rows of its matrix, or of some of its tokens, on one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which device computes, by its position in the plan.
    pub lane: usize,
    /// Index of the node.
    pub node: usize,
    /// How many rows of inputs and result are computed, from where these begin here; `None` for
    /// all.
    pub tokens: Option<usize>,
    /// Where its inputs lie in the lane's arena.
    pub inputs: Vec<Bytes>,
    /// Where its result lies.
    pub output: Bytes,
    /// Features of a row of what lies there: more than are computed, where the rest comes from
    /// other lanes.
    pub output_features: usize,
    /// The features of each row that are computed.
    pub columns: Range<usize>,
    /// Its weights, as indices of the lane's slices.
    pub weights: Vec<usize>,
    /// Where its workspace lies, and its size.
    pub workspace: (Bytes, Bytes),
}

/// A copy of rows of bytes from one lane's arena to another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The lane that is read.
    pub from_lane: usize,
    /// Where the first row lies there.
    pub from: Bytes,
    /// From one row to the next there.
    pub from_stride: Bytes,
    /// The lane that is written.
    pub to_lane: usize,
    /// Where the first row lies there.
    pub to: Bytes,
    /// From one row to the next there.
    pub to_stride: Bytes,
    /// How many are copied, each as long as the next.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: Bytes,
}

impl Run {
    /// Whether it computes nothing: a part without tokens, where the component's inputs are too
    /// small for so many parts as they have at their largest.
    pub fn is_empty(&self) -> bool {
        self.tokens == Some(0)
    }
}

impl Transfer {
    /// Bytes that it carries.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.row_bytes.0 * self.rows as u64)
    }
}

impl Schedule {
    /// Orders and places everything. `needs` says what each node takes on the backend of its lane.
    ///
    /// # Panics
    /// If [`Assignment::check`] would refuse the assignment.
    pub fn new(graph: Arc<Graph>, assignment: Assignment, needs: &dyn Needs) -> Schedule {
        Schedule::placed(graph, assignment, needs, |_, lifetimes| PlacedBuffers::new(lifetimes))
    }

    /// The schedule of a graph with the same nodes, of which no value is larger than in this one's:
    /// all that it has lies where it does here, so that its arenas are as large.
    ///
    /// # Panics
    /// If it has other nodes, or something does not fit.
    pub fn smaller(&self, graph: Arc<Graph>, needs: &dyn Needs) -> Schedule {
        Schedule::placed(graph, self.assignment.clone(), needs, |lane, lifetimes| {
            PlacedBuffers::like(lifetimes, &self.lanes[lane], &self.program)
        })
    }

    fn placed(
        graph: Arc<Graph>,
        assignment: Assignment,
        needs: &dyn Needs,
        place: impl Fn(usize, Lifetimes) -> PlacedBuffers,
    ) -> Schedule {
        if let Err(why) = assignment.check(&graph, needs.operations()) {
            panic!("an assignment that was not checked: {why}");
        }
        let Outline { program, elements, lifetimes } =
            Outline::of(&graph, &assignment, needs, None);
        let lanes = lifetimes.into_iter().enumerate();
        let placed: Vec<PlacedBuffers> =
            lanes.map(|(lane, lifetimes)| place(lane, lifetimes)).collect();
        let mut weights: Vec<LaneWeights> =
            placed.iter().map(|_| LaneWeights::new(graph.segments.len())).collect();
        let resolver = Resolver {
            graph: &graph,
            elements: &elements,
            assignment: &assignment,
            placed: &placed,
        };
        let steps = program.steps.iter().enumerate();
        let instructions: Vec<Instruction> =
            steps.map(|(at, step)| resolver.instruction(at, step, &mut weights)).collect();
        let transfers = program.copies.iter().map(|copy| resolver.transfer(copy)).collect();
        let copied = program.copies.iter().map(|copy| copy.to.1);
        let transfer_runs = copied.map(|value| graph.item_run_of(value)).collect();
        let Program { input_lanes, home, .. } = program;
        let host = Lane { backend: BackendKind::Host, unsupported: Vec::new() };
        let lane =
            |(index, (placed, weights)): (usize, (PlacedBuffers, LaneWeights))| LaneSchedule {
                lane: assignment.lanes.get(index).unwrap_or(&host).clone(),
                arena_bytes: placed.arena_bytes,
                weights,
                offsets: placed.offsets,
                buffers: placed.lifetimes.buffers,
            };
        let lanes = placed.into_iter().zip(weights).enumerate().map(lane).collect();
        let lanes_of = |(value, lanes): (ValueId, std::collections::BTreeSet<usize>)| {
            (value, lanes.into_iter().collect())
        };
        let input_lanes = input_lanes.into_iter().map(lanes_of).collect();
        Schedule {
            graph,
            assignment,
            elements: elements.into_owned(),
            lanes,
            program: instructions,
            transfers,
            transfer_runs,
            input_lanes,
            home,
        }
    }

    /// The lanes that read an input, each with where it lies there.
    pub fn input_places(&self, value: ValueId) -> impl Iterator<Item = (usize, Bytes)> {
        let lanes = self.input_lanes.get(&value).into_iter().flatten();
        lanes.map(move |&lane| (lane, self.lanes[lane].offsets[&Piece::Value(value)]))
    }

    /// The lane on which an output is made, and where it lies there.
    pub fn output_place(&self, value: ValueId) -> (usize, Bytes) {
        let lane = self.home[value.0];
        (lane, self.lanes[lane].offsets[&Piece::Value(value)])
    }

    /// Bytes of the weights as in the file.
    pub fn tensor_bytes(&self) -> Bytes {
        self.graph.weights.iter().map(|weight| weight.tensor.size()).sum()
    }

    /// Bytes of activations that cross between lanes, and between a device and the host's pipeline,
    /// in one call.
    pub fn crossing_bytes(&self) -> Bytes {
        let on_device = |lane: usize| self.lanes[lane].lane.backend != BackendKind::Host;
        let readers = |value| self.input_places(value).filter(|&(lane, _)| on_device(lane)).count();
        let between = self.transfers.iter().map(Transfer::bytes).sum();
        crossing_bytes(&self.graph, between, readers, |value| on_device(self.home[value.0]))
    }
}

/// Activations that cross: those `between` lanes, each input once for each device that reads it,
/// and the outputs that a device makes.
fn crossing_bytes(
    graph: &Graph,
    between: Bytes,
    readers: impl Fn(ValueId) -> usize,
    on_device: impl Fn(ValueId) -> bool,
) -> Bytes {
    let bytes = |value: ValueId| graph.value(value).bytes();
    let inputs = graph.inputs.iter().map(|port| port.value);
    let inputs = inputs.map(|value| Bytes(bytes(value).0 * readers(value) as u64));
    let outputs = graph.outputs.iter().map(|port| port.value).filter(|value| on_device(*value));
    between + inputs.sum() + outputs.map(bytes).sum()
}

/// The schedules of one component, one for each size of its inputs, the largest's first. All lay
/// weights out alike.
pub type Variants = Vec<Arc<Schedule>>;

/// The schedules of graphs under one assignment. Of `nested` ones none has a larger value than the
/// first, by whose places all go.
///
/// # Errors
/// Why one of them cannot be laid out so.
pub fn variants(
    graphs: &[Arc<Graph>],
    nested: bool,
    assignment: &Assignment,
    needs: &dyn Needs,
) -> Result<Variants, String> {
    let mut variants = Variants::new();
    for graph in graphs {
        assignment.check(graph, needs.operations())?;
        let graph = Arc::clone(graph);
        variants.push(Arc::new(match variants.first().filter(|_| nested) {
            Some(first) => first.smaller(graph, needs),
            None => Schedule::new(graph, assignment.clone(), needs),
        }));
    }
    Ok(variants)
}

/// The arena of a lane that does for every size of a component's inputs.
pub fn arena_bytes(variants: &[Arc<Schedule>], lane: usize) -> Bytes {
    variants.iter().map(|variant| variant.lanes[lane].arena_bytes).max().unwrap_or_default()
}

#[cfg(test)]
mod tests;
