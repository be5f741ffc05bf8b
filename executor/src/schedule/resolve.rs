//! From steps to instructions: every piece and every weight gets its place.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::Bytes;

use super::lifetime::Lifetimes;
use super::program::{Piece, PieceCopy, Step};
use super::{Assignment, Elements, Instruction, LaneSchedule, LaneWeights, Run, Transfer, arena};
use crate::graph::{Graph, ValueId, WeightId};

/// A lane's buffers with their offsets.
pub struct PlacedBuffers {
    /// The buffers.
    pub lifetimes: Lifetimes,
    /// Where each piece lies.
    pub offsets: BTreeMap<Piece, Bytes>,
    workspaces: BTreeMap<usize, (Bytes, Bytes)>,
    /// Size of the arena.
    pub arena_bytes: Bytes,
}

impl PlacedBuffers {
    /// Gives each buffer its offset.
    pub fn new(lifetimes: Lifetimes) -> PlacedBuffers {
        let (offsets, arena_bytes) = arena::place(&lifetimes.buffers);
        arena::assert_disjoint(&lifetimes.buffers, &offsets);
        let pieces = lifetimes.pieces.iter();
        let pieces = pieces.map(|&(piece, buffer)| (piece, offsets[buffer])).collect();
        let workspaces = lifetimes.workspaces.iter();
        let workspaces = workspaces
            .map(|&(at, buffer)| (at, (offsets[buffer], lifetimes.buffers[buffer].bytes)))
            .collect();
        PlacedBuffers { lifetimes, offsets: pieces, workspaces, arena_bytes }
    }

    /// Gives each buffer the offset that it has on a lane of another schedule with the same steps.
    ///
    /// # Panics
    /// If the steps are others, or a buffer does not fit there.
    pub fn like(
        lifetimes: Lifetimes,
        lane: &LaneSchedule,
        program: &[Instruction],
    ) -> PlacedBuffers {
        let mut offsets = vec![Bytes::ZERO; lifetimes.buffers.len()];
        for (piece, buffer) in &lifetimes.pieces {
            offsets[*buffer] = lane.offsets[piece];
        }
        let mut workspaces = BTreeMap::new();
        for &(at, buffer) in &lifetimes.workspaces {
            let Instruction::Run(run) = &program[at] else { panic!("step {at} computes nothing") };
            offsets[buffer] = run.workspace.0;
            workspaces.insert(at, (run.workspace.0, lifetimes.buffers[buffer].bytes));
        }
        let ends = lifetimes.buffers.iter().zip(&offsets).map(|(buffer, &at)| at + buffer.bytes);
        let arena_bytes = lane.arena_bytes;
        assert!(ends.max().unwrap_or_default() <= arena_bytes, "a buffer is larger than there");
        arena::assert_disjoint(&lifetimes.buffers, &offsets);
        let offsets =
            lifetimes.pieces.iter().map(|&(piece, buffer)| (piece, offsets[buffer])).collect();
        PlacedBuffers { lifetimes, offsets, workspaces, arena_bytes }
    }
}

/// Turns steps into instructions.
pub struct Resolver<'a> {
    /// What is computed.
    pub graph: &'a Graph,
    /// What the elements of its values are.
    pub elements: &'a Elements,
    /// Where each node of it is computed.
    pub assignment: &'a Assignment,
    /// Each lane's arena.
    pub placed: &'a [PlacedBuffers],
}

