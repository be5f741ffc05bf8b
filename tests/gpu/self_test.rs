//! The self-test of GPUs, by the real program on simulated ones: kernels that store wrong values
//! are found before any picture, whatever family they are of, and the picture is the host's.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::simulator::Machine;
use crate::support::{Ended, Home, pixels, program, root};

const JOB: &str =
    "generate --prompt a --seed 7 --width 64 --height 64 --steps 1 --vae-tile off --json";

/// What is said of a device whose kernels are wrong.
const DIFFERS: &str = "does not compute as the host does: ";

/// A GPU that some kernels are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The oldest.
    Turing,
    /// One that multiplies bytes.
    Ampere,
    /// One that does not, with room for the largest blocks of attention.
    Hopper,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Turing, Kind::Ampere, Kind::Hopper];

    fn capability(self) -> &'static str {
        match self {
            Kind::Turing => "7.5",
            Kind::Ampere => "8.6",
            Kind::Hopper => "9.0",
        }
    }

    /// Whether kernels of a file are started by its self-test.
    fn starts(self, family: &str) -> bool {
        match family {
            // Biases for products of bf16 by cuBLASLt, which older GPUs do not have.
            "decode" => self != Kind::Turing,
            "attention_tall" | "decode_half" => self == Kind::Hopper,
            "linear_bytes" | "decode_bytes" | "quantise" => self != Kind::Hopper,
            _ => true,
        }
    }
}

/// Each file of kernels that is shipped, with the kernels that it has for a GPU and that this
/// starts.
fn families(kind: Kind) -> Vec<(String, Vec<String>)> {
    let mut families = Vec::new();
    for entry in fs::read_dir(root().join("executor/kernels/ptx")).expect("the kernels") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let (family, of) = name.split_once('.').expect("an ending");
        if of != (if kind == Kind::Turing { "75.ptx.z" } else { "80.ptx.z" }) {
            continue;
        }
        let packed = fs::read(&path).expect("a file");
        let line = packed.split(|&byte| byte == b'\n').next().expect("a line");
        let line = String::from_utf8(line.to_vec()).expect("names");
        let kernels = line.split(' ').filter(|name| !name.starts_with("source="));
        let kernels: Vec<String> = kernels.map(str::to_owned).collect();
        if !kernels.is_empty() && kind.starts(family) {
            families.push((family.to_owned(), kernels));
        }
    }
    families.sort();
    families
}

fn machine(kind: Kind) -> Machine {
    Machine::new(1).with("memory", "1GiB").with("capability", kind.capability()).self_tested()
}

fn home_on(machine: &Machine) -> Home {
    Home::new().with([machine.environment(), crate::f32_host()].concat())
}

/// Makes the picture of the built-in model; by default all on the first GPU.
#[track_caller]
fn picture(home: &Home, place: &str) -> (Ended, Vec<u8>) {
    let arguments = JOB.split(' ').chain(["--output", "picture.png", "--backend", place]);
    let ended = home.run(&arguments.collect::<Vec<_>>());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let pixels = pixels(&home.path("picture.png"));
    (ended, pixels)
}

/// Whether pictures are the same, but for what arithmetic in 16 bits changes.
fn are_alike(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.abs_diff(*b) <= 3)
}

/// With these kernels wrong, the self-test names one of them and the picture is the host's.
#[track_caller]
fn is_found(machine: Machine, kernels: &[String], host: &[u8]) {
    let home = home_on(&machine.with("wrong", kernels.join(",")));
    let (ended, pixels) = picture(&home, "all=cuda0");
    let said = &ended.stderr;
    let told = said.lines().find(|line| line.contains(DIFFERS));
    let told = told.unwrap_or_else(|| panic!("{kernels:?} are not found: {said}"));
    assert!(kernels.iter().any(|kernel| told.contains(kernel)), "{kernels:?}: {told}");
    assert!(told.contains("the host computes "), "{told}");
    assert!(are_alike(&pixels, host), "{kernels:?}: another picture; {said}");
}

#[test]
fn every_family_that_is_wrong_is_found_and_the_picture_is_the_hosts() {
    for kind in Kind::ALL {
        let (_, host) = picture(&home_on(&machine(kind)), "all=cpu");
        for (family, kernels) in families(kind) {
            // On the others they are as on the last.
            if kind == Kind::Ampere && Kind::Hopper.starts(&family) {
                continue;
            }
            // What follows the products of cuBLASLt, and a copy of the biases that it takes.
            let by_library = ["linear_finish", "decode"].contains(&family.as_str());
            let machine = machine(kind);
            let machine = if by_library { machine.with_cublas() } else { machine };
            is_found(machine, &kernels, &host);
        }
    }
}

#[test]
fn wrong_products_of_cublas_are_found() {
    let (_, host) = picture(&home_on(&machine(Kind::Hopper)), "all=cpu");
    is_found(machine(Kind::Hopper).with_cublas(), &["cublasLtMatmul".to_owned()], &host);
}

/// The test above can fail: a wrong kernel makes another picture where nothing tests it.
#[test]
fn a_wrong_kernel_makes_another_picture() {
    let (_, host) = picture(&home_on(&machine(Kind::Hopper)), "all=cpu");
    let wrong =
        machine(Kind::Hopper).with("wrong", "conv_half_k3_32,conv_half_k3_8,conv_half_k3_128");
    let untested = vec![("BERTH_SELF_TEST", "0".into())];
    let home = home_on(&wrong).with([wrong.environment(), untested].concat());
    let (ended, pixels) = picture(&home, "all=cuda0");
    assert!(!ended.stderr.contains(DIFFERS), "{}", ended.stderr);
    assert!(!are_alike(&pixels, &host));
}

