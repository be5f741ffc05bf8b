//! Previews while the demo model's picture is made.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::first_use::{LASTING, slow_home};
use crate::support::{Home, golden, pixels};

/// A job that runs, with what it says of its steps.
struct Job {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Job {
    fn start(mut command: Command) -> Job {
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("berth starts");
        let lines = BufReader::new(child.stderr.take().expect("it is piped"));
        Job { child, lines }
    }

    /// Waits until this is said.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.lines.read_line(&mut line).expect("a line") > 0, "{text} was not said");
        }
    }
}

/// The mean difference of two pictures' levels.
fn difference(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    sum as f64 / a.len() as f64
}

#[test]
fn halfway_a_preview_is_like_the_picture_and_at_the_end_it_is_gone() {
    let home = slow_home();
    let arguments =
        [&["generate", "--verbose", "--preview", "3", "--output", "x.png"][..], &LASTING].concat();
    let mut job = Job::start(home.berth(&arguments));
    // What is said of a step comes before its preview, and after that of the steps before.
    job.wait_for("denoise 2/12");
    assert!(!home.path("x.preview.png").exists());
    job.wait_for("denoise 7/12");
    let preview = pixels(&home.path("x.preview.png"));
    job.wait_for("denoise 12/12");
    job.wait_for("decode 1/1");
    let last = pixels(&home.path("x.preview.png"));
    let mut rest = String::new();
    while job.lines.read_line(&mut rest).expect("a line") > 0 {}
    assert!(job.child.wait().expect("it ends").success());
    let names = home.files();
    assert!(!names.iter().any(|name| name.contains("preview")), "{names:?}");

    let picture = pixels(&home.path("x.png"));
    // Another picture, of the same colours the other way round.
    home.json(&[
        "generate",
        "--json",
        "--prompt",
        "a white circle on a red background",
        "--output",
        "y.png",
    ]);
    let other = pixels(&home.path("y.png"));
    for preview in [preview, last] {
        let (own, others) = (difference(&preview, &picture), difference(&preview, &other));
        assert!(own < 45.0 && own < others / 2.0, "{own} from its picture, {others} from another");
    }
}

#[test]
fn a_job_that_is_cancelled_leaves_no_preview() {
    let home = slow_home();
    let arguments =
        [&["generate", "--verbose", "--preview", "1", "--output", "x.png"][..], &LASTING].concat();
    let mut job = Job::start(home.berth(&arguments));
    job.wait_for("denoise 3/12");
    assert!(home.path("x.preview.png").exists());
    let pid = nix::unistd::Pid::from_raw(job.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    assert!(!job.child.wait().expect("it ends").success());
    let names = home.files();
    assert!(!names.iter().any(|name| name.starts_with('x')), "{names:?}");
}

/// `host.job_bytes` of a plan.
fn job_bytes(plan: &Value) -> u64 {
    plan["host"]["job_bytes"].as_u64().expect("bytes")
}

#[test]
fn a_preview_is_planned_to_the_byte_and_a_plan_without_one_is_as_it_was() {
    let home = Home::new();
    let shape = ["--width", "96", "--height", "64", "--steps", "4", "--host", "virtual-2x2g"];
    let plan =
        |more: &[&str]| home.json(&[&["plan", "--dry-run", "--json"], &shape[..], more].concat());
    let (without, with) = (plan(&[]), plan(&["--preview", "2"]));
    assert_eq!(job_bytes(&with) - job_bytes(&without), 12 * 8 * 3);
    assert!(without["options"].get("preview_every").is_none(), "{}", without["options"]);
    assert_eq!(with["options"]["preview_every"], 2);

    for more in [&["--batch", "3"][..], &["--true-cfg-scale", "3"], &["--vae-tile", "32x32"]] {
        let run = ["generate", "--json", "--prompt", "x", "--preview", "1", "--output", "x.png"];
        let run = home.json(&[&run, &shape[..], more].concat());
        for device in run["usage"]["devices"].as_array().expect("devices") {
            for phase in device["phases"].as_array().expect("phases") {
                let bytes = |name| phase[name].as_u64().expect("bytes");
                let (predicted, measured) = ("predicted_peak_bytes", "measured_peak_bytes");
                assert_eq!(bytes(predicted), bytes(measured), "{more:?}: {device}");
            }
        }
        assert!(!home.files().iter().any(|name| name.contains("preview")));
    }
}

#[test]
fn the_picture_is_the_same_with_previews_and_a_plan_brings_its_own() {
    let home = Home::new();
    let generate = |more: &[&str], output: &str| {
        let fixed = ["generate", "--prompt", "x", "--seed", "7", "--output", output];
        let ended = home.run(&[&fixed, more].concat());
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{more:?}");
        pixels(&home.path(output))
    };
    let plain = generate(&[], "a.png");
    assert!(generate(&["--preview", "1"], "b.png") == plain, "another picture with previews");
    home.run(&["plan", "--dry-run", "--preview", "5", "--output", "plan.toml"]);
    assert!(generate(&["--plan", "plan.toml"], "c.png") == plain, "another picture by a plan");
    // From a picture, some of whose steps are left out.
    let from = ["--init-image", "a.png", "--strength", "0.5"];
    let again = [&["--preview", "2"], &from[..]].concat();
    assert!(generate(&again, "d.png") == generate(&from, "e.png"), "another one from a picture");
}

#[test]
fn a_preview_that_cannot_be_is_refused_before_anything_runs() {
    let home = Home::new();
    let generate = ["generate", "--prompt", "x", "--output", "x.png", "--preview"];
    let with = |more: &[&'static str]| [&generate[..], more].concat();
    golden::run("preview-zero", &home, &with(&["0"]));
    golden::run("preview-too-rare", &home, &with(&["9", "--steps", "8"]));
    std::fs::write(home.path("x.preview.png"), "mine").expect("a file");
    golden::run("preview-name-taken", &home, &with(&["2"]));
    assert_eq!(std::fs::read(home.path("x.preview.png")).expect("it is there"), b"mine");
    assert!(!Path::new(&home.path("x.png")).exists());
    let dumped = ["--dump-tensors", "y.preview.png", "--output", "y.png"];
    let names = [&["generate", "--prompt", "x", "--preview", "2"], &dumped[..]].concat();
    let ended = home.run(&names);
    assert!(ended.stderr.contains("belongs to another file"), "{}", ended.stderr);
}
