//! A slow device beside one of full speed.

use super::*;
use crate::backend::LaneMemory;
use crate::graph::{ElementType, Graph, GraphBuilder};
use crate::ops::OperationNeeds;
use crate::ops::attention::AttentionOp;
use crate::schedule::{Assignment, Instruction, Schedule};
use crate::weights::WeightFiles;
use crate::weights::support::{file_bytes, header_text};
use protocol::{DeviceId, Faults};

const SHAPE: [usize; 3] = [1, 96, 64];
const VALUE_BYTES: usize = 4 * 96 * 64;

/// Attention after attention, each of some ten to a hundred microseconds: less than a timer can
/// wait.
fn graph() -> (Graph, WeightFiles) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unused.safetensors");
    std::fs::write(&path, file_bytes(&header_text(&[("unused", "F32", &[1], 4)]), 4)).unwrap();
    let files = WeightFiles::open_file(&path).unwrap();
    let mut graph = GraphBuilder::new(&files);
    graph.segment("all");
    let x = graph.input("x", &SHAPE, ElementType::F32);
    let mut y = x;
    for _ in 0..60 {
        let op = AttentionOp { heads: 2, kv_heads: 2, scale: 0.2, causal: false };
        y = graph.attention([y, x, x], None, op);
    }
    graph.output("y", y);
    (graph.finish(), files)
}

/// The result of a graph on a device of this speed, and the seconds that it took.
fn run(schedule: &Schedule, files: &WeightFiles, speed: f64) -> (Vec<u8>, f64) {
    let memory = Memory::new(DeviceId("virtual0".to_owned()), Bytes::mib(8), None);
    let host = Memory::new(DeviceId::host(), Bytes::mib(1), None);
    let staging = Arc::new(Region::allocate(&host, "staging", Bytes::kib(64)).unwrap());
    let properties = VirtualProperties {
        overhead_bytes: Bytes::ZERO,
        link_bytes_per_s: 1e10,
        faults: Faults::default(),
        speed,
    };
    let workers = Arc::new(Workers::new(1).unwrap());
    let device = VirtualDevice::open(memory, properties, &staging, workers).unwrap();
    let arena = Region::allocate(device.memory(), "arena", schedule.lanes[0].arena_bytes).unwrap();
    let arena = Arc::new(arena);
    let lane = LaneMemory { arena: Some(Arc::clone(&arena)), ..LaneMemory::default() };
    let input: Vec<u8> =
        (0..VALUE_BYTES / 4).flat_map(|at| ((at % 97) as f32 / 50.0 - 1.0).to_le_bytes()).collect();
    let (_, offset) = schedule.input_places(schedule.graph.input("x")).next().unwrap();
    device.write(&arena, offset, &input).unwrap();
    let start = Instant::now();
    for instruction in &schedule.program {
        let Instruction::Run(run) = instruction else { panic!("one lane only runs") };
        device.run(&NodeCall { schedule, run, memory: &lane, files }).unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut output = vec![0; VALUE_BYTES];
    let (_, offset) = schedule.output_place(schedule.graph.output("y"));
    device.read(&arena, offset, &mut output).unwrap();
    (output, seconds)
}

#[test]
fn a_slow_device_takes_longer_in_proportion_and_computes_the_same() {
    const SPEED: f64 = 0.2;
    let (graph, files) = graph();
    let assignment = Assignment::on_one(&graph, BackendKind::Virtual, 1);
    let schedule = Schedule::new(Arc::new(graph), assignment, &OperationNeeds);
    let (mut fast_s, mut slow_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let (expected, fast) = run(&schedule, &files, 1.0);
        let (got, slow) = run(&schedule, &files, SPEED);
        assert!(expected.iter().any(|&byte| byte != 0));
        assert!(got == expected, "results differ");
        (fast_s, slow_s) = (fast_s.min(fast), slow_s.min(slow));
    }
    // Whatever else runs on the machine slows down both, though not alike.
    let ratio = slow_s / fast_s * SPEED;
    assert!((0.5..3.0).contains(&ratio), "{slow_s} s where full speed takes {fast_s} s");
}
