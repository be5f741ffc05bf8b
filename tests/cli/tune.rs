//! `berth tune` by the real program: a curve whose every step is what a plan with that budget says,
//! a picture of it, and what its plans really take.
//!
//! The hosts' figures are all declared, so that the curves are the same on every machine.

use std::fs;

use serde_json::Value;

use crate::support::{Home, golden};

/// A device that is slow to reach, so that loads count, and a host that only feeds it.
const DEVICE: &str = r#"
name = "device"
[host]
compute = false
memory = "16GiB"
available = "8GiB"
cores = 2
flops = "100GFLOP/s"
memory_bandwidth = "20GB/s"
storage_bandwidth = "2GB/s"
[[device]]
kind = "virtual"
total = "64MiB"
link = "64MiB/s"
flops = "200GFLOP/s"
memory_bandwidth = "40GB/s"
"#;

/// The same device, on a host that computes, slowly.
const EITHER: &str = r#"
name = "either"
[host]
memory = "16GiB"
available = "8GiB"
cores = 2
flops = "1GFLOP/s"
memory_bandwidth = "1GB/s"
storage_bandwidth = "2GB/s"
[[device]]
kind = "virtual"
total = "64MiB"
link = "1GiB/s"
flops = "200GFLOP/s"
memory_bandwidth = "40GB/s"
"#;

/// No device at all.
const HOST: &str = r#"
name = "host"
[host]
memory = "8GiB"
available = "4GiB"
"#;

/// A device too small for anything.
const TINY: &str = r#"
name = "tiny"
[host]
compute = false
[[device]]
kind = "virtual"
total = "64KiB"
link = "1GiB/s"
"#;

