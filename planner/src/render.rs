//! What people and programs are shown: tables, documents, progress.

pub mod advice;
pub mod bar;
pub mod document;
pub mod jobs;
pub mod notices;
pub mod plot;
pub mod progress;
pub mod rates;
pub mod tables;
#[cfg(test)]
pub(crate) mod testing;

use std::io::{ErrorKind, Write, stdout};

use crate::job::FailedAttempt;

/// Tells notices on standard error.
pub fn tell(notices: &[String]) {
    for notice in notices {
        eprintln!("berth: {notice}");
    }
}

/// The seeds of pictures, for people: those of a batch count up.
pub fn seeds(seeds: &[u64]) -> String {
    match seeds {
        [first, .., last] => format!("seeds {first} to {last}"),
        seeds => format!("seed {}", seeds.first().copied().unwrap_or_default()),
    }
}

/// Tells on standard error that a job completed by a later plan, and why; nothing where the first
/// one did.
pub fn tell_failures(failures: &[FailedAttempt]) {
    let Some(last) = failures.last() else { return };
    // A plan that follows a death alone may be the same again.
    let safer = failures.iter().any(|failed| failed.device.is_some());
    let reasons: Vec<String> = failures.iter().map(reason).collect();
    eprintln!(
        "berth: completed by plan {}{}: {}",
        last.generation + 1,
        if safer { ", a safer one" } else { "" },
        reasons.join("; ")
    );
}

/// `plan 1 failed in the denoise phase: …`, without a dead executor's last lines.
fn reason(FailedAttempt { generation, phase, device, reason, .. }: &FailedAttempt) -> String {
    let reason = reason.lines().next().unwrap_or_default().trim_end_matches("; its last lines:");
    match (phase, device) {
        (Some(phase), Some(_)) => {
            format!("plan {generation} failed in the {phase} phase: {reason}")
        }
        // That an executor died says where.
        _ => format!("plan {generation} failed: {reason}"),
    }
}

/// Prints a summary: on standard output, or on standard error where an output has that for itself.
pub fn print_beside(to_stderr: bool, text: &str) -> anyhow::Result<()> {
    if to_stderr {
        eprintln!("{text}");
        return Ok(());
    }
    print(text)
}

/// Prints data on standard output. A reader that has had enough, as `head`, is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
