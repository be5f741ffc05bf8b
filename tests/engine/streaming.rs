//! A DiT ten times as large as its device, streamed: the device stays within its budget, and the
//! executor's own memory does not grow by what it streams; and what stays of files in the page
//! cache.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::Home;
use crate::support::wide::Wide;
use executor::weights::WeightFiles;
use serde_json::Value;

/// What a process takes that loads nothing: code, stacks, the allocator's reserves.
const PROCESS_BYTES: u64 = 64 << 20;

const PROFILE: &str = r#"
name = "small"
[[device]]
kind = "virtual"
total = "64MiB"
link = "4GiB/s"
"#;

struct Small {
    home: Home,
}

impl Small {
    fn new(model: Wide) -> (Small, crate::support::wide::Written) {
        let home = Home::new();
        let written = model.write(&home.path("model")).expect("a file system with room");
        std::fs::write(home.path("small.toml"), PROFILE).unwrap();
        (Small { home }, written)
    }

    fn arguments<'a>(&self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![command, "model", "--host", "small.toml", "--json"];
        arguments.extend(["--width", "32", "--height", "32", "--steps", "3"]);
        arguments.extend(["--max-sequence-length", "16"]);
        arguments.extend(["--backend", "all=virtual0", "--params-backend", "all=cpu"]);
        if command == "generate" {
            arguments.extend(["--prompt", "a red circle", "--seed", "7", "--output", "a.png"]);
        } else {
            arguments.push("--dry-run");
        }
        arguments.extend(more);
        arguments
    }

    /// The smallest budget that fits, by the program's own word.
    fn smallest_budget(&self) -> u64 {
        let ended = self.home.run(&self.arguments("plan", &["--max-vram", "1B"]));
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        ended.json()["nearest"]["max_vram_bytes"].as_u64().expect("some budget fits")
    }
}

fn component<'a>(plan: &'a Value, name: &str) -> &'a Value {
    let components = plan["components"].as_array().unwrap();
    components.iter().find(|component| component["name"] == name).unwrap()
}

#[test]
fn a_dit_ten_times_the_budget_runs_within_it() {
    let (small, written) = Small::new(Wide { single_blocks: 64, ..Wide::deep() });
    let budget = small.smallest_budget();
    assert!(
        written.dit_bytes > 10 * budget,
        "{} B are no ten budgets of {budget} B",
        written.dit_bytes
    );
    let budget = format!("{budget}B");
    let document = small.home.json(&small.arguments("generate", &["--max-vram", &budget]));
    let dit = component(&document["plan"], "dit");
    assert_eq!(dit["residency"], "streamed");
    let device = &document["usage"]["devices"][0];
    assert_eq!(device["id"], "virtual0");
    for phase in device["phases"].as_array().unwrap() {
        assert_eq!(phase["predicted_peak_bytes"], phase["measured_peak_bytes"]);
    }
    // Even one byte less is refused.
    let less = format!("{}B", small.smallest_budget() - 1);
    let ended = small.home.run(&small.arguments("generate", &["--max-vram", &less]));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
}

/// Anonymous memory of a process, the most of it that was seen, in bytes.
fn anonymous_peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The executor that a running `berth` started.
fn executor_of(planner: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{planner}/task/{planner}/children"));
    children.ok()?.split_whitespace().next()?.parse().ok()
}

