//! A slow device beside one of full speed; devices with threads of their own beside each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::backend::LaneMemory;
use crate::backend::cuda::driver::DriverError;
use crate::backend::{CudaOperands, CudaOperation, HostOperation};
use crate::graph::Operation;
use crate::graph::{ElementType, Graph, GraphBuilder};
use crate::ops::OperationNeeds;
use crate::ops::attention::AttentionOp;
use crate::schedule::{Assignment, Instruction, Schedule};
use crate::weights::WeightFiles;
use crate::weights::support::opened;
use protocol::{DeviceId, Faults};

const SHAPE: [usize; 3] = [1, 96, 64];
const VALUE_BYTES: usize = 4 * 96 * 64;

/// Attention after attention, each of some ten to a hundred microseconds: less than a timer can
/// wait.
fn graph() -> (Graph, WeightFiles) {
    let files = opened(&[("unused", "F32", &[1], 4)]);
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

/// A device of this speed, with these threads of its own.
fn open(speed: f64, threads: Option<usize>) -> VirtualDevice {
    let memory = Memory::new(DeviceId("virtual0".to_owned()), Bytes::mib(8), None);
    let host = Memory::new(DeviceId::host(), Bytes::mib(1), None);
    let staging = Arc::new(Region::allocate(&host, "staging", Bytes::kib(64)).unwrap());
    let properties = VirtualProperties {
        overhead_bytes: Bytes::ZERO,
        link_bytes_per_s: 1e10,
        faults: Faults::default(),
        speed,
        threads,
    };
    let workers = Arc::new(Workers::new(1).unwrap());
    VirtualDevice::open(memory, properties, &staging, workers).unwrap()
}

/// The result of a graph on a device of this speed, and the seconds that it took.
fn run(
    schedule: &Arc<Schedule>,
    files: &Arc<WeightFiles>,
    speed: f64,
    threads: Option<usize>,
) -> (Vec<u8>, f64) {
    let device = open(speed, threads);
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
    device.finish().unwrap();
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
    let schedule = Arc::new(Schedule::new(Arc::new(graph), assignment, &OperationNeeds));
    let files = Arc::new(files);
    let (mut fast_s, mut slow_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let (expected, fast) = run(&schedule, &files, 1.0, None);
        let (got, slow) = run(&schedule, &files, SPEED, None);
        assert!(expected.iter().any(|&byte| byte != 0));
        assert!(got == expected, "results differ");
        (fast_s, slow_s) = (fast_s.min(fast), slow_s.min(slow));
    }
    let (apart, _) = run(&schedule, &files, 1.0, Some(1));
    let (expected, _) = run(&schedule, &files, 1.0, None);
    assert!(apart == expected, "results with threads of its own differ");
    // Whatever else runs on the machine slows down both, though not alike.
    let ratio = slow_s / fast_s * SPEED;
    assert!((0.5..3.0).contains(&ratio), "{slow_s} s where full speed takes {fast_s} s");
}

/// Where so many meet, each in an operation of its own.
#[derive(Debug)]
struct Meeting {
    expected: usize,
    came: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn of(expected: usize) -> Arc<Meeting> {
        Arc::new(Meeting { expected, came: Mutex::new(0), changed: Condvar::new() })
    }

    /// Returns when all are here.
    ///
    /// # Panics
    /// If they do not come for longer than any machine takes.
    fn attend(&self) {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        self.changed.notify_all();
        let waited = Duration::from_secs(60);
        let (came, _) =
            self.changed.wait_timeout_while(came, waited, |came| *came < self.expected).unwrap();
        assert!(*came >= self.expected, "nobody computes beside this");
    }
}

#[derive(Debug)]
struct MeetOp(Arc<Meeting>);

impl Operation for MeetOp {
    fn name(&self) -> &'static str {
        "Meet"
    }
}

impl HostOperation for MeetOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        self.0.attend();
        on.output().copy_from_slice(on.input(0));
    }
}

impl CudaOperation for MeetOp {
    fn run_on_cuda(&self, _on: &CudaOperands<'_>) -> Result<(), DriverError> {
        unreachable!("no GPU comes")
    }
}

