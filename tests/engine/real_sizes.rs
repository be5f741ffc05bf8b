//! Plans for FLUX.1-dev at its true size, on the shipped host profiles: every figure is checked
//! against the files, against the others in the plan, and against what a run by the answer's own
//! hint says.
//!
//! The model is sparse files, which hold no data: nothing is computed here. Invariant of all of it:
//! planning for 33 GB of weights takes few megabytes, as only headers are read.

mod hosts;

use std::fs;
use std::process::Command;

use crate::support::sparse::{self, SparseModel};
use crate::support::{Ended, Home, alone};
use executor::families;
use hosts::{LARGE_CARD, LITTLE_RAM, SMALL_DEVICE};
use protocol::{GraphOptions, JobShape};
use serde_json::Value;

/// What the planner and the executor may take each while they plan. The weights are a hundred times
/// that.
const PLANNING_BYTES_MAX: u64 = 300 << 20;

/// Alignment of each tensor in memory, which [`protocol::plan::ALIGNMENT_BYTES`] says too.
const ALIGNMENT_BYTES: u64 = 256;

/// Page-locked RAM of each device that is used: [`protocol::plan::STAGING_BYTES`], and of a GPU
/// [`protocol::plan::CUDA_STAGING_BYTES`].
fn staging_bytes(device: &Value) -> u64 {
    let is_gpu = device["id"].as_str().is_some_and(|id| id.starts_with("cuda"));
    if is_gpu { 16 << 20 } else { 512 << 10 }
}

const SIZES: [[u32; 2]; 3] = [[512, 512], [1024, 1024], [2048, 1024]];

const PROFILES: [&str; 10] = [
    "rtx-4060-8g",
    "rtx-4090-24g",
    "rtx-5060ti-16g-rtx-3080-10g",
    "rtx-3060-laptop-6g",
    "2x-rtx-3090-24g",
    "4x-rtx-a4000-16g",
    "8x-h100-80g",
    "integrated-only",
    "virtual-2x2g",
    "this-machine",
];

/// What an infeasible answer may name: budgets and sizes that would fit.
const NEAREST: [&str; 4] = ["max_vram_bytes", "max_ram_bytes", "width", "height"];

/// A home with the model.
struct Place {
    home: Home,
    model: SparseModel,
}

impl Place {
    fn new() -> Place {
        let home = Home::new();
        let model =
            sparse::write_flux_dev(&home.path("flux-dev")).expect("a file system with holes");
        fs::write(home.path("large-card.toml"), LARGE_CARD).unwrap();
        fs::write(home.path("small-device.toml"), SMALL_DEVICE).unwrap();
        fs::write(home.path("little-ram.toml"), LITTLE_RAM).unwrap();
        Place { home, model }
    }

    fn inspect(&self) -> Value {
        self.home.json(&["inspect", "flux-dev", "--json"])
    }

    /// A plan as the program prints it, feasible or not, with every rule that holds of any plan
    /// checked.
    fn plan(&self, profile: &str, [width, height]: [u32; 2], caps: &[String]) -> Value {
        let (width, height) = (width.to_string(), height.to_string());
        let mut arguments = vec!["plan", "flux-dev", "--dry-run", "--json", "--host", profile];
        arguments.extend(["--width", &width, "--height", &height]);
        arguments.extend(caps.iter().map(String::as_str));
        let ended = self.home.run(&arguments);
        let document = ended.json();
        match document["feasible"].as_bool() {
            Some(true) => {
                assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
                self.check_feasible(&document);
            }
            Some(false) => check_infeasible(&ended, &document),
            None => panic!("{arguments:?}: {document:#}"),
        }
        document
    }

