//! From what a job's run calls to plain data: [`JobEvent`]s, in the order in which things happen.

use std::ops::ControlFlow;

use protocol::message::{Preview, Progress};
use protocol::notice::Notice;

use super::session::SessionError;
use super::supervise::Listener;
use crate::job::JobEvent;
use crate::solve::Solution;

/// What hears of a job; a break ends it as cancelled.
pub type EventHandler<'a> = dyn FnMut(JobEvent) -> ControlFlow<()> + 'a;

/// A listener that makes an event of everything it hears.
pub struct Events<'a, 'b>(pub &'a mut EventHandler<'b>);

impl Events<'_, '_> {
    /// Tells of what cannot be answered.
    fn tell(&mut self, event: JobEvent) {
        let _ = (self.0)(event);
    }

    /// Tells of what may be answered by the job's end.
    fn ask(&mut self, event: JobEvent) -> Result<(), SessionError> {
        match (self.0)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(SessionError::Cancelled),
        }
    }
}

impl Listener for Events<'_, '_> {
    fn planned(&mut self, solution: &Solution) -> Result<(), SessionError> {
        let event = JobEvent::Planned {
            plan: Box::new(solution.plan.clone()),
            report: Box::new(solution.report.clone()),
        };
        self.ask(event)
    }

    fn reused(&mut self) -> Result<(), SessionError> {
        self.ask(JobEvent::Reused)
    }

    fn progress(&mut self, progress: Progress) {
        self.tell(JobEvent::Progress(progress));
    }

    fn preview(&mut self, preview: &Preview) {
        let Preview { width, height, pixels } = preview;
        // The executor writes the next one into the same memory.
        let pixels = pixels.to_vec();
        self.tell(JobEvent::Preview { width: *width, height: *height, pixels });
    }

    fn notice(&mut self, notice: &Notice) {
        self.tell(JobEvent::Noticed { notice: notice.clone() });
    }

    fn retrying(&mut self, error: &SessionError) {
        let device = error.failed_device().cloned();
        self.tell(JobEvent::Retrying { because: error.to_string(), device });
    }
}
