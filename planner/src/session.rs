//! A session: one executor process, from its start to its end.
//!
//! Everything that can happen arrives as one [`SessionEvent`] in one queue:
//! ```text
//! socket        ──thread──► Connected(handshake)        ┐
//! event channel ──thread──► Said(event) … ChannelClosed ├──► queue ──► start, then Session::next_event
//! child process ──thread──► Exited(status)              │
//! Ctrl-C        ──handler─► Interrupted                 ┘
//! ```
//! A dead executor is an event like any other: the kernel ends `wait` and closes the channel, and either
//! wakes the queue at once. Its exit status, last lines and last known phase are in the error. Where nothing is
//! lost by it, the session goes on with another executor ([`executors`]).

pub mod death;
mod executors;
mod spawn;
mod tail;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ipc_channel::ipc::IpcSender;
use protocol::message::Progress;
use protocol::{BackendKind, Command, Event, Failure, FailureKind, Handshake, PROTOCOL_VERSION};

pub use executors::ExecutorListener;
pub use spawn::EXECUTOR_SUBCOMMAND;

use death::Cause;
use executors::Executors;
use spawn::Spawned;

/// How long an executor that lost its channel may take to be gone, or the other way round, before it
/// is ended by force. Freeing gigabytes takes the kernel some tenths of a second.
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
    Interrupted,
}

/// How a command ended other than by its answer.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The executor answered that it failed; it still runs.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The executor is dead.
    #[error("the executor died in the {phase}: {status}{}", last_lines(lines))]
    Died {
        /// The phase it was in, with the step.
        phase: String,
        /// Why, as far as it is known.
        cause: Cause,
        /// Its exit status or signal, for people.
        status: String,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The user asked for the end.
    #[error("cancelled")]
    Cancelled,
    /// The executor could not be started.
    #[error("cannot start the executor {program}: {message}{}", last_lines(lines))]
    Start {
        /// The program.
        program: String,
        /// Why.
        message: String,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The executor said what makes no sense here.
    #[error(
        "the executor answered {got} to {command}; hint: use planner and executor from one release"
    )]
    Confused {
        /// The command.
        command: &'static str,
        /// The answer.
        got: String,
    },
    /// A command that is too large to be meant.
    #[error(transparent)]
    TooLong(#[from] protocol::message::TooLong),
}

impl SessionError {
    /// Whether the executor was killed as memory ran out.
    pub fn is_for_want_of_memory(&self) -> bool {
        matches!(self, SessionError::Died { cause: Cause::OutOfMemory, .. })
    }
}

fn last_lines(lines: &[String]) -> String {
    if lines.is_empty() {
        String::new()
    } else {
        format!("; its last lines:\n  {}", lines.join("\n  "))
    }
}

/// A handle by which a signal handler reaches the session that runs.
#[derive(Debug, Clone)]
pub struct Interrupts(Sender<SessionEvent>);

impl Interrupts {
    /// Asks for the end of what runs.
    pub fn interrupt(&self) {
        // A session that has ended needs no interruption.
        let _ = self.0.send(SessionEvent::Interrupted);
    }
}

