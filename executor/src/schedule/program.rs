//! The program of a schedule: in which order nodes run and copies start and end, before anything
//! has a place.
//!
//! ```text
//! node by node:   Start copies it lacks ─► Wait for those read ─► Run its rows elsewhere ─► Run
//!                                          └ its result goes on its way to other lanes at once
//! in parts:       the first tokens of several nodes, one for each lane, then their next ones
//! ring:           Acquire before a segment's first node on a lane, Release after its last
//! ```
//! A copy is in flight from its `Start` to its `Wait`: both of its ends are alive between the two,
//! which makes the intervals of `super::lifetime` the order in time. A backend whose streams run on
//! their own must order a `Start` after all that was issued before it on both lanes, and all that
//! is issued after a `Wait` on both lanes after the copy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use protocol::limits::DEVICES_MAX;
use protocol::profile::BackendKind;

use super::Assignment;
use super::token_parts::{in_parts_together, token_ranges};
use crate::graph::{Graph, Node, ValueId};

/// A piece of a lane's arena that is no workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// Whole, on a lane that has it.
    Value(ValueId),
    /// The rows' part of a split product, by number, before it goes to the first lane.
    Part(usize),
}

/// A copy of a whole value, of some tokens of it, or of a part into some columns of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceCopy {
    /// Lane and piece that are read.
    pub from: (usize, Piece),
    /// Lane and value that are written.
    pub to: (usize, ValueId),
    /// The columns that are written; `None` for all.
    pub columns: Option<Range<usize>>,
    /// The tokens that are copied; `None` for all.
    pub tokens: Option<Range<usize>>,
}

/// What is done at one point of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Computes a node, or some rows of its matrix, or some of its tokens, on a lane.
    Run {
        /// Which device computes, by its position in the plan.
        lane: usize,
        /// Index of the node.
        node: usize,
        /// The rows, where the node is split.
        rows: Option<Range<usize>>,
        /// The rows of its result, one for each token, where these are computed in parts.
        tokens: Option<Range<usize>>,
        /// Where the result goes.
        output: Piece,
    },
    /// Starts a copy, by number.
    Start(usize),
    /// Waits for a copy, by number.
    Wait(usize),
    /// Waits until the weights of a segment are in their slot on a lane.
    Acquire {
        /// Whose ring it is in.
        lane: usize,
        /// Whose weights are awaited.
        segment: usize,
    },
    /// Gives the slot of a segment on a lane back.
    Release {
        /// Whose ring it is in.
        lane: usize,
        /// Whose weights are done with.
        segment: usize,
    },
}

/// The steps of a graph under an assignment.
#[derive(Debug)]
pub struct Program {
    /// All steps, in order.
    pub steps: Vec<Step>,
    /// All copies, by number.
    pub copies: Vec<PieceCopy>,
    /// For each part, by number, the copy that sends it.
    pub sent: Vec<usize>,
    /// The lanes on which each input of the graph is read.
    pub input_lanes: BTreeMap<ValueId, BTreeSet<usize>>,
    /// The lane on which each value is made; 0 for inputs.
    pub home: Vec<usize>,
    /// Lanes in all: those of the assignment, and the host's after them where it is needed.
    pub lanes: usize,
}

impl Program {
    /// The program of another graph with the same nodes, whose shares of rows are others. `None`
    /// where rows of other nodes are split, or where not the same lanes have some.
    pub fn with_rows_of(&self, graph: &Graph, assignment: &Assignment) -> Option<Program> {
        let rows = graph.nodes.iter().map(|node| assignment.rows(graph, node));
        let rows: Vec<Option<Vec<Range<usize>>>> = rows.collect();
        let some = rows.iter().flatten().flatten().filter(|rows| !rows.is_empty());
        let (mut steps, mut missing) = (self.steps.clone(), some.count());
        let mut copies = self.copies.clone();
        for step in &mut steps {
            let Step::Run { lane, node, rows: own, output, .. } = step else { continue };
            let new = rows[*node].as_ref().map(|of_lanes| of_lanes[*lane].clone());
            if own.is_some() != new.is_some() || new.as_ref().is_some_and(Range::is_empty) {
                return None;
            }
            missing -= usize::from(new.is_some());
            if let Piece::Part(part) = output {
                copies[self.sent[*part]].columns.clone_from(&new);
            }
            *own = new;
        }
        let (sent, input_lanes) = (self.sent.clone(), self.input_lanes.clone());
        let (home, lanes) = (self.home.clone(), self.lanes);
        let program = Program { steps, copies, sent, input_lanes, home, lanes };
        (missing == 0).then_some(program)
    }
}

