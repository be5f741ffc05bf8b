//! Lifetimes: which pieces share a buffer on each lane, and from which step to which each buffer is
//! alive.
//!
//! A copy keeps both of its ends alive from its start to the wait for it.

use std::collections::{BTreeMap, BTreeSet};

use protocol::Bytes;
use protocol::plan::ALIGNMENT_BYTES;

use super::program::{Piece, PieceCopy, Program, Step};
use super::{Assignment, Elements, Needs};
use crate::graph::{Graph, ValueId};

/// A piece of an arena and the steps, both ends included, during which it is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// Size, a multiple of the alignment.
    pub bytes: Bytes,
    /// The step that first writes it.
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
    /// Whether it is a node's workspace and no value.
    pub workspace: bool,
}

/// The buffers of one lane, and who uses which.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// Of its values and workspaces alike.
    pub buffers: Vec<ArenaBuffer>,
    /// The buffer of each piece that is ever on the lane, each piece once.
    pub pieces: Vec<(Piece, usize)>,
    /// The workspace of each step that needs one, in order.
    pub workspaces: Vec<(usize, usize)>,
    /// For each buffer the value that it has the size of; `None` of workspaces and parts.
    values: Vec<Option<ValueId>>,
    /// The buffer of each value that is ever on the lane.
    of_values: Vec<Option<usize>>,
}

/// Computes the buffers of all lanes; `workspace` tells what a step needs beside its values, a
/// multiple of the alignment. Inputs and outputs live from the first step to the last: inputs are
/// given once for several runs, outputs are read after one. An operation that can work in place
/// takes its first input's buffer when nothing reads or sends that input later.
pub fn lifetimes(
    graph: &Graph,
    elements: &Elements,
    assignment: &Assignment,
    needs: &dyn Needs,
    program: &Program,
    workspace: impl Fn(&Step) -> Bytes,
) -> Vec<Lifetimes> {
    let end = program.steps.len().saturating_sub(1);
    let uses = Uses::of(graph, program);
    let mut lanes: Vec<Lifetimes> =
        (0..program.lanes).map(|_| Lifetimes::new(graph.values.len())).collect();
    for &(lane, value) in &uses.pinned {
        let piece = Piece::Value(value);
        let bytes = bytes_of(graph, elements, value, graph.value(value).features());
        lanes[lane].add(piece, ArenaBuffer { bytes, first: 0, last: end, workspace: false });
    }
    for (at, step) in program.steps.iter().enumerate() {
        match step {
            Step::Run { lane, node, rows, output, .. } => {
                if !lanes[*lane].has(*output) {
                    let last = uses.last.of(*lane, *output);
                    match uses.taken_over(graph, elements, assignment, needs, (*lane, *node)) {
                        Some(input) => lanes[*lane].extend(input, *output, last),
                        None => {
                            let value = graph.nodes[*node].output;
                            let columns = match (output, rows) {
                                (Piece::Part(_), Some(rows)) => rows.len(),
                                _ => graph.value(value).features(),
                            };
                            let bytes = bytes_of(graph, elements, value, columns);
                            let buffer = ArenaBuffer { bytes, first: at, last, workspace: false };
                            lanes[*lane].add(*output, buffer);
                        }
                    }
                }
                let bytes = workspace(step);
                if bytes > Bytes::ZERO {
                    let buffer = ArenaBuffer { bytes, first: at, last: at, workspace: true };
                    let index = lanes[*lane].push(buffer, None);
                    lanes[*lane].workspaces.push((at, index));
                }
            }
            Step::Start(copy) => {
                let (lane, value) = program.copies[*copy].to;
                let piece = Piece::Value(value);
                if !lanes[lane].has(piece) {
                    let bytes = bytes_of(graph, elements, value, graph.value(value).features());
                    let last = uses.last.of(lane, piece);
                    lanes[lane]
                        .add(piece, ArenaBuffer { bytes, first: at, last, workspace: false });
                }
            }
            Step::Wait(_) | Step::Acquire { .. } | Step::Release { .. } => {}
        }
    }
    lanes
}

impl Lifetimes {
    /// No buffers yet, for a graph with `values` values.
    fn new(values: usize) -> Lifetimes {
        Lifetimes { of_values: vec![None; values], ..Lifetimes::default() }
    }

    /// Whether a piece has a buffer. A part is made once, and has none before.
    fn has(&self, piece: Piece) -> bool {
        match piece {
            Piece::Value(value) => self.of_values[value.0].is_some(),
            Piece::Part(_) => false,
        }
    }

    fn set(&mut self, piece: Piece, buffer: usize) {
        self.pieces.push((piece, buffer));
        if let Piece::Value(value) = piece {
            self.of_values[value.0] = Some(buffer);
        }
    }

    fn push(&mut self, buffer: ArenaBuffer, of: Option<ValueId>) -> usize {
        self.buffers.push(buffer);
        self.values.push(of);
        self.buffers.len() - 1
    }

    fn add(&mut self, piece: Piece, buffer: ArenaBuffer) {
        let of = match piece {
            Piece::Value(value) => Some(value),
            Piece::Part(_) => None,
        };
        let index = self.push(buffer, of);
        self.set(piece, index);
    }

