//! Server-sent events of a job, read on a thread: the WHATWG's format, as far as the daemon writes
//! it.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::Sender;

use serde_json::Value;

use super::{ClientError, DaemonClient};

/// Longest line that is read: a preview of 512x512 pixels as PNG in base64, and much beside.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What a thread of events tells.
#[derive(Debug)]
pub enum ClientEvent {
    /// One event.
    Told {
        /// Its kind.
        name: String,
        /// Its document.
        data: Value,
        /// Its number, to go on from.
        id: Option<String>,
    },
    /// The daemon is there.
    Ping,
    /// The stream has ended.
    Closed,
    /// The user asked for the end.
    Interrupted,
}

/// Begins to read a job's events, from behind the one that was seen last.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub fn follow(
    daemon: &DaemonClient,
    job: &str,
    seen: Option<&str>,
    sender: Sender<ClientEvent>,
) -> Result<(), ClientError> {
    let stream = daemon.stream(&format!("/v1/jobs/{job}/events"), seen)?;
    let read = move || {
        // Whoever listened may have gone.
        let _ = read(stream, &sender);
        let _ = sender.send(ClientEvent::Closed);
    };
    let thread = std::thread::Builder::new().name("events".to_owned()).spawn(read);
    thread.map(drop).map_err(|error| ClientError::Unreachable {
        url: daemon.base().to_owned(),
        cause: error.to_string(),
    })
}

/// An event that is being read.
#[derive(Default)]
struct Parts {
    name: String,
    data: String,
    id: Option<String>,
}

/// Reads to the stream's end; `None` where nobody listens any more.
fn read(stream: impl Read, sender: &Sender<ClientEvent>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut parts = Parts::default();
    loop {
        let mut line = Vec::new();
        let count = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
        if count == 0 || !line.ends_with(b"\n") {
            return Some(());
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches(['\n', '\r']);
        if let Some(event) = parts.line(line) {
            sender.send(event).ok()?;
        }
    }
}

impl Parts {
    /// Takes a line; an empty one ends an event.
    fn line(&mut self, line: &str) -> Option<ClientEvent> {
        if line.is_empty() {
            let Parts { name, data, id } = std::mem::take(self);
            let data = serde_json::from_str(&data).ok()?;
            return Some(ClientEvent::Told { name, data, id });
        }
        if line.starts_with(':') {
            return Some(ClientEvent::Ping);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            "id" => self.id = Some(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn events_are_read_as_they_are_written() {
        let text = ": ping\n\nevent: progress\nid: a-7\ndata: {\"step\":\ndata: 1}\n\n\
                    event: x\ndata: no document\n\nretry: 3\r\ndata: 2\r\n\r\ndata: 3";
        let (sender, events) = channel();
        read(text.as_bytes(), &sender);
        drop(sender);
        let told: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0], "Ping");
        assert!(told[1].contains("\"progress\"") && told[1].contains("Number(1)"), "{}", told[1]);
        assert!(told[1].contains("a-7") && told[2].contains("Number(2)"), "{told:?}");
    }
}
