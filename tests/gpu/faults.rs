//! What follows when a function of the driver fails: the real program on two simulated GPUs, with
//! the built-in model.
//!
//! A shortage, in whatever function, is followed by a smaller plan; an error that breaks the
//! context by a new process, which tries the same device again; any other by a plan without it.
//! `BERTH_FAULTS_MANY=1` tries each error in each function; else each function has some. Each run
//! must end within [`PATIENCE`].

mod matrix;

use std::collections::BTreeSet;
use std::fs;

use crate::support::simulator::Machine;
use crate::support::watched::{PATIENCE, Watched};
use crate::support::{Ended, Home, pixels};
use serde_json::Value;

const JOB: &str =
    "generate --prompt a --seed 7 --width 64 --height 64 --steps 1 --vae-tile off --json";

/// Two GPUs which the built-in model is spread over.
fn machine() -> Machine {
    Machine::new(2).with("memory", "1GiB").with("peer", 1)
}

/// A finished run.
struct Finished {
    document: Value,
    pixels: Vec<u8>,
    said: String,
}

/// A home on a machine, whose processes count each other's memory.
fn home_on(machine: Machine) -> Home {
    let home = Home::new();
    fs::create_dir(home.path("gpus")).expect("a directory");
    let machine = machine.shared(&home.path("gpus"));
    home.with([machine.environment(), crate::f32_host()].concat())
}

fn run(home: &Home, more: &[&str]) -> Ended {
    let job: Vec<&str> = JOB.split(' ').chain(["--output", "picture.png"]).collect();
    run_all(home, &[&job[..], more].concat())
}

fn run_all(home: &Home, arguments: &[&str]) -> Ended {
    Watched::start(home.berth(arguments)).end(PATIENCE)
}

/// Runs the job on a machine with nothing learnt.
#[track_caller]
fn finish(machine: Machine, more: &[&str]) -> Finished {
    let what = machine.value();
    let home = home_on(machine);
    Finished::of(&home, run(&home, more), &what)
}

impl Finished {
    /// Of a run in this home, on such a machine.
    #[track_caller]
    fn of(home: &Home, ended: Ended, machine: &str) -> Finished {
        assert_eq!(ended.code, Some(0), "{machine}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{machine}: {}", ended.stderr);
        let pixels = pixels(&home.path("picture.png"));
        Finished { document: ended.json(), pixels, said: ended.stderr }
    }

    fn attempts(&self) -> u64 {
        self.document["attempts"].as_u64().expect("a number")
    }

    /// What became of the first attempt.
    fn failure(&self) -> &Value {
        &self.document["failures"][0]
    }

    fn reason(&self) -> &str {
        self.failure()["reason"].as_str().unwrap_or_default()
    }

    /// The devices of each component.
    fn devices(&self) -> Vec<Vec<&str>> {
        let components = self.document["plan"]["components"].as_array().expect("components");
        let devices = components.iter().map(|component| component["devices"].as_array().unwrap());
        devices.map(|all| all.iter().map(|id| id.as_str().unwrap()).collect()).collect()
    }

    fn uses(&self, device: &str) -> bool {
        self.devices().iter().flatten().any(|id| *id == device)
    }

    /// Whether its picture is another's, but for what arithmetic in 16 bits changes on another
    /// device.
    fn is_like(&self, other: &Finished) -> bool {
        let mut levels = self.pixels.iter().zip(&other.pixels).map(|(a, b)| a.abs_diff(*b));
        self.pixels.len() == other.pixels.len() && levels.all(|off| off <= 4)
    }

    /// What the plan takes of a device, or of the host; nothing of one that it does not have.
    fn peak_bytes_of(&self, device: &str) -> u64 {
        let plan = &self.document["plan"];
        if device == "host" {
            return plan["host"]["peak_bytes"].as_u64().expect("a size");
        }
        let devices = plan["devices"].as_array().expect("devices");
        let of = devices.iter().find(|planned| planned["id"] == device);
        of.map_or(0, |planned| planned["peak_bytes"].as_u64().expect("a size"))
    }