/// Orders everything.
pub fn program(graph: &Graph, assignment: &Assignment) -> Program {
    let lanes = node_lanes(graph, assignment);
    let mut order = ProgramBuilder::new(graph, assignment, lanes);
    let mut at = 0;
    while at < graph.nodes.len() {
        let together = in_parts_together(graph, at);
        match together.len() {
            0 => order.node(at),
            _ => order.nodes_in_parts(together.clone()),
        }
        at += together.len().max(1);
    }
    order.finish()
}

/// The lane of each node: its own, or its segment's; the host's where that cannot do it; or,
/// without weights or a lane of its own, the one where all its inputs are, if its result is smaller
/// than they are.
fn node_lanes(graph: &Graph, assignment: &Assignment) -> Vec<usize> {
    let kinds = &assignment.lanes;
    let host = kinds.iter().position(|lane| lane.backend == BackendKind::Host);
    let host = host.unwrap_or(kinds.len());
    let mut home: Vec<Option<usize>> = vec![None; graph.values.len()];
    let mut node_lanes = Vec::new();
    for node in &graph.nodes {
        let own = assignment.lane_of(graph, node);
        let is_free = node.weights.is_empty() && node.lane.is_none();
        let lane = match assignment.can_do(own, &node.op) {
            false => host,
            true if is_free => lane_of_inputs(graph, assignment, node, &home).unwrap_or(own),
            true => own,
        };
        home[node.output.0] = Some(lane);
        node_lanes.push(lane);
    }
    node_lanes
}

/// The lane where all inputs of a node are and that can do it, if its result is smaller than they
/// are: then less crosses. `home` is where each value was computed; `None` for the graph's inputs.
fn lane_of_inputs(
    graph: &Graph,
    assignment: &Assignment,
    node: &Node,
    home: &[Option<usize>],
) -> Option<usize> {
    let lane = node.inputs.first().and_then(|input| home[input.0])?;
    let together = node.inputs.iter().all(|input| home[input.0] == Some(lane));
    let inputs_bytes: u64 = node.inputs.iter().map(|&input| graph.value(input).bytes().0).sum();
    let smaller = graph.value(node.output).bytes().0 < inputs_bytes;
    let able = assignment.lanes.get(lane).is_none() || assignment.can_do(lane, &node.op);
    (together && smaller && able).then_some(lane)
}

/// How far a value is on its way to a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// It is not sent.
    Not,
    /// The copy of this number has started.
    Started(u32),
    /// Some of its tokens are sent after others.
    InParts,
    /// It was waited for.
    There,
}

struct ProgramBuilder<'a> {
    graph: &'a Graph,
    assignment: &'a Assignment,
    node_lanes: Vec<usize>,
    /// The rows of split nodes.
    rows: Vec<Option<Vec<Range<usize>>>>,
    /// For each value a bit for each lane that reads it.
    readers: Vec<u32>,
    produced: Vec<bool>,
    home: Vec<usize>,
    lanes: usize,
    steps: Vec<Step>,
    copies: Vec<PieceCopy>,
    /// By value, and of each by lane.
    arrivals: Vec<Arrival>,
    /// Copies of parts into a value that nobody has waited for.
    gathers: BTreeMap<ValueId, Vec<usize>>,
    /// By value and lane, copies of some of its tokens after others that nobody has waited for.
    in_parts: BTreeMap<(ValueId, usize), VecDeque<usize>>,
    /// For each part the copy that sends it.
    sent: Vec<usize>,
}

