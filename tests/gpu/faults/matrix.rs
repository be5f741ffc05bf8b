//! Each function of the driver that is used, at its first call and at one in the middle, with each
//! kind of error; what must follow is a table.
//!
//! A fault passes, and happens once, or stays, and happens in each process. Runs are the real
//! program's, several at a time; none may panic, or take longer than [`PATIENCE`].
//!
//! [`PATIENCE`]: crate::support::watched::PATIENCE

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, fs, thread};

use super::{Finished, finish, home_on, machine, on_host, run};
use crate::support::simulator::Machine;
use crate::support::wide::Wide;
use crate::support::{Home, root};

/// What an error is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Shortage,
    /// The context answers nothing more.
    Break,
    /// It is this call's alone.
    Refusal,
}

const CODES: [(u32, Kind); 6] = [
    (2, Kind::Shortage),
    (700, Kind::Break),
    (702, Kind::Break),
    (719, Kind::Break),
    (999, Kind::Break),
    (221, Kind::Refusal),
];

/// What a function is for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Class {
    /// The driver starts, and GPUs are looked at for the first time.
    Start,
    /// Something depends on it.
    Need,
    /// Things are freed, or the time is told.
    End,
    /// Of the last two the one or the other, depending on which call it is.
    Both,
}

/// What follows from an error that passes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Follows {
    /// The host computes.
    Host,
    /// A plan with less of what was short, and no more on the host.
    Smaller,
    /// A new process with the same plan.
    Again,
    /// A plan with the other GPU alone.
    Without,
    /// The job goes on.
    Nothing,
}

use Follows::{Again, Host, Nothing, Smaller, Without};

/// What may follow from a shortage, a broken context and a refusal.
#[rustfmt::skip]
const FOLLOWS: [(Class, [&[Follows]; 3]); 4] = [
    (Class::Start, [&[Host],             &[Host],           &[Host]]),
    (Class::Need,  [&[Smaller],          &[Again],          &[Without]]),
    (Class::End,   [&[Nothing],          &[Nothing, Again], &[Nothing]]),
    (Class::Both,  [&[Nothing, Smaller], &[Nothing, Again], &[Nothing, Without]]),
];

/// Functions by which the driver starts and GPUs are looked at.
const OF_START: [&str; 6] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
];

/// Functions that free things, or by which the time is told.
const OF_END: [&str; 7] = [
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
];

/// Functions that also end things, and tell the time.
const OF_BOTH: [&str; 2] = ["cuEventQuery", "cuStreamSynchronize"];

/// Called only where another function has failed, and not failing itself.
const OF_ERRORS: &str = "cuGetErrorName";

/// A call that fails.
struct Fault {
    function: String,
    call: u64,
    code: u32,
    kind: Kind,
}

impl fmt::Display for Fault {
    /// As the simulator takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.function, self.call, self.code)
    }
}

impl Fault {
    fn class(&self) -> Class {
        match self.function.as_str() {
            name if OF_START.contains(&name) && self.call == 1 => Class::Start,
            name if OF_END.contains(&name) => Class::End,
            name if OF_BOTH.contains(&name) => Class::Both,
            _ => Class::Need,
        }
    }

    fn may_follow(&self) -> &'static [Follows] {
        let row = FOLLOWS.iter().find(|(class, _)| *class == self.class()).expect("each class");
        row.1[self.kind as usize]
    }

    fn once(&self, machine: Machine) -> Machine {
        machine.with("fail", self).with("passing", 1)
    }
}

/// Whether all errors are tried everywhere, and not one of them by turns.
fn tries_many() -> bool {
    std::env::var_os("BERTH_FAULTS_MANY").is_some()
}