    fn check_feasible(&self, plan: &Value) {
        for component in list(&plan["components"]) {
            let name = component["name"].as_str().unwrap();
            let [tensor_bytes, weights_bytes] =
                ["tensor_bytes", "weights_bytes"].map(|field| bytes(&component[field]));
            assert_eq!(tensor_bytes, self.file_bytes(name), "{name}");
            let alignment = weights_bytes.checked_sub(tensor_bytes).expect("no weight is lost");
            // A tensor whose rows are on several devices is aligned on each.
            let copies = match component["placement"].as_str() {
                Some("row") => list(&component["devices"]).len() as u64,
                _ => 1,
            };
            assert!(
                alignment < ALIGNMENT_BYTES * tensors(name) * copies,
                "{name}: {alignment} B of alignment"
            );
            assert_eq!(sum(&component["segments"], "weights_bytes"), weights_bytes, "{name}");
            check_parts(component);
        }
        for device in list(&plan["devices"]) {
            let [free, budget, peak] =
                ["free_bytes", "budget_bytes", "peak_bytes"].map(|field| bytes(&device[field]));
            assert!(peak <= budget && budget <= free, "{device:#}");
            check_phases(plan, &device["id"], device, bytes(&device["overhead_bytes"]));
        }
        let host = &plan["host"];
        assert!(bytes(&host["peak_bytes"]) <= bytes(&host["budget_bytes"]), "{host:#}");
        check_phases(plan, &Value::from("host"), host, bytes(&host["job_bytes"]));
    }

    /// Data bytes of a component's tensors that a run needs.
    fn file_bytes(&self, component: &str) -> u64 {
        match component {
            "clip" => self.model.clip_bytes,
            "t5" => self.model.t5_bytes,
            "dit" => self.model.dit_bytes,
            "vae" => self.model.vae_decoder_bytes,
            "vae_encoder" => self.model.vae_bytes - self.model.vae_decoder_bytes,
            other => panic!("no component {other}"),
        }
    }
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn sum(values: &Value, field: &str) -> u64 {
    list(values).iter().map(|value| bytes(&value[field])).sum()
}

fn feasible(plan: &Value) -> bool {
    plan["feasible"] == true
}

/// Tensors that a run needs of each component. Of the double blocks 2 × 2 for norms, 3 + 3 + 2 with
/// biases for projections, 4 for norms of heads, 2 × 2 × 2 for feed-forwards; and so on for the
/// others: `inspect` counts them by the graphs, here they are counted by the published checkpoint.
fn tensors(component: &str) -> u64 {
    match component {
        "clip" => 2 + 12 * 16 + 2,
        "t5" => 1 + 24 * 9 + 1 + 1,
        "dit" => 12 + 4 + 19 * (4 + 16 + 4 + 8) + 38 * (6 + 2 + 6) + 4,
        "vae" => 138,
        other => panic!("no component {other}"),
    }
}

/// A segment's residency on one of its component's devices, which are named where they differ.
fn residency_on(segment: &Value, device: usize) -> &Value {
    match segment.get("device_residencies") {
        Some(each) => &each[device],
        None => &segment["residency"],
    }
}

/// Recomputes what a component takes on each of its devices from its segments: those that stay,
/// those that are loaded for its phase, and the ring through which the others pass.
fn check_parts(component: &Value) {
    let name = &component["name"];
    let devices = list(&component["devices"]).len();
    for (index, part) in list(&component["parts"]).iter().enumerate() {
        let of = |residency: &'static str| {
            // What the host computes in the place of a device it reads from the file.
            let segments = list(&component["segments"]).iter().filter(move |_| index < devices);
            let segments =
                segments.filter(move |segment| residency_on(segment, index) == residency);
            segments.map(move |segment| bytes(&segment["part_bytes"][index]))
        };
        for (residency, field) in [("resident", "resident_bytes"), ("lazy", "lazy_bytes")] {
            assert_eq!(bytes(&part[field]), of(residency).sum::<u64>(), "{name}: {part:#}");
        }
        let passing = || of("streamed").chain(of("locked")).filter(|bytes| *bytes > 0);
        let largest = passing().max().unwrap_or(0);
        assert_eq!(bytes(&part["slot_bytes"]), largest, "{name}: {part:#}");
        let streamed = passing().count() as u64;
        let slots_max = streamed.min(bytes(&component["lookahead"]));
        let slots = slots_max.min(1)..=slots_max;
        assert!(slots.contains(&bytes(&part["slots"])), "{name}: {part:#}, not {slots:?}");
    }
}