impl Resolver<'_> {
    /// A step with the place of all that it touches; gives weights their places as they are first
    /// used.
    pub fn instruction(&self, at: usize, step: &Step, weights: &mut [LaneWeights]) -> Instruction {
        match step {
            Step::Run { lane, node, rows, tokens, output } => {
                let weights = &mut weights[*lane];
                let part = (rows.as_ref(), tokens.as_ref());
                Instruction::Run(self.run(at, (*lane, *node), part, *output, weights))
            }
            Step::Start(copy) => Instruction::Start(*copy),
            Step::Wait(copy) => Instruction::Wait(*copy),
            // An item gets its number by the first node that uses its weights, which comes after
            // this.
            Step::Acquire { lane, .. } => {
                Instruction::Acquire { lane: *lane, item: weights[*lane].items.len() }
            }
            Step::Release { lane, segment } => {
                let item = weights[*lane].items.iter().position(|item| item == segment);
                Instruction::Release { lane: *lane, item: item.expect("it was acquired") }
            }
        }
    }

    fn run(
        &self,
        at: usize,
        (lane, node): (usize, usize),
        (rows, tokens): (Option<&Range<usize>>, Option<&Range<usize>>),
        output: Piece,
        weights: &mut LaneWeights,
    ) -> Run {
        let placed = &self.placed[lane];
        let of_node = &self.graph.nodes[node];
        let features = self.graph.value(of_node.output).features();
        let slices = of_node.weights.iter().map(|&weight| {
            let rows = rows_of(self.graph, weight, rows);
            weights.place(self.graph, self.assignment, lane, weight, rows)
        });
        let (output_features, columns) = match (output, rows) {
            (Piece::Part(_), Some(rows)) => (rows.len(), 0..rows.len()),
            (_, Some(rows)) => (features, rows.clone()),
            (_, None) => (features, 0..features),
        };
        let first = tokens.map_or(0, |tokens| tokens.start);
        let input = |&value: &ValueId| {
            placed.offsets[&Piece::Value(value)] + self.token_bytes(value, first)
        };
        Run {
            lane,
            node,
            tokens: tokens.map(Range::len),
            inputs: of_node.inputs.iter().map(input).collect(),
            output: placed.offsets[&output] + self.token_bytes(of_node.output, first),
            output_features,
            columns,
            weights: slices.collect(),
            workspace: placed.workspaces.get(&at).copied().unwrap_or_default(),
        }
    }

    /// Bytes of so many tokens of a value.
    fn token_bytes(&self, value: ValueId, tokens: usize) -> Bytes {
        token_bytes(self.graph, self.elements, value, tokens)
    }

    /// A copy with its places.
    pub fn transfer(&self, copy: &PieceCopy) -> Transfer {
        let ((from_lane, piece), (to_lane, value)) = (copy.from, copy.to);
        let first = copy.tokens.as_ref().map_or(0, |tokens| tokens.start);
        let skipped = self.token_bytes(value, first);
        let from = self.placed[from_lane].offsets[&piece] + skipped;
        let to = self.placed[to_lane].offsets[&Piece::Value(value)] + skipped;
        let Some(columns) = &copy.columns else {
            let row_bytes = transfer_bytes(self.graph, self.elements, copy);
            let (from_stride, to_stride) = (row_bytes, row_bytes);
            return Transfer {
                from_lane,
                from,
                from_stride,
                to_lane,
                to,
                to_stride,
                rows: 1,
                row_bytes,
            };
        };
        let element_bytes = self.elements.of(value).bytes();
        let bytes = |elements: usize| Bytes(element_bytes * elements as u64);
        let value = self.graph.value(value);
        Transfer {
            from_lane,
            from,
            from_stride: bytes(columns.len()),
            to_lane,
            to: to + bytes(columns.start),
            to_stride: bytes(value.features()),
            rows: value.rows(),
            row_bytes: bytes(columns.len()),
        }
    }
}

/// The rows of a weight that a step computes with: all, where it is not split.
pub fn rows_of(graph: &Graph, weight: WeightId, rows: Option<&Range<usize>>) -> Range<usize> {
    let shape = graph.weights[weight.0].tensor.shape();
    rows.cloned().unwrap_or(0..shape.first().copied().unwrap_or(1))
}

/// Bytes that a copy carries.
pub fn transfer_bytes(graph: &Graph, elements: &Elements, copy: &PieceCopy) -> Bytes {
    let (_, value) = copy.to;
    let rows = graph.value(value).rows();
    let Some(columns) = &copy.columns else {
        let tokens = copy.tokens.as_ref().map_or(rows, Range::len);
        return token_bytes(graph, elements, value, tokens);
    };
    Bytes(elements.of(value).bytes() * (rows * columns.len()) as u64)
}

/// Bytes of so many tokens of a value.
fn token_bytes(graph: &Graph, elements: &Elements, value: ValueId, tokens: usize) -> Bytes {
    let features = graph.value(value).features();
    Bytes(elements.of(value).bytes() * (tokens * features) as u64)
}
