//! After an executor's end: until the driver has freed what it had of GPUs.
//!
//! A process is gone before its GPU memory is. What is free is known once NVML lists the process
//! on no device; where NVML does not say who is on a device, some seconds after the end. There is
//! no wait for free memory to *rise*: after a crash it may be there already. Virtual devices are
//! memory of the process itself, which the kernel has freed by its end.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::inventory::nvml;

/// The longest wait, and the wait where nobody says who is on a device: serve.md, section 3.
const SETTLING_MAX: Duration = Duration::from_secs(5);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until a process that has ended is on no GPU, for 5 s at most.
pub fn settle(pid: u32) {
    let waited = wait(|| nvml::lists(Path::new(nvml::LIBRARY), pid), thread::sleep);
    tracing::debug!(pid, ms = waited.as_millis() as u64, "the executor's memory is free");
}

/// Looks whether the process is still listed (`None`: nobody says) until it is not, with pauses;
/// how long that took.
fn wait(mut look: impl FnMut() -> Option<bool>, mut pause: impl FnMut(Duration)) -> Duration {
    let mut waited = Duration::ZERO;
    while waited < SETTLING_MAX && look() != Some(false) {
        pause(PAUSE);
        waited += PAUSE;
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long it waits, and how often it looks, where these are the answers, the last for ever.
    fn waited(answers: &[Option<bool>]) -> (Duration, usize) {
        let (mut looks, mut slept) = (0, Duration::ZERO);
        let look = || {
            looks += 1;
            answers[(looks - 1).min(answers.len() - 1)]
        };
        let waited = wait(look, |pause| slept += pause);
        assert_eq!(waited, slept);
        (waited, looks)
    }

    #[test]
    fn it_ends_when_the_process_is_listed_nowhere() {
        assert_eq!(waited(&[Some(false)]), (Duration::ZERO, 1));
        assert_eq!(waited(&[Some(true), Some(true), Some(false)]), (2 * PAUSE, 3));
        assert_eq!(waited(&[None, Some(true), Some(false)]), (2 * PAUSE, 3));
    }

    #[test]
    fn it_ends_after_five_seconds_whoever_is_listed() {
        assert_eq!(waited(&[Some(true)]).0, SETTLING_MAX);
        assert_eq!(waited(&[None]).0, SETTLING_MAX);
    }
}
