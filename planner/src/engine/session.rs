//! A session: one executor process, from its start to its end.
//!
//! Everything that can happen arrives as one [`SessionEvent`] in one queue:
//! ```text
//! socket        ──thread──► Connected(handshake)        ┐
//! event channel ──thread──► Said(event) … ChannelClosed ├──► queue ──► start, then next_event
//! child process ──thread──► Exited(status)              │
//! a signal      ──thread──► Interrupted                 ┘
//! ```
//! A dead executor is an event like any other: the kernel ends `wait` and closes the channel, and
//! either wakes the queue at once. Its exit status, last lines and last known phase are in the
//! error. Where nothing is lost by it, the session goes on with another executor (`executors`).
//!
//! Every wait has an end: an executor that runs sends heartbeats, and one that is silent for longer
//! than the user's [`Patience`] is ended.

pub mod death;
mod descriptors;
mod error;
mod executors;
pub mod folder;
mod interrupts;
pub mod patience;
mod spawn;
mod tail;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use protocol::message::Progress;
use protocol::{BackendKind, Command, Event, FailureKind, Handshake, PROTOCOL_VERSION};

pub use error::SessionError;
pub use executors::{EndBell, ExecutorListener};
pub use interrupts::{InterruptReceipt, Interrupts};
pub use spawn::EXECUTOR_SUBCOMMAND;

use executors::Executors;
use interrupts::Process;
use patience::{Patience, Silence, Verdict};
use spawn::Spawned;

/// How long an executor that lost its channel may take to be gone, or the other way round, before
/// it is ended by force. Freeing gigabytes takes the kernel some tenths of a second.
const DEATH_GRACE: Duration = Duration::from_secs(2);

/// How long an executor may take to end after goodbye.
const BYE_GRACE: Duration = Duration::from_secs(5);

/// How long a cancelled command may take to end before its executor is ended by force.
const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// How to start an executor.
#[derive(Debug, Clone, Default)]
pub struct ExecutorProgram {
    /// The program; `None` for this one, run again.
    pub path: Option<PathBuf>,
    /// Whether its messages are shown as they come.
    pub verbose: bool,
    /// How long it may be silent.
    pub patience: Patience,
}

/// Anything that can happen.
#[derive(Debug)]
pub enum SessionEvent {
    /// The executor shook hands, or tried to.
    Connected(Result<Handshake, String>),
    /// The executor said something.
    Said(Event),
    /// The event channel is closed.
    ChannelClosed,
    /// The executor's process has ended.
    Exited(ExitStatus),
    /// The user asked for the end.
    Interrupted(InterruptReceipt),
}

/// A running executor.
pub struct Session {
    commands: Sender<Command>,
    queue: Receiver<SessionEvent>,
    process: Spawned,
    executors: Executors,
    /// What it does while it tells no progress, as a phase.
    doing: &'static str,
    progress: Option<Progress>,
    silence: Silence,
    exited: Option<ExitStatus>,
    closed: bool,
    interrupted: bool,
    /// The backends that this executor can compute on.
    pub backends: Vec<BackendKind>,
    /// Why it cannot compute on GPUs, as a clause.
    pub why_no_cuda: Option<String>,
    /// Which cuBLASLt it multiplies with on GPUs, or why with none, where that was asked.
    pub cublas: Option<String>,
    /// Which program it is; empty where it does not compute on GPUs.
    pub program: String,
}

impl Session {
    /// Starts an executor and greets it.
    ///
    /// # Errors
    /// It does not start, or dies and so does the one that follows it.
    pub fn start(
        program: &ExecutorProgram,
        listener: impl ExecutorListener + 'static,
    ) -> Result<Session, SessionError> {
        Session::open(Executors::new(program, false, Box::new(listener)))
    }

    /// As [`Session::start`], of an executor that tells of libraries too.
    pub fn start_telling(
        program: &ExecutorProgram,
        listener: impl ExecutorListener + 'static,
    ) -> Result<Session, SessionError> {
        Session::open(Executors::new(program, true, Box::new(listener)))
    }

