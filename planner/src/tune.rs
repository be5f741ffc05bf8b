//! `berth tune`: how much faster a job gets with more device memory.
//!
//! [`curve`] finds the steps of predicted time against budget, [`knees`] the few of them where a
//! little more memory buys most. Both are pure: plans come from a closure, and what was measured of
//! them is added by the caller.

mod knees;
mod range;
mod steps;

use protocol::{Bytes, JobShape, ModelSource, Plan};

pub use knees::{BEND_GAIN, CLIFF_GAIN, KNEES_MAX, knees};
pub use range::{Range, RangeError};
pub use steps::{Curve, PLANS_MAX, Point, Step, curve, resolution};

use crate::policy::Objective;

/// Runs with `--measure`, at most: the knees, both ends, and others evenly between them.
pub const RUNS_MAX: usize = 9;

/// The curve of a job on a host, with what was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Path of the model.
    pub model: ModelSource,
    /// What the executor calls its kind.
    pub family: String,
    /// Size, steps and options that the curve is for.
    pub job: JobShape,
    /// The time that is shown: of a cold start, or of the next job on a warm executor.
    pub objective: Objective,
    /// Where the devices' figures come from.
    pub host: String,
    /// The budgets that were looked at.
    pub range: Range,
    /// Whether nothing fits below the first step; else less was not looked at.
    pub is_least: bool,
    /// The steps, each with its plan.
    pub curve: Curve<Plan>,
    /// Indices of the knees among the steps.
    pub knees: Vec<usize>,
    /// For each step, what its plan took where it was run.
    pub measured: Vec<Option<Measured>>,
}

/// What a step's plan really took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The whole job, in milliseconds.
    pub total_ms: f64,
    /// One denoising step on average, in milliseconds.
    pub denoise_step_ms: f64,
}

/// What is remarkable of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// The least budget that was looked at and fits.
    Smallest,
    /// A little more memory buys most time here.
    Knee,
    /// More memory changes nothing.
    Fastest,
}

impl Mark {
    /// One word, as in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Mark::Smallest => "smallest",
            Mark::Knee => "knee",
            Mark::Fastest => "fastest",
        }
    }
}

impl Tuning {
    /// What is remarkable of a step.
    pub fn mark(&self, step: usize) -> Option<Mark> {
        let last = self.curve.steps.len().saturating_sub(1);
        match step {
            step if step == last => Some(Mark::Fastest),
            0 => Some(Mark::Smallest),
            step => self.knees.contains(&step).then_some(Mark::Knee),
        }
    }

    /// The steps to be run where they are to be measured, in order: those with a mark, and others
    /// evenly between.
    pub fn runs(&self) -> Vec<usize> {
        let marked = |step: &usize| self.mark(*step).is_some();
        let all = 0..self.curve.steps.len();
        let (mut runs, rest): (Vec<usize>, Vec<usize>) = all.partition(marked);
        let room = RUNS_MAX.saturating_sub(runs.len()).min(rest.len());
        runs.extend((0..room).map(|index| rest[(2 * index + 1) * rest.len() / (2 * room)]));
        runs.sort_unstable();
        runs
    }
}

/// The device memory that a plan needs at least: with this budget for each device it is possible,
/// with less it is not.
pub fn needed_bytes(plan: &Plan) -> Bytes {
    plan.devices.iter().map(|device| device.peak_bytes).max().unwrap_or_default()
}

/// A budget as a number of three digits and its unit, rounded up: together they are a `--max-vram`
/// that suffices.
pub fn as_cap(budget: Bytes) -> (String, &'static str) {
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((name, unit)) = units.into_iter().find(|(_, unit)| budget.0 >= *unit) else {
        return (budget.0.to_string(), "B");
    };
    let value = budget.0 as f64 / unit as f64;
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let scale = 10_f64.powi(digits);
    let digits = digits as usize;
    (format!("{:.digits$}", (value * scale).ceil() / scale), name)
}

/// The time that an objective counts, in milliseconds.
pub fn counted_ms(plan: &Plan, objective: Objective) -> f64 {
    match objective {
        Objective::Throughput => plan.predicted_ms.next_total,
        Objective::Latency | Objective::Memory => plan.predicted_ms.total,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::render::testing::tuning;

    #[test]
    fn the_ends_and_the_knees_are_marked_and_run() {
        let tuning = tuning(&[(2, 100.0), (4, 30.0), (8, 28.0), (16, 20.0)]);
        let marks: Vec<Option<Mark>> = (0..4).map(|step| tuning.mark(step)).collect();
        let knee = Some(Mark::Knee);
        assert_eq!(marks, [Some(Mark::Smallest), knee, None, Some(Mark::Fastest)]);
        assert_eq!(tuning.runs(), [0, 1, 2, 3]);
    }

    #[test]
    fn runs_are_few_and_spread() {
        let steps: Vec<(u64, f64)> = (1..=40).map(|at| (at, 100.0 - at as f64)).collect();
        let tuning = tuning(&steps);
        let runs = tuning.runs();
        assert_eq!(runs.len(), RUNS_MAX);
        assert!(runs.is_sorted_by(|a, b| a < b), "{runs:?}");
        assert_eq!((runs[0], runs[RUNS_MAX - 1]), (0, 39));
        let marked = (0..40).filter(|step| tuning.mark(*step).is_some());
        assert!(marked.into_iter().all(|step| runs.contains(&step)), "{runs:?}");
    }

    proptest! {
        #[test]
        fn a_budget_that_is_copied_suffices(bytes in 1_u64..1 << 45) {
            let (number, unit) = as_cap(Bytes(bytes));
            let copied: Bytes = format!("{number}{unit}").parse().unwrap();
            prop_assert!(copied.0 >= bytes, "{}{} for {}", number, unit, bytes);
            prop_assert!(copied.0 as f64 <= bytes as f64 * 1.011 + 1.0, "{}{}", number, unit);
        }
    }

    #[test]
    fn the_largest_peak_is_what_a_plan_needs() {
        let mut plan = crate::render::testing::plan();
        assert_eq!(needed_bytes(&plan), Bytes::gib(10));
        assert_eq!(counted_ms(&plan, Objective::Latency), 18_300.0);
        assert_eq!(counted_ms(&plan, Objective::Throughput), 15_000.0);
        plan.devices.clear();
        assert_eq!(needed_bytes(&plan), Bytes::ZERO);
    }
}
