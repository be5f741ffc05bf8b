//! What devices held over the last minutes, as the main loop read it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Readings that are kept: 20 minutes, at one a second.
pub const READINGS_KEPT: usize = 1200;

/// The newest readings, the oldest first.
#[derive(Default)]
pub struct Timeline(Mutex<VecDeque<(Instant, Arc<Value>)>>);

impl Timeline {
    /// Adds one that was made at this moment; the oldest may go for it.
    pub fn add(&self, at: Instant, reading: Arc<Value>) {
        let mut readings = self.lock();
        readings.push_back((at, reading));
        if readings.len() > READINGS_KEPT {
            readings.pop_front();
        }
    }

    /// Those that are no older, seen from a moment.
    pub fn of_the_last(&self, age: Duration, now: Instant) -> Vec<Arc<Value>> {
        let readings = self.lock();
        let young = readings.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= age);
        young.map(|(_, reading)| reading.clone()).collect()
    }

    /// What was read last; `None` before the first.
    pub fn newest(&self) -> Option<Arc<Value>> {
        self.lock().back().map(|(_, reading)| reading.clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<Value>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_readings_are_kept() {
        let timeline = Timeline::default();
        assert!(timeline.newest().is_none());
        let start = Instant::now();
        let second = |count: usize| start + Duration::from_secs(count as u64);
        for index in 0..READINGS_KEPT + 3 {
            timeline.add(second(index), Arc::new(Value::from(index)));
        }
        let now = second(READINGS_KEPT + 2);
        assert_eq!(timeline.of_the_last(Duration::from_secs(9), now).len(), 10);
        let all = timeline.of_the_last(Duration::from_secs(1 << 20), now);
        assert_eq!((all.len(), &*all[0]), (READINGS_KEPT, &Value::from(3)));
        assert_eq!(*timeline.newest().unwrap(), Value::from(READINGS_KEPT + 2));
    }
}
