//! The way from a signal to the session that runs, and to its executor's process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Signal, pidfd_send_signal};

use super::SessionEvent;

/// An executor's process by handle, once there is one: the id of an ended process may belong to
/// another by now.
#[derive(Debug, Clone, Default)]
pub struct Process(Arc<OnceLock<OwnedFd>>);

impl Process {
    /// The process of this handle; the first one stays.
    pub fn set(&self, handle: OwnedFd) {
        // A session starts one process.
        let _ = self.0.set(handle);
    }

    /// Ends the process by force.
    pub fn kill(&self) {
        if let Some(handle) = self.0.get() {
            // It may have ended already.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }

    /// Waits for its end, so long at most.
    fn await_end(&self, grace: Duration) {
        if let (Some(handle), Ok(grace)) = (self.0.get(), Timespec::try_from(grace)) {
            // That the wait itself fails changes nothing: this process is about to end.
            let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&grace));
        }
    }
}

/// Tells the signal's thread that somebody listens.
#[derive(Debug)]
pub struct InterruptReceipt(Sender<()>);

impl InterruptReceipt {
    /// What was asked for is being done.
    pub fn tell(&self) {
        // The signal's thread may have waited long enough.
        let _ = self.0.send(());
    }
}

/// A handle by which a signal handler reaches the session that runs.
#[derive(Debug, Clone)]
pub struct Interrupts {
    queue: Sender<SessionEvent>,
    process: Process,
}

impl Interrupts {
    pub(super) fn new(queue: Sender<SessionEvent>, process: Process) -> Interrupts {
        Interrupts { queue, process }
    }

    /// Asks for the end of what runs. Whether somebody heard it within this time: a planner that
    /// computes does not listen, and the session may be over.
    pub fn interrupt(&self, grace: Duration) -> bool {
        self.ask_for_end().is_some_and(|answer| answer.recv_timeout(grace).is_ok())
    }

    /// Asks for the end of what runs, and does not wait: the answer comes when somebody hears it,
    /// which ends what runs then, or, where nothing does, when the next job begins, which it does
    /// not end. `None` where the session is over.
    pub fn ask_for_end(&self) -> Option<Receiver<()>> {
        let (heard, answer) = channel();
        let sent = self.queue.send(SessionEvent::Interrupted(InterruptReceipt(heard)));
        sent.is_ok().then_some(answer)
    }

    /// Ends the executor by force, and waits so long at most until it is gone.
    pub fn kill(&self, grace: Duration) {
        self.process.kill();
        self.process.await_end(grace);
    }
}
