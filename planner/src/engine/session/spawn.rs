//! Starts an executor process: handshake, watch threads, and its end.

use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use protocol::{Command, Event, Handshake};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::death::{Cause, Death, KernelCounts};
use super::interrupts::Process;
use super::patience::{Patience, Silence};
use super::tail::Tail;
use super::{
    DEATH_GRACE, EndBell, ExecutorProgram, SessionError, SessionEvent, descriptors, folder,
};

/// The hidden subcommand by which `berth` runs itself as the executor.
pub const EXECUTOR_SUBCOMMAND: &str = "executor";

/// A started process.
pub struct Spawned {
    process: Process,
    pid: u32,
    tail: Tail,
    /// Before it began.
    counted: KernelCounts,
}

impl Spawned {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process by force.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// The last lines that it wrote.
    pub fn last_lines(&self) -> Vec<String> {
        self.tail.lines()
    }

    /// Tells of its death in a phase, by its exit status where that is known. It may have had to be
    /// ended: not `by_itself`.
    pub fn died(&self, phase: String, status: Option<ExitStatus>, by_itself: bool) -> SessionError {
        let ended = !by_itself && status.and_then(|of| of.signal()) == Some(Signal::KILL.as_raw());
        let death = status.map(|status| self.counted.death(status));
        let (cause, status) = match death {
            Some(Death { cause: Cause::Accident, .. }) if ended => {
                (Cause::Accident, "it closed its channel, and was ended".to_owned())
            }
            Some(Death { cause, words }) => (cause, words),
            None => (Cause::Accident, "no exit status".to_owned()),
        };
        SessionError::Died { phase, cause, status, lines: self.last_lines() }
    }
}

