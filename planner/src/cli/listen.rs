//! What a command does with what its job tells: it shows it, writes previews, and asks before a job
//! that takes long.

use std::ops::ControlFlow;

use super::confirm::Confirm;
use super::interrupt;
use crate::engine::session::{ExecutorListener, Interrupts, SessionError};
use crate::job::JobEvent;
use crate::preview::PreviewFile;
use crate::render::progress::{ExecutorLines, ProgressLine};

/// The terminal, or what stands for it, of a command that runs jobs.
pub struct Terminal {
    /// Where the job's steps are shown.
    line: ProgressLine,
    /// Where its previews go, if there are any.
    preview: Option<PreviewFile>,
    /// Who asks before long jobs; nobody where it is `None`.
    confirm: Option<Confirm>,
}

impl Terminal {
    /// A bar on a terminal, lines for all steps where `verbose`.
    pub fn new(verbose: bool) -> Terminal {
        Terminal { line: ProgressLine::new(verbose), preview: None, confirm: None }
    }

    /// From now on also tells how long a job will take: for jobs whose plan is carried out whole.
    pub fn tell_time(&mut self) {
        self.line.tell_time();
    }

    /// Previews go to this file.
    pub fn set_preview(&mut self, file: PreviewFile) {
        self.preview = Some(file);
    }

    /// Long jobs are warned of, and asked for where somebody is there, unless `yes`.
    pub fn confirm(&mut self, yes: bool) {
        self.confirm = Some(Confirm { yes, told: false });
    }

    /// Hears of one thing that happened; a break ends the job.
    pub fn hear(&mut self, event: JobEvent) -> ControlFlow<()> {
        self.line.show(&event);
        match (&event, &mut self.preview, &mut self.confirm) {
            (JobEvent::Preview { width, height, pixels }, Some(preview), _) => {
                preview.show([*width, *height], pixels);
                ControlFlow::Continue(())
            }
            (JobEvent::Planned { plan, report }, _, Some(confirm)) => {
                confirm.ask(plan, &report.advice)
            }
            _ => ControlFlow::Continue(()),
        }
    }

    /// Who hears of a session's executors: they are told of beside the bar, and a signal ends them.
    pub fn executors(&self) -> ExecutorEvents {
        ExecutorEvents(self.line.executors())
    }
}

/// Makes an event of everything that happens to an executor, and shows it.
pub struct ExecutorEvents(ExecutorLines);

impl ExecutorListener for ExecutorEvents {
    fn starting(&mut self, interrupts: Interrupts) {
        interrupt::watch(interrupts);
    }

    fn started(&mut self, pid: u32) {
        self.0.show(&JobEvent::ExecutorStarted { pid });
    }

    fn died(&mut self, error: &SessionError) {
        self.0.show(&JobEvent::ExecutorDied { because: error.to_string() });
    }

    fn silent(&mut self, seconds: u64) {
        self.0.show(&JobEvent::ExecutorSilent { seconds });
    }

    fn answers(&mut self) {
        self.0.show(&JobEvent::ExecutorAnswers);
    }
}