    fn open(mut executors: Executors) -> Result<Session, SessionError> {
        loop {
            let (sender, queue) = channel();
            let process = Process::default();
            executors.listener.starting(Interrupts::new(sender.clone(), process.clone()));
            let program = &executors.program;
            let silence = Silence::new(program.patience);
            let bell = executors.listener.bell();
            let (process, commands) = match spawn::spawn(program, process, sender, &queue, bell) {
                Ok(spawned) => spawned,
                Err(error) => {
                    executors.follow(error)?;
                    continue;
                }
            };
            let mut session = Session {
                commands,
                queue,
                process,
                executors,
                doing: "",
                progress: None,
                silence,
                exited: None,
                closed: false,
                interrupted: false,
                backends: Vec::new(),
                why_no_cuda: None,
                cublas: None,
                program: String::new(),
            };
            match session.greet() {
                Ok(()) => {
                    session.executors.listener.started(session.process.pid());
                    return Ok(session);
                }
                Err(error) => session.executors.follow(error)?,
            }
            executors = session.take_executors();
        }
    }

    fn greet(&mut self) -> Result<(), SessionError> {
        let libraries = self.executors.libraries;
        let hello = Command::Hello { version: PROTOCOL_VERSION, libraries };
        let answer = self.ask_once("Hello", hello, |event| match event {
            Event::Hello { backends, why_no_cuda, cublas, program, .. } => {
                Ok((backends, why_no_cuda, cublas, program))
            }
            other => Err(other),
        })?;
        (self.backends, self.why_no_cuda, self.cublas, self.program) = answer;
        let Session { backends, why_no_cuda, .. } = &*self;
        tracing::debug!(?backends, ?why_no_cuda, "the executor answers");
        Ok(())
    }

    /// Goes on with another executor in place of one that died, if that may help. What was loaded
    /// is lost.
    ///
    /// # Errors
    /// The death itself where it cannot help, what keeps another one from starting, or an
    /// interruption.
    pub fn restart(&mut self, error: SessionError) -> Result<(), SessionError> {
        self.executors.follow(error)?;
        self.replace_gone()
    }

    /// Goes on with another executor in place of one that is dead, or ends by itself. What was
    /// loaded is lost.
    ///
    /// # Errors
    /// What keeps another one from starting, or an interruption.
    pub fn replace_gone(&mut self) -> Result<(), SessionError> {
        let fresh = Session::open(self.take_executors())?;
        let dead = std::mem::replace(self, fresh);
        // It may have come after the last look, and before the next executor could hear of it.
        let heard = dead.queue.try_iter().find_map(|event| match event {
            SessionEvent::Interrupted(heard) => Some(heard),
            _ => None,
        });
        heard.map_or(Ok(()), |heard| {
            heard.tell();
            Err(SessionError::Cancelled)
        })
    }

    /// Begins another job: its executor may die as often as that of the first one.
    pub fn begin_job(&mut self) {
        self.executors.begin_job();
    }

    /// Between two jobs: whether the executor is gone. An interruption that came too late for the
    /// last job is dropped, and does not end the next one.
    pub fn is_gone(&mut self) -> bool {
        while let Ok(event) = self.queue.try_recv() {
            match event {
                SessionEvent::Interrupted(heard) => heard.tell(),
                SessionEvent::Exited(status) => self.exited = Some(status),
                SessionEvent::ChannelClosed => self.closed = true,
                SessionEvent::Said(Event::Heartbeat) => {}
                other => tracing::warn!(?other, "an event between two jobs"),
            }
        }
        self.closed || self.exited.is_some()
    }

    /// Ends this executor, and goes on with another one. What was loaded is free.
    pub fn renew(&mut self) -> Result<(), SessionError> {
        let fresh = Session::open(self.take_executors())?;
        std::mem::replace(self, fresh).end();
        Ok(())
    }

    /// The deaths since the last call that were followed by another executor, in order.
    pub fn take_deaths(&mut self) -> Vec<SessionError> {
        std::mem::take(&mut self.executors.deaths)
    }