/// Starts the program and shakes hands. What it hears of meanwhile, an interruption too, comes by
/// `events`, whose other end `queue` is. The process's end comes there too, and then rings `bell`.
pub fn spawn(
    program: &ExecutorProgram,
    process: Process,
    queue: Sender<SessionEvent>,
    events: &Receiver<SessionEvent>,
    bell: Option<EndBell>,
) -> Result<(Spawned, Sender<Command>), SessionError> {
    let name = match &program.path {
        Some(path) => path.display().to_string(),
        None => "(this program)".to_owned(),
    };
    let failed = |message: String, lines: Vec<String>| SessionError::Start {
        program: name.clone(),
        message,
        lines,
    };
    let io_failed = |error: std::io::Error| failed(error.to_string(), Vec::new());

    descriptors::check().map_err(|error| failed(error.to_string(), Vec::new()))?;
    folder::prepare().map_err(|error| failed(error.to_string(), Vec::new()))?;
    let (server, server_name) = IpcOneShotServer::<Handshake>::new().map_err(io_failed)?;
    let counted = KernelCounts::now();
    let mut child = start(program, &server_name).map_err(io_failed)?;
    let pid = child.id();
    tracing::debug!(program = name, pid, socket = server_name, "started the executor");
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(|error| io_failed(error.into()))?;
    process.set(handle);
    let stderr = child.stderr.take().expect("stderr was asked for");
    let tail = Tail::follow(stderr, program.verbose).map_err(io_failed)?;
    let spawned = Spawned { process, pid, tail, counted };

    // `accept` waits for ever if the child ends first: it waits on a thread, beside the child.
    let connected = queue.clone();
    let accept = move || {
        let handshake = server.accept().map(|(_, handshake)| handshake);
        // The receiver is gone only when nobody waits for this any more.
        let _ =
            connected.send(SessionEvent::Connected(handshake.map_err(|error| error.to_string())));
    };
    thread("executor-accept", accept).map_err(io_failed)?;
    let exited = queue.clone();
    let wait = move || {
        let _ = exited.send(SessionEvent::Exited(wait(child)));
        if let Some(ring) = bell {
            ring();
        }
    };
    thread("executor-wait", wait).map_err(io_failed)?;

    let first = first_event(events, program.patience);
    if let Some(SessionEvent::Connected(Ok(Handshake { commands, events }))) = first {
        thread("executor-events", move || forward(&events, queue)).map_err(io_failed)?;
        let (sender, queued) = channel();
        thread("executor-commands", move || pass_on(&queued, &commands)).map_err(io_failed)?;
        return Ok((spawned, sender));
    }
    let mut exited = match &first {
        Some(SessionEvent::Exited(status)) => Some(*status),
        _ => None,
    };
    let mut accepted = matches!(first, Some(SessionEvent::Connected(_)));
    let mut interrupted = matches!(first, Some(SessionEvent::Interrupted(_)));
    // Where its end of the socket was closed, it is ending by itself, and its own status tells why.
    if !accepted {
        spawned.kill();
        // The thread that accepts is not left behind, unless it cannot be woken.
        accepted = !connect_in_its_place(&server_name);
    }
    let deadline = Instant::now() + DEATH_GRACE;
    while exited.is_none() || !accepted {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(SessionEvent::Exited(status)) => exited = Some(status),
            Ok(SessionEvent::Connected(_)) => accepted = true,
            Ok(SessionEvent::Interrupted(heard)) => {
                heard.tell();
                interrupted = true;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    spawned.kill();
    if interrupted {
        return Err(SessionError::Cancelled);
    }
    let by_itself = matches!(first, Some(SessionEvent::Exited(_) | SessionEvent::Connected(_)));
    if let Some(status) = exited.filter(|status| by_itself && status.signal().is_some()) {
        return Err(spawned.died("start".to_owned(), Some(status), by_itself));
    }
    let message = match first {
        Some(SessionEvent::Exited(status)) => {
            format!("it ended at once, {}", spawned.counted.death(status).words)
        }
        Some(SessionEvent::Connected(Err(message))) => message,
        _ => format!(
            "it did not shake hands within {} s; hint: --executor names an executor of this release",
            program.patience.handshake().as_secs()
        ),
    };
    Err(failed(message, spawned.last_lines()))
}

/// The first thing that happens after the start; `None` where that takes too long.
fn first_event(events: &Receiver<SessionEvent>, patience: Patience) -> Option<SessionEvent> {
    let mut silence = Silence::new(patience);
    while silence.lasted() < patience.handshake() {
        let begun = Instant::now();
        if let Ok(event) = events.recv_timeout(silence.wait()) {
            if let SessionEvent::Interrupted(heard) = &event {
                heard.tell();
            }
            return Some(event);
        }
        // The verdict is of those who have shaken hands.
        silence.waited(begun.elapsed());
    }
    None
}

fn start(program: &ExecutorProgram, server_name: &str) -> std::io::Result<Child> {
    let mut command = match &program.path {
        Some(path) => Program::new(path),
        None => {
            let mut command = Program::new(std::env::current_exe()?);
            command.arg(EXECUTOR_SUBCOMMAND);
            command
        }
    };
    command
        .arg(server_name)
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A group of its own: Ctrl-C is for the planner, which cancels in order.
        .process_group(0)
        .spawn()
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

fn wait(mut child: Child) -> ExitStatus {
    loop {
        match child.wait() {
            Ok(status) => return status,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // It has ended: who was started with SIGCHLD ignored learns no more than that.
            Err(_) => return ExitStatus::default(),
        }
    }
}

fn forward(events: &IpcReceiver<Event>, queue: Sender<SessionEvent>) {
    // However this thread ends, the session hears of it.
    let closing = ClosingGuard(queue);
    while let Ok(event) = events.recv() {
        if closing.0.send(SessionEvent::Said(event)).is_err() {
            return;
        }
    }
}

/// Sends commands in order. A large one to an executor that is stopped waits here, and not where
/// its silence is counted.
fn pass_on(queued: &Receiver<Command>, commands: &IpcSender<Command>) {
    while let Ok(command) = queued.recv() {
        let name = command.name();
        // Not reaching it means that it is dead, which comes as an event.
        if let Err(error) = commands.send(command) {
            tracing::debug!(command = name, %error, "did not reach the executor");
        }
    }
}

/// Tells that the event channel is closed, when it is dropped.
struct ClosingGuard(Sender<SessionEvent>);

impl Drop for ClosingGuard {
    fn drop(&mut self) {
        // The session may be over.
        let _ = self.0.send(SessionEvent::ChannelClosed);
    }
}

/// Wakes a thread that accepts, in place of a child that will not connect. Whether it could be
/// reached.
fn connect_in_its_place(server_name: &str) -> bool {
    let connect = || -> Result<(), Box<dyn std::error::Error>> {
        let (commands, _) = ipc::channel()?;
        let (_, events) = ipc::channel()?;
        IpcSender::connect(server_name.to_owned())?.send(Handshake { commands, events })?;
        Ok(())
    };
    let connected = connect();
    if let Err(error) = &connected {
        tracing::debug!(%error, "the one-shot server was gone already");
    }
    connected.is_ok()
}
