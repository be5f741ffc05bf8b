//! Streams of server-sent events: a task writes, a bounded channel lies between it and the client.
//!
//! Who writes finds out that the client has gone ([`EventWriter::closed`], or [`StreamEnded`]), and
//! gives up on one that does not read.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use super::errors::EdgeError;
use super::state::Edge;

/// Events between writer and client.
const EVENTS_WAITING: usize = 16;

/// The client has gone, or does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEnded;

/// The writing end of a stream; the stream ends when it is dropped.
pub struct EventWriter {
    sender: mpsc::Sender<Bytes>,
    stall: Duration,
    _room: OwnedSemaphorePermit,
}

/// A new stream: its writer, and the answer that carries it.
///
/// # Errors
/// There are too many already (503).
pub fn channel(edge: &Edge) -> Result<(EventWriter, Response), EdgeError> {
    let room = edge.stream_room().ok_or_else(|| {
        let message = "too many streams of events at a time; hint: close one, or ask for state";
        EdgeError::new(StatusCode::SERVICE_UNAVAILABLE, "queue_full", message)
    })?;
    let (sender, events) = mpsc::channel(EVENTS_WAITING);
    let writer = EventWriter { sender, stall: edge.limits().stream_stall, _room: room };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((writer, (headers, Body::from_stream(Waiting(events))).into_response()))
}

impl EventWriter {
    /// Writes an event.
    ///
    /// # Errors
    /// Nobody reads it.
    pub async fn event(
        &self,
        name: Option<&str>,
        id: Option<&str>,
        data: &impl Serialize,
    ) -> Result<(), StreamEnded> {
        let text = serde_json::to_string(data).expect("what is told has texts as its keys");
        self.text(name, id, &text).await
    }

    /// Writes an event whose data is no JSON, as OpenAI's `[DONE]`.
    ///
    /// # Errors
    /// Nobody reads it.
    pub async fn text(
        &self,
        name: Option<&str>,
        id: Option<&str>,
        data: &str,
    ) -> Result<(), StreamEnded> {
        self.send(frame(name, id, data)).await
    }

    /// Writes what clients skip: a sign of life.
    ///
    /// # Errors
    /// Nobody reads it.
    pub async fn comment(&self, text: &str) -> Result<(), StreamEnded> {
        self.send(format!(": {}\n\n", text.replace(['\r', '\n'], " "))).await
    }

    /// Returns when the client has gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    async fn send(&self, text: String) -> Result<(), StreamEnded> {
        match timeout(self.stall, self.sender.send(text.into())).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StreamEnded),
        }
    }
}

/// An event as it is written (WHATWG HTML, section 9.2).
fn frame(name: Option<&str>, id: Option<&str>, data: &str) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key}: {value}").expect("a text takes all that is written to it");
    };
    if let Some(id) = id {
        line("id", id);
    }
    if let Some(name) = name {
        line("event", name);
    }
    for part in data.split('\n') {
        line("data", part);
    }
    text.push('\n');
    text
}

struct Waiting(mpsc::Receiver<Bytes>);

impl Stream for Waiting {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_line_for_each_of_its_parts() {
        assert_eq!(frame(Some("state"), Some("7"), "{}"), "id: 7\nevent: state\ndata: {}\n\n");
        assert_eq!(frame(None, None, "a\nb"), "data: a\ndata: b\n\n");
    }
}
