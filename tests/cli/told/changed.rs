//! Weights that others change while a job reads them.

use std::fs::{self, FileTimes, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::Signal;

use crate::support::damaged::copy;
use crate::support::watched::{PATIENCE, Process, Watched};
use crate::support::{Ended, Home, golden, root};
use crate::told::without_figures;

/// A job on a model of its own whose steps take about a second together, as each crosses a slow
/// link. It is met while it denoises.
fn job(home: &Home) -> (Watched, Process) {
    copy(&root().join("planner/demo/model"), &home.path("model"));
    let profile = "name = \"slow\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n[[device]]\n\
                   kind = \"virtual\"\ntotal = \"64MiB\"\nlink = \"8MiB/s\"\n";
    fs::write(home.path("slow.toml"), profile).unwrap();
    let arguments = ["generate", "model", "--host", "./slow.toml", "--json", "--verbose"];
    let prompt = ["--prompt", "a large red circle", "--steps", "200", "--output", "picture.png"];
    let mut berth = Watched::start(home.berth(&[arguments.as_slice(), &prompt].concat()));
    let executor = berth.executor();
    berth.line("berth: denoise 2/200");
    (berth, executor)
}

/// Writes a byte, and has the file say that it was last written to when it was.
fn write_unseen(path: &Path, at: u64) {
    let modified = path.metadata().unwrap().modified().unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"!", at).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

const T5: &str = "model/text_encoder_2/model.safetensors";

/// What the golden text is of.
const ARGUMENTS: [&str; 4] = ["generate", "model", "--host", "./slow.toml"];

fn assert_warned(home: &Home, ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document = ended.json();
    let warnings = document["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let path = home.path(T5).display().to_string();
    assert!(warnings[0].as_str().is_some_and(|told| told.starts_with(&path)), "{warnings:?}");
    assert_eq!(document["attempts"], 1);
}

#[test]
fn a_file_that_is_written_to_is_told_with_its_name() {
    let home = Home::new();
    let (berth, _) = job(&home);
    let file = OpenOptions::new().write(true).open(home.path(T5)).unwrap();
    file.write_all_at(b"!", file.metadata().unwrap().len() - 1).unwrap();
    drop(file);
    let ended = berth.end(PATIENCE);
    assert_warned(&home, &ended);
    let told = without_figures(&ended, "was changed");
    golden::said("weights_changed", &home, &ARGUMENTS, &told, &[]);
}

#[test]
fn a_page_that_changes_under_the_same_time_is_told() {
    let home = Home::new();
    let (berth, _) = job(&home);
    write_unseen(&home.path(T5), 20);
    assert_warned(&home, &berth.end(PATIENCE));
}

#[test]
fn a_file_that_is_replaced_as_a_whole_is_not_told() {
    let home = Home::new();
    let (berth, _) = job(&home);
    fs::write(home.path("new"), "another").unwrap();
    fs::rename(home.path("new"), home.path(T5)).unwrap();
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.json()["warnings"], serde_json::json!([]), "the job read the old one");
}

#[test]
fn no_job_is_tried_again_by_a_file_that_changed() {
    let home = Home::new();
    let (berth, executor) = job(&home);
    OpenOptions::new().write(true).open(home.path(T5)).unwrap().set_len(100).unwrap();
    executor.send(Signal::KILL);
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(!ended.stderr.contains("trying again"), "{}", ended.stderr);
    let told = without_figures(&ended, "not tried again");
    golden::said("weights_changed_and_died", &home, &ARGUMENTS, &told, &[]);
    assert!(ended.stderr.contains("signal 9 (SIGKILL)"), "{}", ended.stderr);
}
