//! The GPUs as they were last seen, for a while in which NVML does not answer: a driver that is
//! being updated, a library that cannot be loaded just now.
//!
//! Invariant: only where no GPU is told at all; one that is missing among others is gone.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Device;
use super::nvml::Detected;

/// For how long what was last seen stands in: a library that is replaced is there again, and no
/// long job is planned for what has gone.
const AGE_MAX: Duration = Duration::from_secs(60);

/// What this process saw last.
static LAST: Mutex<SeenGpus> = Mutex::new(SeenGpus(None));

/// The GPUs that were told last, and when.
struct SeenGpus(Option<(Instant, Vec<Device>)>);

/// What was found; where that is no GPU, those that this process saw less than a minute ago, as
/// they were.
pub fn or_last(found: Detected) -> Detected {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).or_last(found, Instant::now())
}

impl SeenGpus {
    fn or_last(&mut self, found: Detected, now: Instant) -> Detected {
        let Some(why_none) = &found.why_none else {
            self.0 = Some((now, found.devices.clone()));
            return found;
        };
        match self.0.take_if(|(at, _)| now.saturating_duration_since(*at) >= AGE_MAX) {
            Some(_) => tracing::warn!(because = why_none, "no GPUs are used any more"),
            None if self.0.is_some() => tracing::debug!(because = why_none, "GPUs as last seen"),
            None => {}
        }
        match &self.0 {
            Some((_, devices)) => Detected { devices: devices.clone(), why_none: None },
            None => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;

    use super::*;
    use crate::inventory::tests::device_of;

    #[test]
    fn what_was_seen_stands_in_for_a_minute() {
        let mut seen = SeenGpus(None);
        let begun = Instant::now();
        let none = || Detected { devices: Vec::new(), why_none: Some("no driver".to_owned()) };
        let one =
            || Detected { devices: vec![device_of("cuda0", Bytes(9), Bytes(5))], why_none: None };
        assert_eq!(seen.or_last(none(), begun), none());
        assert_eq!(seen.or_last(one(), begun), one());
        let almost = begun + AGE_MAX - Duration::from_millis(1);
        assert_eq!(seen.or_last(none(), almost), one());
        assert_eq!(seen.or_last(none(), begun + AGE_MAX), none());
        // It is not forgotten for ever.
        assert_eq!(seen.or_last(one(), begun + AGE_MAX), one());
        assert_eq!(seen.or_last(none(), begun + AGE_MAX), one());
    }
}
