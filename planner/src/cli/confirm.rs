//! Before a job that takes long: a warning, and on a terminal a question.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;

use protocol::Plan;

use crate::planning::LONG_MS;
use crate::render::advice;
use crate::solve::Advice;

/// Characters of an answer that are read at most: a line without an end is no answer.
const ANSWER_BYTES_MAX: u64 = 256;

/// Who warns of a long job before its plan is loaded, and where somebody is there to answer asks
/// once whether it is to run.
#[derive(Debug)]
pub struct Confirm {
    /// Whether it is to run without a question.
    pub yes: bool,
    /// Whether it was warned of already, by an earlier plan.
    pub told: bool,
}

impl Confirm {
    /// Warns and asks; a break where it is not to run.
    pub fn ask(&mut self, plan: &Plan, advice: &Advice) -> ControlFlow<()> {
        if self.told || plan.predicted_ms.total <= LONG_MS {
            return ControlFlow::Continue(());
        }
        advice::tell(plan, advice);
        self.decide()
    }

    /// The same for a job that takes so many milliseconds, of which no plan is known here.
    pub fn ask_for(&mut self, total_ms: f64) -> ControlFlow<()> {
        if self.told || total_ms <= LONG_MS {
            return ControlFlow::Continue(());
        }
        eprintln!("{}", advice::long_warning(total_ms));
        self.decide()
    }

    fn decide(&mut self) -> ControlFlow<()> {
        self.told = true;
        let somebody_is_there = io::stdin().is_terminal() && io::stderr().is_terminal();
        match self.yes || !somebody_is_there || is_agreed() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
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
