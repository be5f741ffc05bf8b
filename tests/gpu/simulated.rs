//! The simulated CUDA driver, by its own tests: what the tests of the CUDA backend rely on.
//!
//! Each case is a function of `tests/simulator/selftest.cpp`, run in a process of its own on a
//! machine of its own. Not here: our kernels and our backend.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::simulator::{Machine, Simulator};

fn run(case: &str, machine: &Machine, environment: &[(&str, &str)]) -> Output {
    let mut command = Simulator::built().selftest();
    machine.apply(&mut command);
    command.arg(case).envs(environment.iter().copied());
    command.output().expect("the self test starts")
}

/// The case holds; the simulator has said so much of errors.
fn holds(case: &str, machine: Machine) -> String {
    let output = run(case, &machine, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case}: {}: {said}", output.status);
    said
}

#[test]
fn kernels_run_as_on_a_device() {
    // In order of threads, and in shuffled orders.
    for seed in [0, 1, 2, 3] {
        for case in ["kernels", "shuffles", "products", "asynchronous_copies", "crowd"] {
            let said = holds(case, Machine::new(1).with("seed", seed));
            assert_eq!(said, "", "{case}, seed {seed}");
        }
    }
}

#[test]
fn a_missing_barrier_shows() {
    for seed in [0, 1, 2, 3] {
        holds("missing_barrier", Machine::new(1).with("seed", seed));
    }
}

#[test]
fn wrong_kernels_fail_and_the_reason_is_told() {
    for (case, reason) in [
        ("missing_thread", "has ended while others wait at __syncthreads, selftest.cu:"),
        ("other_barrier", "waits at __syncthreads, selftest.cu:"),
        ("missing_lane", "waits in a shuffle of lanes ffffffff, selftest.cu:"),
        ("misaligned", "is misaligned for its type, selftest.cu:"),
        ("index", "index 32 is beyond the array, selftest.cu:"),
        ("deep", "Segmentation fault"),
        ("overrun", "Segmentation fault"),
        ("overrun_within", "behind the end of the allocation of 132 bytes"),
        ("freed", "Segmentation fault"),
    ] {
        let said = holds(case, Machine::new(2));
        assert!(said.contains("simulator: kernel self_"), "{case}: {said}");
        assert!(said.contains(reason), "{case}: {said}");
    }
}

#[test]
fn sizes_and_handles_are_checked() {
    holds("sizes", Machine::new(1));
}

#[test]
fn streams_keep_their_order_and_events_tie_them() {
    for delay in [0, 300] {
        for case in ["streams", "events", "host_memory", "rectangles"] {
            let said = holds(case, Machine::new(1).with("delay", delay).with("seed", 5));
            assert!(!said.contains("failed"), "{case}: {said}");
        }
    }
}

#[test]
fn memory_is_counted() {
    let machine = Machine::new(1).with("memory", "64MiB").with("context", "16MiB");
    holds("capacity", machine);
}

#[test]
fn devices_reach_each_other_as_configured() {
    let said = holds("two_devices", Machine::new(2));
    assert!(said.contains("an address of another device, without peer access"), "{said}");
    holds("two_peers", Machine::new(2).with("peer", 1));
}

#[test]
fn calls_fail_as_configured() {
    let machine = Machine::new(1).with("fail", "cuMemAlloc_v2:2:2").with("lost", "0:3");
    holds("failing", machine);
    for code in ["100", "34", "803", "999", "0"] {
        let machine = Machine::new(1).with("init", code);
        let output = run("initialisation", &machine, &[("EXPECTED", code)]);
        assert!(output.status.success(), "{code}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let hidden = [("CUDA_VISIBLE_DEVICES", ""), ("EXPECTED", "100")];
    let output = run("initialisation", &Machine::new(1), &hidden);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn ordinals_follow_the_order_and_what_is_visible() {
    let uuid = |last: &str| format!("GPU-00000000-0000-0000-0000-0000000000{last}");
    let machine = Machine::new(3)
        .with("uuid", [uuid("cd"), uuid("ef"), uuid("ab")].join(","))
        .with("order", "2,1,0");
    let output = run("ordinals", &machine, &[("CUDA_VISIBLE_DEVICES", "0,2")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A process that holds device memory until this is dropped.
struct Holder(Child);

impl Holder {
    fn start(machine: &Machine) -> Holder {
        let mut command = Simulator::built().selftest();
        machine.apply(&mut command);
        command.arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the self test starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("it says when it holds the memory");
        assert_eq!(line, "held\n");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Two GPUs that processes share.
fn shared_machine(folder: &Path) -> Machine {
    Machine::new(2).with("memory", "1GiB").with("used", "64MiB").shared(folder)
}

#[test]
fn processes_share_the_memory_and_nvml_tells_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = shared_machine(folder.path());
    let holder = Holder::start(&machine);
    holds("shared", machine.clone());
    drop(holder);
    // What a process held is free when it is gone.
    let _again = Holder::start(&machine);
    holds("shared", machine);
}

#[test]
fn the_program_detects_the_simulated_gpus() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine =
        shared_machine(folder.path()).with("capability", "8.9,7.5").with("name", "One,Two");
    let _holder = Holder::start(&machine);
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    machine.apply(&mut command);
    command.args(["devices", "--json"]).env("XDG_CACHE_HOME", folder.path());
    let output = command.output().expect("berth starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let devices = answer["devices"].as_array().expect("devices");
    let told: Vec<(&str, u64, u64)> = devices
        .iter()
        .filter(|device| device["kind"] == "cuda")
        .map(|device| {
            let bytes = |name: &str| device[name].as_u64().expect("a size");
            (device["name"].as_str().expect("a name"), bytes("total_bytes"), bytes("free_bytes"))
        })
        .collect();
    let (total, others, held) = (1 << 30, 64 << 20, 166 << 20);
    assert_eq!(told, [("One", total, total - others - held), ("Two", total, total - others)]);
}

#[test]
fn the_log_tells_calls_and_what_streams_did() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    holds("streams", Machine::new(1).logged(&log));
    let text = std::fs::read_to_string(&log).expect("the log");
    let position = |what: &str| {
        text.lines()
            .position(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{what}: {text}"))
    };
    // The copy was called while the stream was held, and ran between the fills.
    let called = position("call cuMemcpyDtoDAsync_v2 device=0 stream=1 bytes=64 way=d0>d0");
    let first = position("end stream=1 fill bytes=64");
    let copied = position("begin stream=1 copy way=d0>d0 bytes=64");
    assert!(called < first && first < copied, "{text}");
    let fills = text
        .lines()
        .filter(|line| line.contains("end stream=1 fill") && line.ends_with("result=0"));
    assert_eq!(fills.count(), 2, "{text}");
    let used = text.lines().filter(|line| line.contains("call cuMemAlloc_v2"));
    let used: Vec<&str> = used.filter_map(|line| line.split("used=").nth(1)).collect();
    // The context's 64 MiB, the module's 2, and both allocations in one piece of 2.
    assert_eq!(used, [(68 << 20).to_string(), (68 << 20).to_string()], "{text}");
}