fn home() -> Home {
    let home = Home::new();
    let profiles = [("device", DEVICE), ("either", EITHER), ("host", HOST), ("tiny", TINY)];
    for (name, profile) in profiles {
        fs::write(home.path(&format!("{name}.toml")), profile).expect("the home can be written");
    }
    home
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

fn ms(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no time: {value}"))
}

/// A plan with this budget: its predicted time.
fn planned_ms(home: &Home, host: &str, objective: &str, budget: u64) -> f64 {
    let cap = format!("{budget}B");
    let fixed = ["plan", "--dry-run", "--json", "--host", host, "--optimize", objective];
    let plan = home.json(&[&fixed[..], &["--max-vram", &cap]].concat());
    let figure = if objective == "latency" { "total" } else { "next_total" };
    ms(&plan["predicted_ms"][figure])
}

#[test]
fn every_step_is_what_a_plan_with_its_budget_says() {
    let home = home();
    for host in ["./device.toml", "./either.toml"] {
        // More than the default, which leaves some steps of the second host unfound.
        let tuned = home.json(&["tune", "--json", "--host", host, "--points", "512"]);
        assert_eq!((&tuned["schema"], &tuned["feasible"]), (&1.into(), &true.into()));
        assert_eq!(tuned["complete"], true, "{tuned}");
        let points = list(&tuned["points"]);
        assert!(points.len() > 2, "{host}: {} steps are no curve", points.len());
        for pair in points.windows(2) {
            assert!(bytes(&pair[0]["budget_bytes"]) < bytes(&pair[1]["budget_bytes"]));
            assert!(ms(&pair[0]["counted_ms"]) > ms(&pair[1]["counted_ms"]));
        }
        for point in points.iter().filter(|point| point["budget_bytes"] != 0) {
            let budget = bytes(&point["budget_bytes"]);
            let counted = ms(&point["counted_ms"]);
            assert_eq!(planned_ms(&home, host, "latency", budget), counted, "{host}: {budget} B");
            let peaks = list(&point["devices"]).iter().map(|d| bytes(&d["peak_bytes"]));
            assert!(peaks.max() <= Some(budget), "{host}: {point}");
            // With a little less it is slower, by the same planner.
            let Some(slower) = point["slower_at_bytes"].as_u64().filter(|bytes| *bytes > 0) else {
                continue;
            };
            assert!(budget - slower <= (budget / 100).max(4096), "{host}: {slower} to {budget}");
            assert!(planned_ms(&home, host, "latency", slower) > counted, "{host}: {slower} B");
        }
        let marks: Vec<&Value> = points.iter().map(|point| &point["mark"]).collect();
        assert_eq!((marks[0], marks[marks.len() - 1]), (&"smallest".into(), &"fastest".into()));
        let all = home.json(&["plan", "--dry-run", "--json", "--host", host]);
        assert_eq!(all["predicted_ms"]["total"], points[points.len() - 1]["counted_ms"], "{host}");
        for knee in list(&tuned["knees"]) {
            let point = points.iter().find(|point| point["budget_bytes"] == *knee);
            assert_eq!(point.expect("a knee is a point")["mark"], "knee");
        }
    }
}

#[test]
fn the_curve_begins_with_the_least_that_fits() {
    let home = home();
    let fixed = ["--json", "--host", "./device.toml"];
    let tuned = home.json(&[&["tune"], &fixed[..]].concat());
    let least = &tuned["points"][0]["budget_bytes"];
    let refused = home.run(&[&["plan", "--dry-run", "--max-vram", "1B"], &fixed[..]].concat());
    assert_eq!(refused.code, Some(1));
    assert_eq!(*least, refused.json()["nearest"]["max_vram_bytes"]);
    // Where the host computes, nothing of a device is needed.
    let either = home.json(&["tune", "--json", "--host", "./either.toml"]);
    assert_eq!(either["points"][0]["budget_bytes"], 0);
}

#[test]
fn a_range_and_a_number_of_plans_are_kept() {
    let home = home();
    let fixed = ["tune", "--json", "--host", "./device.toml"];
    let whole = home.json(&fixed);
    let budgets: Vec<u64> =
        list(&whole["points"]).iter().map(|point| bytes(&point["budget_bytes"])).collect();
    let [.., before, last] = budgets.as_slice() else { panic!("no curve") };
    let (before, high) = (before + 1, last + (1 << 20));
    let range = format!("{before}B..{high}B");
    let part = home.json(&[&fixed[..], &["--budgets", &range]].concat());
    let points = list(&part["points"]);
    assert_eq!(bytes(&points[0]["budget_bytes"]), before);
    assert_eq!(points.len(), 2, "{part}");
    assert_eq!(bytes(&part["range"]["high_bytes"]), high);
    let two = home.json(&[&fixed[..], &["--points", "2"]].concat());
    assert_eq!((&two["plans"], &two["complete"]), (&2.into(), &false.into()));
    assert_eq!(list(&two["points"]).len(), 2);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let home = home();
    let run = |name: &str| {
        let ended = home.run(&["tune", "--host", "./device.toml", "--json", "--plot", name]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        (ended.stdout, fs::read_to_string(home.path(name)).expect("a picture"))
    };
    let (first, picture) = run("a.svg");
    assert!((&first, &picture) == (&run("b.svg").0, &run("b.svg").1), "two runs differ");
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"), "{picture}");
    for text in
        [" on device", "64x64, 12 steps, batch 1", "does not fit", "cold start to picture, "]
    {
        assert!(picture.contains(text), "no {text:?} in {picture}");
    }
}

#[test]
fn the_table_tells_the_steps_and_what_they_mean() {
    let home = home();
    let ended = home.run(&["tune", "--host", "./device.toml"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for text in ["--max-vram", "what is where", "smallest", "fastest", "virtual0: ", "a cold start"]
    {
        assert!(ended.stdout.contains(text), "no {text:?} in {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("measured"), "{}", ended.stdout);
}

#[test]
fn measured_times_stand_beside_the_predicted_ones() {
    let home = home();
    let fixed = ["tune", "--host", "./device.toml", "--measure", "--steps", "2"];
    let ended = home.run(&[&fixed[..], &["--json", "--plot", "curve.svg"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("berth: running "), "{}", ended.stderr);
    let tuned = ended.json();
    let points = list(&tuned["points"]);
    let runs: Vec<&Value> = points.iter().filter(|point| !point["measured_ms"].is_null()).collect();
    assert!((2..=9).contains(&runs.len()), "{} runs", runs.len());
    for point in points.iter().filter(|point| !point["mark"].is_null()) {
        let measured = &point["measured_ms"];
        let (total, step) = (ms(&measured["total"]), ms(&measured["denoise_step"]));
        assert!(step > 0.0 && total > 2.0 * step, "{measured}");
        // The link alone takes this long, and is as slow as it is declared.
        let weights: u64 = 5 << 20;
        assert!(total > weights as f64 / f64::from(64 << 20) * 1e3, "{measured}");
    }
    let picture = fs::read_to_string(home.path("curve.svg")).expect("a picture");
    assert!(picture.contains("\nmeasured\n"), "{picture}");
    // Its pictures are dropped.
    let pictures = home.files().into_iter().filter(|name| name.ends_with(".png"));
    assert_eq!(pictures.collect::<Vec<_>>(), [""; 0]);
    // What they took is kept for later plans, as after every run.
    let kept = fs::read_to_string(home.beside("state").join("berth/calibration.toml"));
    assert!(kept.expect("a calibration").contains("profile = \"device\""));
}

#[test]
fn where_nothing_fits_the_answer_is_the_usual_one() {
    let home = home();
    let ended = home.run(&["tune", "--json", "--host", "./tiny.toml", "--plot", "curve.svg"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("does not fit: ") && ended.stderr.contains("hint: "));
    assert_eq!(ended.json()["feasible"], false);
    assert!(!home.path("curve.svg").exists());
    // A range below what fits is answered with what does.
    let ended = home.run(&["tune", "--host", "./device.toml", "--budgets", "1KiB..2KiB"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: --max-vram "), "{}", ended.stderr);
}

#[test]
fn a_range_beyond_the_devices_is_told_so() {
    let home = home();
    let tune = ["tune", "--host", "./device.toml", "--budgets"];
    golden::run("tune-beyond", &home, &[&tune[..], &["30..40"]].concat());
    let ended = home.run(&[&tune[..], &["4MiB..40GiB"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("--budgets goes up to 40.0 GiB, "), "{}", ended.stderr);
}

/// Left, top, right and bottom of a label of the curve: its lines are 16 pixels high, and its
/// characters at most 8 wide.
fn label(text_element: &str) -> Option<[i32; 4]> {
    let (tag, rest) = text_element.split_once('>')?;
    let text = rest.split('<').next()?.trim();
    let number = |key: &str| -> Option<i32> {
        tag.split_once(&format!(" {key}=\""))?.1.split('"').next()?.parse().ok()
    };
    let (left, top) = (number("x")?, number("y")?);
    text.contains(": ").then(|| [left, top, left + 8 * text.chars().count() as i32, top + 16])
}

#[test]
fn labels_of_the_picture_do_not_lie_over_each_other() {
    let home = home();
    for host in ["./device.toml", "virtual-2x2g", "rtx-4060-8g"] {
        let ended = home.run(&["tune", "--host", host, "--plot", "curve.svg"]);
        assert_eq!(ended.code, Some(0), "{host}: {}", ended.stderr);
        let picture = fs::read_to_string(home.path("curve.svg")).expect("a picture");
        assert!(picture.contains("the built-in demo model on "), "{picture}");
        let labels: Vec<[i32; 4]> = picture.split("<text").skip(1).filter_map(label).collect();
        assert!(labels.len() >= 2, "{host}: {picture}");
        for (index, a) in labels.iter().enumerate() {
            for b in &labels[..index] {
                let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                assert!(apart, "{host}: {a:?} and {b:?} overlap");
            }
        }
    }
}

#[test]
fn the_table_tells_how_many_slots_weights_pass_through() {
    let home = home();
    let ended = home.run(&["tune", "--host", "./device.toml"]);
    assert!(ended.stdout.contains("dit streamed 7/7 through 1 slot"), "{}", ended.stdout);
    assert!(ended.stdout.starts_with("the built-in demo model (flux) on "), "{}", ended.stdout);
    let points = home.json(&["tune", "--host", "./device.toml", "--json"]);
    let components = list(&points["points"][0]["components"]);
    assert!(components.iter().any(|component| component["slots"] == 1), "{components:?}");
}

#[test]
fn nonsense_is_refused_with_a_hint() {
    let home = home();
    for (arguments, says) in [
        (&["--budgets", "8"][..], "there is no `..`; hint: "),
        (&["--budgets", "8..4"], "the first is not below the second; hint: "),
        (&["--budgets", "0..4"], "a budget of nothing fits nothing; hint: "),
        (&["--points", "1"], "--points must be a number from 2 to 4096, got 1"),
        (&["--points", "many"], "--points must be a number from 2 to 4096, got many"),
        (&["--max-vram", "8"], "--max-vram is what `tune` varies; hint: "),
        (&["--optimize", "memory"], "the same with every budget; hint: "),
        (&["--optimize", "throughput", "--measure"], "--measure runs from a cold start"),
        (&["--host", "./host.toml"], "no device whose budget could be varied on host; hint: "),
        (&["--plot", "curve.png"], "--plot curve.png is no SVG file; hint: "),
        (&["--plot", "missing/curve.svg"], "hint: --plot names a file in a directory"),
    ] {
        let host = ["--host", "./device.toml"];
        let host = if arguments.contains(&"--host") { &[][..] } else { &host[..] };
        let ended = home.run(&[&["tune"], host, arguments].concat());
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked") && ended.stdout.is_empty(), "{arguments:?}");
    }
}
