//! Before a job that takes long: a warning, and on a terminal a question.

use std::io::{self, BufRead, IsTerminal, Write};

use protocol::message::{Preview, Progress};
use protocol::notice::Notice;

use crate::engine::session::SessionError;
use crate::engine::supervise::Listener;
use crate::planning::LONG_MS;
use crate::render::advice;
use crate::solve::Solution;

/// Characters of an answer that are read at most: a line without an end is no answer.
const ANSWER_BYTES_MAX: u64 = 256;

/// A listener that warns of a long job before its plan is loaded, and where somebody is there to
/// answer asks once whether it is to run.
pub struct Confirm<'a, L> {
    /// Who else listens.
    pub listener: &'a mut L,
    /// Whether it is to run without a question.
    pub yes: bool,
    /// Whether it was warned of already, by an earlier plan.
    pub told: bool,
}

impl<L: Listener> Confirm<'_, L> {
    fn confirm(&mut self, solution: &Solution) -> Result<(), SessionError> {
        let plan = &solution.plan;
        if self.told || plan.predicted_ms.total <= LONG_MS {
            return Ok(());
        }
        self.told = true;
        advice::tell(plan, &solution.report.advice);
        let somebody_is_there = io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.yes || !somebody_is_there || is_agreed() {
            return Ok(());
        }
        Err(SessionError::Cancelled)
    }
}

/// Asks on the terminal; anything but yes is no.
fn is_agreed() -> bool {
    eprint!("go on? [y/N] ");
    // What cannot be shown is not agreed to either.
    if io::stderr().flush().is_err() {
        return false;
    }
    let mut answer = String::new();
    let read = io::Read::take(io::stdin().lock(), ANSWER_BYTES_MAX).read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

impl<L: Listener> Listener for Confirm<'_, L> {
    fn planned(&mut self, solution: &Solution) -> Result<(), SessionError> {
        self.listener.planned(solution)?;
        self.confirm(solution)
    }

    fn progress(&mut self, progress: Progress) {
        self.listener.progress(progress);
    }

    fn preview(&mut self, preview: &Preview) {
        self.listener.preview(preview);
    }

    fn notice(&mut self, notice: &Notice) {
        self.listener.notice(notice);
    }

    fn retrying(&mut self, error: &SessionError) {
        self.listener.retrying(error);
    }
}
