//! What happens when a process dies, a user interrupts, or memory runs out: the job completes or
//! fails with a reason, soon, and leaves nothing behind. All by the real program on virtual
//! devices, whose links are slow enough that each phase can be met while it lasts.

mod by_hand;
mod devices;
mod kills;
mod limits;
mod log;
mod memory;
mod places;
mod settled;
mod shrunk;
mod signals;
mod waits;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::watched::{PATIENCE, Process, Watched};
use crate::support::{Ended, Home};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

/// What an end may take.
const SOON: Duration = Duration::from_secs(1);

/// What all allocations of the demo model's job on one device come to: its context, four
/// components' weights, three phases' arenas.
const ALLOCATIONS: u32 = 8;

/// Keys of a device that is far faster than the host of [`profile`].
const FAST: &str = "link = \"8GiB/s\"\nflops = \"1TFLOP/s\"\nmemory_bandwidth = \"1TB/s\"\n";

/// A job that stays in one phase for about a second or more.
struct Stage {
    phase: &'static str,
    /// The device's link.
    link: &'static str,
    /// With `memory`, weights are loaded in their own phase.
    optimize: &'static str,
    arguments: &'static [&'static str],
    /// The line on standard error that says that the phase goes on.
    begun: &'static str,
}

const STAGES: [Stage; 4] = [
    // 5.5 MB of weights, all of them loaded before anything computes.
    Stage {
        phase: "load",
        link: "4MiB/s",
        optimize: "throughput",
        arguments: &["--no-prefetch"],
        begun: "berth: load 0/1",
    },
    // 0.4 MB of weights.
    Stage {
        phase: "condition",
        link: "1MiB/s",
        optimize: "memory",
        arguments: &["--steps", "2"],
        begun: "berth: condition 0/1",
    },
    // 8 KB of latents and velocity in each step.
    Stage {
        phase: "denoise",
        link: "8MiB/s",
        optimize: "latency",
        arguments: &["--steps", "200"],
        begun: "berth: denoise 2/200",
    },
    // 200 KB for each picture.
    Stage {
        phase: "decode",
        link: "4MiB/s",
        optimize: "latency",
        arguments: &["--steps", "1", "--batch", "10", "--width", "128", "--height", "128"],
        begun: "berth: decode 1/10",
    },
];

impl Stage {
    fn command(&self, home: &Home, link: &str) -> Command {
        let policy = format!("[policy]\noptimize = \"{}\"\n", self.optimize);
        profile(home, false, &[&format!("link = \"{link}\"\n")], &policy);
        let mut arguments = vec!["--prompt", "a large red circle", "--seed", "7", "--verbose"];
        arguments.extend(self.arguments);
        generate(home, &arguments)
    }
}

/// Runs a test of all phases side by side: most of the time they wait for links.
fn in_each_phase(test: impl Fn(&Stage) + Sync) {
    std::thread::scope(|scope| {
        for stage in &STAGES {
            scope.spawn(|| test(stage));
        }
    });
}

/// Writes `slow.toml`: a slow host, and a virtual device of 64 MiB for each of `devices`, which are
/// keys.
fn profile(home: &Home, host_computes: bool, devices: &[&str], policy: &str) {
    let mut text = format!("name = \"slow\"\n[host]\ncompute = {host_computes}\n");
    // A declared disk: plans do not follow what the page cache happens to hold.
    text += "flops = \"1GFLOP/s\"\nmemory_bandwidth = \"1GB/s\"\nstorage_bandwidth = \"9GB/s\"\n";
    for keys in devices {
        text += &format!("[[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\n{keys}");
    }
    std::fs::write(home.path("slow.toml"), text + policy).unwrap();
}

fn generate(home: &Home, arguments: &[&str]) -> Command {
    let fixed = ["generate", "--host", "./slow.toml", "--json", "--output", "picture.png"];
    let mut berth = home.berth(&[fixed.as_slice(), arguments].concat());
    // What one run learns of the devices' speeds could give the next one another plan.
    berth.env("BERTH_STATE_DIR", "");
    berth
}

/// Bytes of the pictures in a home, by name.
fn pictures(home: &Home) -> Vec<(String, Vec<u8>)> {
    let names = home.files().into_iter().filter(|name| name.ends_with(".png"));
    names.map(|name| (name.clone(), std::fs::read(home.path(&name)).unwrap())).collect()
}

