//! The rules of style and layering that a machine can check. Each failure names file and line, or
//! the file that uses what it must not; each rule on resolved imports has a test that plants a
//! violation.
//!
//! `cargo test -p protocol --test tidy -- --nocapture numbers` prints how the tree stands in
//! figures.

use std::fs;
use std::path::PathBuf;

mod families;
mod imports;
mod kernels;
mod layers;
mod numbers;
mod sources;
mod words;

use sources::{Source, files_under, none, places, root, sources};

/// Lines that a file of code may have without a reason in [`LONG_FILES`].
const FILE_LINES_MAX: usize = 500;

/// Longer files, each with its reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// Lines that ARCHITECTURE.md may have.
const ARCHITECTURE_LINES_MAX: usize = 300;

/// Bytes that the files of the repository may have together.
const REPOSITORY_BYTES_MAX: u64 = 100 << 20;

/// Where `unsafe` may stand.
const UNSAFE_PLACES: [&str; 2] = ["executor/src/backend/", "executor/src/weights/mapping.rs"];

/// Where a thread may sleep, each with its reason.
const SLEEP_PLACES: [(&str, &str); 3] = [
    ("executor/src/backend/memory/link.rs", "a virtual link carries no faster than it is declared"),
    ("planner/src/calibration/store.rs", "no wait for a file's lock ends by itself"),
    (
        "planner/src/engine/settling.rs",
        "the driver does not tell when it has freed a process's memory",
    ),
];

#[test]
fn every_file_says_what_it_is() {
    let silent = sources().into_iter().filter(|source| !source.text.starts_with("//! "));
    none("a file begins with `//!`", silent.map(|source| source.path).collect());
}

#[test]
fn files_are_short() {
    let long = sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        let excused = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        (lines > FILE_LINES_MAX && !excused).then(|| format!("{}: {lines} lines", source.path))
    });
    none("a file past 500 lines needs its reason here", long.collect());
}

#[test]
fn modules_are_named_after_their_files() {
    let old = sources().into_iter().filter(|source| source.path.ends_with("/mod.rs"));
    none("`foo.rs` and `foo/`, no `mod.rs`", old.map(|source| source.path).collect());
}

#[test]
fn unsafe_code_stays_in_its_places() {
    let sources = sources();
    let elsewhere = |source: &Source| {
        source.path.contains("/src/") && !UNSAFE_PLACES.iter().any(|place| source.is_under(place))
    };
    let is_unsafe = |line: &str| line.split_whitespace().any(|word| word == "unsafe");
    none("unsafe is for weight mapping and backends", places(&sources, elsewhere, is_unsafe));
    let planner = sources.iter().find(|source| source.path == "planner/src/lib.rs");
    let forbidden = planner.is_some_and(|source| source.text.contains("#![forbid(unsafe_code)]"));
    assert!(forbidden, "the planner forbids unsafe code");
}

#[test]
fn crates_keep_apart() {
    let sources = sources();
    let planner = |s: &Source| s.is_under("planner/src/") && s.path != "planner/src/main.rs";
    let names_executor = |line: &str| line.contains("executor::");
    none("only the planner's main names the executor", places(&sources, planner, names_executor));
    let protocol = |s: &Source| s.is_under("protocol/src/");
    let names_any = |line: &str| line.contains("executor::") || line.contains("planner::");
    none("the protocol knows neither side", places(&sources, protocol, names_any));
    let executor = |s: &Source| s.is_under("executor/");
    none(
        "the executor does not know the planner",
        places(&sources, executor, |l| l.contains("planner::")),
    );
    let pure = |s: &Source| {
        ["executor/src/graph", "executor/src/schedule", "planner/src/solve"]
            .iter()
            .any(|folder| s.is_under(folder))
    };
    let impure = |line: &str| {
        ["std::fs", "std::env", "std::time", "std::thread", "HashMap", "rand::"]
            .iter()
            .any(|name| line.contains(name))
    };
    none("graphs, schedules and the solver are pure", places(&sources, pure, impure));
    let no_command = |s: &Source| planner(s) && !s.is_under("planner/src/cli");
    none("only the command line parses one", places(&sources, no_command, |l| l.contains("clap")));
    let cuda = |line: &str| line.contains("cudarc");
    none("the planner never touches CUDA", places(&sources, |s| s.is_under("planner/"), cuda));
}

#[test]
fn words_that_mean_two_things_are_not_used() {
    let word = ["off", "load"].concat();
    let everywhere = |_: &Source| true;
    let used = places(&sources(), everywhere, |line| line.to_lowercase().contains(&word));
    none("say resident, streamed, lazy or host", used);
}

#[test]
fn nothing_is_left_undone() {
    let sources = sources();
    let marks = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "TODO", "FIXME"];
    let shipped = |s: &Source| s.path.contains("/src/");
    let undone = places(&sources, shipped, |line| marks.iter().any(|mark| line.contains(mark)));
    none("nothing is left undone", undone);
    let unwraps = places(
        &sources,
        |s| shipped(s) && !s.path.contains("/tests"),
        |line| line.contains(".unwrap()"),
    );
    let in_tests = |place: &String| place.contains("/testing.rs") || place.contains("/support.rs");
    let unwraps = unwraps.into_iter().filter(|place| !in_tests(place)).collect();
    none("expect with a reason, or `?`", unwraps);
}

#[test]
fn nobody_sleeps_in_place_of_waiting() {
    let sources = sources();
    let elsewhere = |s: &Source| {
        s.path.contains("/src/") && !SLEEP_PLACES.iter().any(|(path, _)| *path == s.path)
    };
    none("wait for an event", places(&sources, elsewhere, |line| line.contains("thread::sleep")));
}

#[test]
fn the_repository_stays_small_and_free_of_machine_paths() {
    let root = root();
    let mut found = Vec::new();
    files_under(&root, &mut found);
    let bytes: u64 = found.iter().filter_map(|path| path.metadata().ok()).map(|m| m.len()).sum();
    assert!(bytes < REPOSITORY_BYTES_MAX, "the files take {bytes} B");
    let marks = [["/ro", "ot/"].concat(), ["/ho", "me/"].concat(), ["/wo", "rk/"].concat()];
    let text_types = ["rs", "toml", "md", "sh", "py"];
    let is_text = |path: &&PathBuf| {
        path.extension().is_some_and(|e| text_types.contains(&e.to_string_lossy().as_ref()))
    };
    let named = found.iter().filter(is_text).filter(|path| {
        let text = fs::read_to_string(path).expect("text is UTF-8");
        marks.iter().any(|mark| text.contains(mark))
    });
    none("no path of a machine", named.map(|path| path.display().to_string()).collect());
}

#[test]
fn the_architecture_page_is_short_and_names_every_crate() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there");
    let lines = page.lines().count();
    assert!(lines < ARCHITECTURE_LINES_MAX, "ARCHITECTURE.md has {lines} lines");
    for crate_name in ["protocol", "planner", "executor"] {
        let heading = format!("## `{crate_name}`");
        let section = page.split(&heading).nth(1).unwrap_or("");
        let section = section.split("\n## ").next().unwrap_or("");
        assert!(section.contains("Invariants"), "{crate_name} lists its invariants");
    }
}
