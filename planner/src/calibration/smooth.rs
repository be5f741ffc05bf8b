//! How a new measurement changes what is predicted.
//!
//! Bytes and times differ: too few bytes make a plan fail, a time that is off by a little makes one
//! a little slower.
//! - Overhead: a measured value above the prediction is the next prediction at once; one below
//!   takes it down by a quarter of the difference. So no prediction is below the last measurement.
//! - Corrections of times: the first is taken as it is, a later one goes half way to the new one,
//!   in proportion (the geometric mean). Up or down alike: anything else would drift with the noise
//!   of runs.

use protocol::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::RATIO;

/// What a device's context and libraries take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// What the next plan counts with.
    pub predicted_bytes: Bytes,
    /// What was measured last.
    pub measured_bytes: Bytes,
}

impl Overhead {
    /// After a first measurement.
    pub fn first(measured: Bytes) -> Overhead {
        Overhead { predicted_bytes: measured, measured_bytes: measured }
    }

    /// After another measurement.
    pub fn then(self, measured: Bytes) -> Overhead {
        let predicted = self.bytes();
        let lower = Bytes(predicted.saturating_sub(measured).0 / 4);
        Overhead { predicted_bytes: (predicted - lower).max(measured), measured_bytes: measured }
    }

    /// What a plan must count with, whatever was written into the file by hand.
    pub fn bytes(self) -> Bytes {
        self.predicted_bytes.max(self.measured_bytes)
    }
}

/// How many times longer a component's calls took than rates say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// Path of the model.
    pub model: String,
    /// Whose calls take longer.
    pub component: String,
    /// The factor, smoothed.
    pub ratio: f64,
    /// Runs that it comes from.
    pub runs: u32,
}

impl Correction {
    /// After a first run.
    pub fn first(model: &str, component: &str, ratio: f64) -> Correction {
        let (model, component) = (model.to_owned(), component.to_owned());
        Correction { model, component, ratio: within(ratio), runs: 1 }
    }

    /// After another run.
    pub fn then(self, ratio: f64) -> Correction {
        let ratio = (self.ratio * within(ratio)).sqrt();
        Correction { ratio: within(ratio), runs: self.runs.saturating_add(1), ..self }
    }
}

/// A factor within its limits.
pub fn within(ratio: f64) -> f64 {
    ratio.clamp(*RATIO.start(), *RATIO.end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn overhead_rises_at_once_and_sinks_slowly() {
        let first = Overhead::first(Bytes::mib(400));
        assert_eq!(first.bytes(), Bytes::mib(400));
        assert_eq!(first.then(Bytes::mib(500)).bytes(), Bytes::mib(500));
        let lower = first.then(Bytes::mib(200));
        assert_eq!(lower.bytes(), Bytes::mib(350));
        assert_eq!(lower.then(Bytes::mib(350)).bytes(), Bytes::mib(350));
        // Changed by hand to less than was measured.
        let by_hand = Overhead { predicted_bytes: Bytes::mib(100), ..lower };
        assert_eq!(by_hand.bytes(), Bytes::mib(200));
    }

    #[test]
    fn corrections_begin_with_a_run_and_go_half_way() {
        let first = Correction::first("m", "dit", 1.5);
        assert_eq!((first.ratio, first.runs), (1.5, 1));
        let second = first.then(6.0);
        assert_eq!((second.ratio, second.runs), (3.0, 2));
        assert_eq!(second.then(0.75).ratio, 1.5);
        assert_eq!(Correction::first("m", "dit", 1e9).ratio, 50.0);
        assert_eq!(Correction::first("m", "dit", 1e-9).ratio, 1.0 / 50.0);
    }

    proptest! {
        #[test]
        fn no_overhead_is_predicted_below_the_last_measured(
            measured in prop::collection::vec(0_u64..1 << 40, 1..50),
        ) {
            let mut overhead = Overhead::first(Bytes(measured[0]));
            let mut highest = measured[0];
            for next in &measured[1..] {
                let before = overhead.bytes();
                overhead = overhead.then(Bytes(*next));
                highest = highest.max(*next);
                prop_assert!(overhead.bytes().0 >= *next);
                prop_assert!(overhead.bytes().0 <= highest);
                // Down by a quarter of the difference at the most.
                prop_assert!(overhead.bytes().0 >= before.0 - before.0.saturating_sub(*next) / 4);
            }
        }

        #[test]
        fn a_correction_stays_within_its_limits(
            ratios in prop::collection::vec(prop::num::f64::POSITIVE, 1..50),
        ) {
            let mut correction = Correction::first("m", "dit", ratios[0]);
            for ratio in &ratios[1..] {
                correction = correction.then(*ratio);
            }
            prop_assert!(RATIO.contains(&correction.ratio));
            prop_assert_eq!(correction.runs as usize, ratios.len());
        }
    }
}
