//! Progress on a terminal; on anything else nothing, or a line for each step where asked.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use protocol::Phase;
use protocol::message::Progress;
use protocol::notice::Notice;

use super::notices::sentence;

use crate::session::{ExecutorListener, Interrupts, SessionError};
use crate::solve::{Solution, shown_ms};
use crate::supervise::Listener;

/// Shows a running job on standard error.
pub struct ProgressLine {
    bar: ProgressBar,
    phase: Option<Phase>,
    verbose: bool,
    /// Whether the first plan's notices were told.
    noticed: bool,
}

impl ProgressLine {
    /// A bar on a terminal, lines where `verbose`.
    pub fn new(verbose: bool) -> ProgressLine {
        let shown = stderr().is_terminal() && !verbose;
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        ProgressLine { bar, phase: None, verbose, noticed: false }
    }

    /// Who tells of executors beside the bar. `on_start` hears of every new one.
    pub fn executors(&self, on_start: impl Fn(Interrupts) + 'static) -> ExecutorLines {
        let (bar, verbose) = (self.bar.clone(), self.verbose);
        ExecutorLines { bar, verbose, on_start: Box::new(on_start) }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn enter(&mut self, phase: Phase) {
        let template = match phase {
            Phase::Denoise => "{prefix:>9} [{bar:30}] {pos}/{len}, {eta} left",
            Phase::Load | Phase::Encode | Phase::Condition | Phase::Decode => {
                "{prefix:>9} [{bar:30}] {pos}/{len}"
            }
        };
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_prefix(phase.name());
        self.phase = Some(phase);
    }

    fn line(&self, text: &str) {
        if self.verbose {
            eprintln!("berth: {text}");
        }
    }
}

/// Tells of a session's executors on standard error.
pub struct ExecutorLines {
    bar: ProgressBar,
    verbose: bool,
    on_start: Box<dyn Fn(Interrupts)>,
}

impl ExecutorListener for ExecutorLines {
    fn starting(&mut self, interrupts: Interrupts) {
        (self.on_start)(interrupts);
    }

    fn started(&mut self, pid: u32) {
        if self.verbose {
            eprintln!("berth: executor {pid} started");
        }
    }

    fn died(&mut self, error: &SessionError) {
        self.bar.suspend(|| eprintln!("berth: {error}\nberth: trying again with a new executor"));
    }
}

impl Listener for ProgressLine {
    fn planned(&mut self, solution: &Solution) {
        let plan = &solution.plan;
        if !std::mem::replace(&mut self.noticed, true) {
            self.bar.suspend(|| super::tell(&solution.report.notices));
        }
        let total = shown_ms(plan.predicted_ms.total);
        self.line(&format!("plan {} predicts {total}", plan.generation));
    }

    fn progress(&mut self, progress: Progress) {
        let Progress { phase, step, of } = progress;
        if self.phase != Some(phase) {
            // Time left is of this phase: the clock starts anew.
            self.bar.reset();
            self.bar.set_length(u64::from(of));
            self.enter(phase);
        }
        self.bar.set_length(u64::from(of));
        self.bar.set_position(u64::from(step));
        self.line(&format!("{phase} {step}/{of}"));
    }

    fn notice(&mut self, notice: &Notice) {
        self.bar.suspend(|| eprintln!("berth: {}", sentence(notice)));
    }

    fn retrying(&mut self, error: &SessionError) {
        self.bar.suspend(|| eprintln!("berth: {error}\nberth: trying again with a new plan"));
    }
}