    /// What the plan takes of all devices.
    fn peak_bytes(&self) -> u64 {
        let devices = self.document["plan"]["devices"].as_array().expect("devices");
        devices.iter().map(|device| device["peak_bytes"].as_u64().expect("a size")).sum()
    }
}

/// The picture of the host's own arithmetic.
fn on_host() -> Finished {
    finish(machine(), &["--backend", "all=cpu"])
}

#[test]
fn a_shortage_in_any_function_leads_to_a_smaller_plan_and_tells_what_is_free() {
    let whole = finish(machine(), &[]);
    for (fault, tells) in [
        ("cuModuleLoadDataEx:3:2", "cuda0 is out of memory: cuModuleLoadDataEx of "),
        ("cuLaunchKernel:5:2", "cuda0 is out of memory: cuLaunchKernel of "),
        ("cuDevicePrimaryCtxRetain:1:2", "cuda0 is out of memory: context needs "),
        ("cuStreamCreateWithPriority:2:2", "cuda0 is out of memory: cuStreamCreate failed: "),
        ("cuEventCreate:30:2", "cuda0 is out of memory: cuEventCreate failed: "),
        ("cuMemAlloc_v2:3:2", " is out of memory: "),
    ] {
        let finished = finish(machine().with("fail", fault), &[]);
        assert_eq!(finished.attempts(), 2, "{fault}: {}", finished.said);
        assert!(finished.reason().contains(tells), "{fault}: {}", finished.reason());
        assert!(finished.failure()["free_bytes"].as_u64() > Some(0), "{fault}");
        assert!(!finished.uses("host"), "{fault}: {:?}", finished.devices());
        assert!(finished.peak_bytes() < whole.peak_bytes(), "{fault}");
        assert!(finished.is_like(&whole), "{fault}: another picture");
    }
}

#[test]
fn a_shortage_in_the_self_test_leads_to_a_smaller_plan_which_is_tested() {
    let machine = || machine().self_tested();
    let whole = finish(machine(), &[]);
    for fault in [
        "cuDevicePrimaryCtxRetain:1:2",
        "cuModuleLoadDataEx:3:2",
        "cuMemAlloc_v2:3:2",
        "cuLaunchKernel:5:2",
    ] {
        let home = home_on(machine().with("fail", fault));
        let finished = Finished::of(&home, run(&home, &[]), fault);
        assert_eq!(finished.attempts(), 2, "{fault}: {}", finished.said);
        let reason = finished.reason();
        assert!(reason.starts_with("the kernels cannot be tested: cuda"), "{fault}: {reason}");
        assert!(reason.contains(" is out of memory: "), "{fault}: {reason}");
        assert!(!finished.uses("host"), "{fault}: {:?}", finished.devices());
        assert!(finished.peak_bytes() < whole.peak_bytes(), "{fault}");
        assert!(finished.is_like(&whole), "{fault}: another picture");
        let records = fs::read_to_string(home.beside("state/berth/self-test.toml"));
        let records = records.expect("what was tested is recorded");
        let tested = finished.devices().concat().into_iter().collect::<BTreeSet<_>>();
        assert_eq!(records.matches("[[tested]]").count(), tested.len(), "{fault}: {records}");
    }
}

#[test]
fn any_other_error_of_an_allocation_is_no_shortage() {
    for (fault, tells) in [
        ("cuMemAlloc_v2:3:719", "cuda0 is lost to this process: cuMemAlloc failed: "),
        ("cuMemAlloc_v2:3:801", "cuda0 has failed: cuMemAlloc failed: "),
        ("cuMemHostAlloc:1:304", "cuda0 has failed: cuMemHostAlloc failed: "),
        ("cuMemGetInfo_v2:1:999", "cuda0 is lost to this process: cuMemGetInfo failed: "),
    ] {
        let finished = finish(machine().with("fail", fault).with("passing", 1), &[]);
        assert!(finished.reason().contains(tells), "{fault}: {}", finished.reason());
        assert_eq!(finished.failure()["requested_bytes"], Value::Null, "{fault}");
    }
}

