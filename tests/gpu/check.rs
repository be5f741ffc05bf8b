//! `scripts/gpu-check.sh` on a simulated GPU: its checks hold there, and fail on a GPU that is
//! broken.
//!
//! Only what needs no other program than `berth`, and is quick; the suites that the script also
//! runs, and placements, have simulated runs of their own. Without `python3` nothing is checked
//! here, as in `scripts/check.sh`.

use std::process::Command;

use crate::support::simulator::Machine;
use crate::support::wide::Wide;
use crate::support::{Ended, Home, program, root};
use serde_json::{Value, json};

/// How a run of the script ended, and its table as JSON.
struct Checked {
    ended: Ended,
    table: Value,
}

/// Runs these checks on a machine; `None` without Python.
fn check(machine: Machine, names: &str) -> Option<Checked> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("gpu-check: not run, there is no python3");
        return None;
    }
    let home = Home::new();
    Wide::bf16().write(&home.path("wide")).expect("a file system with room");
    for folder in ["programs", "simulated"] {
        std::fs::create_dir(home.path(folder)).expect("a folder");
    }
    let manifest = json!({
        "programs": { "berth": program() },
        "models": { "wide": home.path("wide") },
    });
    std::fs::write(home.path("programs/manifest.json"), manifest.to_string()).expect("a manifest");
    let mut command = Command::new(root().join("scripts/gpu-check.sh"));
    machine.shared(&home.path("simulated")).apply(&mut command);
    command.arg("--binaries").arg(home.path("programs")).arg("--out").arg(home.path("out"));
    command.args(["--only", names]).arg("--markdown").arg(home.path("table.md"));
    let ended = Ended::of(command.output().expect("the script starts"));
    let table = std::fs::read(home.path("out/table.json")).expect("a table");
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    let markdown = std::fs::read_to_string(home.path("table.md")).expect("a table in Markdown");
    for check in table["checks"].as_array().expect("checks") {
        let name = check["check"].as_str().expect("a name");
        assert!(ended.stdout.contains(name) && markdown.contains(&format!("| {name} |")), "{name}");
        assert!(check["log"].as_str().is_some_and(|log| std::fs::exists(log).unwrap()), "{check}");
    }
    assert!(!home.path("out/work").exists(), "models and homes are left");
    Some(Checked { ended, table })
}

impl Checked {
    /// The result of each check, in the order of the table.
    fn results(&self) -> Vec<(&str, &str)> {
        let rows = self.table["checks"].as_array().expect("checks");
        let cell = |row: usize, name: &str| rows[row][name].as_str().expect("a text");
        (0..rows.len()).map(|row| (cell(row, "check"), cell(row, "result"))).collect()
    }
}

/// All these checks hold on a machine with two good GPUs.
#[track_caller]
fn hold(names: &[&str]) {
    let machine = Machine::new(2).with("memory", "8GiB").with("context", "200MiB");
    let Some(checked) = check(machine, &names.join(",")) else { return };
    let expected: Vec<(&str, &str)> = names.iter().map(|name| (*name, "ok")).collect();
    assert_eq!(checked.results(), expected, "{}{}", checked.ended.stdout, checked.ended.stderr);
    assert_eq!(checked.ended.code, Some(0), "{}", checked.ended.stderr);
}

#[test]
fn good_gpus_share_a_picture() {
    hold(&["environment", "start", "gpus"]);
}

#[test]
fn a_good_gpu_keeps_to_its_bytes_and_survives_kills() {
    hold(&["exactness", "budgets", "kills"]);
}

#[test]
fn a_gpu_that_is_lost_fails() {
    let machine = Machine::new(1).with("memory", "8GiB").with("lost", "0:300:719");
    let Some(checked) = check(machine, "start,exactness") else { return };
    let said = format!("{}{}", checked.ended.stdout, checked.ended.stderr);
    assert_eq!(checked.results(), [("start", "ok"), ("exactness", "failed")], "{said}");
    assert_eq!(checked.ended.code, Some(1), "{said}");
    assert!(checked.ended.stderr.contains("exactness.log"), "{said}");
}

#[test]
fn a_driver_that_does_not_start_fails() {
    let Some(checked) = check(Machine::new(1).with("init", 999), "environment,start") else {
        return;
    };
    let said = format!("{}{}", checked.ended.stdout, checked.ended.stderr);
    assert_eq!(checked.results(), [("environment", "failed"), ("start", "failed")], "{said}");
    assert_eq!(checked.ended.code, Some(1), "{said}");
}
