//! How long an executor may be silent, and for how long it has been.
//!
//! An executor that runs says so by heartbeats, whatever it computes; one that is stopped, or that
//! the system has no time for, does not. Its silence is counted in short waits, each of them no
//! longer than this process meant to wait: while this process is stopped itself, by Ctrl-Z or with
//! the lid of a laptop, nobody's silence counts.

use std::time::Duration;

/// How long an executor may say nothing before it is ended, where nothing else is asked.
pub const PATIENCE_S: u64 = 60;

/// The shortest patience in seconds: below, a machine at work would look like a stopped one.
pub const PATIENCE_S_MIN: u64 = 2;

/// The longest patience in seconds that can be asked for: a day. Who wants more wants no end.
pub const PATIENCE_S_MAX: u64 = 86_400;

/// How long an executor may take to shake hands, at most.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// After what silence it is told, at most.
const TOLD_AFTER_MAX: Duration = Duration::from_secs(5);

/// The silence is told after a part of the patience: half of it.
const TOLD_PART: u32 = 2;

/// One wait is this part of the silence that is told.
const WAIT_PART: u32 = 10;

/// A wait that took this many times as long as it was meant to: this process itself stood still.
const STANDSTILL: u32 = 3;

/// How long an executor may be silent before it is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    limit: Duration,
    endless: bool,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::seconds(PATIENCE_S)
    }
}

impl Patience {
    /// So many seconds, of which the handshake has as many, up to 30.
    pub fn seconds(seconds: u64) -> Patience {
        Patience { limit: Duration::from_secs(seconds), endless: false }
    }

    /// Silence is told, and never ends an executor that has shaken hands.
    pub fn endless(self) -> Patience {
        Patience { endless: true, ..self }
    }

    /// How long an executor may take to shake hands.
    pub fn handshake(&self) -> Duration {
        self.limit.min(HANDSHAKE_MAX)
    }

    fn told_after(&self) -> Duration {
        TOLD_AFTER_MAX.min(self.limit / TOLD_PART)
    }
}

/// What a silence calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet, or nothing more.
    Wait,
    /// It is told, once.
    Tell,
    /// It has lasted too long.
    End,
}

/// For how long an executor has been silent.
#[derive(Debug)]
pub struct Silence {
    patience: Patience,
    lasted: Duration,
    told: bool,
}

impl Silence {
    /// None yet.
    pub fn new(patience: Patience) -> Silence {
        Silence { patience, lasted: Duration::ZERO, told: false }
    }

    /// How long to wait next.
    pub fn wait(&self) -> Duration {
        self.patience.told_after() / WAIT_PART
    }

    /// How long it has lasted.
    pub fn lasted(&self) -> Duration {
        self.lasted
    }

    /// Something was heard. Whether a silence that was told is over.
    pub fn heard(&mut self) -> bool {
        self.lasted = Duration::ZERO;
        std::mem::take(&mut self.told)
    }

    /// Nothing was heard in a wait that took so long.
    pub fn waited(&mut self, took: Duration) -> Verdict {
        let meant = self.wait();
        if took > STANDSTILL * meant {
            return Verdict::Wait;
        }
        self.lasted += took;
        if self.lasted >= self.patience.limit && !self.patience.endless {
            Verdict::End
        } else if self.lasted >= self.patience.told_after() && !self.told {
            self.told = true;
            Verdict::Tell
        } else {
            Verdict::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits in vain until the verdict, at most so often.
    fn until(silence: &mut Silence, verdict: Verdict, waits: u32) -> Option<Duration> {
        let meant = silence.wait();
        let mut verdicts = (0..waits).map(|_| silence.waited(meant));
        verdicts.any(|found| found == verdict).then(|| silence.lasted())
    }

    #[test]
    fn a_silence_is_told_after_5_s_and_ended_after_a_minute() {
        let mut silence = Silence::new(Patience::default());
        assert_eq!(until(&mut silence, Verdict::Tell, 1000), Some(Duration::from_secs(5)));
        assert_eq!(until(&mut silence, Verdict::Tell, 100), None, "it is told once");
        assert!(silence.heard(), "and so is its end");
        assert!(!silence.heard());
        assert_eq!(until(&mut silence, Verdict::End, 1000), Some(Duration::from_secs(60)));
        assert_eq!(Patience::default().handshake(), Duration::from_secs(30));
    }

    #[test]
    fn endless_patience_tells_and_does_not_end() {
        let mut silence = Silence::new(Patience::seconds(4).endless());
        assert_eq!(until(&mut silence, Verdict::Tell, 1000), Some(Duration::from_secs(2)));
        assert_eq!(until(&mut silence, Verdict::End, 100_000), None);
    }

    #[test]
    fn a_standstill_of_this_process_is_not_the_executors() {
        let mut silence = Silence::new(Patience::default());
        for _ in 0..100 {
            assert_eq!(silence.waited(Duration::from_secs(3600)), Verdict::Wait);
        }
        assert_eq!(silence.lasted(), Duration::ZERO);
    }
}