impl<'a> ProgramBuilder<'a> {
    fn new(
        graph: &'a Graph,
        assignment: &'a Assignment,
        node_lanes: Vec<usize>,
    ) -> ProgramBuilder<'a> {
        let rows: Vec<_> = graph.nodes.iter().map(|node| assignment.rows(graph, node)).collect();
        let mut home = vec![0; graph.values.len()];
        let mut produced = vec![false; graph.values.len()];
        for (node, &lane) in graph.nodes.iter().zip(&node_lanes) {
            home[node.output.0] = lane;
            produced[node.output.0] = true;
        }
        let mut readers = vec![0; graph.values.len()];
        for ((node, &lane), rows) in graph.nodes.iter().zip(&node_lanes).zip(&rows) {
            let split = rows.iter().flatten().enumerate().filter(|(_, rows)| !rows.is_empty());
            let lanes = std::iter::once(lane).chain(split.map(|(lane, _)| lane));
            for lane in lanes {
                node.inputs.iter().for_each(|input| readers[input.0] |= 1 << lane);
            }
        }
        // As many as there are, but for parts of split products.
        let copies = readers.iter().zip(&home).zip(&produced).map(|((readers, home), produced)| {
            if *produced { (readers & !(1_u32 << home)).count_ones() as usize } else { 0 }
        });
        let copies = copies.sum();
        let most = node_lanes.iter().copied().max().unwrap_or(0);
        let lanes = assignment.lanes.len().max(most + 1);
        ProgramBuilder {
            graph,
            assignment,
            lanes,
            node_lanes,
            rows,
            readers,
            produced,
            home,
            steps: Vec::with_capacity(graph.nodes.len() + 2 * copies),
            copies: Vec::with_capacity(copies),
            arrivals: vec![Arrival::Not; graph.values.len() * lanes],
            gathers: BTreeMap::new(),
            in_parts: BTreeMap::new(),
            sent: Vec::new(),
        }
    }

    fn node(&mut self, index: usize) {
        let node = &self.graph.nodes[index];
        let lane = self.node_lanes[index];
        let rows = self.rows[index].take();
        let own_rows = rows.as_ref().map(|rows| rows[lane].clone());
        let elsewhere = rows.into_iter().flatten().enumerate();
        let elsewhere: Vec<_> =
            elsewhere.filter(|(other, rows)| *other != lane && !rows.is_empty()).collect();
        for (other, _) in &elsewhere {
            node.inputs.iter().for_each(|&input| self.start(input, *other));
        }
        node.inputs.iter().for_each(|&input| self.start(input, lane));
        for (other, rows) in &elsewhere {
            node.inputs.iter().for_each(|&input| self.arrive(input, *other));
            self.part(index, *other, rows.clone());
        }
        node.inputs.iter().for_each(|&input| self.arrive(input, lane));
        let output = Piece::Value(node.output);
        if own_rows.as_ref().is_none_or(|rows| !rows.is_empty()) {
            let rows = own_rows;
            self.steps.push(Step::Run { lane, node: index, rows, tokens: None, output });
        }
        if elsewhere.is_empty() {
            // A gathered value leaves when it is first read, or this would wait for it here.
            lanes_of(self.readers[node.output.0]).for_each(|lane| self.start(node.output, lane));
        }
    }

    /// Runs nodes that are computed in parts: the first part of each, then the next ones. Each part
    /// goes on its way at once, and waits for that part of what comes.
    fn nodes_in_parts(&mut self, nodes: Range<usize>) {
        let graph = self.graph;
        let first = &graph.nodes[nodes.start];
        for tokens in token_ranges(graph.value(first.output).rows(), first.token_parts) {
            for index in nodes.clone() {
                let (node, lane) = (&graph.nodes[index], self.node_lanes[index]);
                node.inputs.iter().for_each(|&input| self.start(input, lane));
                for &input in &node.inputs {
                    match self.in_parts.get_mut(&(input, lane)).and_then(VecDeque::pop_front) {
                        Some(copy) => self.steps.push(Step::Wait(copy)),
                        None => self.arrive(input, lane),
                    }
                }
                let (output, part) = (Piece::Value(node.output), Some(tokens.clone()));
                let rows = None;
                self.steps.push(Step::Run { lane, node: index, rows, tokens: part, output });
                let others = lanes_of(self.readers[node.output.0]).filter(|other| *other != lane);
                others.for_each(|other| self.start_part(node.output, other, tokens.clone()));
            }
        }
    }

    /// Sends some tokens of a value to a lane.
    fn start_part(&mut self, value: ValueId, lane: usize, tokens: Range<usize>) {
        let copy = self.copies.len();
        self.arrivals[value.0 * self.lanes + lane] = Arrival::InParts;
        self.in_parts.entry((value, lane)).or_default().push_back(copy);
        self.steps.push(Step::Start(copy));
        let (from, to) = ((self.home[value.0], Piece::Value(value)), (lane, value));
        self.copies.push(PieceCopy { from, to, columns: None, tokens: Some(tokens) });
    }

    /// Runs some rows of a node on a lane, and sends what they give to the node's own.
    fn part(&mut self, index: usize, lane: usize, rows: Range<usize>) {
        let output = self.graph.nodes[index].output;
        let part = Piece::Part(self.sent.len());
        self.sent.push(self.copies.len());
        let own_rows = Some(rows.clone());
        let run = Step::Run { lane, node: index, rows: own_rows, tokens: None, output: part };
        self.steps.push(run);
        let to = (self.node_lanes[index], output);
        self.steps.push(Step::Start(self.copies.len()));
        self.gathers.entry(output).or_default().push(self.copies.len());
        let (from, columns) = ((lane, part), Some(rows));
        self.copies.push(PieceCopy { from, to, columns, tokens: None });
    }

    /// Sends a value to a lane, unless it is there, on its way, or an input, which is given to each
    /// lane.
    fn start(&mut self, value: ValueId, lane: usize) {
        let home = self.home[value.0];
        let arrival = value.0 * self.lanes + lane;
        if lane == home || !self.produced[value.0] || self.arrivals[arrival] != Arrival::Not {
            return;
        }
        self.gather(value);
        self.arrivals[arrival] = Arrival::Started(self.copies.len() as u32);
        self.steps.push(Step::Start(self.copies.len()));
        let from = (home, Piece::Value(value));
        self.copies.push(PieceCopy { from, to: (lane, value), columns: None, tokens: None });
    }

    /// Waits until a value is whole on a lane.
    fn arrive(&mut self, value: ValueId, lane: usize) {
        let arrival = value.0 * self.lanes + lane;
        if lane == self.home[value.0] {
            self.gather(value);
        } else if let Arrival::Started(copy) = self.arrivals[arrival] {
            self.arrivals[arrival] = Arrival::There;
            self.steps.push(Step::Wait(copy as usize));
        } else if self.arrivals[arrival] == Arrival::InParts {
            let copies = self.in_parts.remove(&(value, lane)).unwrap_or_default();
            self.steps.extend(copies.into_iter().map(Step::Wait));
        }
    }

    /// Waits for the parts of a value.
    fn gather(&mut self, value: ValueId) {
        let copies = self.gathers.remove(&value).unwrap_or_default();
        self.steps.extend(copies.into_iter().map(Step::Wait));
    }

    fn finish(mut self) -> Program {
        // A result that nobody reads here is read by the pipeline.
        let open: Vec<ValueId> = self.gathers.keys().copied().collect();
        open.into_iter().for_each(|value| self.gather(value));
        let inputs = self.graph.inputs.iter().map(|port| port.value);
        let of = |value: ValueId| (value, lanes_of(self.readers[value.0]).collect());
        let input_lanes: BTreeMap<ValueId, BTreeSet<usize>> = inputs.map(of).collect();
        let steps = with_slots(self.graph, self.assignment, self.steps);
        let ProgramBuilder { copies, sent, home, lanes, .. } = self;
        Program { steps, copies, sent, input_lanes, home, lanes }
    }
}