    /// Whether it can compute on GPUs.
    pub fn computes_on_gpus(&self) -> bool {
        self.backends.contains(&BackendKind::Cuda)
    }

    /// How its executors are started.
    pub fn executor_program(&self) -> &ExecutorProgram {
        &self.executors.program
    }

    /// The executor's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How far the executor got with the last command; `None` where it did not say.
    pub fn progress(&self) -> Option<Progress> {
        self.progress
    }

    /// Sends a command that changes nothing and waits for its answer, which `expected` recognises;
    /// progress in between is noted. An executor that dies is followed by another one, which is
    /// asked the same.
    pub fn ask<T>(
        &mut self,
        name: &'static str,
        command: Command,
        expected: impl Fn(Event) -> Result<T, Event>,
    ) -> Result<T, SessionError> {
        loop {
            match self.ask_once(name, command.clone(), &expected) {
                Err(error @ SessionError::Died { .. }) => self.restart(error)?,
                result => return result,
            }
        }
    }

    fn ask_once<T>(
        &mut self,
        name: &'static str,
        command: Command,
        expected: impl Fn(Event) -> Result<T, Event>,
    ) -> Result<T, SessionError> {
        let start = Instant::now();
        self.send(command)?;
        let event = loop {
            match self.next_event()? {
                Event::Progress(_) | Event::Files(_) => {}
                Event::Failed(failure) => return Err(failure.into()),
                event => break event,
            }
        };
        let ms = start.elapsed().as_millis() as u64;
        tracing::debug!(command = name, answer = event.name(), ms, "answered");
        expected(event).map_err(|got| SessionError::Confused { command: name, got: got.name() })
    }

    /// Sends a command. That it does not reach the executor is not an error here: the death that is
    /// the reason comes as an event.
    pub fn send(&mut self, command: Command) -> Result<(), SessionError> {
        command.check_limits()?;
        self.progress = None;
        self.doing = doing(&command);
        self.tell(command);
        Ok(())
    }

    /// Sends a word about the running command, which goes on. It goes to the thread that sends,
    /// which lives for as long as this does.
    pub fn tell(&self, command: Command) {
        tracing::debug!(command = command.name(), "sent");
        let _ = self.commands.send(command);
    }

    /// The next thing that the executor says. An interruption cancels the running command and ends
    /// with [`SessionError::Cancelled`] when the executor has confirmed it, or is gone.
    pub fn next_event(&mut self) -> Result<Event, SessionError> {
        let mut interrupted = false;
        let is_ending = self.closed || self.exited.is_some();
        let mut deadline = is_ending.then(|| Instant::now() + DEATH_GRACE);
        loop {
            if self.closed && self.exited.is_some() {
                return Err(if interrupted { SessionError::Cancelled } else { self.died() });
            }
            let begun = Instant::now();
            let wait =
                deadline.map_or(self.silence.wait(), |at| at.saturating_duration_since(begun));
            match self.queue.recv_timeout(wait) {
                Ok(SessionEvent::Said(event)) => {
                    if self.silence.heard() {
                        self.executors.listener.answers();
                    }
                    match event {
                        Event::Heartbeat => {}
                        event if interrupted => after_cancel(event)?,
                        event => return Ok(self.noted(event)),
                    }
                }
                Ok(SessionEvent::Connected(_)) => unreachable!("a session has connected"),
                Ok(SessionEvent::Interrupted(heard)) => {
                    heard.tell();
                    tracing::debug!("interrupted");
                    interrupted = true;
                    deadline = deadline.or(Some(Instant::now() + CANCEL_GRACE));
                    self.tell(Command::Cancel);
                }
                // What it said before its end still comes: the channel's close is behind that.
                Ok(SessionEvent::Exited(status)) => {
                    self.exited = Some(status);
                    deadline = Some(Instant::now() + DEATH_GRACE);
                }
                Ok(SessionEvent::ChannelClosed) => {
                    self.closed = true;
                    deadline = Some(Instant::now() + DEATH_GRACE);
                }
                Err(_) if interrupted => {
                    self.process.kill();
                    self.wait_for_exit(DEATH_GRACE);
                    return Err(SessionError::Cancelled);
                }
                Err(_) if deadline.is_some() => return Err(self.died()),
                Err(_) => self.silent(begun.elapsed())?,
            }
        }
    }