/// Page-locked copies of streamed weights, for all devices.
fn locked_bytes(plan: &Value) -> u64 {
    let of = |component: &Value| -> u64 {
        let of_device = |device: usize| -> u64 {
            let segments = list(&component["segments"]).iter();
            let locked = segments.filter(|segment| residency_on(segment, device) == "locked");
            locked.map(|segment| bytes(&segment["part_bytes"][device])).sum()
        };
        (0..list(&component["devices"]).len()).map(of_device).sum()
    };
    list(&plan["components"]).iter().map(of).sum()
}

/// Recomputes each phase of a device, or of the host, from the components; `fixed` is held in all
/// of them.
fn check_phases(plan: &Value, id: &Value, place: &Value, fixed: u64) {
    let phases = list(&place["phases"]);
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["condition", "denoise", "decode"], "{id}");
    let parts = || {
        let components = list(&plan["components"]).iter();
        let parts = components.flat_map(|c| list(&c["parts"]).iter().map(move |part| (c, part)));
        parts.filter(|(_, part)| part["device"] == *id)
    };
    let used = list(&plan["devices"]).iter().filter(|device| bytes(&device["peak_bytes"]) > 0);
    let (fixed, feeding) = match id == "host" {
        true => (fixed, used.map(staging_bytes).sum()),
        false if parts().count() == 0 => (0, 0),
        false => (fixed, 0),
    };
    let locked = if id == "host" { locked_bytes(plan) } else { 0 };
    for (index, phase) in phases.iter().enumerate() {
        let now = |component: &Value| component["phase"] == phase["phase"];
        let next =
            |component: &Value| names.get(index + 1).is_some_and(|n| component["phase"] == *n);
        let early = |component: &Value| component["prefetch"] == true && next(component);
        let (mut weights, mut compute, mut staging) = (locked, 0, feeding);
        for (component, part) in parts() {
            weights += bytes(&part["resident_bytes"]);
            if now(component) || early(component) {
                weights += bytes(&part["lazy_bytes"]);
            }
            if now(component) {
                compute = bytes(&part["compute_bytes"]).max(compute);
                staging += bytes(&part["slot_bytes"]) * bytes(&part["slots"]);
            }
        }
        assert_eq!(bytes(&phase["weights_bytes"]), weights, "{id}: {phase:#}");
        assert_eq!(bytes(&phase["compute_bytes"]), compute, "{id}: {phase:#}");
        assert_eq!(bytes(&phase["staging_bytes"]), staging, "{id}: {phase:#}");
        let peak = weights + compute + staging + fixed;
        assert_eq!(bytes(&phase["peak_bytes"]), peak, "{id}: {phase:#}");
    }
    let largest = phases.iter().map(|phase| bytes(&phase["peak_bytes"])).max();
    assert_eq!(Some(bytes(&place["peak_bytes"])), largest, "{id}");
}

fn check_infeasible(ended: &Ended, document: &Value) {
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("does not fit: "), "{}", ended.stderr);
    let because = document["because"].as_str().unwrap();
    assert!(ended.stderr.contains(because) && !because.is_empty(), "{}", ended.stderr);
    let nearest = document["nearest"].as_object().expect("the nearest fits are an object");
    for field in NEAREST {
        let value = &nearest[field];
        assert!(value.is_null() || value.is_u64(), "{field}: {value}");
        let hinted = value.is_null() || ended.stderr.contains(&value.to_string());
        assert!(hinted, "{field} {value} is not among the hints: {}", ended.stderr);
    }
}

fn vram(bytes: u64) -> [String; 2] {
    ["--max-vram".to_owned(), format!("{bytes}B")]
}

fn ram(bytes: u64) -> [String; 2] {
    ["--max-ram".to_owned(), format!("{bytes}B")]
}

#[test]
fn inspect_states_the_true_bytes_of_the_files() {
    let place = Place::new();
    let description = place.inspect();
    assert_eq!(description["problems"], Value::Array(Vec::new()));
    for component in list(&description["components"]) {
        let name = component["name"].as_str().unwrap();
        assert_eq!(bytes(&component["tensor_bytes"]), place.file_bytes(name), "{name}");
        assert_eq!(sum(&component["storage"], "bytes"), place.file_bytes(name), "{name}");
        let unused = match name {
            // The two ways of the VAE share its file.
            "vae" => place.file_bytes("vae_encoder"),
            "vae_encoder" => place.file_bytes("vae"),
            _ => 0,
        };
        assert_eq!(bytes(&component["unused_bytes"]), unused, "{name}");
    }
    // The published checkpoint: 11.90 B parameters of the DiT and 4.76 B of T5 in bf16.
    let parameters = |at: usize| bytes(&description["components"][at]["parameters"]);
    assert_eq!(parameters(3), 11_901_408_320);
    assert_eq!(parameters(2), 4_762_310_656);
}

