//! Tickets: what is known of a copy that was handed to an engine.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use protocol::DeviceId;

use super::{CancelFlag, Cancelled};
use crate::race::EventId;

/// How often a waiting thread looks whether its command was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a copy, or a command with it, came to no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The command was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The device does not answer.
    #[error("{0} has failed: a copy to or from it did not end")]
    DeviceFailed(DeviceId),
}

/// A copy that was handed out. Cloned tickets are of the same copy.
#[derive(Debug, Clone, Default)]
pub struct Ticket {
    state: Arc<Event>,
    traced: Option<EventId>,
}

#[derive(Debug, Default)]
struct Event {
    ended: Mutex<Option<Result<(), Stopped>>>,
    changed: Condvar,
}

impl Ticket {
    /// The ticket of a copy that has ended already.
    pub fn ended(result: Result<(), Stopped>) -> Ticket {
        let ticket = Ticket::default();
        ticket.end(result);
        ticket
    }

    /// The same with the event of its end in a trace.
    pub fn with_event(self, event: Option<EventId>) -> Ticket {
        Ticket { traced: event, ..self }
    }

    /// The event of its end in a trace, where one is kept.
    pub fn event(&self) -> Option<EventId> {
        self.traced
    }

    /// Tells how the copy ended; the first word counts.
    pub fn end(&self, result: Result<(), Stopped>) {
        let mut ended = self.state.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.get_or_insert(result);
        self.state.changed.notify_all();
    }

    /// Waits for the copy's end, or until a command is cancelled that can do without it.
    pub fn wait_unless(&self, cancel: &CancelFlag) -> Result<(), Stopped> {
        let mut ended = self.state.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = &*ended {
                return result.clone();
            }
            cancel.check()?;
            let waited = self.state.changed.wait_timeout(ended, CANCEL_INTERVAL);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the copy's end.
    pub fn wait(&self) -> Result<(), Stopped> {
        let mut ended = self.state.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*ended {
                Some(result) => return result.clone(),
                None => {
                    let waited = self.state.changed.wait(ended);
                    ended = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