/// No process, no temporary file or socket, no shared memory, and no file that a run does not
/// promise.
fn assert_nothing_left(home: &Home, processes: &[&Process]) {
    for process in processes {
        assert!(process.ends_within(Duration::ZERO), "process {} still runs", process.pid);
    }
    let temporary: Vec<PathBuf> =
        std::fs::read_dir(home.path("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(temporary.is_empty(), "left in the temporary directory: {temporary:?}");
    let runtime = std::fs::read_dir(home.beside("runtime")).unwrap();
    let sockets: Vec<PathBuf> = runtime
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("berth"))
        .collect();
    assert!(sockets.is_empty(), "left in the runtime directory: {sockets:?}");
    let promised = ["cache", "executor", "slow.toml", "state", "tmp"];
    let left: Vec<String> =
        home.files().into_iter().filter(|name| !promised.contains(&name.as_str())).collect();
    assert!(left.is_empty(), "left beside the output: {left:?}");
    // Memory that is spoken for, by locked files: without its lock one is nobody's, and removed by
    // whoever looks.
    for entry in std::fs::read_dir(home.path("state/berth/plans")).into_iter().flatten() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        let free = flock(&file, FlockOperation::NonBlockingLockShared);
        assert_eq!(free, Ok(()), "a plan that ended is still spoken for");
    }
    // Named by their makers' ids; a system without named shared memory has no such directory.
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let of = |process: &&Process| name.split('.').any(|word| word == process.pid.to_string());
        assert!(!processes.iter().any(of), "left in shared memory: {name}");
    }
}

fn assert_error(ended: &Ended) {
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "a failed job has no document");
}

#[test]
fn an_executor_that_is_killed_twice_ends_the_job_within_a_second_with_the_phase_and_the_signal() {
    in_each_phase(|stage| {
        let home = Home::new();
        let mut berth = Watched::start(stage.command(&home, stage.link));
        let executors = [0, 1].map(|_| {
            let executor = berth.executor();
            berth.line(stage.begun);
            executor.send(Signal::KILL);
            executor
        });
        let ended = berth.end(SOON);
        assert_error(&ended);
        let told = format!("berth: the executor died in the {} phase", stage.phase);
        let told: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with(&told)).collect();
        assert_eq!(
            told.len(),
            2,
            "one for each death in the {} phase:\n{}",
            stage.phase,
            ended.stderr
        );
        assert!(told.iter().all(|line| line.contains("signal 9 (SIGKILL)")), "{told:?}");
        if matches!(stage.phase, "denoise" | "decode") {
            assert!(told.iter().all(|line| line.contains(" done)")), "{told:?}");
        }
        assert_eq!(ended.stderr.matches("trying again").count(), 1, "{}", ended.stderr);
        assert_nothing_left(&home, &executors.each_ref());
    });
}