/// A device, and a graph on it that attends a meeting.
struct Attendant {
    device: VirtualDevice,
    schedule: Arc<Schedule>,
    files: Arc<WeightFiles>,
    lane: LaneMemory,
}

impl Attendant {
    fn of(meeting: &Arc<Meeting>, threads: Option<usize>) -> Attendant {
        let (_, files) = graph();
        let mut graph = GraphBuilder::new(&files);
        graph.segment("all");
        let x = graph.input("x", &SHAPE, ElementType::F32);
        let y = graph.node(MeetOp(Arc::clone(meeting)), vec![x], Vec::new(), &SHAPE);
        graph.output("y", y);
        let graph = graph.finish();
        let assignment = Assignment::on_one(&graph, BackendKind::Virtual, 1);
        let schedule = Arc::new(Schedule::new(Arc::new(graph), assignment, &OperationNeeds));
        let device = open(1.0, threads);
        let arena = device.allocate("arena", schedule.lanes[0].arena_bytes).unwrap();
        let lane = LaneMemory { arena: Some(arena), ..LaneMemory::default() };
        Attendant { device, schedule, files: Arc::new(files), lane }
    }

    /// Hands out its graph.
    fn attend(&self) -> Result<(), Stopped> {
        let Attendant { schedule, files, lane: memory, .. } = self;
        schedule.program.iter().try_for_each(|instruction| {
            let Instruction::Run(run) = instruction else { panic!("one lane only runs") };
            self.device.run(&NodeCall { schedule, run, memory, files })
        })
    }
}

#[test]
fn devices_with_threads_of_their_own_compute_beside_each_other_and_beside_the_host() {
    let meeting = Meeting::of(4);
    let apart = [Some(1); 3].map(|threads| Attendant::of(&meeting, threads));
    let here = Attendant::of(&meeting, None);
    for attendant in &apart {
        attendant.attend().unwrap();
    }
    // This one computes in the thread of the test, and would be alone there.
    here.attend().unwrap();
    for attendant in &apart {
        attendant.device.finish().unwrap();
    }
}

#[test]
fn what_failed_before_is_told_once_and_what_waits_for_it_hears_of_it() {
    let alone = Attendant::of(&Meeting::of(1), Some(1));
    let failed = Stopped::copy_failed(alone.device.memory().device());
    alone.device.join(&Ticket::ended(Err(failed.clone())), Edge::Arrival).unwrap();
    alone.attend().unwrap();
    assert_eq!(alone.device.departure().unwrap().wait(), Err(failed.clone()));
    assert_eq!(alone.device.finish(), Err(failed));
    alone.attend().unwrap();
    assert_eq!(alone.device.finish(), Ok(()));
}

#[test]
fn a_panic_of_its_threads_is_one_of_who_waits() {
    #[derive(Debug)]
    struct PanicOp;
    impl Operation for PanicOp {
        fn name(&self) -> &'static str {
            "Panic"
        }
    }
    impl HostOperation for PanicOp {
        fn run_on_host(&self, _on: &HostOperands<'_>) {
            panic!("as asked");
        }
    }
    impl CudaOperation for PanicOp {
        fn run_on_cuda(&self, _on: &CudaOperands<'_>) -> Result<(), DriverError> {
            unreachable!("no GPU comes")
        }
    }
    let mut panicking = Attendant::of(&Meeting::of(1), Some(1));
    let mut graph = GraphBuilder::new(&panicking.files);
    graph.segment("all");
    let x = graph.input("x", &SHAPE, ElementType::F32);
    let y = graph.node(PanicOp, vec![x], Vec::new(), &SHAPE);
    graph.output("y", y);
    let graph = graph.finish();
    let assignment = Assignment::on_one(&graph, BackendKind::Virtual, 1);
    let good = Arc::clone(&panicking.schedule);
    panicking.schedule = Arc::new(Schedule::new(Arc::new(graph), assignment, &OperationNeeds));
    panicking.attend().unwrap();
    assert!(panicking.device.departure().unwrap().wait().is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| panicking.device.finish())).is_err());
    panicking.schedule = good;
    panicking.attend().unwrap();
    assert_eq!(panicking.device.finish(), Ok(()));
}
