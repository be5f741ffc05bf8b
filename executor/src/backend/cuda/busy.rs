//! How long a stream was busy, by the GPU's own clock: timed events before and after stretches of
//! its work.
//!
//! A stretch begins after what the stream waited for and ends before its next wait, so that waiting
//! counts for nothing. Its events are in no trace: nothing is ordered by them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::driver::DriverError;
use super::stream::{Event, Stream};

/// Ended stretches that are kept before the first of them are looked at.
const KEPT: usize = 64;

/// The stretches of one stream.
#[derive(Default)]
pub struct Busy(Mutex<Stretches>);

#[derive(Default)]
struct Stretches {
    /// The event before the stretch that has not ended.
    open: Option<Event>,
    /// The events before and after those that have.
    ended: VecDeque<[Event; 2]>,
    /// What those took that were looked at, in milliseconds.
    sum_ms: f64,
}

impl Busy {
    /// Begins a stretch with what comes next, unless one has begun.
    pub fn begin(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut stretches = self.lock();
        if stretches.open.is_none() {
            stretches.open = Some(stream.mark()?);
        }
        Ok(())
    }

    /// Ends the stretch that has begun, if one has.
    pub fn end(&self, stream: &Stream) -> Result<(), DriverError> {
        let mut stretches = self.lock();
        if let Some(begin) = stretches.open.take() {
            stretches.ended.push_back([begin, stream.mark()?]);
        }
        if stretches.ended.len() > KEPT { stretches.add_passed() } else { Ok(()) }
    }

    /// Milliseconds of the stretches that have passed since this was last asked. Others count the
    /// next time.
    pub fn take_ms(&self) -> Result<f64, DriverError> {
        let mut stretches = self.lock();
        stretches.add_passed()?;
        Ok(std::mem::take(&mut stretches.sum_ms))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Stretches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stretches {
    fn add_passed(&mut self) -> Result<(), DriverError> {
        while let Some([begin, end]) = self.ended.front()
            && end.is_past()?
        {
            self.sum_ms += f64::from(end.ms_since(begin)?);
            self.ended.pop_front();
        }
        Ok(())
    }
}
