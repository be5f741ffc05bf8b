//! Devices that failed, and for how long jobs do without each: longer each time, never for ever.
//!
//! ```text
//! sound ─failed─► out for 60 s ─► tried ─failed─► out for 5 min ─► tried ─failed─► 30 min ─► …
//!   ▲                               └─────────────worked──────────────┴──────────────┘
//! ```
//! Pure: it is told the time. Devices are known by their lasting names. A failure that is told
//! while a device is out already, by a job that began before, is none more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a device is left out by the first failure, the second, and all that follow: serve.md,
/// section 3.
const LEFT_OUT: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(5 * 60), Duration::from_secs(30 * 60)];

/// The devices that have failed and have not worked since.
#[derive(Debug, Default)]
pub struct Outages(BTreeMap<String, Outage>);

#[derive(Debug)]
struct Outage {
    /// How often it failed, one after the other.
    times: usize,
    until: Instant,
    because: String,
}

impl Outages {
    /// A device has failed.
    pub fn failed(&mut self, name: &str, because: &str, now: Instant) {
        if self.left(name, now).is_some() {
            return;
        }
        let times = self.0.get(name).map_or(0, |outage| outage.times);
        let until = now + LEFT_OUT[times.min(LEFT_OUT.len() - 1)];
        let outage = Outage { times: times + 1, until, because: because.to_owned() };
        self.0.insert(name.to_owned(), outage);
    }

    /// A job was done on a device.
    pub fn worked(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// For how long a device is still left out, and how it failed; `None` where it is not.
    pub fn left(&self, name: &str, now: Instant) -> Option<(Duration, &str)> {
        let outage = self.0.get(name).filter(|outage| now < outage.until)?;
        Some((outage.until - now, &outage.because))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_device_is_left_out_for_longer_each_time_and_always_returns() {
        let mut outages = Outages::default();
        let mut now = Instant::now();
        for seconds in [60, 300, 1800, 1800, 1800] {
            assert_eq!(outages.left("a", now), None);
            outages.failed("a", "it burns", now);
            assert_eq!(outages.left("a", now), Some((seconds * SECOND, "it burns")));
            assert_eq!(outages.left("b", now), None);
            now += (seconds - 1) * SECOND;
            // A job that ran there at the same time.
            outages.failed("a", "it burns too", now);
            assert_eq!(outages.left("a", now), Some((SECOND, "it burns")));
            now += SECOND;
        }
        assert_eq!(outages.left("a", now), None);
    }

    #[test]
    fn one_that_works_again_begins_anew() {
        let mut outages = Outages::default();
        let mut now = Instant::now();
        outages.failed("a", "it burns", now);
        now += 60 * SECOND;
        outages.failed("a", "it burns", now);
        now += 300 * SECOND;
        outages.worked("a");
        outages.failed("a", "it burns", now);
        assert_eq!(outages.left("a", now), Some((60 * SECOND, "it burns")));
    }
}
