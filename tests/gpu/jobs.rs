//! The real program on simulated GPUs: every placement, budgets to the byte, devices that fail, and
//! machines on which no GPU can be used.
//!
//! The driver, NVML and the GPUs are `tests/simulator`; the kernels are ours, executed thread by
//! thread.

use crate::support::simulator::Machine;
use crate::support::wide::Wide;
use crate::support::{Ended, Home, pixels};
use serde_json::Value;

/// A model in a home, on a machine.
struct Studio {
    home: Home,
}

/// A picture, and what was said of it.
struct Painted {
    pixels: Vec<u8>,
    document: Value,
}

/// These GPUs beside a disk that is declared: plans do not follow what the page cache happens to
/// hold.
const DISK: [&str; 2] = ["--host", "./disk.toml"];

impl Studio {
    /// A studio with the file that [`DISK`] names.
    fn with_disk(model: Wide, machine: Machine) -> Studio {
        let studio = Studio::new(model, machine);
        let disk = "name = \"disk\"\ndevices = \"detect\"\n[host]\nstorage_bandwidth = \"2GB/s\"\n";
        std::fs::write(studio.home.path("disk.toml"), disk).expect("a file system with room");
        studio
    }

    fn new(model: Wide, machine: Machine) -> Studio {
        let home = Home::new();
        model.write(&home.path("model")).expect("a file system with room");
        std::fs::create_dir(home.path("gpus")).expect("a directory");
        let machine = machine.shared(&home.path("gpus"));
        Studio { home: home.with(machine.environment()) }
    }

    /// `generate` of a small picture, as JSON.
    fn generate(&self, more: &[&str]) -> Ended {
        let shape =
            ["--width", "32", "--height", "32", "--steps", "2", "--max-sequence-length", "16"];
        let job = ["--prompt", "a red circle", "--seed", "7", "--output", "picture.png", "--json"];
        self.home.run(&[&["generate", "model"], &shape[..], &job, more].concat())
    }

    fn paint(&self, more: &[&str]) -> Painted {
        let ended = self.generate(more);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        Painted { pixels: pixels(&self.home.path("picture.png")), document: ended.json() }
    }
}

impl Painted {
    fn component(&self, name: &str) -> &Value {
        let components = self.document["plan"]["components"].as_array().unwrap();
        components.iter().find(|component| component["name"] == name).unwrap()
    }

