//! What the edge takes of a client, each a constant that serve.md §12 gives.

use std::time::Duration;

/// Connections at a time; more wait in the system's queue.
pub const CONNECTIONS_MAX: usize = 256;

/// Connections of one address at a time; more are closed. A browser opens 6.
pub const CLIENT_CONNECTIONS_MAX: usize = 16;

/// Bytes of a request's first line and headers.
pub const HEADER_BYTES_MAX: usize = 16 << 10;

/// From a connection's start, or the end of its last answer, to the end of a request's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a body that holds no picture.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of a body with pictures.
pub const PICTURE_BODY_BYTES_MAX: usize = 64 << 20;

/// From the end of the headers to the end of the body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of all bodies that are held at a time.
pub const BODIES_BYTES_MAX: usize = 256 << 20;

/// Streams of events at a time.
pub const STREAMS_MAX: usize = 64;

/// How long an answer or a stream may wait for a client that does not read.
pub const STREAM_STALL_MAX: Duration = Duration::from_secs(60);

/// From one sign of life on a silent stream to the next.
pub const PING_EVERY: Duration = Duration::from_secs(10);

/// Notes that are kept for clients that come back, or read slowly.
pub const NOTES_KEPT: usize = 1024;

/// How deep arrays and objects of a JSON body may lie in each other.
pub const JSON_DEPTH_MAX: usize = 32;

/// Values of a JSON body. Each takes some 32 bytes in memory, however short it is written.
pub const JSON_VALUES_MAX: usize = 1 << 16;

/// Parts of a form.
pub const FORM_FIELDS_MAX: usize = 128;

/// Wrong tokens of one address in a minute; then it is refused until the minute is over.
pub const WRONG_TOKENS_MAX: u32 = 10;

/// Addresses whose wrong tokens are counted; the oldest is forgotten first.
pub const WRONG_ADDRESSES_MAX: usize = 4096;

/// Threads for files and pictures.
pub const WORKERS_MAX: usize = 4;

/// The limits that a server works by, so that tests need not wait or fill memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeLimits {
    /// Of all clients together: [`CONNECTIONS_MAX`] unless a test sets it.
    pub connections: usize,
    /// Of one client: [`CLIENT_CONNECTIONS_MAX`] unless a test sets it.
    pub client_connections: usize,
    /// [`HEADER_TIMEOUT`], unless a test sets it.
    pub header_timeout: Duration,
    /// [`BODY_TIMEOUT`] unless a test sets it.
    pub body_timeout: Duration,
    /// Held at a time: [`BODIES_BYTES_MAX`] unless a test sets it.
    pub bodies_bytes: usize,
    /// Of all clients together: [`STREAMS_MAX`] unless a test sets it.
    pub streams: usize,
    /// [`STREAM_STALL_MAX`] unless a test sets it.
    pub stream_stall: Duration,
    /// [`PING_EVERY`] unless a test sets it.
    pub ping_every: Duration,
}

impl Default for EdgeLimits {
    fn default() -> EdgeLimits {
        EdgeLimits {
            connections: CONNECTIONS_MAX,
            client_connections: CLIENT_CONNECTIONS_MAX,
            header_timeout: HEADER_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            bodies_bytes: BODIES_BYTES_MAX,
            streams: STREAMS_MAX,
            stream_stall: STREAM_STALL_MAX,
            ping_every: PING_EVERY,
        }
    }
}