    /// Notes how far the executor says that it is.
    fn noted(&mut self, event: Event) -> Event {
        if let Event::Progress(progress) = event {
            if self.progress.map(|known| known.phase) != Some(progress.phase) {
                tracing::debug!(phase = %progress.phase, "the executor is in");
            }
            self.progress = Some(progress);
        }
        event
    }

    /// What becomes of an executor that said nothing for one more wait.
    fn silent(&mut self, waited: Duration) -> Result<(), SessionError> {
        let verdict = self.silence.waited(waited);
        let seconds = self.silence.lasted().as_secs_f64().round() as u64;
        match verdict {
            Verdict::Wait => Ok(()),
            Verdict::Tell => {
                self.executors.listener.silent(seconds);
                Ok(())
            }
            Verdict::End => {
                self.process.kill();
                self.wait_for_exit(DEATH_GRACE);
                let lines = self.process.last_lines();
                Err(SessionError::Silent { phase: self.phase(), seconds, lines })
            }
        }
    }

    /// Says goodbye, and returns when the process is gone.
    pub fn end(mut self) {
        self.tell(Command::Bye);
        self.wait_for_exit(BYE_GRACE);
    }

    fn wait_for_exit(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        while self.exited.is_none() {
            match self.queue.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(SessionEvent::Exited(status)) => self.exited = Some(status),
                Ok(SessionEvent::Interrupted(heard)) => {
                    heard.tell();
                    self.interrupted = true;
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn died(&mut self) -> SessionError {
        let by_itself = self.exited.is_some();
        self.process.kill();
        self.wait_for_exit(DEATH_GRACE);
        if self.interrupted {
            return SessionError::Cancelled;
        }
        self.process.died(self.phase(), self.exited, by_itself)
    }

    /// Where the executor was, as far as it said.
    fn phase(&self) -> String {
        match self.progress {
            Some(Progress { phase, step, of }) if of > 1 => {
                format!("{phase} phase ({step} of {of} done)")
            }
            Some(Progress { phase, .. }) => format!("{phase} phase"),
            None => self.doing.to_owned(),
        }
    }

    /// How its executors are started, for the session that follows this one.
    fn take_executors(&mut self) -> Executors {
        let nobody = Executors::new(&ExecutorProgram::default(), false, Box::new(()));
        std::mem::replace(&mut self.executors, nobody)
    }
}

/// What is said after a cancel: it fails with the confirmation, with another failure, or where the
/// command was finished before the cancel reached it.
fn after_cancel(event: Event) -> Result<(), SessionError> {
    match event {
        Event::Failed(failure) if failure.kind != FailureKind::Cancelled => Err(failure.into()),
        Event::Files(_)
        | Event::Notice(_)
        | Event::Progress(_)
        | Event::Preview(_)
        | Event::Output(_)
        | Event::Tensors(_)
        | Event::Usage(_) => Ok(()),
        _ => Err(SessionError::Cancelled),
    }
}

/// What an executor does by a command, as long as it tells no progress.
fn doing(command: &Command) -> &'static str {
    match command {
        Command::Hello { .. } => "start",
        Command::Inspect { .. } => "inspection of the model",
        Command::Measure { .. } | Command::Size { .. } | Command::Verify { .. } => "planning phase",
        Command::Calibrate { .. } => "calibration",
        Command::SelfTest { .. } => "self-test of the GPUs",
        Command::Load { .. } => "load phase",
        Command::Generate { .. } | Command::PreviewTaken => "beginning of the job",
        Command::Cancel | Command::Unload | Command::Bye => "end of the job",
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.exited.is_none() {
            self.process.kill();
            self.wait_for_exit(DEATH_GRACE);
        }
    }
}