/// The functions that a run called, and how often.
fn calls_in(log: &std::path::Path) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in fs::read_to_string(log).expect("the log").lines() {
        // The process, `call`, and the function.
        if let [_, "call", function, ..] = line.split(' ').collect::<Vec<_>>()[..] {
            *calls.entry(function.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// What the job without faults calls on a machine.
fn calls(machine: Machine) -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("calls");
    let ended = run(&home_on(machine.logged(&log)), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    calls_in(&log)
}

/// Faults of all functions that are called, at the call that `which` chooses by how many there are.
/// By turns each has another error, where not all are tried.
fn faults(
    calls: &BTreeMap<String, u64>,
    turn: usize,
    which: impl Fn(u64) -> Option<u64>,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, (function, count)) in calls.iter().enumerate() {
        let Some(call) = which(*count) else { continue };
        // Every second one is a shortage.
        let at = if (index + turn).is_multiple_of(2) { 0 } else { 1 + (index + turn) / 2 % 5 };
        let codes = if tries_many() { &CODES[..] } else { &CODES[at..=at] };
        faults.extend(codes.iter().map(|&(code, kind)| {
            let function = function.clone();
            Fault { function, call, code, kind }
        }));
    }
    faults
}

/// Tries faults, as many at a time as there are processors. All of them are tried; a test that
/// fails says which have.
fn try_each(faults: &[Fault], try_one: impl Fn(&Fault) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
            try_one(fault);
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        (0..processors).for_each(|_| drop(scope.spawn(work)));
    });
}

/// Asserts what follows from a fault that passes: in any case a picture, as one run without faults
/// makes it.
fn follows(fault: &Fault, is: &Finished, [was, host]: [&Finished; 2]) {
    let said = &is.said;
    let device = is.failure()["device"].as_str();
    let requested = &is.failure()["requested_bytes"];
    let so = match (is.attempts(), fault.kind) {
        (1, _) if !is.uses("cuda0") && !is.uses("cuda1") => Host,
        (1, _) => Nothing,
        (2, Kind::Shortage) => Smaller,
        (2, Kind::Break) => Again,
        (2, Kind::Refusal) => Without,
        (attempts, _) => panic!("{fault}: {attempts} attempts: {said}"),
    };
    let may = fault.may_follow();
    assert!(may.contains(&so), "{fault}: {so:?}, and not one of {may:?}: {said}");
    assert_eq!(requested.is_null(), so != Smaller, "{fault}: {said}");
    let device = || device.unwrap_or_else(|| panic!("{fault}: no device is told: {said}"));
    match so {
        Host => assert!(is.pixels == host.pixels, "{fault}: another picture"),
        Nothing => assert_eq!(is.devices(), was.devices(), "{fault}: {said}"),
        Smaller => {
            let [less, more] = [is, was].map(|plan| plan.peak_bytes_of(device()));
            assert!(less < more, "{fault}: {less} after {more} of {}: {said}", device());
            assert!(device() == "host" || !is.uses("host"), "{fault}: {:?}", is.devices());
        }
        Again => {
            assert!(is.reason().contains("is lost to this process"), "{fault}: {said}");
            assert_eq!(is.devices(), was.devices(), "{fault}: {said}");
        }
        Without => {
            let other = if device() == "cuda0" { "cuda1" } else { "cuda0" };
            assert!(is.reason().contains("hint: "), "{fault}: {said}");
            assert!(is.uses(other) && !is.uses(device()), "{fault}: {:?}", is.devices());
        }
    }
    assert!(is.is_like(was), "{fault}: another picture");
}

/// Tries faults that pass on a machine.
fn try_passing(machine: impl Fn() -> Machine + Sync, faults: &[Fault]) {
    let (was, host) = (finish(machine(), &[]), on_host());
    try_each(faults, |fault| {
        follows(fault, &finish(fault.once(machine()), &[]), [&was, &host]);
    });
}

#[test]
fn every_function_may_fail_at_its_first_call() {
    let calls = calls(machine());
    for function in OF_START.iter().chain(&OF_END).chain(&OF_BOTH) {
        assert!(calls.contains_key(*function), "{function} is not called any more");
    }
    try_passing(machine, &faults(&calls, 0, |_| Some(1)));
}

#[test]
fn every_function_may_fail_in_the_middle() {
    let middle = |count| Some(count / 2 + 1).filter(|call| *call > 1);
    try_passing(machine, &faults(&calls(machine()), 1, middle));
}

/// With GPUs that are tested, and that have shared memory for which a kernel must ask.
fn tested() -> Machine {
    machine().with("capability", "9.0").self_tested()
}

#[test]
fn every_function_may_fail_in_the_self_test() {
    // What a GPU is looked at with comes before it.
    let mut calls = calls(tested());
    calls.retain(|function, _| !OF_START.contains(&function.as_str()));
    try_passing(tested, &faults(&calls, 1, |_| Some(1)));
}