/// The most anonymous memory that the executor had during a run, in bytes, and the run's document.
fn most_seen(small: &Small, arguments: &[&str]) -> (u64, Value) {
    let mut child =
        small.home.berth(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let planner = child.id();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut most = 0;
    // The program tells of every step.
    for line in lines {
        line.unwrap();
        let seen = executor_of(planner).and_then(anonymous_peak).unwrap_or(0);
        most = most.max(seen);
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    (most, serde_json::from_slice(&output.stdout).unwrap())
}

/// A DiT of more than twice the allowance, so that a copy of it could not hide there.
fn large() -> Wide {
    Wide { heads: 8, double_blocks: 6, single_blocks: 24, ..Wide::bf16() }
}

#[test]
fn streaming_takes_no_more_of_the_hosts_memory_than_planned() {
    let (small, written) = Small::new(large());
    assert!(written.dit_bytes > 2 * PROCESS_BYTES, "{} B", written.dit_bytes);
    let (most, document) = most_seen(&small, &small.arguments("generate", &["-v"]));
    assert_eq!(component(&document["plan"], "dit")["residency"], "streamed");
    assert_eq!(document["plan"]["host"]["locked_bytes"], 0);
    // A virtual device's memory is the process's too.
    let host = document["plan"]["host"]["peak_bytes"].as_u64().unwrap();
    let device = document["plan"]["devices"][0]["peak_bytes"].as_u64().unwrap();
    assert!(most > device / 4, "the executor was looked at: {most} B");
    assert!(most <= host + device + PROCESS_BYTES, "{most} B, planned {host} + {device} B");
}

#[test]
fn page_locked_weights_are_in_the_hosts_memory_as_planned() {
    let (small, written) = Small::new(large());
    let mut arguments = small.arguments("generate", &["-v"]);
    let places = arguments.iter_mut().find(|argument| **argument == "all=cpu").unwrap();
    *places = "all=cpu,dit=locked";
    let (most, document) = most_seen(&small, &arguments);
    let bytes = |of: &Value| of.as_u64().unwrap();
    let host = &document["plan"]["host"];
    let (locked, peak) = (bytes(&host["locked_bytes"]), bytes(&host["peak_bytes"]));
    // What the device has room for is held there.
    assert!(2 * locked > written.dit_bytes, "{locked} B of {} B", written.dit_bytes);
    assert!(locked > 2 * PROCESS_BYTES, "{locked} B");
    assert!(bytes(&host["idle_bytes"]) >= locked, "they are kept for the next job");
    let device = bytes(&document["plan"]["devices"][0]["peak_bytes"]);
    assert!(most >= locked, "{most} B, planned {locked} B");
    assert!(most <= peak + device + PROCESS_BYTES, "{most} B, planned {peak} + {device} B");
    for device in document["usage"]["devices"].as_array().unwrap() {
        for phase in device["phases"].as_array().unwrap() {
            assert_eq!(phase["predicted_peak_bytes"], phase["measured_peak_bytes"]);
        }
    }
}

/// File systems whose files are on a disk and in the page cache besides, as statfs(2) numbers them:
/// ext2 to ext4, and XFS.
const CACHED_FILE_SYSTEMS: [i64; 2] = [0xef53, 0x5846_5342];

/// How much of the DiT's file is in the page cache after a job, and how much there is.
fn cached_after(policy: &str) -> (u64, u64) {
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    Wide::bf16().write(on_disk.path()).expect("a file system with room");
    let dit = on_disk.path().join("transformer/diffusion_pytorch_model.safetensors");
    // Pages that were never written to disk cannot go.
    std::fs::File::open(&dit).unwrap().sync_all().unwrap();
    let home = Home::new();
    std::fs::write(home.path("small.toml"), PROFILE).unwrap();
    let model = on_disk.path().display().to_string();
    let job = ["--prompt", "x", "--steps", "1", "--width", "32", "--height", "32", "--json"];
    let place = ["--host", "small.toml", "--backend", "all=virtual0", "--mmap-policy", policy];
    home.json(&[&["generate", &model, "--output", "a.png"][..], &job, &place].concat());
    let files = WeightFiles::open_file(&dit).unwrap();
    (files.cached_bytes().unwrap().0, files.total_tensor_bytes().0)
}

#[test]
fn the_mapping_policy_decides_what_stays_in_the_page_cache() {
    let kind = rustix::fs::statfs(env!("CARGO_TARGET_TMPDIR")).expect("a file system").f_type;
    #[expect(clippy::useless_conversion, reason = "the type's width is the system's")]
    if !CACHED_FILE_SYSTEMS.contains(&i64::from(kind)) {
        return;
    }
    let (kept, all) = cached_after("keep");
    // Not all of them: the system may take some back at any time.
    assert!(kept > all / 4 * 3, "{kept} B of {all} B");
    let (left, all) = cached_after("drop");
    // What lies on a border, stands in a processor's batch of pages that it has just touched, or
    // was read for the model's fingerprint stays: 1.3 MB of that at most.
    assert!(left < all / 4, "{left} B of {all} B");
}
