//! A small graph in the memory of a backend, ready to be run again and again.

use std::sync::Arc;
use std::time::Instant;

use protocol::{Bytes, Failure};

use super::{CalibrationTarget, seconds_since};
use crate::backend::{LaneMemory, NodeCall, Queue, Region, WeightLoad, WeightMove};
use crate::graph::{Graph, Port};
use crate::ops::OperationNeeds;
use crate::schedule::weights::slice_bytes;
use crate::schedule::{Assignment, Instruction, Schedule, WeightPlace};

/// A graph with its arena and its weights.
pub struct Probe<'a> {
    target: &'a CalibrationTarget<'a>,
    schedule: Arc<Schedule>,
    memory: LaneMemory,
}

/// Orders and places a graph for a target.
pub fn schedule(target: &CalibrationTarget<'_>, graph: Graph) -> Schedule {
    let assignment = Assignment::on_one(&graph, target.backend.kind(), target.threads);
    Schedule::new(Arc::new(graph), assignment, &OperationNeeds)
}

/// What a schedule takes of the target.
pub fn bytes(schedule: &Schedule) -> Bytes {
    schedule.lanes[0].arena_bytes + schedule.lanes[0].weights.resident_bytes
}

impl<'a> Probe<'a> {
    /// Allocates, and loads the weights.
    pub fn load(
        target: &'a CalibrationTarget<'a>,
        schedule: Schedule,
    ) -> Result<Probe<'a>, Failure> {
        let CalibrationTarget { backend, files, cancel, .. } = target;
        let lane = &schedule.lanes[0];
        let weights = &lane.weights;
        let arena = backend.allocate("calibration arena", lane.arena_bytes)?;
        let resident = backend.allocate("calibration weights", weights.resident_bytes)?;
        let moves = weights.slices.iter().map(|slice| {
            let WeightPlace::Resident(offset) = slice.place else {
                unreachable!("on one device all weights are resident")
            };
            let bytes = slice_bytes(&schedule.graph, slice.weight, &slice.rows).as_usize();
            let tensor = schedule.graph.weights[slice.weight.0].tensor;
            WeightMove { tensor, bytes: 0..bytes, offset }
        });
        let load = WeightLoad {
            files: Arc::clone(files),
            moves: moves.collect(),
            region: Arc::clone(&resident),
            base: Bytes::ZERO,
            stop: (*cancel).clone(),
            once: false,
            locked: None,
        };
        backend.load(load, Queue::Loads).wait_unless(cancel)?;
        let memory =
            LaneMemory { arena: Some(arena), resident: Some(resident), ..LaneMemory::default() };
        Ok(Probe { target, schedule: Arc::new(schedule), memory })
    }

    /// Computes the graph once, as a component's run does; the answer is in seconds.
    pub fn run(&self) -> Result<f64, Failure> {
        let CalibrationTarget { backend, files, cancel, .. } = self.target;
        let start = Instant::now();
        for instruction in &self.schedule.program {
            let Instruction::Run(run) = instruction else {
                unreachable!("on one device nothing is copied")
            };
            cancel.check()?;
            let (schedule, memory) = (&self.schedule, &self.memory);
            backend.run(&NodeCall { schedule, run, memory, files })?;
        }
        backend.finish()?;
        Ok(seconds_since(start))
    }

    /// Gives an input its values.
    pub fn write(&self, port: &Port, values: &[u8]) -> Result<(), Failure> {
        for (_, offset) in self.schedule.input_places(port.value) {
            self.target.backend.write(self.arena(), offset, values)?;
        }
        Ok(())
    }

    /// The values of an output.
    pub fn read(&self, port: &Port) -> Result<Vec<f32>, Failure> {
        let mut values = vec![0f32; self.graph().value(port.value).elements()];
        let (_, offset) = self.schedule.output_place(port.value);
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.target.backend.read(self.arena(), offset, bytes)?;
        Ok(values)
    }

    fn arena(&self) -> &Arc<Region> {
        self.memory.arena.as_ref().expect("it was allocated")
    }

    /// What is scheduled and computed.
    pub fn graph(&self) -> &Graph {
        &self.schedule.graph
    }
}