    /// The largest difference from another picture, in levels of 255.
    fn levels_off(&self, other: &Painted) -> u8 {
        assert_eq!(self.pixels.len(), other.pixels.len());
        self.pixels.iter().zip(&other.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
    }

    /// Every device's predicted peak is the measured one, in every phase.
    #[track_caller]
    fn assert_exact(&self, what: &[&str]) {
        let devices = self.document["usage"]["devices"].as_array().unwrap();
        for phase in devices.iter().flat_map(|device| device["phases"].as_array().unwrap()) {
            let [predicted, measured] =
                ["predicted_peak_bytes", "measured_peak_bytes"].map(|field| &phase[field]);
            assert_eq!(predicted, measured, "{what:?}: {devices:?}");
        }
    }
}

/// What is asked by hand, and what the plan must then say of a component: placement, residency,
/// devices.
type Case<'a> = (&'a [&'a str], &'a str, [&'a str; 2], usize);

#[rustfmt::skip]
const CASES: [Case; 10] = [
    (&["--backend", "all=cuda0", "--params-backend", "all=device"], "dit", ["one", "resident"], 1),
    (&["--backend", "all=cuda1", "--params-backend", "all=disk"], "dit", ["one", "lazy"], 1),
    (&["--backend", "all=cuda0", "--params-backend", "dit=cpu", "--lookahead", "1"], "dit", ["one", "streamed"], 1),
    (&["--backend", "all=cuda0", "--params-backend", "all=cpu"], "t5", ["one", "streamed"], 1),
    (&["--backend", "all=cuda0,dit=cuda1&cuda0&cuda2", "--params-backend", "all=device"], "dit", ["layer", "resident"], 3),
    (&["--backend", "all=cuda0,dit=cuda0&cuda3", "--params-backend", "dit=cpu"], "dit", ["layer", "streamed"], 2),
    (&["--backend", "all=cuda0,dit=cuda0&cuda1", "--split-mode", "row", "--params-backend", "all=device"], "dit", ["row", "resident"], 2),
    (&["--backend", "all=cuda0,dit=cuda2:1&cuda1:3", "--split-mode", "row", "--params-backend", "dit=cpu"], "dit", ["row", "streamed"], 2),
    (&["--backend", "all=cuda0,t5=cuda3&cuda1", "--split-mode", "t5=row", "--params-backend", "all=device"], "t5", ["row", "resident"], 2),
    (&["--backend", "all=cuda0,vae=cuda1,clip=cuda2", "--params-backend", "all=device"], "vae", ["one", "resident"], 1),
];

#[test]
fn every_placement_on_gpus_gives_one_picture_in_the_planned_bytes() {
    // Copies and kernels start late at random, so that an order that nothing enforces shows.
    let machine = Machine::new(4).with("memory", "1GiB").with("delay", 200).with("seed", 11);
    let studio = Studio::new(Wide::bf16(), machine);
    let host = studio.paint(&["--backend", "all=cpu", "--vae-tile", "off"]);
    let mut first: Option<Painted> = None;
    for (arguments, name, [placement, residency], devices) in CASES {
        let painted = studio.paint(&[arguments, &["--vae-tile", "off"]].concat());
        let component = painted.component(name);
        assert_eq!(component["placement"], placement, "{arguments:?}");
        assert_eq!(component["residency"], residency, "{arguments:?}");
        assert_eq!(component["devices"].as_array().unwrap().len(), devices, "{arguments:?}");
        painted.assert_exact(arguments);
        let first = first.get_or_insert_with(|| {
            let off = painted.levels_off(&host);
            assert!(off <= 2, "{off} levels from the host's picture");
            Painted { pixels: painted.pixels.clone(), document: Value::Null }
        });
        assert!(painted.pixels == first.pixels, "{arguments:?}: another picture");
    }
}

#[test]
fn a_budget_is_kept_to_the_byte_and_one_byte_less_is_refused() {
    // What a run measures changes the next plan: each begins anew.
    let studio = || Studio::new(Wide::bf16(), Machine::new(1));
    let place = ["--backend", "all=cuda0", "--vae-tile", "off"];
    let least = {
        let refused = studio().generate(&[&place[..], &["--max-vram", "cuda0=1B"]].concat());
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        let hint = refused.stderr.split("--max-vram ").nth(1).expect("a hint");
        let digits = hint.trim_start_matches("cuda0=").split('B').next().expect("bytes");
        digits.parse::<u64>().unwrap_or_else(|_| panic!("{}", refused.stderr))
    };
    let [exact, less] = [least, least - 1].map(|bytes| format!("cuda0={bytes}B"));
    let painted = studio().paint(&[&place[..], &["--max-vram", &exact]].concat());
    assert_eq!(painted.document["plan"]["devices"][0]["peak_bytes"], least);
    painted.assert_exact(&[&exact]);
    let refused = studio().generate(&[&place[..], &["--max-vram", &less]].concat());
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
}

#[test]
fn nothing_is_allocated_loaded_or_made_within_a_step() {
    makes_nothing_within_a_step(Machine::new(2));
}

#[test]
fn nothing_is_asked_of_cublas_within_a_step() {
    let log = makes_nothing_within_a_step(Machine::new(2).with_cublas());
    assert!(log.contains("call cublasLtMatmul device=1 "), "both GPUs multiply with it");
}

/// Asserts it on this machine, and gives the log of calls.
fn makes_nothing_within_a_step(machine: Machine) -> String {
    let home = Home::new();
    let log = home.path("calls");
    let machine = machine.with("memory", "1GiB").logged(&log);
    let studio = Studio::new(Wide::bf16(), machine);
    let split = ["--backend", "all=cuda0,dit=cuda0&cuda1", "--params-backend", "dit=cpu"];
    let _ = studio.paint(&split);
    let log = std::fs::read_to_string(&log).expect("the log of calls");
    // From the first kernel of attention in the DiT's phase to the last: two steps, with all that
    // lies between them.
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("call ")).collect();
    let is_rope = |line: &&str| line.contains("cuLaunchKernel") && line.contains("kernel=rope");
    let first = lines.iter().position(is_rope).expect("the DiT rotates");
    let last = lines.iter().rposition(is_rope).expect("the DiT rotates");
    assert!(last > first + 10, "the DiT has several blocks");
    for line in &lines[first..last] {
        let unwanted =
            ["cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuModuleLoad", "cuStreamCreate"];
        assert!(unwanted.iter().all(|call| !line.contains(call)), "{line}");
        let of_library = ["Create", "Heuristic", "Preference", "Destroy"];
        let asked = line.contains("cublasLt") && of_library.iter().any(|call| line.contains(call));
        assert!(!asked, "{line}");
    }
    log
}

#[test]
fn a_plan_does_not_depend_on_cublas_and_its_bytes_are_exact_with_it() {
    let studio = |machine| Studio::with_disk(Wide::bf16(), machine);
    let place = ["--backend", "all=cuda0", "--params-backend", "dit=cpu", "--vae-tile", "off"];
    let place = [&place[..], &DISK].concat();
    let without = studio(Machine::new(1)).paint(&place);
    let with = studio(Machine::new(1).with_cublas()).paint(&place);
    with.assert_exact(&place);
    assert_eq!(with.document["plan"]["devices"], without.document["plan"]["devices"]);
    assert_eq!(with.document["plan"]["components"], without.document["plan"]["components"]);
    // The same products, summed in another order.
    assert!(with.levels_off(&without) <= 2, "{} levels apart", with.levels_off(&without));
    // Half a run on a library that then fails is a picture too.
    let machine = Machine::new(1).with_cublas().with("fail", "cublasLtMatmul:20:14");
    let failing = studio(machine).paint(&place);
    assert_eq!(failing.document["attempts"], 1);
    assert!(failing.levels_off(&without) <= 2, "{} levels apart", failing.levels_off(&without));
}

#[test]
fn devices_tells_of_cublas_where_there_is_a_gpu() {
    let nothing = tempfile::tempdir().expect("a temporary folder");
    let folder = crate::support::simulator::Simulator::built().cublas();
    let at = |machine: Machine| {
        let home = Home::new().with(machine.environment());
        (home.run(&["devices"]).stdout, home.json(&["devices", "--json"]))
    };
    let version = format!("12.9.2 ({})", folder.join("libcublasLt.so.12").display());
    for (machine, says) in [
        (Machine::new(1).with_cublas(), version.as_str()),
        (
            Machine::new(1),
            "not used, Berth's own kernels multiply: switched off by an empty BERTH_CUDA_PATH",
        ),
        (
            Machine::new(1).with_cublas_in(nothing.path()),
            "libcublasLt.so.13, libcublasLt.so.12; hint: ",
        ),
        (
            Machine::new(1).with("driver", 12040).with_cublas_in(nothing.path()),
            " has none of libcublasLt.so.12; hint: ",
        ),
    ] {
        let (text, document) = at(machine);
        assert!(text.contains("\ncuBLASLt: ") && text.contains(says), "{says}: {text}");
        assert!(document["cublas"].as_str().is_some_and(|said| said.contains(says)), "{document}");
    }
    // No GPU, no word.
    let (text, document) = at(Machine::new(1).with("init", 100).with_cublas());
    assert!(!text.contains("cuBLASLt"), "{text}");
    assert_eq!(document["cublas"], Value::Null);
}

#[test]
fn exact_products_of_a_gpu_are_recorded_and_so_made_again() {
    let studio = Studio::new(Wide::bf16(), Machine::new(1).with("memory", "1GiB"));
    let place = ["--backend", "all=cuda0"];
    let recorded = || {
        let shown = studio.home.json(&["inspect", "picture.png", "--json"]);
        shown["settings"]["exact_matmul"].clone()
    };
    studio.paint(&place);
    assert_eq!(recorded(), false);
    let exact = studio.paint(&[&place[..], &["--exact-matmul"]].concat());
    assert_eq!(recorded(), true);
    let again = ["generate", "--settings", "picture.png", "--output", "again.png"];
    let ended = studio.home.run(&[&again[..], &place].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(pixels(&studio.home.path("again.png")) == exact.pixels, "another picture");
}

#[test]
fn how_long_each_gpu_worked_is_told_by_its_own_clock() {
    let machine = Machine::new(2).with("memory", "1GiB").with("delay", 300).with("seed", 5);
    let studio = Studio::with_disk(Wide::bf16(), machine);
    let split = ["--backend", "all=cuda0,dit=cuda0&cuda1", "--params-backend", "dit=cpu"];
    let usage = studio.paint(&[&split[..], &DISK].concat()).document["usage"].clone();
    let busy_ms = |device: &str| {
        let devices = usage["devices"].as_array().unwrap();
        let phases = devices.iter().find(|of| of["id"] == device).unwrap()["phases"].as_array();
        let denoise = phases.unwrap().iter().find(|of| of["phase"] == "denoise").unwrap();
        let busy = &denoise["busy_ms"];
        ["compute", "weights", "activations"].map(|work| busy[work].as_f64())
    };
    assert_eq!(busy_ms("host"), [None; 3]);
    let [first, second] = ["cuda0", "cuda1"].map(|device| busy_ms(device).map(Option::unwrap));
    // Weights are streamed, and the second one gets what the first one computed.
    assert!(first[0] > 0.0 && second[0] > 0.0, "{usage}");
    assert!(first[1] + second[1] > 0.0 && second[2] > 0.0, "{usage}");
    // But for what needs no hidden state, one computes while the other waits: with its waits the
    // second one would seem to work for nearly as long as both.
    let steps_ms = 2.0 * usage["measured_ms"]["denoise_step"].as_f64().unwrap();
    assert!(first[0].max(second[0]) <= steps_ms, "{usage}");
    assert!(first[0] + second[0] <= 1.5 * steps_ms, "{usage}");
}

#[test]
fn a_shortage_and_a_lost_device_end_in_a_picture_all_the_same() {
    // The third allocation fails although there is room; a device is lost in the middle; a copy
    // fails.
    for (fault, value) in [
        ("fail", "cuMemAlloc_v2:3:2"),
        ("lost", "0:400:719"),
        ("fail", "cuMemcpyHtoDAsync_v2:9:719"),
    ] {
        let studio =
            Studio::new(Wide::bf16(), Machine::new(2).with("memory", "1GiB").with(fault, value));
        let expected = Studio::new(Wide::bf16(), Machine::new(2).with("memory", "1GiB"));
        let place = ["--vae-tile", "off"];
        let (painted, expected) = (studio.paint(&place), expected.paint(&place));
        assert!(painted.levels_off(&expected) <= 2, "{fault}={value}");
        assert!(
            painted.document["attempts"].as_u64().unwrap() > 1,
            "{fault}={value}: nothing failed"
        );
    }
}

#[test]
fn without_a_driver_that_starts_the_host_computes_and_the_reason_is_told() {
    for (machine, reason) in [
        (Machine::new(1).with("init", 999), "CUDA_ERROR_UNKNOWN"),
        (Machine::new(1).with("init", 803), "restart after an update"),
        (Machine::new(1).with("init", 34), "stubs"),
        (Machine::new(1).with("driver", 11030), "older than 11.4"),
        (Machine::new(1).with("capability", "6.1"), "too old"),
    ] {
        let value = machine.value();
        let studio = Studio::new(Wide::bf16(), machine);
        let painted = studio.paint(&[]);
        for component in painted.document["plan"]["components"].as_array().unwrap() {
            assert_eq!(component["devices"], serde_json::json!(["host"]), "{value}");
        }
        let devices = studio.home.run(&["devices"]);
        assert_eq!(devices.code, Some(0), "{}", devices.stderr);
        let said = devices.stdout + &devices.stderr;
        assert!(said.contains(reason), "{value}: {said}");
        let asked = studio.generate(&["--backend", "dit=cuda0"]);
        assert_eq!(asked.code, Some(2), "{value}: {}", asked.stderr);
        assert!(asked.stderr.contains("hint:"), "{value}: {}", asked.stderr);
    }
}