#[test]
fn every_profile_and_size_has_a_consistent_answer() {
    let place = Place::new();
    for profile in PROFILES {
        for size in SIZES {
            place.plan(profile, size, &[]);
        }
    }
}

#[test]
fn a_24_gb_card_takes_the_t5_encoder_two_of_2_gib_stream_and_one_of_512_mib_takes_nothing() {
    let place = Place::new();
    let fits = place.plan("rtx-4090-24g", [1024, 1024], &[]);
    assert!(feasible(&fits), "{fits:#}");
    for name in ["t5", "vae"] {
        let component = list(&fits["components"]).iter().find(|c| c["name"] == name).unwrap();
        assert_eq!(component["devices"][0], "cuda0", "{component:#}");
    }

    let streams = place.plan("virtual-2x2g", [512, 512], &[]);
    assert!(feasible(&streams), "{streams:#}");
    let dit = list(&streams["components"]).iter().find(|c| c["name"] == "dit").unwrap();
    assert_eq!(dit["residency"], "streamed", "{dit:#}");

    let without = place.plan("./small-device.toml", [512, 512], &[]);
    assert!(!feasible(&without));
    let because = without["because"].as_str().unwrap();
    assert!(["t5", "dit"].iter().any(|name| because.starts_with(name)), "{because}");
    for figure in NEAREST {
        let value = &without["nearest"][figure];
        assert!(value.is_null(), "{figure} {value} cannot help: the weights alone are too large");
    }
}

#[test]
fn the_nearest_budgets_fit_and_one_byte_less_does_not() {
    let place = Place::new();
    let size = [1024, 1024];
    let short: Vec<String> = [vram(512 << 20), ram(100 << 20)].concat();
    let without = place.plan("./large-card.toml", size, &short);
    assert!(!feasible(&without));
    let nearest = &without["nearest"];
    let max_vram = bytes(&nearest["max_vram_bytes"]);
    let max_ram = bytes(&nearest["max_ram_bytes"]);
    for (caps, fits) in [
        ([vram(max_vram), ram(100 << 20)], true),
        ([vram(max_vram - 1), ram(100 << 20)], false),
        ([vram(512 << 20), ram(max_ram)], true),
        ([vram(512 << 20), ram(max_ram - 1)], false),
    ] {
        let found = place.plan("./large-card.toml", size, &caps.concat());
        assert_eq!(feasible(&found), fits, "{caps:?}: {found:#}");
    }
}

#[test]
fn the_nearest_size_fits_and_one_step_more_does_not() {
    let place = Place::new();
    for size @ [width, height] in [[2048, 2048], [2048, 1024]] {
        // Less than the largest arena at this size, more than that of the smallest.
        let caps: Vec<String> = [vram(1 << 30), ram(500 << 20)].concat();
        let without = place.plan("rtx-4090-24g", size, &caps);
        assert!(!feasible(&without), "{size:?}");
        let nearest = ["width", "height"].map(|side| bytes(&without["nearest"][side]) as u32);
        assert!(feasible(&place.plan("rtx-4090-24g", nearest, &caps)), "{nearest:?}");
        // The longer side grows by what the model allows, the shorter in proportion.
        let wider = nearest[0] + 16;
        let more = [wider, (wider * height / width) / 16 * 16];
        assert!(
            !feasible(&place.plan("rtx-4090-24g", more, &caps)),
            "{more:?} fits, {nearest:?} was said"
        );
    }
}

