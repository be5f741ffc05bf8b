//! `BERTH_LOG` shows what both processes do, and is refused where it makes no sense.

use crate::failure::{FAST, generate, profile};
use crate::support::{Home, golden};

#[test]
fn the_log_shows_what_both_processes_do() {
    let home = Home::new();
    profile(&home, false, &[FAST], "");
    let run = |log: Option<&str>| {
        let mut command = generate(&home, &["--prompt", "x", "--steps", "7"]);
        if let Some(log) = log {
            command.env("BERTH_LOG", log);
        }
        let ended = crate::support::Ended::of(command.output().expect("berth starts"));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let log = run(Some("debug"));
    for (process, parts) in [
        ("planner::", ["berth begins", "read profiles", "free now", "started the executor"]),
        (
            "planner::",
            ["solved a plan", "sent command=\"Load\"", "sent command=\"Bye\"", "speaks for"],
        ),
        (
            "executor::",
            [
                "the executor begins",
                "begins command=\"Generate\"",
                "done command=\"Load\"",
                "opened weights",
            ],
        ),
        (
            "executor::",
            [
                "allocates device=virtual0",
                "entered phase=denoise",
                "leaves phase=decode",
                "goodbye",
            ],
        ),
    ] {
        for part in parts {
            let found = log.lines().any(|line| line.contains(process) && line.contains(part));
            assert!(found, "no {part:?} of {process} in:\n{log}");
        }
    }
    assert!(!log.contains('\u{1b}'), "colours, and no terminal:\n{log}");
    // Lines do not grow with the steps.
    let more = {
        let mut command = generate(&home, &["--prompt", "x", "--steps", "70"]);
        command.env("BERTH_LOG", "executor=debug");
        crate::support::Ended::of(command.output().expect("berth starts")).stderr
    };
    let of_executor = |log: &str| log.lines().filter(|line| line.contains("executor::")).count();
    assert_eq!(of_executor(&more), of_executor(&log));

    let planner = run(Some("planner=debug"));
    assert!(planner.contains("planner::") && !planner.contains("executor::"), "{planner}");
    assert_eq!(run(None), "");
}

#[test]
fn a_log_that_makes_no_sense_is_refused() {
    let arguments = ["inspect"];
    let home = Home::new().with(vec![("BERTH_LOG", "planner=loud".into())]);
    golden::run("log", &home, &arguments);
}
