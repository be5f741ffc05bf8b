//! One component, run once on the host from inputs that look random.

use std::sync::Arc;

use executor::backend::kernels::Workers;
use executor::backend::{Backend, HostBackend, LaneMemory, Memory, NodeCall, Region};
use executor::graph::{ElementType, Graph};
use executor::ops::OperationNeeds;
use executor::schedule::{Assignment, Instruction, Schedule};
use executor::weights::WeightFiles;
use protocol::{BackendKind, DeviceId, Residency};

use crate::changes::random;

/// The output of a graph with one, its weights taken from their mappings, by exact products.
pub fn run(graph: &Graph, files: &Arc<WeightFiles>) -> Vec<f32> {
    let mut assignment = Assignment::on_one(graph, BackendKind::Host, 2);
    assignment.residencies[0].fill(Residency::Mapped);
    // Some processors round activations for weights in bf16, which the changed checkpoint has not.
    assignment.exact_matmul = true;
    let schedule = Arc::new(Schedule::new(Arc::new(graph.clone()), assignment, &OperationNeeds));
    let arena_bytes = schedule.lanes[0].arena_bytes;
    let memory = Memory::new(DeviceId::host(), arena_bytes, None);
    let backend = HostBackend::new(memory, Arc::new(Workers::new(2).unwrap()));
    let arena = Region::allocate(backend.memory(), "arena", arena_bytes).unwrap();
    let arena = Arc::new(arena);
    for (seed, port) in graph.inputs.iter().enumerate() {
        let value = graph.value(port.value);
        let values = random(seed as u64).take(value.elements());
        let bytes: Vec<u8> = match value.element {
            ElementType::F32 => values.flat_map(|value| value.to_ne_bytes()).collect(),
            // Fewer ids than any of the reference models' tables has rows.
            ElementType::I32 => {
                values.flat_map(|value| ((value.abs() * 1000.0) as i32).to_ne_bytes()).collect()
            }
            held => unreachable!("no input of a graph is {held:?}"),
        };
        for (_, offset) in schedule.input_places(port.value) {
            backend.write(&arena, offset, &bytes).unwrap();
        }
    }
    let memory = LaneMemory { arena: Some(Arc::clone(&arena)), ..LaneMemory::default() };
    for instruction in &schedule.program {
        let Instruction::Run(run) = instruction else { panic!("one lane only runs") };
        backend.run(&NodeCall { schedule: &schedule, run, memory: &memory, files }).unwrap();
    }
    let output = graph.outputs[0].value;
    let mut bytes = vec![0; graph.value(output).bytes().as_usize()];
    let (_, offset) = schedule.output_place(output);
    backend.read(&arena, offset, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
}
