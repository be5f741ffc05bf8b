//! What devices held over the last minutes, as the main loop read it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Readings that are kept: 20 minutes, at one a second.
pub const READINGS_KEPT: usize = 1200;

/// The newest readings.
#[derive(Default)]
pub struct Timeline(Mutex<KeptReadings>);

#[derive(Default)]
struct KeptReadings {
    /// As JSON, the oldest first: trees of values would take five times as much.
    texts: VecDeque<(Instant, Box<str>)>,
    newest: Option<Arc<Value>>,
}

impl Timeline {
    /// Adds one that was made at this moment; the oldest may go for it.
    pub fn add(&self, at: Instant, reading: Arc<Value>) {
        let mut kept = self.lock();
        kept.texts.push_back((at, reading.to_string().into()));
        kept.newest = Some(reading);
        if kept.texts.len() > READINGS_KEPT {
            kept.texts.pop_front();
        }
    }

    /// Those that are no older, seen from a moment.
    pub fn of_the_last(&self, age: Duration, now: Instant) -> Vec<Value> {
        let kept = self.lock();
        let young = kept.texts.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= age);
        let read = |text: &str| serde_json::from_str(text).expect("it was written from a value");
        young.map(|(_, text)| read(text)).collect()
    }

    /// What was read last; `None` before the first.
    pub fn newest(&self) -> Option<Arc<Value>> {
        self.lock().newest.clone()
    }

    fn lock(&self) -> MutexGuard<'_, KeptReadings> {
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
        assert_eq!((all.len(), &all[0]), (READINGS_KEPT, &Value::from(3)));
        assert_eq!(*timeline.newest().unwrap(), Value::from(READINGS_KEPT + 2));
    }
}
