//! The executors of one session, one after the other: where one dies, the next takes its place if
//! that may help.
//!
//! A question that changes nothing, as all but `Load` and `Generate`, is then asked again by the
//! session itself. What was loaded is lost: that a job begins anew is
//! [`crate::engine::supervise`]'s to decide, with the same count of deaths.

use super::death::Cause;
use super::{ExecutorProgram, Interrupts, SessionError};

/// How often a job goes on with another executor.
const RESTARTS_MAX: u32 = 1;

/// Told of an executor's end.
pub type EndBell = Box<dyn FnOnce() + Send>;

/// Hears of a session's executors.
pub trait ExecutorListener {
    /// One is about to start; by this handle even that can be interrupted.
    fn starting(&mut self, interrupts: Interrupts);
    /// What is called, on a thread of its own, once the process of the one that is about to start
    /// has ended: so that whoever listens to nothing then looks at the session again.
    fn bell(&self) -> Option<EndBell> {
        None
    }
    /// One runs, and has this process id.
    fn started(&mut self, pid: u32);
    /// One died, and another one is about to start.
    fn died(&mut self, error: &SessionError);
    /// The executor has said nothing for `seconds`; it is still waited for.
    fn silent(&mut self, seconds: u64);
    /// One that was silent is heard again.
    fn answers(&mut self);
}

/// Nobody listens.
impl ExecutorListener for () {
    fn starting(&mut self, _: Interrupts) {}
    fn started(&mut self, _: u32) {}
    fn died(&mut self, _: &SessionError) {}
    fn silent(&mut self, _: u64) {}
    fn answers(&mut self) {}
}

/// How a session starts its executors, and which of them died.
pub struct Executors {
    /// What is started, and started again.
    pub program: ExecutorProgram,
    /// Whether they are to tell of libraries too.
    pub libraries: bool,
    /// Who hears of them.
    pub listener: Box<dyn ExecutorListener>,
    restarts: u32,
    /// Those that died and were followed by another, since they were last asked for.
    pub deaths: Vec<SessionError>,
}

impl Executors {
    /// Of a session that has none yet.
    pub fn new(
        program: &ExecutorProgram,
        libraries: bool,
        listener: Box<dyn ExecutorListener>,
    ) -> Executors {
        let program = program.clone();
        Executors { program, libraries, listener, restarts: 0, deaths: Vec::new() }
    }

    /// Counts deaths anew: those that nobody has asked for yet, as of looking at the model, are of
    /// the job that begins.
    pub fn begin_job(&mut self) {
        self.restarts = self.deaths.len() as u32;
    }

    /// Takes note of a death that another executor is to follow.
    ///
    /// # Errors
    /// The death itself, where none may; or what was no death.
    pub fn follow(&mut self, error: SessionError) -> Result<(), SessionError> {
        let SessionError::Died { cause, .. } = &error else { return Err(error) };
        let in_vain = matches!(cause, Cause::CpuLimit | Cause::FileSizeLimit);
        if in_vain || self.restarts == RESTARTS_MAX {
            return Err(error);
        }
        self.restarts += 1;
        self.listener.died(&error);
        self.deaths.push(error);
        Ok(())
    }
}