#[test]
fn a_job_whose_executor_is_killed_once_makes_the_picture_of_an_undisturbed_run() {
    in_each_phase(|stage| {
        let undisturbed = Home::new();
        let whole = Ended::of(stage.command(&undisturbed, "8GiB/s").output().unwrap());
        assert_eq!(whole.code, Some(0), "{}", whole.stderr);
        assert_eq!(whole.json()["attempts"], 1);

        let home = Home::new();
        let mut berth = Watched::start(stage.command(&home, stage.link));
        let first = berth.executor();
        berth.line(stage.begun);
        first.send(Signal::KILL);
        let told = berth.line("berth: the executor died");
        assert!(told.contains(&format!("in the {} phase", stage.phase)), "{told}");
        let second = berth.executor();
        let ended = berth.end(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let document = ended.json();
        assert_eq!(document["attempts"], 2);
        assert_eq!(document["plan"]["generation"], 2);
        let failures = document["failures"].as_array().expect("a list");
        assert_eq!(failures.len(), 1, "{document:#}");
        assert_eq!(failures[0]["phase"], stage.phase);
        let reason = failures[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains("signal 9 (SIGKILL)"), "{reason}");
        for absent in ["device", "requested_bytes", "free_bytes"] {
            assert!(failures[0][absent].is_null(), "{}", failures[0]);
        }
        assert!(
            ended.stderr.contains("berth: completed by plan 2: plan 1 failed"),
            "{}",
            ended.stderr
        );
        assert!(!pictures(&home).is_empty(), "there is no picture");
        assert!(pictures(&home) == pictures(&undisturbed), "{}: not that picture", stage.phase);
        for (name, _) in pictures(&home) {
            std::fs::remove_file(home.path(&name)).unwrap();
        }
        assert_nothing_left(&home, &[&first, &second]);
    });
}

#[test]
fn the_last_lines_of_a_dead_executor_are_in_the_message() {
    let home = Home::new();
    profile(&home, false, &["link = \"8MiB/s\"\n"], "");
    let mut command = generate(&home, &["--prompt", "x", "--steps", "200", "--verbose"]);
    // The executor tells that it has entered a phase.
    command.env("BERTH_LOG", "executor=debug");
    let mut berth = Watched::start(command);
    for _ in 0..2 {
        let executor = berth.executor();
        berth.line("berth: denoise 2/200");
        executor.send(Signal::KILL);
    }
    let ended = berth.end(SOON);
    assert_error(&ended);
    let (_, last) = ended.stderr.rsplit_once("its last lines:").expect("the message has them");
    assert!(last.contains("entered phase=denoise"), "{last}");
}

#[test]
fn an_executor_ends_within_a_second_of_its_planner() {
    in_each_phase(|stage| {
        let home = Home::new();
        let mut berth = Watched::start(stage.command(&home, stage.link));
        let executor = berth.executor();
        berth.line(stage.begun);
        berth.process.send(Signal::KILL);
        assert!(executor.ends_within(SOON), "orphaned in the {} phase", stage.phase);
        assert_eq!(berth.end(SOON).code, None);
        // What a killed planner leaves is removed by the next run.
        assert_eq!(home.run(&["inspect"]).code, Some(0));
        assert_nothing_left(&home, &[&executor]);
    });
}

/// An executable shell script named `executor`. One that stands there is replaced, not written: a
/// process that was just killed may still be starting it.
fn script(home: &Home, body: &str) {
    let new = home.path("executor.new");
    std::fs::write(&new, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(new, home.path("executor")).unwrap();
}

/// An executor that tells its id and does nothing more.
const SILENT: &str = "echo waiting: $$ >&2\nexec sleep 600";

#[test]
fn an_executor_that_ends_before_it_connects_is_told_with_its_last_lines() {
    let home = Home::new();
    script(&home, "echo no room for me >&2\nexit 7");
    profile(&home, false, &[FAST], "");
    let run = |executor: &str| {
        let arguments = ["--prompt", "x", "--executor", executor];
        Watched::start(generate(&home, &arguments)).end(PATIENCE)
    };
    let ended = run("./executor");
    assert_error(&ended);
    for part in ["cannot start the executor ./executor", "exit status 7", "no room for me"] {
        assert!(ended.stderr.contains(part), "no {part:?} in {}", ended.stderr);
    }
    let ended = run("./missing");
    assert_error(&ended);
    assert!(ended.stderr.contains("cannot start the executor ./missing"), "{}", ended.stderr);
    assert_nothing_left(&home, &[]);
}

#[test]
fn another_executor_is_taken_from_the_flag_and_from_the_environment() {
    let home = Home::new();
    // It tells that it ran, and becomes the executor that the planner knows.
    script(
        &home,
        &format!("echo started >&2\nexec {} executor \"$@\"", env!("CARGO_BIN_EXE_berth")),
    );
    profile(&home, false, &[FAST], "");
    let arguments = ["--prompt", "x", "--verbose"];
    let by_flag = generate(&home, &[arguments.as_slice(), &["--executor", "./executor"]].concat());
    let mut by_environment = generate(&home, &arguments);
    by_environment.env("BERTH_EXECUTOR", "./executor");
    let mut first_wins =
        generate(&home, &[arguments.as_slice(), &["--executor", "./executor"]].concat());
    first_wins.env("BERTH_EXECUTOR", "./missing");
    for command in [by_flag, by_environment, first_wins] {
        let ended = Watched::start(command).end(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.lines().any(|line| line == "started"), "{}", ended.stderr);
    }
}

/// Runs a job where an allocation of the first device, the fastest one, fails in each attempt.
fn with_failing_allocation(number: u32, host_computes: bool, others: &[&str]) -> Ended {
    let home = Home::new();
    let failing = format!("{FAST}fail_allocation = {number}\n");
    profile(&home, host_computes, &[&[failing.as_str()], others].concat(), "");
    let ended = Watched::start(generate(&home, &["--prompt", "x"])).end(PATIENCE);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    let attempts = 1 + ended.stderr.matches("trying again").count();
    assert!((2..=3).contains(&attempts), "{attempts} attempts: {}", ended.stderr);
    if ended.code == Some(0) {
        assert_eq!(ended.json()["attempts"], attempts, "{}", ended.stderr);
        assert_eq!(pictures(&home).len(), 1);
        std::fs::remove_file(home.path("picture.png")).unwrap();
    }
    assert_nothing_left(&home, &[]);
    ended
}

#[test]
fn a_failing_allocation_of_the_only_device_is_survived_or_told() {
    for number in 1..=ALLOCATIONS {
        let ended = with_failing_allocation(number, false, &[]);
        let told = match ended.code {
            Some(0) => "",
            Some(1) => "does not fit",
            Some(2) => "virtual0 is out of memory",
            other => panic!("allocation {number}: {other:?}, {}", ended.stderr),
        };
        assert!(ended.stderr.contains(told), "allocation {number}: {}", ended.stderr);
    }
}

#[test]
fn a_failing_allocation_is_survived_where_another_device_has_room() {
    for number in 1..=ALLOCATIONS {
        let ended = with_failing_allocation(number, false, &["link = \"1GiB/s\"\n"]);
        assert_eq!(ended.code, Some(0), "allocation {number}: {}", ended.stderr);
    }
}

#[test]
fn a_failing_allocation_is_survived_where_the_host_computes() {
    for number in 1..=ALLOCATIONS {
        let ended = with_failing_allocation(number, true, &[]);
        assert_eq!(ended.code, Some(0), "allocation {number}: {}", ended.stderr);
    }
}
