//! Executors and planners that are killed at any moment, from their start on.
//! `BERTH_KILLS_MANY=200` kills so many of each; else it is some.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{SOON, assert_nothing_left, generate, pictures, profile, script};
use crate::support::golden::said;
use crate::support::kills::{many, moment};
use crate::support::watched::{PATIENCE, Process, Watched};
use crate::support::{Ended, Home};

/// Kills of a quick run, of each kind.
const SOME: usize = 12;

/// Jobs that run side by side: most of the time they wait for a link.
const SIDE_BY_SIDE: usize = 2;

/// What a killed executor's words may add where the kernel does not tell whether it did it.
const UNSURE: (&str, &str) = ("; hint: the system may do this when memory runs out", "");

/// A job of about half a second whose weights and values cross a slow link, by an executor that
/// tells its id before it begins.
fn job(home: &Home) -> std::process::Command {
    let berth = crate::support::program();
    let berth = berth.display();
    script(home, &format!("echo begins: $$ >&2\nexec {berth} executor \"$@\""));
    profile(home, false, &["link = \"24MiB/s\"\n"], "");
    let arguments = ["--prompt", "a large red circle", "--seed", "7", "--steps", "8"];
    let executor = ["--executor", "./executor", "--verbose"];
    generate(home, &[arguments.as_slice(), &executor].concat())
}

/// Waits for the next executor to begin; `None` where there is none, or its line was read too late
/// to catch it.
fn begun(berth: &mut Watched) -> Option<Process> {
    let line = berth.line_before_end("begins: ")?;
    Process::open_running(line["begins: ".len()..].parse().expect("an id"))
}

/// The picture of an undisturbed run, and how long the run took from its executor's begin on.
fn undisturbed() -> (Vec<(String, Vec<u8>)>, Duration) {
    let home = Home::new();
    // The first run also writes the demo model.
    let first = Ended::of(job(&home).output().unwrap());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let mut berth = Watched::start(job(&home));
    let _executor = begun(&mut berth);
    let start = Instant::now();
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    (pictures(&home), start.elapsed())
}

/// Runs tests by their numbers, some side by side.
fn side_by_side(count: usize, test: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for first in 0..SIDE_BY_SIDE {
            let test = &test;
            scope.spawn(move || (first..count).step_by(SIDE_BY_SIDE).for_each(test));
        }
    });
}

#[test]
fn an_executor_killed_at_any_moment_is_followed_by_another_and_one_killed_twice_is_told_twice() {
    let (expected, whole) = undisturbed();
    side_by_side(many(SOME), |index| {
        let home = Home::new();
        let mut berth = Watched::start(job(&home));
        let kills = 1 + index % 2;
        let mut killed = Vec::new();
        for kill in 0..kills {
            // A first kill may come after the result: then there is no second executor.
            let Some(executor) = begun(&mut berth) else { break };
            let ended = executor.ends_within(whole.mul_f64(moment(kills * index + kill)));
            if !ended {
                executor.send(Signal::KILL);
            }
            killed.push(executor);
        }
        let ended = berth.end(PATIENCE);
        let about = format!("kill {index}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{about}");
        let deaths = ended.stderr.lines().filter(|l| l.starts_with("berth: the executor died in"));
        match (kills, ended.code, deaths.count()) {
            (_, Some(0), deaths @ 0..=1) => {
                assert_eq!(ended.json()["attempts"], deaths + 1, "{about}");
                assert!(pictures(&home) == expected, "another picture; {about}");
            }
            (2, Some(2), 2) => assert_eq!(pictures(&home), [], "{about}"),
            other => panic!("{other:?}; {about}"),
        }
        let retries = ended.stderr.matches("trying again with a new executor").count();
        assert!(retries <= 1, "{about}");
        for (name, _) in pictures(&home) {
            std::fs::remove_file(home.path(&name)).unwrap();
        }
        assert_nothing_left(&home, &killed.iter().collect::<Vec<_>>());
    });
}

/// Paths of all that lies in a folder, without what changes from run to run.
fn listing(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            paths.push(path.strip_prefix(folder).expect("it is below").display().to_string());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    paths.sort();
    paths
}

#[test]
fn of_planners_killed_at_any_moment_nothing_is_left_after_the_next_run() {
    // A run's own begin takes some hundredths of a second more than its executor's.
    let (expected, whole) = undisturbed();
    let clean = Home::new();
    let killed = Home::new();
    for index in 0..many(SOME) / 2 {
        let berth = Watched::start(job(&killed));
        if !berth.process.ends_within(whole.mul_f64(1.1 * moment(index))) {
            berth.process.send(Signal::KILL);
        }
        let ended = berth.end(SOON);
        assert!(matches!(ended.code, None | Some(0)), "{}", ended.stderr);
    }
    for home in [&clean, &killed] {
        let ended = Watched::start(job(home)).end(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(pictures(home) == expected, "another picture");
    }
    assert_eq!(listing(&killed.path("")), listing(&clean.path("")));
    for beside in ["runtime", "state", "config"] {
        assert_eq!(listing(&killed.beside(beside)), listing(&clean.beside(beside)), "{beside}");
    }
}

/// An executor that is killed before it connects, for the first time or each time.
fn early(home: &Home, each: bool) {
    let berth = crate::support::program();
    let berth = berth.display();
    let once = if each { "true" } else { "[ ! -e killed ] && touch killed" };
    script(home, &format!("if {once}; then kill -9 $$; fi\nexec {berth} executor \"$@\""));
}

#[test]
fn every_command_survives_an_executor_that_is_killed_before_it_connects() {
    let commands: [&[&str]; 6] = [
        &["inspect"],
        &["plan", "--dry-run"],
        &["plan", "--host", "virtual-2x2g"],
        &["tune", "--host", "virtual-2x2g", "--points", "2"],
        &["calibrate", "--host", "virtual-2x2g"],
        &["generate", "--prompt", "x", "--steps", "1"],
    ];
    for command in commands {
        let home = Home::new();
        early(&home, false);
        let arguments = [command, &["--json", "--executor", "./executor"]].concat();
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.stderr);
        let told = "berth: the executor died in the start: killed by signal 9 (SIGKILL)";
        let told = ended.stderr.lines().filter(|line| line.starts_with(told));
        assert_eq!(told.count(), 1, "{command:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.matches("trying again with a new executor").count(), 1);
        let document = ended.json();
        if let Some(failures) = document["failures"].as_array() {
            assert_eq!((document["attempts"].as_u64(), failures.len()), (Some(2), 1));
            assert_eq!(failures[0]["generation"], 1);
            assert!(failures[0]["phase"].is_null(), "{document:#}");
        }
    }
}

#[test]
fn an_executor_that_is_killed_before_it_connects_each_time_is_told_twice() {
    let home = Home::new();
    early(&home, true);
    let arguments = ["generate", "--prompt", "x", "--executor", "./executor"];
    let ended = home.run(&arguments);
    said("killed_before_it_connects", &home, &arguments, &ended, &[UNSURE]);
    assert_eq!(ended.code, Some(2));
}