#[test]
fn a_gpu_whose_context_breaks_in_each_process_is_left_out() {
    let (was, calls) = (finish(machine(), &[]), calls(machine()));
    let mut faults = faults(&calls, 1, |_| Some(1));
    faults.retain(|fault| fault.class() == Class::Need && fault.kind == Kind::Break);
    assert!(faults.len() > 4, "{}", faults.len());
    try_each(&faults, |fault| {
        let is = finish(machine().with("fail", fault), &[]);
        let said = &is.said;
        // Threads of both GPUs may come first in one process and in the next.
        let failures = is.document["failures"].as_array().expect("a list");
        let mut of_each: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for failure in failures {
            let [device, reason] = ["device", "reason"].map(|key| failure[key].as_str().unwrap());
            assert!(reason.contains("is lost to this process"), "{fault}: {said}");
            of_each.entry(device).or_default().push(reason);
        }
        assert!(of_each.values().any(|reasons| reasons.len() == 2), "{fault}: {said}");
        for (device, reasons) in of_each {
            let again: Vec<bool> =
                reasons.iter().map(|it| it.contains("so it was to the")).collect();
            match again[..] {
                [false] => {}
                [false, true] => assert!(!is.uses(device), "{fault}: {:?}", is.devices()),
                _ => panic!("{fault}: {device}: {said}"),
            }
        }
        assert!(is.is_like(&was), "{fault}: another picture");
    });
}

/// The job of a model whose matrices are split by rows over two parts of a GPU and another GPU,
/// which takes functions of its own.
const BY_ROWS: &str = "generate model --prompt a --seed 7 --width 32 --height 32 --steps 1 \
     --max-sequence-length 16 --vae-tile off --output picture.png --json --host ./parts.toml \
     --backend all=cuda0,dit=cuda0&cuda1&cuda2 --split-mode row";

const PARTS: &str = r#"
name = "parts"
[[device]]
kind = "cuda"
ordinal = 0
total = "2GiB"
[[device]]
kind = "cuda"
ordinal = 0
total = "1GiB"
[[device]]
kind = "cuda"
ordinal = 1
total = "2GiB"
"#;

fn home_by_rows(machine: Machine) -> Home {
    let home = home_on(machine);
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    fs::write(home.path("parts.toml"), PARTS).expect("a file system with room");
    home
}

#[test]
fn functions_of_a_split_by_rows_may_fail_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("calls");
    let machine = || Machine::new(2).with("memory", "4GiB");
    let job: Vec<&str> = BY_ROWS.split_whitespace().collect();
    let home = home_by_rows(machine().logged(&log));
    let was = Finished::of(&home, super::run_all(&home, &job), "two GPUs");
    let here = calls_in(&log);
    let mut elsewhere = calls(super::machine());
    elsewhere.extend(calls(tested()));
    let all: BTreeSet<String> = here.keys().chain(elsewhere.keys()).cloned().collect();
    assert_eq!(all, functions(), "a function is in no run, or in none of `driver.rs`");
    let only_here: BTreeMap<String, u64> =
        here.into_iter().filter(|(function, _)| !elsewhere.contains_key(function)).collect();
    assert!(!only_here.is_empty());
    let mut all = faults(&only_here, 0, |_| Some(1));
    all.extend(faults(&only_here, 1, |count| Some(count / 2 + 1)));
    try_each(&all, |fault| {
        let home = home_by_rows(fault.once(machine()));
        let ended = super::run_all(&home, &job);
        // GPUs that are named are not left out.
        if fault.kind == Kind::Refusal {
            assert_eq!(ended.code, Some(2), "{fault}: {}", ended.stderr);
            assert!(ended.stderr.contains("hint: "), "{fault}: {}", ended.stderr);
            assert!(!ended.stderr.contains("panicked"), "{fault}: {}", ended.stderr);
            return;
        }
        let is = Finished::of(&home, ended, &fault.to_string());
        assert_eq!(is.attempts(), 2, "{fault}: {}", is.said);
        assert!(is.is_like(&was), "{fault}: another picture");
    });
}

/// The functions that the backend looks up, but for the one that tells errors' names.
fn functions() -> BTreeSet<String> {
    let path = root().join("executor/src/backend/cuda/driver.rs");
    let text = fs::read_to_string(path).expect("the source");
    let named = text.split("= \"cu").skip(1).filter_map(|rest| rest.split_once("\"("));
    let names = named.map(|(name, _)| format!("cu{name}"));
    names.filter(|name| name != OF_ERRORS).collect()
}
