//! A `berth` that is watched while it runs, and processes held by handle.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::support::Ended;

/// How long anything may take that has no limit of its own: a test fails instead of hanging.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A process by handle: its id may be another's when it has ended.
pub struct Process {
    /// Its id.
    pub pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// A running process.
    pub fn open(pid: u32) -> Process {
        Process::open_running(pid).expect("the process runs")
    }

    /// A process, if it still runs or was not waited for yet.
    pub fn open_running(pid: u32) -> Option<Process> {
        let raw = Pid::from_raw(i32::try_from(pid).expect("an id")).expect("an id above zero");
        let handle = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        Some(Process { pid, handle })
    }

    /// Sends a signal, which may find it ended but not yet waited for.
    pub fn send(&self, signal: Signal) {
        pidfd_send_signal(&self.handle, signal).expect("it has not been waited for");
    }

    /// Whether it ends within this time; a process that nobody waited for yet has ended too.
    pub fn ends_within(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a short time");
        let mut watched = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut watched, Some(&time)).expect("a handle can be polled") > 0
    }
}

/// A running `berth`.
pub struct Watched {
    child: Child,
    /// It, by handle.
    pub process: Process,
    lines: Receiver<String>,
    seen: Vec<String>,
    stdout: Option<JoinHandle<String>>,
}

impl Watched {
    /// Starts it; what it writes is read as it comes.
    pub fn start(mut command: Command) -> Watched {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("berth starts");
        let process = Process::open(child.id());
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut stdout = child.stdout.take().expect("it is piped");
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("it writes text");
            text
        });
        Watched { child, process, lines, seen: Vec::new(), stdout: Some(stdout) }
    }

    /// Waits for a line on standard error that starts so.
    pub fn line(&mut self, start: &str) -> String {
        let line = self.line_before_end(start);
        line.unwrap_or_else(|| {
            panic!("no line starts with {start:?} in:\n{}", self.seen.join("\n"))
        })
    }

    /// Waits for a line on standard error that starts so; `None` where it ends without one.
    pub fn line_before_end(&mut self, start: &str) -> Option<String> {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).ok()?;
            self.seen.push(line.clone());
            if line.starts_with(start) {
                return Some(line);
            }
        }
    }

    /// Waits until it tells of a new executor.
    pub fn executor(&mut self) -> Process {
        let line = self.line("berth: executor ");
        let pid = line.split(' ').nth(2).and_then(|word| word.parse().ok());
        Process::open(pid.unwrap_or_else(|| panic!("{line}")))
    }

    /// Waits for its end, which must come within this time.
    pub fn end(mut self, within: Duration) -> Ended {
        let ended = self.process.ends_within(within);
        assert!(ended, "it still runs after {within:?}:\n{}", self.seen.join("\n"));
        let code = self.child.wait().expect("it can be waited for").code();
        let stdout = self.stdout.take().expect("taken here only").join().expect("it was read");
        self.seen.extend(self.lines.iter());
        Ended { code, stdout, stderr: self.seen.join("\n") }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have ended; a test that failed must leave no process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
