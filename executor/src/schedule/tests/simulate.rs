//! A schedule played step by step over blocks that know whose bytes they hold.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::Bytes;
use protocol::plan::ALIGNMENT_BYTES;

use super::{overlap, range};
use crate::graph::ValueId;
use crate::schedule::{Instruction, Run, Schedule, Transfer};

/// The arenas during a run: which value's bytes each block of each lane holds.
struct Blocks<'a> {
    schedule: &'a Schedule,
    owners: Vec<Vec<Option<ValueId>>>,
}

impl Blocks<'_> {
    fn of(schedule: &Schedule) -> Blocks<'_> {
        let lanes = schedule.lanes.iter().map(|lane| {
            assert_eq!(lane.arena_bytes.0 % ALIGNMENT_BYTES, 0, "the arena is whole blocks");
            vec![None; (lane.arena_bytes.0 / ALIGNMENT_BYTES) as usize]
        });
        Blocks { schedule, owners: lanes.collect() }
    }

    fn value(&self, offset: Bytes, value: ValueId) -> Range<u64> {
        range(offset, self.schedule.elements.bytes(&self.schedule.graph, value))
    }

    fn blocks(&mut self, lane: usize, range: Range<u64>) -> &mut [Option<ValueId>] {
        assert_eq!(range.start % ALIGNMENT_BYTES, 0, "offsets are aligned");
        let blocks = range.start / ALIGNMENT_BYTES..range.end.div_ceil(ALIGNMENT_BYTES);
        &mut self.owners[lane][blocks.start as usize..blocks.end as usize]
    }

    fn write(&mut self, lane: usize, offset: Bytes, value: ValueId) {
        self.blocks(lane, self.value(offset, value)).fill(Some(value));
    }

    #[track_caller]
    fn assert_holds(&mut self, lane: usize, offset: Bytes, value: ValueId) {
        let mut blocks = self.blocks(lane, self.value(offset, value)).iter();
        let whole = blocks.all(|&owner| owner == Some(value));
        assert!(whole, "{value:?} was overwritten on lane {lane} before it was read");
    }

    /// Runs one node: what it reads is there, and what it writes is nothing that it still reads.
    fn run(&mut self, run: &Run) {
        let node = &self.schedule.graph.nodes[run.node];
        let (workspace, output) =
            (range(run.workspace.0, run.workspace.1), self.value(run.output, node.output));
        let at = run.node;
        assert!(!overlap(&workspace, &output), "node {at} has its workspace in its result");
        for (index, (&input, &offset)) in node.inputs.iter().zip(&run.inputs).enumerate() {
            self.assert_holds(run.lane, offset, input);
            let read = self.value(offset, input);
            assert!(!overlap(&workspace, &read), "node {at} has its workspace in its input");
            // A result that is smaller than the input begins where that does.
            let same = read.start == output.start && read.end >= output.end;
            let in_place = index == 0 && node.op.in_place() && same;
            assert!(in_place || !overlap(&output, &read), "node {at} writes what it reads");
        }
        self.blocks(run.lane, workspace).fill(None);
        self.write(run.lane, run.output, node.output);
    }

    /// The value that a copy carries, by what its source holds.
    fn carried(&self, copy: &Transfer) -> ValueId {
        let block = (copy.from.0 / ALIGNMENT_BYTES) as usize;
        self.owners[copy.from_lane][block].expect("a copy of a value")
    }
}

/// Runs a schedule twice from inputs that are given once. A copy may happen at any time between its
/// start and the wait for it: its source must be there until then, and nothing else may write its
/// target.
pub fn assert_values_last(schedule: &Schedule) {
    let graph = &schedule.graph;
    let mut blocks = Blocks::of(schedule);
    for port in &graph.inputs {
        for (lane, offset) in schedule.input_places(port.value) {
            blocks.write(lane, offset, port.value);
        }
    }
    for _ in 0..2 {
        let mut flying = BTreeMap::new();
        for instruction in &schedule.program {
            match instruction {
                Instruction::Run(run) => blocks.run(run),
                Instruction::Start(copy) => {
                    let transfer = &schedule.transfers[*copy];
                    let value = blocks.carried(transfer);
                    blocks.assert_holds(transfer.from_lane, transfer.from, value);
                    blocks.write(transfer.to_lane, transfer.to, value);
                    flying.insert(*copy, value);
                }
                Instruction::Wait(copy) => {
                    let transfer = &schedule.transfers[*copy];
                    let value = flying.remove(copy).expect("a copy that was started");
                    blocks.assert_holds(transfer.from_lane, transfer.from, value);
                    blocks.assert_holds(transfer.to_lane, transfer.to, value);
                }
                Instruction::Acquire { .. } | Instruction::Release { .. } => {
                    panic!("nothing is streamed")
                }
            }
        }
        assert!(flying.is_empty(), "a copy that nobody waits for");
        for port in &graph.inputs {
            for (lane, offset) in schedule.input_places(port.value) {
                blocks.assert_holds(lane, offset, port.value);
            }
        }
        for port in &graph.outputs {
            let (lane, offset) = schedule.output_place(port.value);
            blocks.assert_holds(lane, offset, port.value);
        }
    }
}
