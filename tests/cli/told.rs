//! What a run tells of itself: a result that is no picture, a prompt that was cut, files that
//! changed while it read them. By the real program.

mod changed;
mod cut;
mod finite;

use crate::support::Ended;

/// A run as golden text takes it: what it measured is left out, and lines that are not asked for.
fn without_figures(ended: &Ended, keep: &str) -> Ended {
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(keep)).collect();
    Ended { code: ended.code, stdout: String::new(), stderr: lines.join("\n") }
}