/// A running executor.
pub struct Session {
    commands: IpcSender<Command>,
    queue: Receiver<SessionEvent>,
    process: Spawned,
    executors: Executors,
    /// What it does while it tells no progress, as a phase.
    doing: &'static str,
    progress: Option<Progress>,
    exited: Option<ExitStatus>,
    closed: bool,
    interrupted: bool,
    /// The backends that this executor can compute on.
    pub backends: Vec<BackendKind>,
    /// Why it cannot compute on GPUs, as a clause.
    pub why_no_cuda: Option<String>,
    /// Which cuBLASLt it multiplies with on GPUs, or why with none, where that was asked.
    pub cublas: Option<String>,
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
            executors.listener.starting(Interrupts(sender.clone()));
            let (process, commands) = match spawn::spawn(&executors.program, sender, &queue) {
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
                exited: None,
                closed: false,
                interrupted: false,
                backends: Vec::new(),
                why_no_cuda: None,
                cublas: None,
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
            Event::Hello { backends, why_no_cuda, cublas, .. } => {
                Ok((backends, why_no_cuda, cublas))
            }
            other => Err(other),
        })?;
        (self.backends, self.why_no_cuda, self.cublas) = answer;
        Ok(())
    }

    /// Goes on with another executor in place of one that died, if that may help. What was loaded is lost.
    ///
    /// # Errors
    /// The death itself where it cannot help, what keeps another one from starting, or an interruption.
    pub fn restart(&mut self, error: SessionError) -> Result<(), SessionError> {
        self.executors.follow(error)?;
        let fresh = Session::open(self.take_executors())?;
        let dead = std::mem::replace(self, fresh);
        // It may have come after the last look, and before the next executor could hear of it.
        match dead.queue.try_iter().any(|event| matches!(event, SessionEvent::Interrupted)) {
            true => Err(SessionError::Cancelled),
            false => Ok(()),
        }
    }

    /// The deaths since the last call that were followed by another executor, in order.
    pub fn take_deaths(&mut self) -> Vec<SessionError> {
        std::mem::take(&mut self.executors.deaths)
    }

    /// Whether it can compute on GPUs.
    pub fn computes_on_gpus(&self) -> bool {
        self.backends.contains(&BackendKind::Cuda)
    }

    /// The executor's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How far the executor got with the last command; `None` where it did not say.
    pub fn progress(&self) -> Option<Progress> {
        self.progress
    }

    /// Sends a command that changes nothing and waits for its answer, which `expected` recognises; progress in between
    /// is noted. An executor that dies is followed by another one, which is asked the same.
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
        self.send(command)?;
        let event = loop {
            match self.next_event()? {
                Event::Progress(_) | Event::Files(_) => {}
                Event::Failed(failure) => return Err(failure.into()),
                event => break event,
            }
        };
        expected(event).map_err(|got| {
            let mut got = format!("{got:?}");
            got.truncate(got.find([' ', '(']).unwrap_or(got.len()));
            SessionError::Confused { command: name, got }
        })
    }

    /// Sends a command. A closed channel is not an error here: the death that closed it comes as an event.
    pub fn send(&mut self, command: Command) -> Result<(), SessionError> {
        command.check_limits()?;
        self.progress = None;
        self.doing = doing(&command);
        self.tell(command);
        Ok(())
    }

    /// Sends a word about the running command, which goes on.
    pub fn tell(&self, command: Command) {
        if let Err(error) = self.commands.send(command) {
            tracing::debug!(%error, "a command did not reach the executor");
        }
    }

    /// The next thing that the executor says. An interruption cancels the running command and ends with
    /// [`SessionError::Cancelled`] when the executor has confirmed it, or is gone.
    pub fn next_event(&mut self) -> Result<Event, SessionError> {
        let mut interrupted = false;
        let mut deadline: Option<Instant> = None;
        loop {
            if self.closed && self.exited.is_some() {
                return Err(if interrupted { SessionError::Cancelled } else { self.died() });
            }
            let event = match deadline {
                None => self.queue.recv().map_err(RecvTimeoutError::from),
                Some(at) => self.queue.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(SessionEvent::Said(event)) if interrupted => match event {
                    Event::Failed(failure) if failure.kind != FailureKind::Cancelled => {
                        return Err(failure.into());
                    }
                    Event::Files(_)
                    | Event::Notice(_)
                    | Event::Progress(_)
                    | Event::Preview(_)
                    | Event::Image(_)
                    | Event::Tensors(_)
                    | Event::Usage(_) => {}
                    // The confirmation; or the command was finished before the cancel reached it.
                    _ => return Err(SessionError::Cancelled),
                },
                Ok(SessionEvent::Said(event)) => {
                    if let Event::Progress(progress) = event {
                        self.progress = Some(progress);
                    }
                    return Ok(event);
                }
                Ok(SessionEvent::Connected(_)) => unreachable!("a session has connected"),
                Ok(SessionEvent::Interrupted) => {
                    if interrupted {
                        self.process.kill();
                    }
                    interrupted = true;
                    deadline = deadline.or(Some(Instant::now() + CANCEL_GRACE));
                    // Not reaching it means that it is dead, which comes as an event.
                    let _ = self.commands.send(Command::Cancel);
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
                    return Err(SessionError::Cancelled);
                }
                Err(_) => return Err(self.died()),
            }
        }
    }

    /// Says goodbye, and returns when the process is gone.
    pub fn end(mut self) {
        // An executor that is dead already needs no goodbye.
        let _ = self.commands.send(Command::Bye);
        self.wait_for_exit(BYE_GRACE);
    }

    fn wait_for_exit(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        while self.exited.is_none() {
            match self.queue.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(SessionEvent::Exited(status)) => self.exited = Some(status),
                Ok(SessionEvent::Interrupted) => self.interrupted = true,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn died(&mut self) -> SessionError {
        self.process.kill();
        self.wait_for_exit(DEATH_GRACE);
        if self.interrupted {
            return SessionError::Cancelled;
        }
        let phase = match self.progress {
            Some(Progress { phase, step, of }) if of > 1 => {
                format!("{phase} phase ({step} of {of} done)")
            }
            Some(Progress { phase, .. }) => format!("{phase} phase"),
            None => self.doing.to_owned(),
        };
        self.process.died(phase, self.exited)
    }

    /// How its executors are started, for the session that follows this one.
    fn take_executors(&mut self) -> Executors {
        let nobody = Executors::new(&ExecutorProgram::default(), false, Box::new(()));
        std::mem::replace(&mut self.executors, nobody)
    }
}

/// What an executor does by a command, as long as it tells no progress.
fn doing(command: &Command) -> &'static str {
    match command {
        Command::Hello { .. } => "start",
        Command::Inspect { .. } => "inspection of the model",
        Command::Measure { .. } | Command::Size { .. } | Command::Verify { .. } => "planning phase",
        Command::Calibrate { .. } => "calibration",
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