    /// The buffers for another graph with the same nodes, workspaces as they are here. `program` is
    /// that graph's.
    pub fn buffers_of(
        &self,
        graph: &Graph,
        elements: &Elements,
        program: &Program,
    ) -> Vec<ArenaBuffer> {
        let sized = |(buffer, value): (&ArenaBuffer, &Option<ValueId>)| match *value {
            Some(value) => {
                let bytes = bytes_of(graph, elements, value, graph.value(value).features());
                ArenaBuffer { bytes, ..buffer.clone() }
            }
            None => buffer.clone(),
        };
        let mut buffers: Vec<ArenaBuffer> =
            self.buffers.iter().zip(&self.values).map(sized).collect();
        for (piece, buffer) in &self.pieces {
            if let Piece::Part(part) = piece {
                let PieceCopy { to: (_, value), columns, .. } =
                    &program.copies[program.sent[*part]];
                let columns = columns.as_ref().map_or(0, |columns| columns.len());
                buffers[*buffer].bytes = bytes_of(graph, elements, *value, columns);
            }
        }
        buffers
    }

    /// Gives a piece the buffer of another one, which ends there.
    fn extend(&mut self, from: ValueId, to: Piece, last: usize) {
        let index = self.of_values[from.0].expect("what is read is there");
        self.buffers[index].last = last;
        self.set(to, index);
    }
}

/// Who uses what until when.
struct Uses {
    last: LastUses,
    /// By node, the last step that computes some of it.
    ends: Vec<usize>,
    /// Inputs and outputs of the graph, wherever they are.
    pinned: BTreeSet<(usize, ValueId)>,
}

/// The last step that reads, writes, sends or receives a piece on a lane.
struct LastUses {
    /// By lane, then by value.
    values: Vec<Vec<usize>>,
    /// By lane and part.
    parts: BTreeMap<(usize, usize), usize>,
}

impl LastUses {
    fn set(&mut self, lane: usize, piece: Piece, at: usize) {
        match piece {
            Piece::Value(value) => self.values[lane][value.0] = at,
            Piece::Part(part) => {
                self.parts.insert((lane, part), at);
            }
        }
    }

    /// Of a piece that is used there.
    fn of(&self, lane: usize, piece: Piece) -> usize {
        match piece {
            Piece::Value(value) => self.values[lane][value.0],
            Piece::Part(part) => self.parts[&(lane, part)],
        }
    }
}

impl Uses {
    fn of(graph: &Graph, program: &Program) -> Uses {
        let values = vec![vec![0; graph.values.len()]; program.lanes];
        let mut last = LastUses { values, parts: BTreeMap::new() };
        let mut ends = vec![0; graph.nodes.len()];
        for (at, step) in program.steps.iter().enumerate() {
            match step {
                Step::Run { lane, node, output, .. } => {
                    last.set(*lane, *output, at);
                    ends[*node] = at;
                    for &input in &graph.nodes[*node].inputs {
                        last.set(*lane, Piece::Value(input), at);
                    }
                }
                Step::Start(copy) | Step::Wait(copy) => {
                    let PieceCopy { from, to, .. } = &program.copies[*copy];
                    last.set(from.0, from.1, at);
                    last.set(to.0, Piece::Value(to.1), at);
                }
                Step::Acquire { .. } | Step::Release { .. } => {}
            }
        }
        let inputs = program.input_lanes.iter();
        let inputs = inputs.flat_map(|(&value, lanes)| lanes.iter().map(move |&l| (l, value)));
        let outputs = graph.outputs.iter().map(|port| (program.home[port.value.0], port.value));
        Uses { last, ends, pinned: inputs.chain(outputs).collect() }
    }

    /// The input whose buffer a node's result may take.
    fn taken_over(
        &self,
        graph: &Graph,
        elements: &Elements,
        assignment: &Assignment,
        needs: &dyn Needs,
        (lane, node): (usize, usize),
    ) -> Option<ValueId> {
        let (node, at) = (&graph.nodes[node], self.ends[node]);
        let input = *node.inputs.first()?;
        let pinned = |value| self.pinned.contains(&(lane, value));
        let held = [elements.of(input), elements.of(node.output)];
        let takes = self.last.of(lane, Piece::Value(input)) == at
            // A second operand that is the same value would be overwritten while it is read.
            && !node.inputs[1..].contains(&input)
            && !pinned(input)
            && !pinned(node.output)
            && needs.in_place(graph.view(node), held, assignment.backend(lane), assignment);
        takes.then_some(input)
    }
}

/// Bytes of some columns of a value.
fn bytes_of(graph: &Graph, elements: &Elements, value: ValueId, columns: usize) -> Bytes {
    let rows = graph.value(value).rows();
    Bytes(elements.of(value).bytes() * (rows * columns) as u64).align_up(ALIGNMENT_BYTES)
}

/// The bytes of values at each step.
pub struct AliveBytes {
    /// Of those alive during it.
    alive: Vec<Bytes>,
    /// Of those that it is the last to use.
    ending: Vec<Bytes>,
}

impl AliveBytes {
    /// Adds up a lane's buffers, at each of the program's steps.
    pub fn of(buffers: &[ArenaBuffer], steps: usize) -> AliveBytes {
        let (mut alive, mut ending) = (vec![Bytes::ZERO; steps], vec![Bytes::ZERO; steps]);
        // At first only of those that begin there.
        for buffer in buffers.iter().filter(|buffer| !buffer.workspace) {
            alive[buffer.first] += buffer.bytes;
            ending[buffer.last] += buffer.bytes;
        }
        for at in 1..steps {
            let before = alive[at - 1] - ending[at - 1];
            alive[at] += before;
        }
        AliveBytes { alive, ending }
    }

    /// The most at any one step of a range.
    pub fn most(&self, first: usize, last: usize) -> Bytes {
        self.alive[first..=last].iter().copied().max().unwrap_or_default()
    }

    /// Of those written at or before a step and read after it.
    pub fn carried(&self, at: usize) -> Bytes {
        self.alive[at] - self.ending[at]
    }
}
