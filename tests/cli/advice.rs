//! What `plan` and `generate` tell of other plans than the one that was asked for: with integrated
//! devices and without, and what would make a long job shorter. Each figure is that of a plan which
//! its arguments really give.

use crate::support::golden;
use crate::support::sparse;
use crate::support::terminal::on_a_terminal;
use crate::support::{Home, SLOW_HOST};
use serde_json::Value;

/// A board whose host and whose integrated GPU compute at comparable speeds.
const BOARD: &str = r#"
name = "board"
[host]
memory = "32GiB"
available = "24GiB"
cores = 8
cpu = "made up"
flops = "100GFLOP/s"
memory_bandwidth = "50GB/s"
storage_bandwidth = "1GB/s"
[[device]]
kind = "cuda"
name = "Shared"
integrated = true
total = "32GiB"
used_by_others = "8GiB"
flops = "500GFLOP/s"
half_flops = "500GFLOP/s"
memory_bandwidth = "100GB/s"
link = "100GB/s"
"#;

/// The same with a card of its own memory, which leaves both behind.
const CARD: &str = r#"
[[device]]
kind = "cuda"
name = "Card"
total = "8GiB"
flops = "20TFLOP/s"
half_flops = "40TFLOP/s"
memory_bandwidth = "400GB/s"
link = "16GB/s"
"#;

const GENERATE: [&str; 5] = ["generate", "--host", "./slow.toml", "--prompt", "a house"];

fn home() -> Home {
    let home = Home::new();
    let write = |name: &str, text: &str| std::fs::write(home.path(name), text).unwrap();
    write("board.toml", BOARD);
    write("card.toml", &format!("{BOARD}{CARD}"));
    write("slow.toml", SLOW_HOST);
    home
}

fn document(home: &Home, arguments: &[&str]) -> Value {
    home.json(&[&["plan", "--dry-run", "--json"], arguments].concat())
}

fn total_ms(document: &Value) -> f64 {
    document["predicted_ms"]["total"].as_f64().expect("a time")
}

/// Whether any component is on a device.
fn uses(document: &Value, device: &str) -> bool {
    let components = document["components"].as_array().expect("components");
    let devices = components.iter().flat_map(|c| c["devices"].as_array().expect("devices"));
    devices.into_iter().any(|id| id == device)
}

#[test]
fn an_integrated_device_that_is_not_used_is_told_with_what_it_would_give() {
    let home = home();
    let host = ["--host", "./board.toml"];
    let told =
        golden::run("integrated-not-named", &home, &[&["plan", "--dry-run"], &host[..]].concat());
    assert!(told.stderr.starts_with("hint: --backend all=cuda0 would take "), "{}", told.stderr);
    let plain = document(&home, &host);
    assert!(!uses(&plain, "cuda0"));
    let entry = &plain["integrated"][0];
    assert_eq!((&entry["device"], &entry["used"]), (&"cuda0".into(), &false.into()));
    // What its arguments are said to give, they give.
    let arguments = entry["arguments"].as_str().expect("arguments").split(' ');
    let named = document(&home, &[&host[..], &arguments.collect::<Vec<_>>()].concat());
    assert!(uses(&named, "cuda0"));
    assert_eq!(entry["other_total_ms"].as_f64(), Some(total_ms(&named)));
    assert!(total_ms(&named) < total_ms(&plain));
    // And where it is named, what it would be without.
    let entry = &named["integrated"][0];
    assert_eq!((&entry["used"], &entry["arguments"]), (&true.into(), &Value::Null));
    assert_eq!(entry["other_total_ms"].as_f64(), Some(total_ms(&plain)));
}

#[test]
fn pins_that_stand_are_kept_in_what_is_proposed() {
    let home = home();
    let plan = document(&home, &["--host", "./board.toml", "--backend", "vae=cpu"]);
    assert_eq!(plan["integrated"][0]["arguments"], "--backend vae=cpu,all=cuda0");
}

#[test]
fn an_integrated_device_is_used_unasked_where_nothing_else_is_comparable() {
    let home = home();
    let alone = document(&home, &["--host", "integrated-only"]);
    assert!(uses(&alone, "cuda0"), "its host has half a hundredth of the compute");
    let entry = &alone["integrated"][0];
    assert_eq!(entry["used"], true);
    let without = entry["other_total_ms"].as_f64().expect("the host can do it");
    assert!(without > total_ms(&alone), "{without}");
    // All on the host, by hand, is that plan.
    let by_hand = document(&home, &["--host", "integrated-only", "--backend", "all=cpu"]);
    assert_eq!(total_ms(&by_hand), without);
    assert_eq!(by_hand["integrated"][0]["arguments"], "--backend all=cuda0");
    // Beside a card it waits to be named.
    let beside = document(&home, &["--host", "./card.toml"]);
    assert!(!uses(&beside, "cuda0") && uses(&beside, "cuda1"));
}