/// The kernels that were started by now.
fn started(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let calls = text.lines().filter(|line| line.contains("call cuLaunchKernel"));
    let kernel = |line: &str| line.split("kernel=").nth(1)?.split(' ').next().map(str::to_owned);
    calls.filter_map(kernel).collect()
}

#[test]
fn every_file_of_kernels_takes_part() {
    let folder = tempfile::tempdir().expect("a folder");
    for kind in Kind::ALL {
        let mut all = BTreeSet::new();
        for library in [false, true] {
            let log = folder.path().join(format!("{kind:?}-{library}"));
            let machine = machine(kind).logged(&log);
            let machine = if library { machine.with_cublas() } else { machine };
            let ended = home_on(&machine).run(&["calibrate", "--self-test", "--json"]);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            let found = &ended.json()["devices"][0];
            assert_eq!(found["differences"], serde_json::json!([]));
            println!("{kind:?}, library {library}: {} ms", found["ms"]);
            all.extend(started(&log));
        }
        for (family, kernels) in families(kind) {
            assert!(kernels.iter().any(|kernel| all.contains(kernel)), "{family}, {kind:?}");
        }
    }
}

#[test]
fn a_gpu_is_tested_once_and_again_with_another_driver_or_by_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let wrong = |machine: Machine| machine.with("wrong", "attention_half_direct_64,rope");
    let machine = || machine(Kind::Hopper).logged(&log);
    // A kernel that only the self-test starts.
    let tests = || {
        let count = started(&log).iter().filter(|kernel| *kernel == "rope_halves").count();
        let _ = fs::remove_file(&log);
        count
    };
    let home = home_on(&wrong(machine()));
    let (first, _) = picture(&home, "all=cuda0");
    assert!(first.stderr.contains(DIFFERS), "{}", first.stderr);
    assert_eq!(tests(), 1);
    let record = home.beside("state/berth/self-test.toml");
    assert!(fs::read_to_string(&record).expect("a record").contains("operations"));
    // The record holds though nothing is wrong any more.
    let home = home.with(machine().environment());
    let (second, _) = picture(&home, "all=cuda0");
    assert!(second.stderr.contains(DIFFERS), "{}", second.stderr);
    assert_eq!(tests(), 0);
    let shown = second.json();
    let device = &shown["plan"]["devices"][0]["backend"]["cuda_without"];
    assert!(!device["unsupported"].as_array().expect("operations").is_empty(), "{shown}");
    // Another driver.
    let other = home.with(machine().with("nvml_driver", "999.1").environment());
    let (third, _) = picture(&other, "all=cuda0");
    assert!(!third.stderr.contains(DIFFERS), "{}", third.stderr);
    assert_eq!(tests(), 1);
    // The one before again: what was found with the other one is not of it.
    let home = other.with(wrong(machine()).environment());
    let (fourth, _) = picture(&home, "all=cuda0");
    assert!(fourth.stderr.contains(DIFFERS), "{}", fourth.stderr);
    assert_eq!(tests(), 1);
    // By command, with a program that computes rightly.
    let home = home.with(machine().environment());
    let ended = home.run(&["calibrate", "--self-test"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("as the host"), "{}", ended.stdout);
    assert_eq!(tests(), 1);
    let (last, _) = picture(&home, "all=cuda0");
    assert!(!last.stderr.contains(DIFFERS), "{}", last.stderr);
    assert_eq!(tests(), 0);
    // A record that is damaged is made anew.
    fs::write(&record, "format = [").expect("room");
    picture(&home, "all=cuda0");
    assert_eq!(tests(), 1);
    // By command, with what is wrong told and an error.
    let home = home.with(wrong(machine()).environment());
    let ended = home.run(&["calibrate", "--self-test"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stdout.contains("attention_half"), "{}", ended.stdout);
}

/// With more than one core others share the test; here none of them starts.
#[test]
fn what_a_helper_does_not_test_the_jobs_own_executor_does() {
    let (_, host) = picture(&home_on(&machine(Kind::Hopper)), "all=cpu");
    for wrong in ["attention_half_direct_64", "rope", "linear_few_bf16_eight"] {
        let machine = machine(Kind::Hopper).with("memory", "8GiB").with("wrong", wrong);
        let home = Home::new();
        let body = format!(
            "#!/bin/sh\nmkdir {} 2>/dev/null || exit 3\nexec {} executor \"$@\"\n",
            home.path("started").display(),
            program().display()
        );
        let executor = home.path("executor");
        fs::write(&executor, body).expect("room");
        fs::set_permissions(&executor, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let executor = vec![("BERTH_EXECUTOR", executor.into())];
        let home = home.with([machine.environment(), crate::f32_host(), executor].concat());
        let (ended, pixels) = picture(&home, "all=cuda0");
        assert!(ended.stderr.contains(DIFFERS), "{wrong}: {}", ended.stderr);
        assert!(are_alike(&pixels, &host), "{wrong}: another picture");
    }
}

#[test]
fn gpus_between_which_copies_change_are_not_used_together() {
    let two = |peer: u32| machine(Kind::Hopper).with("devices", 2).with("peer", peer);
    let (_, host) = picture(&home_on(&two(0)), "all=cpu");
    for (peer, wrong) in
        [(0, "cuMemcpy3DPeerAsync"), (1, "cuMemcpy3DPeerAsync"), (1, "cuMemcpyPeerAsync")]
    {
        let home = home_on(&two(peer).with("wrong", wrong));
        let arguments = JOB.split(' ').chain(["--output", "picture.png"]).collect::<Vec<_>>();
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("arrive changed: byte ")
                && ended.stderr.contains("cuda1 is not used beside cuda0"),
            "{}",
            ended.stderr
        );
        assert!(are_alike(&pixels(&home.path("picture.png")), &host), "{}", ended.stderr);
    }
}
