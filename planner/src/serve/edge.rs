//! The HTTP side of the daemon: one thread that turns requests into questions to the desk, and its
//! replies into answers.
//!
//! ```text
//! listen ─► server (connections) ─► guard (host, origin, token) ─► routes ─► native, page, …
//!                                                                   │ Edge::ask: Asked, Left
//! answer(ticket) ─► the waiting handler      tell(note) ─► journal ─► streams of events
//! ```
//! All of it runs on one current-thread runtime of tokio; what computes or touches files goes to a
//! few threads beside it. Nothing outside of `edge/` sees a type of tokio's.
//!
//! Invariants: each question's ticket is answered or the desk is told that who asked has left; all
//! that clients can make grow has a limit ([`limits`]).

pub mod asker;
pub mod body;
pub mod config;
pub mod embedded;
mod encode;
pub mod errors;
pub mod fields;
mod guard;
pub mod hosts;
pub mod journal;
pub mod json;
pub mod keep;
pub mod limits;
mod listen;
pub mod native;
pub mod openai;
pub mod openapi;
pub mod page;
mod polls;
mod rest;
pub mod routes;
pub mod sampler;
pub mod sdapi;
mod server;
pub mod settings;
pub mod shown;
pub mod size;
pub mod sse;
mod stall;
pub mod state;
mod submit;
pub mod table;
pub mod timeline;
pub mod tokens;
mod wrong;

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::desk::action::{Note, Reply};
use super::desk::event::{DeskEvent, Ticket};
use config::EdgeConfig;
use hosts::HostRules;
use listen::Listening;
use settings::EdgeSettings;
use state::{Edge, EdgeParts};
use tokens::{Guardian, TokenError, Tokens};

/// How much longer than its grace the end of the thread is waited for.
const END_GRACE: Duration = Duration::from_secs(2);

/// A server that runs.
pub struct EdgeHandle {
    edge: Edge,
    listening: Listening,
    token_file: Option<PathBuf>,
    ended: Mutex<Receiver<()>>,
}

/// Listens, and answers from a thread of its own.
///
/// # Errors
/// The address cannot be had, there are no tokens where others can reach it, or the token file is
/// none.
pub fn start(config: EdgeConfig, events: Sender<DeskEvent>) -> io::Result<EdgeHandle> {
    let tokens = config.token_file.as_deref().map(Tokens::read).transpose();
    let tokens = tokens.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let hosts = HostRules::new(&config.allowed_hosts, &config.allowed_origins);
    let (sockets, listening) = listen::open(&config.listen)?;
    if listening.others_reach && tokens.is_none() && !config.no_token {
        return Err(invalid(
            "other hosts can reach this address, and there is no token file; \
             hint: set token_file, or start with --no-token",
        ));
    }
    if tokens.is_some() && hosts.allows_any_origin() {
        return Err(invalid(
            "allowed_origins is \"*\" and there are tokens; hint: name the origins that may ask",
        ));
    }
    let token_file = config.token_file;
    let edge = Edge::new(EdgeParts {
        events,
        settings: config.settings,
        limits: config.limits,
        guardian: Guardian::new(tokens),
        hosts,
        metrics: config.metrics,
        inputs: config.inputs,
        pictures: config.pictures,
        records: config.records,
        rescan: config.rescan,
    });
    let served = edge.clone();
    let (ending, ended) = channel();
    thread::Builder::new().name("edge".to_owned()).spawn(move || {
        if let Err(error) = server::run(served, sockets) {
            tracing::error!("the HTTP server has ended: {error}");
        }
        // Whoever waits for the end may have given up.
        let _ = ending.send(());
    })?;
    Ok(EdgeHandle { edge, listening, token_file, ended: Mutex::new(ended) })
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

impl EdgeHandle {
    /// Gives a question its answer.
    pub fn answer(&self, ticket: Ticket, reply: Reply) {
        self.edge.answer(ticket, reply);
    }

    /// How long ago a question was asked; `None` where nobody waits for its answer any more.
    pub fn waited(&self, ticket: Ticket) -> Option<Duration> {
        self.edge.waited(ticket)
    }

    /// Lets all streams of events hear of something.
    pub fn tell(&self, note: Note) {
        self.edge.tell(note);
    }

    /// The first address of TCP that it listens at; `None` where it has none.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listening.address
    }

    /// Where it listens, for people: `http://127.0.0.1:8642, unix:/run/berth.sock`.
    pub fn listening(&self) -> &str {
        &self.listening.text
    }

    /// Replaces what requests are read by.
    pub fn set_settings(&self, settings: EdgeSettings) {
        self.edge.set_settings(settings);
    }

    /// Adds what devices hold now, which `/v1/devices` and `/v1/timeline` show.
    pub fn set_reading(&self, reading: Value) {
        let reading = Arc::new(reading);
        self.edge.timeline().add(Instant::now(), reading.clone());
        self.edge.journal().add_reading(reading);
    }

    /// Reads the token file again. After an error the tokens are as before.
    ///
    /// # Errors
    /// All of [`TokenError`].
    pub fn reload_tokens(&self) -> Result<(), TokenError> {
        if let Some(path) = &self.token_file {
            self.edge.guardian().set_tokens(Tokens::read(path)?);
        }
        Ok(())
    }

    /// Takes no more requests, ends streams, and lets answers that are under way go out for at most
    /// this long.
    pub fn stop(self, grace: Duration) {
        self.edge.stop(grace);
        let ended = self.ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A thread that does not end in time is left behind; the process is about to end.
        let _ = ended.recv_timeout(grace + END_GRACE);
    }
}
