//! The promise of exactness, on real runs: what a plan states for each device and phase is what the
//! run uses, the smallest budget is the smallest, and nothing is allocated beside the plan.

use serde_json::Value;

mod conditioned;
mod heap;
mod items;
mod steps;
#[path = "../support/lib.rs"]
mod support;

use support::{Ended, Home, fixture};

/// Width and height.
const SIZES: [[u32; 2]; 6] = [[16, 16], [64, 64], [96, 64], [64, 112], [128, 80], [160, 160]];

/// A device of which the driver takes a part.
const OVERHEAD: &str = r#"
name = "overhead"
[host]
compute = false
[[device]]
kind = "virtual"
total = "64MiB"
overhead = "3MiB"
link = "8GiB/s"
"#;

/// Two small devices: components spread where the first one has no room to keep them. The disk is
/// declared, so that every plan is the same whatever the page cache holds.
const UNEQUAL: &str = r#"
name = "unequal"
[host]
compute = false
storage_bandwidth = "2GB/s"
[[device]]
kind = "virtual"
total = "6MiB"
link = "16GiB/s"
[[device]]
kind = "virtual"
total = "32MiB"
link = "16GiB/s"
overhead = "512KiB"
"#;

/// A device that is faster than its host, behind a fast link, and a host that may compute.
const FAST: &str = r#"
name = "fast"
[[device]]
kind = "virtual"
total = "9MiB"
link = "64GiB/s"
flops = "4TFLOP/s"
memory_bandwidth = "400GB/s"
"#;

/// No device at all.
const HOST: &str = r#"
name = "host"
[host]
memory = "8GiB"
available = "4GiB"
"#;

/// A model with its arguments, in a home with the profiles.
struct Bench {
    home: Home,
    model: Vec<String>,
    steps: &'static str,
}

impl Bench {
    /// The demo model for no name, else a fixture; with further arguments.
    fn new(name: Option<&str>, arguments: &[&str]) -> Bench {
        let home = Home::new();
        let profiles =
            [("overhead", OVERHEAD), ("unequal", UNEQUAL), ("fast", FAST), ("host", HOST)];
        for (name, text) in profiles {
            std::fs::write(home.path(&format!("{name}.toml")), text).unwrap();
        }
        let model = name.map(|name| fixture(name).display().to_string());
        let model = model.into_iter().chain(arguments.iter().map(|text| (*text).to_owned()));
        Bench { home, model: model.collect(), steps: "2" }
    }

    /// `flux_dev` with classifier-free guidance: the DiT runs twice in each step.
    fn guided() -> Bench {
        let arguments =
            ["--true-cfg-scale", "3", "--guidance-scale", "2", "--max-sequence-length", "48"];
        Bench::new(Some("flux_dev"), &arguments)
    }

    fn run(&self, command: &str, [width, height]: [u32; 2], batch: usize, more: &[&str]) -> Ended {
        let (width, height, batch) = (width.to_string(), height.to_string(), batch.to_string());
        let mut arguments = vec![command];
        arguments.extend(self.model.iter().map(String::as_str));
        arguments.extend(["--width", &width, "--height", &height, "--batch", &batch]);
        arguments.extend(["--steps", self.steps]);
        if command == "generate" {
            arguments.extend(["--prompt", "a red circle", "--seed", "5"]);
        }
        arguments.extend(more);
        self.home.run(&arguments)
    }

    fn json(&self, command: &str, size: [u32; 2], batch: usize, more: &[&str]) -> Value {
        let ended = self.run(command, size, batch, &[&["--json"], more].concat());
        assert_eq!(ended.code, Some(0), "{size:?} x {batch}, {more:?}: {}", ended.stderr);
        ended.json()
    }

