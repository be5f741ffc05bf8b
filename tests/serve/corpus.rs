//! What the fuzzer of the wires kept (docs/fuzzing.md): each body ends in a job or a refusal.

#[path = "../../planner/fuzz/fuzz_targets/wires.rs"]
mod wires;

use crate::support::root;

/// How many bodies of a target are jobs, and how many are refused.
fn read(target: &str, reader: fn(&[u8]) -> bool) -> (usize, usize) {
    let folder = root().join("planner/fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).expect("the corpus is there");
    let bytes = files.map(|file| std::fs::read(file.expect("an entry").path()).expect("a file"));
    let (jobs, refused): (Vec<bool>, Vec<bool>) =
        bytes.map(|bytes| reader(&bytes)).partition(|is_job| *is_job);
    (jobs.len(), refused.len())
}

#[test]
fn the_corpus_of_openais_wire_ends_in_answers() {
    let (jobs, refused) = read("openai", wires::openai);
    assert!(jobs > 10 && refused > 10, "{jobs} jobs and {refused} refused");
}

#[test]
fn the_corpus_of_a1111s_wire_ends_in_answers() {
    let (jobs, refused) = read("sdapi", wires::sdapi);
    assert!(jobs > 10 && refused > 5, "{jobs} jobs and {refused} refused");
}
