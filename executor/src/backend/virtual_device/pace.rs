//! The pace of a virtual device that computes slower than the host's kernels: after each operation
//! its thread waits for what the operation would have taken longer there.
//!
//! Waits shorter than a timer can do are owed and made up for later, and so is what a timer is
//! late. Copies go on meanwhile: they have threads of their own.

use std::cell::Cell;
use std::time::{Duration, Instant};

use protocol::limits::SPEED_MIN;

use crate::backend::memory::{LATENESS_MAX, wait_until};

/// How much longer operations take.
#[derive(Debug)]
pub struct Pace {
    /// Seconds to wait for each second that was computed.
    wait_per_second: f64,
    /// Seconds that are still to be waited; below zero after a timer that was late.
    owed_s: Cell<f64>,
}

impl Pace {
    /// For a device that computes at this part of the host kernels' speed: [`SPEED_MIN`] to 1.
    pub fn new(speed: f64) -> Pace {
        assert!((SPEED_MIN..=1.0).contains(&speed), "a speed of {speed}");
        Pace { wait_per_second: 1.0 / speed - 1.0, owed_s: Cell::new(0.0) }
    }

    /// Waits after an operation that took so long, for as long as a timer can.
    pub fn computed(&self, time: Duration) {
        let owed_s = self.owed_s.get() + time.as_secs_f64() * self.wait_per_second;
        if owed_s <= 0.0 {
            self.owed_s.set(owed_s);
            return;
        }
        let start = Instant::now();
        wait_until(start + Duration::from_secs_f64(owed_s));
        let left_s = owed_s - start.elapsed().as_secs_f64();
        // A thread that was kept waiting for longer than a timer's lateness has lost that time.
        self.owed_s.set(left_s.max(-LATENESS_MAX.as_secs_f64()));
    }
}
