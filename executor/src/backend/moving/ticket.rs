//! Tickets: what is known of a copy that was handed to an engine.
//!
//! A copy that a GPU does by itself is *issued* once its event is recorded: streams can wait for it
//! then, while this process goes on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use protocol::DeviceId;

use crate::backend::cancel::{CancelFlag, Cancelled};
use crate::backend::cuda::stream::{Event, Stream};
use crate::backend::stopped::Stopped;
use crate::race::{Edge, EventId};

/// How often a waiting thread looks whether its command was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// How often a thread that waits for a GPU's event looks at it, while its command could be
/// cancelled.
const EVENT_INTERVAL: Duration = Duration::from_micros(200);

/// A copy that was handed out. Cloned tickets are of the same copy.
#[derive(Debug, Clone, Default)]
pub struct Ticket {
    state: Arc<TicketState>,
    traced: Option<EventId>,
}

#[derive(Debug, Default)]
struct TicketState {
    end: Mutex<Option<End>>,
    changed: Condvar,
}

/// What is known of a copy's end.
#[derive(Debug, Clone)]
enum End {
    /// It came.
    Ended(Result<(), Stopped>),
    /// It is when an event of this device passes.
    Issued(DeviceId, Arc<Event>),
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

    /// The ticket of a copy that ends when an event passes.
    pub fn issued(device: &DeviceId, event: Event) -> Ticket {
        let ticket = Ticket::default();
        ticket.issue(device, event);
        ticket
    }

    /// Tells how the copy ended; the first word counts.
    pub fn end(&self, result: Result<(), Stopped>) {
        self.tell(End::Ended(result));
    }

    /// Tells that the copy ends when an event of a device passes, which was recorded; the first
    /// word counts.
    pub fn issue(&self, device: &DeviceId, event: Event) {
        self.tell(End::Issued(device.clone(), Arc::new(event)));
    }

    fn tell(&self, end: End) {
        self.state.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
        self.state.changed.notify_all();
    }

    /// Waits for the copy's end, or until a command is cancelled that can do without it.
    pub fn wait_unless(&self, cancel: &CancelFlag) -> Result<(), Stopped> {
        match self.told(Some(cancel))? {
            End::Ended(result) => result,
            End::Issued(device, event) => loop {
                if event.has_passed().map_err(|error| Stopped::driver(&device, &error))? {
                    return Ok(());
                }
                cancel.check()?;
                std::thread::park_timeout(EVENT_INTERVAL);
            },
        }
    }

    /// Waits for the copy's end.
    pub fn wait(&self) -> Result<(), Stopped> {
        match self.told(None)? {
            End::Ended(result) => result,
            End::Issued(device, event) => {
                event.synchronize().map_err(|error| Stopped::driver(&device, &error))
            }
        }
    }

    /// Lets what a stream of `device` does from now on wait for the copy's end, for the sake of
    /// `edge`; this thread waits only until that is an event.
    pub fn order(&self, device: &DeviceId, stream: &Stream, edge: Edge) -> Result<(), Stopped> {
        match self.told(None)? {
            End::Ended(result) => result,
            End::Issued(_, event) => {
                stream.wait(&event, edge).map_err(|error| Stopped::driver(device, &error))
            }
        }
    }

    /// Waits until something is known of the end.
    fn told(&self, cancel: Option<&CancelFlag>) -> Result<End, Cancelled> {
        let mut end = self.state.end.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(end) = &*end {
                return Ok(end.clone());
            }
            let changed = &self.state.changed;
            end = match cancel {
                None => changed.wait(end).unwrap_or_else(PoisonError::into_inner),
                Some(cancel) => {
                    cancel.check()?;
                    let waited = changed.wait_timeout(end, CANCEL_INTERVAL);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