#[test]
fn machines_without_integrated_devices_hear_nothing_of_them() {
    let home = home();
    let plan = home.run(&["plan", "--dry-run", "--host", "virtual-2x2g"]);
    assert!(!plan.stdout.contains("integrated") && plan.stderr.is_empty(), "{}", plan.stderr);
    let plan = document(&home, &["--host", "virtual-2x2g"]);
    assert_eq!(
        (&plan["integrated"], &plan["faster"]),
        (&Value::from([0; 0]), &Value::from([0; 0]))
    );
}

#[test]
fn a_long_job_is_warned_of_with_plans_that_are_really_shorter() {
    let home = home();
    let host = ["--host", "./slow.toml", "--width", "512", "--height", "512"];
    golden::run("long-job", &home, &[&["plan", "--dry-run"], &host[..]].concat());
    let plan = document(&home, &host);
    let faster = plan["faster"].as_array().expect("a list");
    assert!(faster.len() >= 2, "{faster:?}");
    for entry in faster {
        let what = entry["what"].as_str().expect("a text");
        let Some(arguments) = what.strip_prefix("--") else { continue };
        let arguments = format!("--{arguments}");
        // Later arguments would be given twice.
        let given = if arguments.starts_with("--width") { &host[..2] } else { &host[..] };
        let shorter = document(&home, &[given, &arguments.split(' ').collect::<Vec<_>>()].concat());
        let told_ms = entry["total_ms"].as_f64().expect("a time");
        // What fewer steps take is told of this plan.
        let near = if what.starts_with("--steps") { 5e-3 } else { 0.0 };
        assert!((told_ms / total_ms(&shorter) - 1.0).abs() <= near, "{what}: {told_ms}");
        assert!(total_ms(&shorter) < 0.9 * total_ms(&plan), "{what}");
    }
}

#[test]
fn scripts_are_warned_and_not_asked() {
    let home = home();
    for more in [&[][..], &["--yes"]] {
        let ended = home.run(&[&GENERATE[..], more].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(
            ended.stderr.starts_with("berth: this job is predicted to take "),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("hint: --steps 6 would take "), "{}", ended.stderr);
        assert!(!ended.stderr.contains("go on?"), "{}", ended.stderr);
        assert!(home.path("berth.png").exists());
        std::fs::remove_file(home.path("berth.png")).unwrap();
    }
}

#[test]
fn on_a_terminal_a_long_job_is_asked_for() {
    for (answer, runs) in
        [("y\n", true), ("yes\n", true), ("n\n", false), ("\n", false), ("\u{4}", false)]
    {
        let home = home();
        let (status, said) = on_a_terminal(home.berth(&GENERATE), "go on? [y/N] ", answer);
        assert_eq!(home.path("berth.png").exists(), runs, "{answer:?}: {said}");
        assert_eq!(status.success(), runs, "{answer:?}: {said}");
        assert_eq!(said.contains("berth: cancelled"), !runs, "{answer:?}: {said}");
    }
    // Nobody is asked who said yes.
    let home = home();
    let (status, said) = on_a_terminal(home.berth(&[&GENERATE[..], &["--yes"]].concat()), "", "");
    assert!(status.success() && !said.contains("go on?"), "{said}");
}

/// FLUX.1-dev is not at hand as files of its size, and its plan is: its LoRAs for few steps are
/// named, and no others.
#[test]
fn a_lora_for_few_steps_is_proposed_only_where_there_is_one() {
    let home = home();
    sparse::write_flux_dev(&home.path("flux-dev")).expect("a file system with holes");
    let dev = document(&home, &["flux-dev", "--host", "./slow.toml"]);
    let told = |plan: &Value| plan["faster"].to_string().contains("LoRA");
    assert!(told(&dev), "{}", dev["faster"]);
    assert!(!told(&document(&home, &["--host", "./slow.toml"])));
}

/// What the host reads in place counts for `memory`: a card that streams all of it takes less, and
/// is far faster.
#[test]
fn the_least_memory_is_not_sought_in_the_page_cache() {
    let home = home();
    sparse::write_flux_dev(&home.path("flux-dev")).expect("a file system with holes");
    let host = ["flux-dev", "--host", "rtx-4060-8g"];
    let least = document(&home, &[&host[..], &["--optimize", "memory"]].concat());
    let fastest = document(&home, &host);
    assert!(total_ms(&least) < 20.0 * total_ms(&fastest), "{}", total_ms(&least));
    let dit = least["components"].as_array().expect("components").iter();
    let mut dit = dit.filter(|component| component["name"] == "dit");
    assert_eq!(dit.next().expect("it has a DiT")["residency"], "streamed");
    let peak = |plan: &Value| plan["devices"][0]["peak_bytes"].as_u64().expect("bytes");
    assert!(peak(&least) < peak(&fastest));
}
