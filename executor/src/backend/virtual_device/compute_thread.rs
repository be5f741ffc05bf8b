//! The threads of a virtual device that computes beside the host: a queue of nodes, computed in its
//! order while whoever handed them out goes on.
//!
//! ```text
//! run, join, departure ──► queue ──► one after the other: compute, wait for a copy, end a ticket
//! ```
//! It is to a virtual device what a stream is to a GPU. After an error nothing more is computed,
//! and what waits for that hears of the error, until [`ComputeThread::finish`] has told it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use protocol::DeviceId;

use super::{Pace, compute};
use crate::backend::call::{HeldCall, NodeCall};
use crate::backend::kernels::Workers;
use crate::backend::moving::Ticket;
use crate::backend::stopped::Stopped;

/// How many nodes wait in the queue at most: enough that the thread never waits for the next one,
/// few enough that a cancelled run ends soon.
const QUEUED_MAX: usize = 16;

/// A thread that computes, with its helpers.
pub struct ComputeThread {
    /// `None` while it is dropped.
    queue: Option<SyncSender<Work>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<ComputeState>,
}

/// What the thread and its owner share.
struct ComputeState {
    device: DeviceId,
    /// What a node panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

enum Work {
    Compute(HeldCall),
    Wait(Ticket),
    Depart(Departure),
    Finish(Departure),
}

/// A ticket that ends also where nobody comes to it.
struct Departure {
    ticket: Ticket,
    state: Arc<ComputeState>,
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.ticket.end(Err(self.state.stopped()));
    }
}

impl ComputeState {
    fn stopped(&self) -> Stopped {
        let why = "its computation came to no end".to_owned();
        Stopped::DeviceFailed { device: self.device.clone(), why }
    }
}

impl ComputeThread {
    /// Starts it with so many workers, of which it is one.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(device: DeviceId, threads: usize, pace: Pace) -> std::io::Result<ComputeThread> {
        let workers = Workers::new(threads).map_err(std::io::Error::other)?;
        let state = Arc::new(ComputeState { device, panic: Mutex::default() });
        let (queue, works) = sync_channel(QUEUED_MAX);
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name(format!("berth-{}", state.device))
            .spawn(move || serve(&works, &workers, &pace, &shared))?;
        Ok(ComputeThread { queue: Some(queue), thread: Some(thread), state })
    }

    /// Hands out a node.
    pub fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        self.send(Work::Compute(call.held()))
    }

    /// Lets what is handed out from now on wait for a copy.
    pub fn join(&self, ticket: &Ticket) -> Result<(), Stopped> {
        self.send(Work::Wait(ticket.clone()))
    }

    /// Ends when all is computed that was handed out by now.
    pub fn departure(&self) -> Ticket {
        let ticket = Ticket::default();
        // One that is not taken any more ends as it is dropped.
        drop(self.send(Work::Depart(self.departure_of(&ticket))));
        ticket
    }

    /// Waits until all is computed that was handed out; tells an error once.
    ///
    /// # Panics
    /// With what a node panicked with.
    pub fn finish(&self) -> Result<(), Stopped> {
        let ticket = Ticket::default();
        self.send(Work::Finish(self.departure_of(&ticket)))?;
        let finished = ticket.wait();
        let panic = self.state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        match panic {
            Some(panic) => resume_unwind(panic),
            None => finished,
        }
    }

    fn departure_of(&self, ticket: &Ticket) -> Departure {
        Departure { ticket: ticket.clone(), state: Arc::clone(&self.state) }
    }

    fn send(&self, work: Work) -> Result<(), Stopped> {
        let queue = self.queue.as_ref().expect("it is dropped once");
        queue.send(work).map_err(|_| self.state.stopped())
    }
}

impl Drop for ComputeThread {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It catches what a node panics with.
            let _ = thread.join();
        }
    }
}

fn serve(works: &Receiver<Work>, workers: &Workers, pace: &Pace, state: &ComputeState) {
    let mut so_far = Ok(());
    for work in works {
        match work {
            Work::Compute(call) if so_far.is_ok() => {
                let ran = catch_unwind(AssertUnwindSafe(|| compute(&call.call(), workers, pace)));
                if let Err(panic) = ran {
                    *state.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                    so_far = Err(state.stopped());
                }
            }
            Work::Wait(ticket) if so_far.is_ok() => so_far = ticket.wait(),
            Work::Compute(_) | Work::Wait(_) => {}
            Work::Depart(departure) => departure.ticket.end(so_far.clone()),
            Work::Finish(departure) => {
                departure.ticket.end(std::mem::replace(&mut so_far, Ok(())));
            }
        }
    }
}