#[test]
fn more_memory_never_predicts_a_slower_job() {
    let place = Place::new();
    for profile in ["rtx-4090-24g", "rtx-5060ti-16g-rtx-3080-10g", "rtx-3060-laptop-6g"] {
        for cap in ["--max-vram", "--max-ram"] {
            let mut best: Option<f64> = None;
            for gib in [1.0, 2.0, 4.0, 6.0, 6.75, 7.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0] {
                let found =
                    place.plan(profile, [1024, 1024], &[cap.to_owned(), format!("{gib}GiB")]);
                let total = found["predicted_ms"]["total"].as_f64();
                if let Some(before) = best {
                    let total =
                        total.unwrap_or_else(|| panic!("{profile}: {gib} GiB is not enough"));
                    assert!(
                        total <= before,
                        "{profile}, {cap} {gib}: {total} ms after {before} ms"
                    );
                }
                best = total.or(best);
            }
            assert!(best.is_some(), "{profile}: no amount of {cap} is enough");
        }
    }
}

/// Each card holds as much as it has room for, and RAM as much of the rest: what is read from the
/// storage in each step is little then.
#[test]
fn where_ram_is_short_a_part_of_what_is_streamed_is_page_locked() {
    let place = Place::new();
    let plan = |pins: &[&str]| {
        let caps = ["--max-vram", "5GiB"].iter().chain(pins).map(|word| (*word).to_owned());
        place.plan("little-ram.toml", [1024, 1024], &caps.collect::<Vec<_>>())
    };
    let chosen = plan(&[]);
    let dit = list(&chosen["components"]).iter().find(|component| component["name"] == "dit");
    let dit = dit.expect("a DiT");
    let count = |residency: &str| {
        list(&dit["segments"]).iter().filter(|segment| segment["residency"] == residency).count()
    };
    assert_eq!(list(&dit["devices"]).len(), 2, "{dit:#}");
    assert!(count("locked") > 0 && count("streamed") > 0, "{dit:#}");
    let total = |plan: &Value| plan["predicted_ms"]["total"].as_f64().expect("it fits");
    for pins in [["--backend", "dit=cuda0"], ["--params-backend", "dit=cpu"]] {
        let pinned = total(&plan(&pins));
        assert!(total(&chosen) <= pinned, "{pins:?}: {pinned} ms, {} ms", total(&chosen));
    }
}

#[test]
fn planning_takes_little_memory_in_the_planner_and_in_the_executor() {
    if !alone("real_sizes::planning_takes_little_memory_in_the_planner_and_in_the_executor") {
        return;
    }
    // The kernel's limit on private memory (setrlimit(2), RLIMIT_DATA) holds for the planner and,
    // as it is inherited, for its executor: past it an allocation fails, and the program with it.
    let place = Place::new();
    let limited = |arguments: &[&str]| {
        let berth = place.home.berth(arguments);
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "ulimit -d \"$0\" && exec \"$@\"",
            &(PLANNING_BYTES_MAX >> 10).to_string(),
        ]);
        shell.arg(berth.get_program()).args(berth.get_args()).current_dir(place.home.path("."));
        for (name, value) in berth.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        Ended::of(shell.output().expect("a shell starts"))
    };
    let plan = ["plan", "flux-dev", "--dry-run", "--json", "--host", "rtx-4090-24g"];
    let size = ["--width", "2048", "--height", "1024"];
    for arguments in [[&plan[..], &size].concat(), vec!["inspect", "flux-dev", "--json"]] {
        let ended = limited(&arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    }

    // What is mapped counts too, where it was read: the same work in this process, which does
    // nothing else, by its high-water mark.
    let opened = families::open(&place.model.dir).expect("the model is whole");
    let description = families::describe(&place.model.dir).expect("its family is known");
    for [width, height] in SIZES {
        let job =
            JobShape { width, height, steps: 28, max_sequence_length: 512, ..JobShape::small() };
        let profiles = executor::measure::profiles(
            &*opened,
            &job,
            &[GraphOptions::default()],
            16,
            &mut Default::default(),
        )
        .expect("the job is possible");
        // The VAE's encoder is there, for jobs that start from a picture.
        assert_eq!(profiles[0].components.len() + 1, description.components.len());
    }
    let status = fs::read_to_string("/proc/self/status").expect("the kernel tells of this process");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it was resident");
    let resident_kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(resident_kib << 10 < PLANNING_BYTES_MAX, "{line}");
}
