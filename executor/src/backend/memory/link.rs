//! A link between a virtual device and the host: when it is free again, and until when a copy
//! occupies it.
//!
//! Copies in both directions and of all queues share it, a piece at a time in the order in which
//! they ask.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Largest piece that is carried at a time: 2 ms of a 64 MiB/s link.
pub const PIECE_BYTES_MAX: usize = 128 << 10;

/// Longest time that one piece takes on a slow link, so that a cancelled load ends soon.
const PIECE_SECONDS_MAX: f64 = 0.02;

/// How far back a link's idle time may be used by a piece that was ready then: what a timer's
/// lateness and the start of a thread cost, which a device's own engine would not lose.
pub const LATENESS_MAX: Duration = Duration::from_millis(2);

/// Shorter waits than a timer can do are left to add up.
const WAIT_MIN: Duration = Duration::from_micros(150);

/// What carries between the host and a virtual device, a piece at a time.
#[derive(Debug)]
pub struct Link {
    bytes_per_s: f64,
    free_at: Mutex<Instant>,
}

impl Link {
    /// A free link of this rate.
    pub fn new(bytes_per_s: f64) -> Link {
        assert!(bytes_per_s > 0.0, "a link without a rate");
        Link { bytes_per_s, free_at: Mutex::new(Instant::now()) }
    }

    /// How much to carry at a time.
    pub fn piece_bytes(&self) -> usize {
        ((self.bytes_per_s * PIECE_SECONDS_MAX) as usize).clamp(1, PIECE_BYTES_MAX)
    }

    /// Takes the link for a piece that was ready at `since`; the answer is when the link will have
    /// carried it.
    pub fn carry(&self, bytes: usize, since: Instant) -> Instant {
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let late = Instant::now().checked_sub(LATENESS_MAX).unwrap_or(since);
        let start = free_at.max(since).max(late);
        *free_at = start + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        *free_at
    }
}

/// Returns when a link has carried a piece.
pub fn wait_until(end: Instant) {
    let now = Instant::now();
    if end > now + WAIT_MIN {
        std::thread::sleep(end - now);
    }
}
