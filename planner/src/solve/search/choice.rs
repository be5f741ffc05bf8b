//! One place as a search sees it: what it adds to the time, and what is compared after that.

use protocol::Bytes;

use super::super::timeline::{LoadInterval, PhaseSums};

/// A place with what it adds to a score.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Its index among the component's places.
    pub index: usize,
    /// What it adds to the timeline.
    pub interval: LoadInterval,
    /// The same in the timeline's sums.
    pub phase_sums: PhaseSums,
    /// What is compared after its time.
    pub tie_break: TieBreak,
    /// Peaks of all devices and the host with nothing else.
    pub alone: Bytes,
}

/// What is compared after time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TieBreak {
    /// What it loads and computes in the next job, one after the other, in ticks.
    pub again: u64,
    /// What is compared after that.
    pub simplicity: Simplicity,
}

/// What is simpler, in this order: smaller is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Simplicity {
    /// Whether it is a copy in RAM of what could be mapped.
    pub copies: u64,
    /// Page-locked copies of weights, in bytes.
    pub locked: u64,
    /// Devices beside the first, and one where weights are streamed.
    pub parts: u64,
    /// How far it fills the fullest device.
    pub fullness: u64,
}

impl TieBreak {
    /// Both together.
    pub fn plus(self, other: TieBreak) -> TieBreak {
        self.with(other, u64::saturating_add)
    }

    /// The least of both in every respect.
    pub fn least(self, other: TieBreak) -> TieBreak {
        self.with(other, u64::min)
    }

    fn with(self, other: TieBreak, both: fn(u64, u64) -> u64) -> TieBreak {
        let (a, b) = (self.simplicity, other.simplicity);
        TieBreak {
            again: both(self.again, other.again),
            simplicity: Simplicity {
                copies: both(a.copies, b.copies),
                locked: both(a.locked, b.locked),
                parts: both(a.parts, b.parts),
                fullness: both(a.fullness, b.fullness),
            },
        }
    }
}
