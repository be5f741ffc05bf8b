//! What a run tells of itself: a result that is no picture, a prompt that was cut, files that
//! changed while it read them. By the real program.

mod changed;
mod cut;
mod finite;

use std::fs;
use std::path::Path;

use crate::support::Ended;

/// Copies a directory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// A run as golden text takes it: what it measured is left out, and lines that are not asked for.
fn without_figures(ended: &Ended, keep: &str) -> Ended {
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(keep)).collect();
    Ended { code: ended.code, stdout: String::new(), stderr: lines.join("\n") }
}
