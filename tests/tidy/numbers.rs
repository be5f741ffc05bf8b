//! How the tree stands, in figures; and the rules that these figures are held to.

use super::imports::Crate;
use super::layers::{EXECUTOR, Layers, PLANNER, PROTOCOL, violations};
use super::sources::{CRATES, Source, none, sources};
use super::words::{repeats, repetitions, type_names, wide_comments};

/// Columns in which a line of a comment ends.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Comments of at most three words, one of which is the name that they stand at: so many are left.
const REPETITIONS_MAX: usize = 60;

/// Of a hundred type names, how many may stand in several files of a crate.
const NAMES_TWICE_PERCENT_MAX: f64 = 1.0;

const LAYERS: [Layers; 3] = [PROTOCOL, EXECUTOR, PLANNER];

/// A made-up file of the executor.
fn planted(path: &str, text: &str) -> Source {
    Source { path: format!("executor/src/{path}"), text: format!("//! It is made up.\n{text}\n") }
}

/// Type names of a crate that several of its files define, with these files, and how many there are
/// in all.
fn twice(name: &str, sources: &[Source]) -> (Vec<String>, usize) {
    let names = type_names(name, sources);
    let twice = names.iter().filter(|(_, files)| files.len() > 1);
    let shown = twice.map(|(name, files)| {
        format!("{name}: {}", files.iter().cloned().collect::<Vec<_>>().join(", "))
    });
    (shown.collect(), names.len())
}

/// The type names of all crates that stand in several files of one, and of a hundred names how many
/// that are.
fn twice_of_all(sources: &[Source]) -> (Vec<String>, usize, f64) {
    let (mut types, mut several) = (0, Vec::new());
    for name in CRATES {
        let (twice, all) = twice(name, sources);
        several.extend(twice.into_iter().map(|line| format!("{name}: {line}")));
        types += all;
    }
    let percent = 100.0 * several.len() as f64 / types as f64;
    (several, types, percent)
}

#[test]
fn numbers() {
    let sources = sources();
    let (several, types, percent) = twice_of_all(&sources);
    println!(
        "type names in several files of a crate: {} of {types}, {percent:.1} %",
        several.len()
    );
    several.iter().for_each(|line| println!("  {line}"));
    let repeating = repetitions(&sources);
    println!("comments of at most three words that repeat a name: {}", repeating.len());
    let wide = wide_comments(&sources, COMMENT_COLUMNS_MAX);
    println!("lines of comments past {COMMENT_COLUMNS_MAX} columns: {}", wide.len());
    for (name, layers) in CRATES.into_iter().zip(LAYERS) {
        let files = Crate::of(name, &sources);
        let (circles, up) = (files.circles(), violations(layers, &files));
        println!("{name}: {} circles of files, {} uses that reach up", circles.len(), up.len());
        circles.iter().for_each(|circle| println!("  circle: {}", circle.join(", ")));
        up.iter().for_each(|line| println!("  {line}"));
    }
}

#[test]
fn a_planted_use_that_reaches_up_is_seen() {
    let sources = [
        planted("graph.rs", "mod cost;\nuse super::backend;"),
        planted("graph/cost.rs", "use crate::weights::Row;\nfn f() -> backend::Region { todo() }"),
        planted("backend.rs", "use crate::graph::{self, cost};"),
        planted("weights.rs", "#[cfg(test)]\nmod tests { use crate::backend::Region; }"),
    ];
    let files = Crate::of("executor", &sources);
    assert_eq!(violations(EXECUTOR, &files), ["executor/src/graph.rs: uses backend"]);
    let alone = [planted("nowhere.rs", "")];
    let found = violations(EXECUTOR, &Crate::of("executor", &alone));
    assert_eq!(found, ["executor/src/nowhere.rs: in no layer"]);
    let renamed = [
        planted("schedule.rs", "use crate::{ops as all, graph};\nfn f() { all::attention::new() }"),
        planted("ops.rs", ""),
        planted("ops/attention.rs", ""),
    ];
    let found = violations(EXECUTOR, &Crate::of("executor", &renamed));
    let (first, second) =
        ("executor/src/schedule.rs: uses ops", "executor/src/schedule.rs: uses ops::attention");
    assert_eq!(found, [first, second]);
}

#[test]
fn a_planted_circle_is_seen() {
    let sources = [
        planted("graph.rs", "mod a;\nmod b;\nmod c;"),
        planted("graph/a.rs", "use super::b::B;"),
        planted("graph/b.rs", "use super::c::C;"),
        planted("graph/c.rs", "use crate::graph::a::A;\nuse super::Graph;"),
    ];
    let circles = Crate::of("executor", &sources).circles();
    assert_eq!(circles, [["graph::a", "graph::b", "graph::c"]]);
}

#[test]
fn planted_words_and_comments_are_seen() {
    let sources = [
        planted("graph/a.rs", "/// The row.\npub struct Row { /// Width in pixels.\n width: u32 }"),
        planted("graph/b.rs", "pub enum Row { /// A wide one, of all columns.\n Wide }"),
    ];
    assert!(twice_of_all(&sources).2 > NAMES_TWICE_PERCENT_MAX);
    let (twice, all) = twice("executor", &sources);
    assert_eq!(twice, ["Row: executor/src/graph/a.rs, executor/src/graph/b.rs"]);
    assert_eq!(all, 1);
    let repeating = repetitions(&sources);
    assert!(repeating.iter().any(|line| line.ends_with("Row: The row.")), "{repeating:?}");
    assert!(repeats("free_bytes", "Free bytes.") && repeats("DeviceId", "The device's id"));
    assert!(!repeats("free_bytes", "What nobody has allocated."));
    let wide = [planted("a.rs", &format!("// {}", "x".repeat(98)))];
    assert_eq!(wide_comments(&wide, COMMENT_COLUMNS_MAX), ["executor/src/a.rs:2: 101 columns"]);
}

#[test]
fn a_type_name_stands_once_in_a_crate() {
    let (several, _, percent) = twice_of_all(&sources());
    if percent > NAMES_TWICE_PERCENT_MAX {
        none("a type name stands in one file of a crate", several);
    }
}

#[test]
fn comments_say_more_than_names() {
    let repeating = repetitions(&sources());
    if repeating.len() > REPETITIONS_MAX {
        none("a comment says meaning, unit or bounds, or goes", repeating);
    }
}

#[test]
fn comments_end_in_time() {
    let wide = wide_comments(&sources(), COMMENT_COLUMNS_MAX);
    none("a line of a comment past the last column", wide);
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let sources = sources();
    for name in CRATES {
        let circles = Crate::of(name, &sources).circles();
        let shown = circles.iter().map(|circle| format!("{name}: {}", circle.join(", ")));
        none("files that use each other in a circle", shown.collect());
    }
}

#[test]
fn layers_do_not_reach_upwards() {
    let sources = sources();
    for (name, layers) in CRATES.into_iter().zip(LAYERS) {
        none("a use that reaches up", violations(layers, &Crate::of(name, &sources)));
    }
}