    /// RGB of a picture in the home.
    fn pixels(&self, name: &str) -> Vec<u8> {
        support::pixels(&self.home.path(name))
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_else(|| panic!("no list: {value}"))
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

/// Checks that a run used what its plan states, to the byte; the answer is how many devices it
/// used.
fn assert_exact(plan: &Value, usage: &Value, what: &str) -> usize {
    let mut host = plan["host"].clone();
    host["id"] = "host".into();
    let mut used = 0;
    for device in list(&plan["devices"]).iter().chain([&host]) {
        let id = &device["id"];
        let measured = list(&usage["devices"]).iter().find(|entry| entry["id"] == *id);
        let Some(measured) = measured else {
            assert_eq!(bytes(&device["peak_bytes"]), 0, "{what}: {id} was not measured");
            continue;
        };
        used += usize::from(id != "host");
        assert_eq!(list(&device["phases"]).len(), 3, "{what}: {id}");
        assert_eq!(list(&measured["phases"]).len(), 3, "{what}: {id}");
        for (stated, phase) in list(&device["phases"]).iter().zip(list(&measured["phases"])) {
            assert_eq!(stated["phase"], phase["phase"], "{what}: {id}");
            let planned = bytes(&stated["peak_bytes"]);
            assert_eq!(planned, bytes(&phase["predicted_peak_bytes"]), "{what}: {id}, {phase}");
            assert_eq!(planned, bytes(&phase["measured_peak_bytes"]), "{what}: {id}, {phase}");
            assert!(planned <= bytes(&device["budget_bytes"]), "{what}: {id}, {phase}");
        }
    }
    assert!(list(&usage["devices"]).iter().any(|entry| entry["id"] == "host"), "{what}: no host");
    used
}

/// Every size and batch, on one profile after the other.
fn assert_exact_everywhere(bench: &Bench) {
    let hosts =
        ["virtual-1x64m", "./overhead.toml", "virtual-2x2g", "./unequal.toml", "./fast.toml"];
    let mut runs = 0;
    let mut devices = [0; 5];
    for size in SIZES {
        for batch in 1..=3 {
            let at = runs % hosts.len();
            let what = format!("{size:?} x {batch} on {}", hosts[at]);
            let run = bench.json("generate", size, batch, &["--host", hosts[at]]);
            devices[at] = devices[at].max(assert_exact(&run["plan"], &run["usage"], &what));
            assert_eq!(run["attempts"], 1, "{what}");
            runs += 1;
        }
    }
    assert!(devices.iter().all(|used| *used > 0), "a profile's devices stayed empty: {devices:?}");
}

#[test]
fn the_demo_model_uses_what_is_planned() {
    assert_exact_everywhere(&Bench::new(None, &[]));
}

#[test]
fn schnell_uses_what_is_planned() {
    assert_exact_everywhere(&Bench::new(Some("flux_schnell"), &[]));
}

#[test]
fn dev_uses_what_is_planned() {
    let tokens = ["--max-sequence-length", "100"];
    assert_exact_everywhere(&Bench::new(Some("flux_dev"), &tokens));
}

#[test]
fn dev_with_true_guidance_uses_what_is_planned() {
    assert_exact_everywhere(&Bench::guided());
}

#[test]
fn two_unequal_devices_and_the_host_use_what_is_planned() {
    let bench = Bench::new(None, &[]);
    let unequal = ["--host", "./unequal.toml", "--max-vram", "5500KiB"];
    let run = bench.json("generate", [64, 64], 1, &unequal);
    assert_eq!(assert_exact(&run["plan"], &run["usage"], "unequal"), 2);
    for batch in [1, 3] {
        let run = bench.json("generate", [96, 64], batch, &["--host", "./host.toml"]);
        assert_eq!(assert_exact(&run["plan"], &run["usage"], "host"), 0);
    }
}

#[test]
fn a_declared_overhead_is_part_of_each_peak() {
    let bench = Bench::new(None, &[]);
    let run = bench.json("generate", [64, 64], 1, &["--host", "./overhead.toml"]);
    let device = &run["plan"]["devices"][0];
    let overhead = bytes(&device["overhead_bytes"]);
    assert_eq!((overhead, &device["overhead_source"]), (3 << 20, &"declared".into()));
    for phase in list(&device["phases"]) {
        let parts = ["weights_bytes", "compute_bytes", "staging_bytes"];
        let sum: u64 = parts.iter().map(|part| bytes(&phase[part])).sum();
        assert_eq!(bytes(&phase["peak_bytes"]), sum + overhead, "{phase}");
    }
}

/// Asks with one byte for the smallest budget of a kind, and checks that it is.
fn assert_smallest(bench: &Bench, flag: &str, host: &str, size: [u32; 2], batch: usize) {
    let field = if flag == "--max-vram" { "max_vram_bytes" } else { "max_ram_bytes" };
    let ask = |budget: &str, more: &[&str]| {
        bench.run(
            "generate",
            size,
            batch,
            &[&[flag, budget, "--host", host, "--verbose"], more].concat(),
        )
    };
    let refused = ask("1B", &["--json"]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let document = refused.json();
    assert_eq!(document["feasible"], false);
    let smallest = bytes(&document["nearest"][field]);

    let less = format!("{}B", smallest - 1);
    let hint = format!("{flag} {smallest}B");
    for more in [["--json"].as_slice(), &[]] {
        let refused = ask(&less, more);
        let what = format!("{size:?} x {batch} with {flag} {less}: {}", refused.stderr);
        assert_eq!(refused.code, Some(1), "{what}");
        assert!(!refused.stderr.contains("berth: load"), "loaded before refusing {what}");
        assert!(refused.stderr.contains("executor"), "--verbose told nothing: {what}");
        assert!(refused.stderr.contains(&hint), "no {hint} in {what}");
        match more {
            [] => assert_eq!(refused.stdout, "", "{what}"),
            _ => assert_eq!(bytes(&refused.json()["nearest"][field]), smallest, "{what}"),
        }
    }
    let pictures = |home: &Home| home.files().iter().any(|name| name.ends_with(".png"));
    assert!(!pictures(&bench.home), "a refused run wrote a picture");

    let fitting = ask(&format!("{smallest}B"), &["--json"]);
    let what = format!("{size:?} x {batch} with {flag} {smallest}B: {}", fitting.stderr);
    assert_eq!(fitting.code, Some(0), "{what}");
    assert!(fitting.stderr.contains("berth: load"), "{what}");
    let run = fitting.json();
    assert_exact(&run["plan"], &run["usage"], &what);
    let plan = &run["plan"];
    let limited = if flag == "--max-vram" { &plan["devices"][0] } else { &plan["host"] };
    assert_eq!(bytes(&limited["peak_bytes"]), smallest, "{what}");
    for image in list(&run["images"]) {
        std::fs::remove_file(bench.home.path(image.as_str().unwrap())).unwrap();
    }
}

#[test]
fn one_byte_below_the_smallest_device_budget_is_refused_before_loading() {
    for bench in [
        Bench::new(None, &[]),
        Bench::new(Some("flux_schnell"), &[]),
        Bench::new(Some("flux_dev"), &[]),
        Bench::guided(),
    ] {
        for (size, batch) in [([16, 16], 1), ([64, 112], 3), ([160, 160], 2)] {
            assert_smallest(&bench, "--max-vram", "virtual-1x64m", size, batch);
        }
    }
}

#[test]
fn one_byte_below_the_smallest_host_budget_is_refused_before_loading() {
    let dev = Bench::guided();
    assert_smallest(&dev, "--max-ram", "virtual-1x64m", [64, 64], 2);
    assert_smallest(&dev, "--max-ram", "./host.toml", [96, 64], 1);
    assert_smallest(&Bench::new(None, &[]), "--max-ram", "./host.toml", [128, 80], 3);
}

#[test]
fn every_form_of_max_vram_means_its_bytes() {
    let bench = Bench::new(None, &[]);
    for (host, text, expected) in [
        ("virtual-1x64m", "0.01", vec![10_737_418]),
        ("virtual-1x64m", "8MiB", vec![8 << 20]),
        ("virtual-1x64m", "7000000B", vec![7_000_000]),
        ("virtual-1x64m", "50%", vec![32 << 20]),
        ("virtual-1x64m", "8", vec![64 << 20]),
        ("virtual-2x2g", "virtual0=6MiB,virtual1=1GiB", vec![6 << 20, 1 << 30]),
        ("virtual-2x2g", "virtual1=7MiB", vec![2 << 30, 7 << 20]),
        ("virtual-2x2g", "-1", vec![1 << 30, 1 << 30]),
    ] {
        let run = bench.json("generate", [64, 64], 1, &["--host", host, "--max-vram", text]);
        let devices = list(&run["plan"]["devices"]);
        let budgets: Vec<u64> = devices.iter().map(|d| bytes(&d["budget_bytes"])).collect();
        assert_eq!(budgets, expected, "--max-vram {text}");
        assert_exact(&run["plan"], &run["usage"], text);
    }
}

#[test]
fn budgets_for_lazy_and_streamed_weights_give_the_pixels_of_resident_ones() {
    for bench in [Bench::new(None, &[]), Bench::guided()] {
        let fixed = ["--host", "virtual-1x64m", "--vae-tile", "off", "--max-vram"];
        // The least budget with these pins.
        let least = |pins: &[&str]| {
            let more = [&["--dry-run", "--json"], pins, &fixed, &["1B"]].concat();
            bytes(&bench.run("plan", [64, 64], 1, &more).json()["nearest"]["max_vram_bytes"])
        };
        let resident = ["--params-backend", "all=device"];
        let lazy = ["--params-backend", "all=disk"];
        let least = [least(&resident), least(&lazy), least(&[])];
        assert!(least.is_sorted_by(|more, less| more > less), "{least:?}");
        // At the least of all nothing is said of weights: they are streamed for want of room.
        let cases = [&resident[..], &lazy, &[]].into_iter().zip(least);
        for ((pins, budget), residency) in cases.zip(["resident", "lazy", "streamed"]) {
            let (budget, output) = (format!("{budget}B"), format!("{residency}.png"));
            let more = [pins, &fixed, &[&budget, "--output", &output]].concat();
            let run = bench.json("generate", [64, 64], 1, &more);
            let of_plan = list(&run["plan"]["components"]);
            let mut found = of_plan.iter().map(|component| &component["residency"]);
            let holds = match pins {
                [] => found.any(|found| *found == residency),
                _ => found.all(|found| *found == residency),
            };
            assert!(holds, "{residency}: {of_plan:#?}");
            assert_eq!(bench.pixels(&output), bench.pixels("resident.png"), "{residency}");
        }
    }
}

#[test]
fn a_plan_from_a_file_gives_the_same_picture_and_use() {
    for bench in [Bench::new(None, &[]), Bench::guided()] {
        let more = ["--host", "./unequal.toml", "--max-vram", "5MiB", "--output"];
        let planned = [&more[..], &["plan.toml", "--dry-run"]].concat();
        let plan = bench.json("plan", [64, 64], 2, &planned);
        let direct = bench.json("generate", [64, 64], 2, &[&more[..], &["direct.png"]].concat());
        let by_file =
            bench.json("generate", [64, 64], 2, &["--plan", "plan.toml", "--output", "file.png"]);
        for number in 1..=2 {
            let read = |name| std::fs::read(bench.home.path(&format!("{name}-{number}.png")));
            assert!(read("direct").unwrap() == read("file").unwrap(), "picture {number}");
        }
        assert_eq!(by_file["usage"]["devices"], direct["usage"]["devices"]);
        for field in ["components", "devices", "host", "job", "predicted_ms"] {
            assert_eq!(by_file["plan"][field], plan[field], "{field}");
        }
        assert_exact(&plan, &by_file["usage"], "by file");
    }
}

#[test]
fn a_rehearsed_plan_measures_what_it_states() {
    let bench = Bench::guided();
    for (host, size, batch) in [
        ("virtual-1x64m", [160, 160], 3),
        ("./unequal.toml", [64, 64], 1),
        ("./host.toml", [96, 64], 2),
    ] {
        let plan = bench.json("plan", size, batch, &["--host", host]);
        assert_exact(&plan, &plan["usage"], host);
        let table = bench.run("plan", size, batch, &["--host", host]).stdout;
        assert!(table.contains("as planned"), "{table}");
    }
}
