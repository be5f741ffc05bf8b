//! Limits of the process (`ulimit`): an executor that the kernel ends at one is told as that, and
//! not tried in vain; what fits into a limited address space is found.

use std::process::Command;

use super::{generate, pictures};
use crate::support::golden::said;
use crate::support::{Ended, Home};

/// Runs `berth` in a shell that has set limits.
fn limited(home: &Home, limits: &str, arguments: &[&str]) -> Ended {
    let berth = generate(home, arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(berth.get_program());
    shell.args(berth.get_args()).current_dir(home.path(""));
    // So that the memory of threads does not depend on the machine.
    shell.env("RAYON_NUM_THREADS", "2");
    for (name, value) in berth.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Ended::of(shell.output().expect("a shell starts"))
}

/// The arguments as a golden text shows them.
fn shown<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["generate"], arguments].concat()
}

/// A home whose host has two cores and declared rates, and where the demo model is in the cache.
fn home() -> Home {
    let home = Home::new();
    let host = "cores = 2\nflops = \"100GFLOP/s\"\nmemory_bandwidth = \"10GB/s\"\n";
    let text = format!("name = \"two\"\n[host]\n{host}storage_bandwidth = \"9GB/s\"\n");
    std::fs::write(home.path("slow.toml"), text).unwrap();
    let first = Ended::of(generate(&home, &["--prompt", "x", "--steps", "1"]).output().unwrap());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    for (name, _) in pictures(&home) {
        std::fs::remove_file(home.path(&name)).unwrap();
    }
    home
}

#[test]
fn a_limit_on_the_size_of_files_is_told_and_not_tried_again() {
    let home = home();
    // 8 KiB, in blocks of 512 B; a picture of 64x64 is 12 KiB.
    let arguments = ["--prompt", "x", "--steps", "2"];
    let ended = limited(&home, "ulimit -c 0; ulimit -f 16", &arguments);
    said("limit_of_file_size", &home, &shown(&arguments), &ended, &[]);
    assert_eq!(ended.code, Some(2));
}

#[test]
fn a_limit_on_cpu_time_is_told_and_not_tried_again() {
    let home = home();
    // Minutes of work. With both limits the same the kernel sends SIGKILL, with the soft one
    // SIGXCPU.
    let arguments = ["--prompt", "x", "--width", "256", "--height", "256", "--steps", "1000"];
    for limits in ["ulimit -t 1", "ulimit -S -t 1"] {
        let ended = limited(&home, &format!("ulimit -c 0; {limits}"), &arguments);
        let step =
            ended.stderr.split_once("denoise phase (").and_then(|(_, rest)| rest.split_once(')'));
        let (step, _) = step.unwrap_or_else(|| panic!("{}", ended.stderr));
        let replaced = [(step, "STEP of 1000 done")];
        said("limit_of_cpu_time", &home, &shown(&arguments), &ended, &replaced);
        assert_eq!(ended.code, Some(2));
    }
}

#[test]
fn a_plan_that_fits_into_a_limited_address_space_is_found() {
    let home = home();
    let arguments = ["--prompt", "x", "--width", "512", "--height", "512", "--steps", "1"];
    let run = |kib: u32| limited(&home, &format!("ulimit -v {kib}"), &arguments);
    // The case that was given up.
    let ample = run(200_000);
    assert_eq!(ample.code, Some(0), "{}", ample.stderr);

    // Where the whole picture does not fit any more, tiles do.
    let mut kib = 200_000;
    let tiled = loop {
        // Less than the plans differ by.
        kib -= 16_000;
        assert!(kib > 40_000, "no limit made it take another plan");
        let ended = run(kib);
        assert_eq!(ended.code, Some(0), "{kib} KiB: {}", ended.stderr);
        let document = ended.json();
        if document["attempts"].as_u64() > Some(1) {
            break document;
        }
    };
    assert!(!tiled["plan"]["vae_tile"].is_null(), "{tiled:#}");
    let failure = &tiled["failures"][0];
    let bytes = |field: &str| failure[field].as_u64().expect("it is known");
    assert!(bytes("free_bytes") > 0 && bytes("free_bytes") < bytes("requested_bytes"), "{failure}");
    let reason = failure["reason"].as_str().expect("a reason");
    assert!(reason.contains("host is out of memory"), "{reason}");
    assert!(reason.ends_with("within the process's own limits (ulimit -v, ulimit -d)"), "{reason}");

    // Below that it ends in order, as long as the planner itself has room.
    let least = kib / 3 * 2;
    while kib > least {
        kib -= 8_000;
        let ended = run(kib);
        assert!(matches!(ended.code, Some(0..=2)), "{kib} KiB: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{kib} KiB: {}", ended.stderr);
        assert!(!ended.stderr.contains(" 0 B are free"), "{kib} KiB: {}", ended.stderr);
    }
}