#[test]
fn a_broken_context_ends_the_process_and_the_device_is_tried_once_more() {
    let whole = finish(machine(), &[]);
    for code in [700, 702, 714, 715, 716, 717, 718, 719, 999] {
        let machine = machine().with("lost", format!("0:300:{code}")).with("passing", 1);
        let finished = finish(machine, &[]);
        assert_eq!(finished.attempts(), 2, "{code}: {}", finished.said);
        assert_eq!(finished.failure()["device"], "cuda0", "{code}");
        assert_eq!(finished.devices(), whole.devices(), "{code}");
        assert_eq!(finished.pixels, whole.pixels, "{code}: another picture");
        let named = finished.reason().split("handed out before, the last first: ").nth(1);
        assert!(named.is_some_and(|kernels| kernels.contains(", ")), "{}", finished.reason());
    }
}

#[test]
fn a_device_that_breaks_every_context_is_left_out_and_the_other_goes_on() {
    let whole = finish(machine(), &[]);
    let finished = finish(machine().with("lost", "0:300:702"), &[]);
    assert_eq!(finished.attempts(), 3, "{}", finished.said);
    for (index, tells) in [(0, "is lost to this process"), (1, "so it was to the process before")] {
        let failure = &finished.document["failures"][index];
        assert_eq!(failure["device"], "cuda0", "{}", finished.said);
        assert!(failure["reason"].as_str().unwrap().contains(tells), "{failure}");
    }
    assert!(finished.uses("cuda1") && !finished.uses("cuda0"), "{:?}", finished.devices());
    assert!(finished.is_like(&whole), "another picture");
    // Both, one after the other: the host computes.
    let finished = finish(machine().with("lost", "0:300:702,1:50:719"), &[]);
    assert_eq!(finished.attempts(), 5, "{}", finished.said);
    assert!(!finished.uses("cuda0") && !finished.uses("cuda1"), "{:?}", finished.devices());
    assert!(finished.pixels == on_host().pixels, "another picture");
}

#[test]
fn a_plan_by_hand_is_tried_again_on_a_broken_context() {
    let place = ["--backend", "all=cuda0"];
    let finished = finish(machine().with("lost", "0:300:702").with("passing", 1), &place);
    assert_eq!(finished.attempts(), 2, "{}", finished.said);
    assert!(finished.uses("cuda0") && !finished.uses("host"), "{:?}", finished.devices());
    // What breaks again cannot be left out: the user wants it.
    let ended = run(&home_on(machine().with("lost", "0:300:702")), &place);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("so it was to the process before"), "{}", ended.stderr);
}

#[test]
fn what_the_driver_says_of_a_kernel_is_told_with_what_helps() {
    for (key, value, tells) in [
        ("ptx", "60", "(222): ptxas fatal : PTX "),
        ("ptx", "60", "hint: update the driver"),
        ("fail", "cuModuleLoadDataEx:1:221", "libnvidia-ptxjitcompiler.so.1 is missing"),
        ("fail", "cuModuleLoadDataEx:1:218", "the driver does not compile the kernel; hint: "),
        ("fail", "cuModuleLoadDataEx:1:209", "the kernels are for other GPUs; hint: "),
        ("fail", "cuDevicePrimaryCtxRetain:1:35", "older than its library; hint: "),
        ("fail", "cuDevicePrimaryCtxRetain:1:804", "cuda-compat does not serve this GPU; hint: "),
    ] {
        let finished = finish(machine().with(key, value), &[]);
        assert!(finished.reason().contains(tells), "{key}={value}: {}", finished.reason());
        assert!(finished.reason().starts_with("cuda0 has failed: "), "{}", finished.reason());
    }
    for (code, tells) in [
        (803, "restart after an update of the driver"),
        (804, "take its folder off LD_LIBRARY_PATH"),
        (802, "start nvidia-fabricmanager"),
        (35, "update the driver"),
    ] {
        let home = Home::new().with(machine().with("init", code).environment());
        let devices = home.run(&["devices"]);
        let said = devices.stdout + &devices.stderr;
        assert!(said.contains(tells), "{code}: {said}");
    }
}
