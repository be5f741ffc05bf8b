//! One GPU as two devices, by the real program on a simulated machine: the picture is that of one
//! device, what NVML says of the process comes back with the run, and the next plan counts with it.

use crate::support::simulator::Machine;
use crate::support::{Ended, Home, pixels};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Two parts of a GPU of 8 GiB.
const PROFILE: &str = r#"
name = "two"
[host]
compute = false
[[device]]
kind = "cuda"
ordinal = 0
total = "2GiB"
[[device]]
kind = "cuda"
ordinal = 0
total = "1GiB"
"#;

/// A home on a machine with one GPU.
fn machine() -> (Home, Machine) {
    let home = Home::new();
    std::fs::write(home.path("two.toml"), PROFILE).expect("a profile");
    let shared = home.beside("simulated");
    std::fs::create_dir(&shared).expect("a folder for what processes share");
    let machine = Machine::new(1).with("memory", "8GiB").with("context", "200MiB").shared(&shared);
    (home, machine)
}

fn run(home: &Home, machine: &Machine, arguments: &[&str]) -> Value {
    let mut command = home.berth(&[arguments, &["--host", "./two.toml", "--json"]].concat());
    machine.apply(&mut command);
    let ended = Ended::of(command.output().expect("berth starts"));
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    ended.json()
}

fn generate(home: &Home, machine: &Machine, backend: &str, output: &str) -> Value {
    let fixed = ["generate", "--prompt", "a red circle", "--steps", "1", "--seed", "0"];
    let fixed = [&fixed[..], &["--output", output]].concat();
    run(home, machine, &[&fixed[..], &["--backend", backend]].concat())
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

#[test]
fn two_parts_make_the_picture_of_one_and_their_context_is_measured() {
    let (home, machine) = machine();
    let split = "dit=cuda0&cuda1,cond=cuda0,vae=cuda1";
    let first = generate(&home, &machine, split, "split.png");
    let devices = &first["plan"]["devices"];
    assert_eq!(bytes(&devices[0]["overhead_bytes"]), 576 * MIB);
    assert_eq!(
        (&devices[0]["overhead_source"], &devices[1]["overhead_bytes"]),
        (&"assumed".into(), &0.into())
    );
    let gpu = &first["usage"]["gpus"][0];
    assert_eq!(gpu["devices"], serde_json::json!(["cuda0", "cuda1"]));
    assert_eq!(
        (&gpu["source"], bytes(&gpu["predicted_overhead_bytes"])),
        (&"process".into(), 576 * MIB)
    );
    // The simulated context, some MiB for each module, and what allocations are rounded up by.
    let measured = bytes(&gpu["measured_overhead_bytes"]);
    assert!((200 * MIB..300 * MIB).contains(&measured), "{measured}");

    let second = generate(&home, &machine, "all=cuda1", "one.png");
    assert!(pixels(&home.path("split.png")) == pixels(&home.path("one.png")), "other pictures");
    // Used or not, the first part has the context.
    let devices = &second["plan"]["devices"];
    assert_eq!(
        (bytes(&devices[0]["overhead_bytes"]), &devices[0]["overhead_source"]),
        (measured, &"measured".into())
    );
    assert_eq!(devices[0]["peak_bytes"], devices[0]["overhead_bytes"]);
    let gpu = &second["usage"]["gpus"][0];
    assert_eq!(gpu["devices"], serde_json::json!(["cuda1"]));
    let [planned, taken] =
        ["predicted_peak_bytes", "measured_peak_bytes"].map(|key| bytes(&gpu[key]));
    assert!(taken.abs_diff(planned) <= 64 * MIB, "{taken} B, {planned} B planned");
}

#[test]
fn a_plan_of_parts_runs_on_the_whole_gpu() {
    let (home, machine) = machine();
    let plan = ["plan", "--dry-run", "--steps", "1", "--backend", "all=cuda0,dit=cuda0&cuda1"];
    run(&home, &machine, &[&plan[..], &["--output", "plan.toml"]].concat());
    let given =
        ["generate", "--prompt", "a red circle", "--steps", "1", "--json", "--plan", "plan.toml"];
    let mut command = home.berth(&given);
    machine.apply(&mut command);
    let ended = Ended::of(command.output().expect("berth starts"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.json()["usage"]["gpus"][0]["devices"], serde_json::json!(["cuda0", "cuda1"]));
    // The same on a card of which less is free than the parts take together.
    let mut command = home.berth(&given);
    machine.with("used", "7900MiB").apply(&mut command);
    let ended = Ended::of(command.output().expect("berth starts"));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("the plan does not fit"), "{}", ended.stderr);
}
