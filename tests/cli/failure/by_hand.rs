//! The executor's side of the protocol, with the test in the planner's place: what it refuses, and
//! that it goes on after.

use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ipc_channel::ipc::{IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory};
use protocol::limits::PROMPT_BYTES_MAX;
use protocol::message::Rng;
use protocol::plan::DeviceBackend;
use protocol::{
    Bytes, Command, DeviceId, Event, Failure, FailureKind, Handshake, Job, JobItem,
    PROTOCOL_VERSION, Phase, Placement, Plan, Residency,
};

use crate::failure::settled::settle;
use crate::support::Home;
use crate::support::watched::{PATIENCE, Process};

/// What a process may take to end.
const SOON: Duration = Duration::from_secs(1);

/// An executor, and both ends of what a planner holds of it.
struct Executor {
    child: Child,
    process: Process,
    commands: IpcSender<Command>,
    events: IpcReceiver<Event>,
}

impl Executor {
    /// Starts one that was not greeted yet.
    fn start() -> Executor {
        let (server, name) = IpcOneShotServer::<Handshake>::new().unwrap();
        let child = Program::new(env!("CARGO_BIN_EXE_berth"))
            .args(["executor", &name, &std::process::id().to_string()])
            .env_remove("BERTH_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::open(child.id());
        // A child that never connects must fail the test, not block it.
        let (sender, handshakes) = channel();
        std::thread::spawn(move || sender.send(server.accept().unwrap().1));
        let handshake = handshakes.recv_timeout(PATIENCE).expect("the executor connects");
        let Handshake { commands, events } = handshake;
        Executor { child, process, commands, events }
    }

    /// Starts one and greets it.
    fn greeted() -> Executor {
        let executor = Executor::start();
        executor.send(Command::Hello { version: PROTOCOL_VERSION, libraries: false });
        assert!(matches!(executor.answer(), Event::Hello { version: PROTOCOL_VERSION, .. }));
        executor
    }

    fn send(&self, command: Command) {
        self.commands.send(command).expect("the executor listens");
    }

    fn hear(&self) -> Event {
        let hear = || self.events.try_recv_timeout(PATIENCE).expect("the executor says something");
        let tells = |event: &Event| !matches!(event, Event::Heartbeat);
        std::iter::repeat_with(hear).find(tells).expect("there is no end to it")
    }

    /// The next event that ends a command.
    fn answer(&self) -> Event {
        let between = ["Files", "Notice", "Progress", "Preview", "Output", "Usage"];
        let ends = |event: &Event| !between.contains(&event.name());
        std::iter::repeat_with(|| self.hear()).find(ends).expect("there is no end to it")
    }

    /// Sends a command that must fail.
    fn failure(&self, command: Command) -> Failure {
        self.send(command);
        self.failed()
    }

    fn failed(&self) -> Failure {
        match self.answer() {
            Event::Failed(failure) => failure,
            other => panic!("it succeeded: {other:?}"),
        }
    }

    fn load(&self, plan: &Plan) {
        self.send(load(plan));
        let answer = self.answer();
        assert!(matches!(answer, Event::Loaded(_)), "{answer:?}");
    }

    /// Runs a job that must succeed with a picture.
    fn generate(&self, generation: u64) {
        self.send(generate(generation, "a circle"));
        let mut images = 0;
        loop {
            match self.hear() {
                Event::Output(_) => images += 1,
                Event::Done { generation: of } => break assert_eq!(of, generation),
                Event::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        assert_eq!(images, 1);
    }

    /// Waits for the end of a process that must end by itself.
    fn ended(mut self) -> ExitStatus {
        assert!(self.process.ends_within(SOON), "the executor still runs");
        self.child.wait().unwrap()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // It may have ended; a test that failed must leave no process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plan of the demo model on a virtual device, as the program makes it, and the home of its
/// model.
fn plan(steps: u32) -> (Home, Plan) {
    let (home, plan) = plan_for("virtual-1x64m", steps);
    assert!(plan.components.iter().all(|c| c.placement() == Placement::One), "all on the device");
    (home, plan)
}

fn plan_for(host: &str, steps: u32) -> (Home, Plan) {
    let home = Home::new();
    let steps = steps.to_string();
    let fixed = ["plan", "--dry-run", "--json", "--output", "plan.toml"];
    home.json(&[fixed.as_slice(), &["--host", host, "--steps", &steps]].concat());
    let text = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    (home, toml::from_str(&text).unwrap())
}

fn numbered(plan: &Plan, generation: u64) -> Plan {
    Plan { generation, ..plan.clone() }
}

fn load(plan: &Plan) -> Command {
    Command::Load { plan: Box::new(plan.clone()), rehearse: false }
}

fn generate(generation: u64, prompt: &str) -> Command {
    let job = Job {
        items: vec![JobItem {
            prompt: prompt.to_owned(),
            prompt_2: None,
            negative_prompt: String::new(),
            seed: 7,
        }],
        guidance_scale: 3.5,
        true_cfg_scale: 1.0,
        cfg_normalization: false,
        scheduler: protocol::Scheduler::Automatic,
        sigmas: Vec::new(),
        eta: None,
        rng: Rng::Cpu,
        init_image: None,
        init_latents: None,
        dump_tensors: false,
        conditioning: Vec::new(),
        keep_conditioning: false,
    };
    Command::Generate { generation, job: Box::new(job) }
}

#[test]
fn a_wrong_version_is_refused_with_both_versions() {
    let executor = Executor::start();
    let [present, next] = [PROTOCOL_VERSION, PROTOCOL_VERSION + 1];
    let failure = executor.failure(Command::Hello { version: next, libraries: false });
    assert_eq!(failure.kind, FailureKind::WrongVersion);
    let versions = [present, next].map(|version| version.to_string());
    assert!(versions.iter().all(|version| failure.message.contains(version)), "{failure}");
    // It is not greeted by that.
    let failure = executor.failure(Command::Unload);
    assert_eq!(failure.kind, FailureKind::BadRequest);
}

#[test]
fn nothing_is_answered_before_hello() {
    let (_home, plan) = plan(1);
    let executor = Executor::start();
    for command in [
        Command::Inspect { model: plan.model.clone(), makes_tokenizers: true },
        Command::Measure {
            model: plan.model.clone(),
            job: plan.job.clone(),
            options: plan.options.clone(),
            pieces: vec![plan.options.pieces()],
            threads: 1,
        },
        Command::Verify { plan: Box::new(plan.clone()) },
        load(&plan),
        generate(1, "x"),
        Command::Unload,
    ] {
        let failure = executor.failure(command);
        assert_eq!(failure.kind, FailureKind::BadRequest);
        assert!(failure.message.contains("Hello"), "{failure}");
    }
    executor.send(Command::Hello { version: PROTOCOL_VERSION, libraries: false });
    assert!(matches!(executor.answer(), Event::Hello { .. }));
    executor.load(&plan);
}

#[test]
fn a_job_needs_a_plan_of_its_own_generation() {
    let (_home, plan) = plan(2);
    let executor = Executor::greeted();
    let failure = executor.failure(generate(1, "x"));
    assert_eq!(failure.kind, FailureKind::BadRequest);
    assert!(failure.message.contains("no plan is loaded"), "{failure}");

    executor.load(&numbered(&plan, 5));
    for generation in [0, 4, 6, u64::MAX] {
        let failure = executor.failure(generate(generation, "x"));
        assert_eq!(failure.kind, FailureKind::StaleGeneration);
        assert!(failure.message.contains(&generation.to_string()), "{failure}");
    }
    executor.generate(5);

    executor.send(Command::Unload);
    assert!(matches!(executor.answer(), Event::Unloaded));
    let failure = executor.failure(generate(5, "x"));
    assert_eq!(failure.kind, FailureKind::BadRequest);
    assert!(failure.message.contains("no plan is loaded"), "{failure}");
}

#[test]
fn a_plan_of_an_old_generation_is_refused_and_the_present_one_stays() {
    let (_home, plan) = plan(2);
    let executor = Executor::greeted();
    executor.load(&numbered(&plan, 5));
    for generation in [1, 4, 5] {
        let failure = executor.failure(load(&numbered(&plan, generation)));
        assert_eq!(failure.kind, FailureKind::StaleGeneration);
    }
    executor.generate(5);
    // The next one takes its place, unloaded or not.
    executor.load(&numbered(&plan, 6));
    let failure = executor.failure(generate(5, "x"));
    assert_eq!(failure.kind, FailureKind::StaleGeneration);
    executor.generate(6);
    // Unloading makes no generation new again.
    executor.send(Command::Unload);
    assert!(matches!(executor.answer(), Event::Unloaded));
    let failure = executor.failure(load(&numbered(&plan, 6)));
    assert_eq!(failure.kind, FailureKind::StaleGeneration);
}

/// A plan's change, and what its refusal says.
type Tampering = (&'static str, fn(&mut Plan), &'static str);

const TAMPERINGS: [Tampering; 14] = [
    ("a peak", |plan| plan.devices[0].peak_bytes += Bytes(256), "is not its largest phase's"),
    ("a phase", |plan| plan.devices[0].phases[1].peak_bytes += Bytes(256), "peak"),
    (
        "a component's weights",
        |plan| plan.components[2].weights_bytes += Bytes(256),
        "segments hold",
    ),
    ("a budget", |plan| plan.devices[0].budget_bytes = Bytes(4096), "above the budget"),
    ("a schema", |plan| plan.schema += 1, "schema"),
    ("no threads", |plan| plan.host.threads = 0, "threads"),
    ("no steps", |plan| plan.job.steps = 0, "steps"),
    (
        "a link without a rate",
        |plan| {
            let DeviceBackend::Virtual { link_bytes_per_s, .. } = &mut plan.devices[0].backend
            else {
                panic!("a virtual device")
            };
            *link_bytes_per_s = f64::NAN;
        },
        "link",
    ),
    // From here on all sums are right, and only the executor's own schedule tells the truth.
    (
        "less compute",
        |plan| plan.components[2].parts[0].compute_bytes = Bytes(256),
        "its schedule has",
    ),
    (
        "more compute",
        |plan| plan.components[3].parts[0].compute_bytes += Bytes(256),
        "its schedule has",
    ),
    (
        "weights elsewhere",
        |plan| {
            let segments = plan.components[2].segments.iter_mut();
            let mut held = segments.filter(|s| s.residency() != Residency::Streamed);
            let (one, other) = (held.next().unwrap(), held.next().unwrap());
            one.weights_bytes += Bytes(256);
            other.weights_bytes = other.weights_bytes - Bytes(256);
        },
        "other weights in its schedule than in the plan",
    ),
    ("smaller buffers", |plan| plan.host.job_bytes = Bytes(64), "the job's buffers"),
    ("a component less", |plan| drop(plan.components.remove(1)), "the model has"),
    ("a component's phase", |plan| plan.components[1].phase = Phase::Denoise, "wrong phase"),
];

#[test]
fn a_plan_that_was_tampered_with_is_refused() {
    let (_home, plan) = plan(2);
    let mut settled = plan.clone();
    settle(&mut settled);
    assert_eq!(settled, plan, "the sums of a good plan follow its parts");
    let executor = Executor::greeted();
    for (number, (what, tamper, says)) in TAMPERINGS.iter().enumerate() {
        let mut tampered = numbered(&plan, 1 + number as u64);
        tamper(&mut tampered);
        if number > 7 {
            settle(&mut tampered);
            assert_eq!(protocol::check::check(&tampered), Ok(()), "{what}");
        }
        let failure = executor.failure(load(&tampered));
        assert_eq!(failure.kind, FailureKind::PlanRefused, "{what}: {failure}");
        assert!(failure.message.contains(says), "{what}: {failure}");
        let failure = executor.failure(generate(tampered.generation, "x"));
        assert_eq!(failure.kind, FailureKind::BadRequest, "{what}: {failure}");
    }
    executor.load(&numbered(&plan, 1 + TAMPERINGS.len() as u64));
    executor.generate(1 + TAMPERINGS.len() as u64);
}

#[test]
fn a_plan_for_a_device_that_it_cannot_reach_is_refused() {
    let (_home, plan) = plan_for("rtx-4090-24g", 1);
    let on_gpu = |id: &DeviceId| plan.components.iter().any(|c| c.devices.contains(id));
    let cuda = plan.devices.iter().find(|d| matches!(d.backend, DeviceBackend::Cuda { .. }));
    assert!(cuda.is_some_and(|device| on_gpu(&device.id)), "the plan uses the GPU");
    let executor = Executor::greeted();
    let failure = executor.failure(load(&plan));
    assert!(matches!(failure.kind, FailureKind::DeviceFailed { .. }), "{failure}");
    assert!(failure.message.contains("CUDA") && failure.message.contains("hint:"), "{failure}");
}

#[test]
fn a_prompt_beyond_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let (_home, plan) = plan(1);
    let executor = Executor::greeted();
    executor.load(&plan);
    let failure = executor.failure(generate(1, &"a".repeat(PROMPT_BYTES_MAX + 1)));
    assert_eq!(failure.kind, FailureKind::BadRequest);
    assert!(failure.message.contains(&PROMPT_BYTES_MAX.to_string()), "{failure}");
    executor.send(generate(1, &"a ".repeat(PROMPT_BYTES_MAX / 2)));
    let answer = executor.answer();
    assert!(matches!(answer, Event::Done { .. }), "{answer:?}");
}

#[test]
fn a_cancel_ends_what_runs_soon_and_nothing_else() {
    let (_home, plan) = plan(1000);
    let executor = Executor::greeted();
    // Nothing runs.
    executor.send(Command::Cancel);
    executor.load(&plan);
    executor.send(Command::Cancel);
    executor.send(generate(1, "a circle"));
    while !matches!(executor.hear(), Event::Progress(at) if at.phase == Phase::Denoise && at.step > 1)
    {
    }
    let start = Instant::now();
    executor.send(Command::Cancel);
    assert_eq!(executor.failed().kind, FailureKind::Cancelled);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    // It may arrive before its command has begun.
    executor.send(generate(1, "a circle"));
    executor.send(Command::Cancel);
    assert_eq!(executor.failed().kind, FailureKind::Cancelled);

    // The plan is still there, and the next command is not cancelled.
    let short = self::plan(1).1;
    executor.send(Command::Unload);
    assert!(matches!(executor.answer(), Event::Unloaded));
    executor.load(&Plan { generation: 2, model: plan.model.clone(), ..short });
    executor.generate(2);
}

#[test]
fn a_cancel_holds_although_another_command_follows_at_once() {
    let (_home, plan) = plan(1000);
    let executor = Executor::greeted();
    executor.load(&plan);
    executor.send(generate(1, "a circle"));
    executor.send(Command::Cancel);
    executor.send(Command::Unload);
    assert_eq!(executor.failed().kind, FailureKind::Cancelled);
    assert!(matches!(executor.answer(), Event::Unloaded));
}

#[test]
fn bye_ends_it_in_order() {
    for greeted in [false, true] {
        let executor = if greeted { Executor::greeted() } else { Executor::start() };
        executor.send(Command::Bye);
        assert_eq!(executor.ended().code(), Some(0));
    }
}

#[test]
fn a_closed_channel_ends_it_in_the_middle_of_a_job() {
    let (_home, plan) = plan(1000);
    let mut executor = Executor::greeted();
    executor.load(&plan);
    executor.send(generate(1, "a circle"));
    while !matches!(executor.hear(), Event::Progress(at) if at.phase == Phase::Denoise && at.step > 1)
    {
    }
    // Another channel's end in its place: the executor's own is dropped.
    executor.commands = ipc_channel::ipc::channel().unwrap().0;
    assert!(!executor.ended().success());
}

#[test]
fn words_of_another_protocol_end_it() {
    let executor = Executor::greeted();
    // 2^40 is the number of no command.
    let garbage: IpcSender<u64> = executor.commands.clone().to_opaque().to();
    garbage.send(1 << 40).unwrap();
    assert!(!executor.ended().success());
}

#[test]
fn a_job_whose_picture_is_not_what_its_plan_has_room_for_is_refused() {
    let home = Home::new();
    let picture = crate::support::fixture("pictures/rgb.png");
    let size = ["--width", "64", "--height", "64", "--init-image", picture.to_str().unwrap()];
    let fixed = ["plan", "--dry-run", "--json", "--output", "plan.toml", "--host", "virtual-1x64m"];
    home.json(&[fixed.as_slice(), &["--steps", "2"], &size].concat());
    let text = std::fs::read_to_string(home.path("plan.toml")).unwrap();
    let started: Plan = toml::from_str(&text).unwrap();
    let (_home, plain) = plan(2);
    let with = |picture: Option<usize>| {
        let Command::Generate { generation, mut job } = generate(1, "a circle") else { panic!() };
        job.init_image = picture.map(|bytes| IpcSharedMemory::from_byte(9, bytes));
        Command::Generate { generation, job }
    };
    let whole = 3 * 64 * 64;
    for (plan, right, wrong) in [
        (&started, Some(whole), [None, Some(0), Some(whole - 3), Some(whole + 1)].as_slice()),
        (&plain, None, [Some(whole)].as_slice()),
    ] {
        let executor = Executor::greeted();
        executor.load(&numbered(plan, 1));
        for &picture in wrong {
            let failure = executor.failure(with(picture));
            assert_eq!(failure.kind, FailureKind::BadRequest, "{picture:?} bytes: {failure}");
            assert!(failure.message.contains("picture"), "{failure}");
        }
        executor.send(with(right));
        let answer = executor.answer();
        assert!(matches!(answer, Event::Done { .. }), "{answer:?}");
    }
}