/// The lanes that have a bit, in order.
fn lanes_of(bits: u32) -> impl Iterator<Item = usize> {
    const { assert!(DEVICES_MAX < u32::BITS as usize) };
    let without_lowest = |bits: &u32| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
    let left = std::iter::successors(Some(bits).filter(|bits| *bits != 0), without_lowest);
    left.map(|bits| bits.trailing_zeros() as usize)
}

/// Sets an acquisition before the first step of each streamed segment on each lane, and a release
/// after its last.
fn with_slots(graph: &Graph, assignment: &Assignment, steps: Vec<Step>) -> Vec<Step> {
    if !(0..graph.segments.len()).any(|segment| assignment.is_streamed(segment)) {
        return steps;
    }
    let user = |step: &Step| match step {
        Step::Run { lane, node, .. } if !graph.nodes[*node].weights.is_empty() => {
            let segment = graph.nodes[*node].segment;
            assignment.streams(*lane, segment).then_some((*lane, segment))
        }
        _ => None,
    };
    let mut last: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        if let Some(slot) = user(step) {
            last.insert(slot, at);
        }
    }
    let mut open = BTreeSet::new();
    let mut with = Vec::with_capacity(steps.len() + 2 * last.len());
    for (at, step) in steps.into_iter().enumerate() {
        let slot = user(&step);
        if let Some((lane, segment)) = slot
            && open.insert((lane, segment))
        {
            with.push(Step::Acquire { lane, segment });
        }
        with.push(step);
        if let Some((lane, segment)) = slot
            && last[&(lane, segment)] == at
        {
            with.push(Step::Release { lane, segment });
        }
    }
    with
}
