//! Starts an executor process: handshake, watch threads, and its end.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use protocol::{Command, Event, Handshake};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, getrlimit, pidfd_open, pidfd_send_signal,
};

use super::death::{Cause, Counted, Death};
use super::tail::Tail;
use super::{DEATH_GRACE, ExecutorProgram, SessionError, SessionEvent};

/// The hidden subcommand by which `berth` runs itself as the executor.
pub const EXECUTOR_SUBCOMMAND: &str = "executor";

/// How long an executor may take to connect.
const CONNECT_GRACE: Duration = Duration::from_secs(20);

/// A started process.
pub struct Spawned {
    handle: OwnedFd,
    pid: u32,
    tail: Tail,
    /// Before it began.
    counted: Counted,
}

impl Spawned {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process by force. By handle: the id of an ended process may belong to another by now.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }

    /// The last lines that it wrote.
    pub fn last_lines(&self) -> Vec<String> {
        self.tail.lines()
    }

    /// Tells of its death in a phase, by its exit status where that is known.
    pub fn died(&self, phase: String, status: Option<ExitStatus>) -> SessionError {
        let death = status.map(|status| self.counted.death(status));
        let (cause, status) = match death {
            Some(Death { cause, words }) => (cause, words),
            None => (Cause::Accident, "no exit status".to_owned()),
        };
        SessionError::Died { phase, cause, status, lines: self.last_lines() }
    }
}

/// Starts the program and shakes hands. What it hears of meanwhile, an interruption too, comes by `events`,
/// whose other end `queue` is.
pub fn spawn(
    program: &ExecutorProgram,
    queue: Sender<SessionEvent>,
    events: &Receiver<SessionEvent>,
) -> Result<(Spawned, IpcSender<Command>), SessionError> {
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

    let (server, server_name) = IpcOneShotServer::<Handshake>::new().map_err(io_failed)?;
    let counted = Counted::now();
    let mut child = match start(program, &server_name) {
        Ok(child) => child,
        Err(error) => {
            release(server_name, server);
            return Err(io_failed(error));
        }
    };
    let pid = child.id();
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .map_err(|error| io_failed(error.into()))?;
    let stderr = child.stderr.take().expect("stderr was asked for");
    let tail = Tail::follow(stderr, program.verbose).map_err(io_failed)?;
    let spawned = Spawned { handle, pid, tail, counted };

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
    };
    thread("executor-wait", wait).map_err(io_failed)?;

    let first = events.recv_timeout(CONNECT_GRACE);
    if let Ok(SessionEvent::Connected(Ok(Handshake { commands, events }))) = first {
        thread("executor-events", move || forward(&events, &queue)).map_err(io_failed)?;
        return Ok((spawned, commands));
    }
    let mut exited = match &first {
        Ok(SessionEvent::Exited(status)) => Some(*status),
        _ => None,
    };
    let mut accepted = matches!(first, Ok(SessionEvent::Connected(_)));
    let mut interrupted = matches!(first, Ok(SessionEvent::Interrupted));
    // Where its end of the socket was closed, it is ending by itself, and its own status tells why.
    if !accepted {
        spawned.kill();
        connect_in_its_place(&server_name);
    }
    // The socket is removed when the accepting thread has ended, and it must not outlive this process.
    let deadline = Instant::now() + DEATH_GRACE;
    while exited.is_none() || !accepted {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(SessionEvent::Exited(status)) => exited = Some(status),
            Ok(SessionEvent::Connected(_)) => accepted = true,
            Ok(SessionEvent::Interrupted) => interrupted = true,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    spawned.kill();
    if interrupted {
        return Err(SessionError::Cancelled);
    }
    let by_itself = matches!(first, Ok(SessionEvent::Exited(_) | SessionEvent::Connected(_)));
    if let Some(status) = exited.filter(|status| by_itself && status.signal().is_some()) {
        return Err(spawned.died("start".to_owned(), Some(status)));
    }
    let message = match first {
        Ok(SessionEvent::Exited(status)) => {
            format!("it ended at once, {}", spawned.counted.death(status).words)
        }
        Ok(SessionEvent::Connected(Err(message))) => message,
        _ => format!("it did not connect within {} s", CONNECT_GRACE.as_secs()),
    };
    Err(failed(message, spawned.last_lines()))
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
    // glibc reserves 64 MiB of address space for each thread's heap, which would be most of a limited one.
    if getrlimit(Resource::As).current.is_some() {
        command.env("MALLOC_ARENA_MAX", "1");
    }
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
        if let Ok(status) = child.wait() {
            return status;
        }
    }
}

fn forward(events: &IpcReceiver<Event>, queue: &Sender<SessionEvent>) {
    while let Ok(event) = events.recv() {
        if queue.send(SessionEvent::Said(event)).is_err() {
            return;
        }
    }
    // The session may be over.
    let _ = queue.send(SessionEvent::ChannelClosed);
}

/// Removes the server's socket when no child will connect to it.
fn release(server_name: String, server: IpcOneShotServer<Handshake>) {
    connect_in_its_place(&server_name);
    drop(server.accept());
}

/// Wakes a thread that accepts, in place of a child that will not connect.
fn connect_in_its_place(server_name: &str) {
    let connect = || -> Result<(), Box<dyn std::error::Error>> {
        let (commands, _) = ipc::channel()?;
        let (_, events) = ipc::channel()?;
        IpcSender::connect(server_name.to_owned())?.send(Handshake { commands, events })?;
        Ok(())
    };
    if let Err(error) = connect() {
        tracing::debug!(%error, "the one-shot server was gone already");
    }
}
