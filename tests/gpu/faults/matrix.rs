//! Each function of the driver that a run calls, at its first call and at one in the middle, with
//! each kind of error. A fault passes: it happens once.

use std::collections::BTreeMap;
use std::{fmt, fs};

use super::{Finished, finish, home_on, machine, on_host, run};

/// Errors: a shortage, four that break the context, a refusal.
const CODES: [u32; 6] = [2, 700, 702, 719, 999, 221];

/// Functions by which the driver starts and GPUs are looked at.
const OF_START: [&str; 6] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
];

/// Functions that free things, or by which the time is told: nothing depends on them.
const WITHOUT_CONSEQUENCE: [&str; 7] = [
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
];

/// Functions that also end things, and tell the time: what follows depends on which call it is.
const OF_BOTH: [&str; 2] = ["cuEventQuery", "cuStreamSynchronize"];

/// A call of a function.
#[derive(Clone, Copy, PartialEq)]
enum Occasion {
    First,
    Middle,
}

/// A call that fails.
struct Fault<'a> {
    function: &'a str,
    call: u64,
    code: u32,
}

impl fmt::Display for Fault<'_> {
    /// As the simulator takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.function, self.call, self.code)
    }
}

/// What a run without faults calls, and how often.
fn calls() -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("calls");
    let ended = run(&home_on(machine().logged(&log)), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let mut calls = BTreeMap::new();
    for line in fs::read_to_string(log).expect("the log").lines() {
        // The process, `call`, and the function.
        if let [_, "call", function, ..] = line.split(' ').collect::<Vec<_>>()[..] {
            *calls.entry(function.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Tries the functions at an occasion: each with all errors, or with two of them by turns.
fn try_all(occasion: Occasion) {
    let many = std::env::var_os("BERTH_FAULTS_MANY").is_some();
    let (whole, host) = (finish(machine(), &[]), on_host());
    let calls = calls();
    for function in OF_START.iter().chain(&WITHOUT_CONSEQUENCE).chain(&OF_BOTH) {
        assert!(calls.contains_key(*function), "{function} is not called any more");
    }
    for (index, (function, count)) in calls.iter().enumerate() {
        let call = if occasion == Occasion::First { 1 } else { count / 2 + 1 };
        if occasion == Occasion::Middle && call == 1 {
            continue;
        }
        let codes = match many {
            true => CODES.to_vec(),
            // A shortage at one occasion, and another error at the other.
            false if (index + occasion as usize).is_multiple_of(2) => vec![2],
            false => vec![CODES[1 + index / 2 % 5]],
        };
        for code in codes {
            let fault = Fault { function, call, code };
            let machine = machine().with("fail", &fault).with("passing", 1);
            follows(&fault, &finish(machine, &[]), [&whole, &host]);
        }
    }
}

/// Asserts what follows from a fault: in any case a picture, as one run without faults makes it.
fn follows(fault: &Fault<'_>, is: &Finished, [was, host]: [&Finished; 2]) {
    let Fault { function, call, code } = *fault;
    let said = &is.said;
    let breaks = ![2, 221].contains(&code);
    if OF_START.contains(&function) && call == 1 {
        assert_eq!(is.attempts(), 1, "{fault}: {said}");
        assert!(is.devices().iter().flatten().all(|id| *id == "host"), "{fault}: {said}");
        assert!(is.pixels == host.pixels, "{fault}: another picture");
        return;
    }
    assert!(is.is_like(was), "{fault}: another picture");
    if WITHOUT_CONSEQUENCE.contains(&function) || OF_BOTH.contains(&function) {
        let may_fail = breaks || OF_BOTH.contains(&function);
        assert!(is.attempts() <= 1 + u64::from(may_fail), "{fault}: {said}");
        if is.attempts() == 1 {
            assert_eq!(is.devices(), was.devices(), "{fault}: {said}");
            return;
        }
    }
    assert_eq!(is.attempts(), 2, "{fault}: {said}");
    let device = is.failure()["device"].as_str().unwrap_or_else(|| panic!("{fault}: {said}"));
    let is_short = !is.failure()["requested_bytes"].is_null();
    assert_eq!(is_short, code == 2, "{fault}: {said}");
    match code {
        2 if device == "host" => {}
        2 => assert!(!is.uses("host"), "{fault}: {:?}", is.devices()),
        221 => {
            assert!(is.reason().contains("hint: "), "{fault}: {said}");
            let other = if device == "cuda0" { "cuda1" } else { "cuda0" };
            assert!(is.uses(other) && !is.uses(device), "{fault}: {:?}", is.devices());
        }
        _ => {
            assert!(is.reason().contains("is lost to this process"), "{fault}: {said}");
            assert_eq!(is.devices(), was.devices(), "{fault}: {said}");
        }
    }
}

#[test]
fn every_function_may_fail_at_its_first_call() {
    try_all(Occasion::First);
}

#[test]
fn every_function_may_fail_in_the_middle() {
    try_all(Occasion::Middle);
}
