//! Tells the planner that this process runs: a long computation keeps the main loop from saying so,
//! a stopped process keeps every thread from it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ipc_channel::ipc::IpcSender;
use protocol::Event;
use protocol::limits::HEARTBEAT_MS;

/// A thread that sends heartbeats until this is dropped.
pub struct Heartbeat {
    _end: Sender<()>,
}

impl Heartbeat {
    /// Begins to send an event at each interval.
    pub fn start(events: IpcSender<Event>) -> io::Result<Heartbeat> {
        let (end, ended) = channel();
        let body = move || beat(&events, &ended);
        std::thread::Builder::new().name("heartbeat".to_owned()).spawn(body)?;
        Ok(Heartbeat { _end: end })
    }
}

/// Ends when the main loop does, or when nobody listens: the reader thread ends the process then.
fn beat(events: &IpcSender<Event>, ended: &Receiver<()>) {
    let pause = Duration::from_millis(HEARTBEAT_MS);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        if events.send(Event::Heartbeat).is_err() {
            return;
        }
    }
}
