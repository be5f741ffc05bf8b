//! The curve of a job's time against a budget, as the steps of a staircase.
//!
//! A plan is possible with every budget from what it needs on, so that with more memory the best
//! one is never slower: the curve falls in steps. A plan found with one budget says what it needs,
//! which is where its step begins, unless a better plan is found there. Between two neighbours that
//! differ, the next plan is asked for just below the upper one's step, then in the middle; where
//! most is at stake first.
//!
//! Invariants of a [`Curve`]: budgets rise and times fall, strictly; every step has a plan that was
//! made for its budget.

use protocol::Bytes;

use super::Range;

/// Plans made for a curve where nothing else is said.
pub const PLANS_MAX: usize = 128;

/// The finest resolution. Regions of device memory are multiples of 256 bytes, and no segment of a
/// model is this small.
const RESOLUTION_MIN: Bytes = Bytes::kib(4);

/// The coarsest resolution.
const RESOLUTION_MAX: Bytes = Bytes::mib(16);

/// What a job must be faster by for a step, as a part of its time: less cannot be seen.
const GAIN_MIN: f64 = 1e-4;

/// How exactly a step is found where plans are enough: to 1 % of its budget, at most 16 MiB.
pub fn resolution(budget: Bytes) -> Bytes {
    Bytes(budget.0 / 100).clamp(RESOLUTION_MIN, RESOLUTION_MAX)
}

/// The best plan with a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Point<P> {
    /// The budget of each device.
    pub budget: Bytes,
    /// What the plan needs of it: at most the budget.
    pub needed_bytes: Bytes,
    /// The time that counts, in milliseconds.
    pub ms: f64,
    /// What is done with so much.
    pub plan: P,
}

/// A budget from which on a job is faster.
#[derive(Debug, Clone, PartialEq)]
pub struct Step<P> {
    /// The least budget for which a plan so fast was made.
    pub point: Point<P>,
    /// The largest budget for which the best plan is slower or there is none: the step is above it.
    /// `None` at the start of the range.
    pub slower_at: Option<Bytes>,
}

/// The steps that were found.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve<P> {
    /// The steps; none where nothing fits.
    pub steps: Vec<Step<P>>,
    /// Plans that were made, those that do not fit among them.
    pub plans: usize,
    /// Whether every step was found to the [`resolution`]; else there were too many for so few
    /// plans.
    pub complete: bool,
}

/// A budget that was asked for; `None` where nothing fits.
struct Probe<P> {
    budget: Bytes,
    found: Option<Point<P>>,
    /// Whether it was found just below another one's step: what follows below it is looked for in
    /// the middle.
    below: bool,
}

/// Asks for plans in a range, at most `plans_max` of them and at least two: one at each end.
///
/// # Errors
/// The first that `plan` gives.
pub fn curve<P, E>(
    range: Range,
    plans_max: usize,
    plan: impl FnMut(Bytes) -> Result<Option<Point<P>>, E>,
) -> Result<Curve<P>, E> {
    let mut search = BudgetSearch { probes: Vec::new(), plan, plans_max };
    search.ask(range.high, false)?;
    search.ask(range.low, false)?;
    while search.probes.len() < plans_max {
        let Some(upper) = search.widest() else { break };
        let (budget, below) = search.between(upper);
        search.ask(budget, below)?;
    }
    let complete = search.widest().is_none();
    let plans = search.probes.len();
    Ok(Curve { steps: steps(search.probes), plans, complete })
}

fn is_faster(ms: f64, than_ms: f64) -> bool {
    ms < than_ms * (1.0 - GAIN_MIN)
}

struct BudgetSearch<P, F> {
    /// In the order of their budgets, each once.
    probes: Vec<Probe<P>>,
    plan: F,
    plans_max: usize,
}

impl<P, E, F: FnMut(Bytes) -> Result<Option<Point<P>>, E>> BudgetSearch<P, F> {
    /// Asks for the plan of a budget, then for the one of what that needs, where this lies below in
    /// the same gap.
    fn ask(&mut self, budget: Bytes, below: bool) -> Result<(), E> {
        let found = (self.plan)(budget)?;
        let needed = found.as_ref().map_or(budget, |point| point.needed_bytes);
        let at = self.probes.partition_point(|probe| probe.budget < budget);
        self.probes.insert(at, Probe { budget, found, below });
        let is_inside = at > 0 && self.probes[at - 1].budget < needed && needed < budget;
        if is_inside && self.probes.len() < self.plans_max {
            let found = (self.plan)(needed)?;
            self.probes.insert(at, Probe { budget: needed, found, below });
        }
        Ok(())
    }
}

impl<P, F> BudgetSearch<P, F> {
    /// The index of the upper end of the gap where most is at stake; `None` where no step is left
    /// to be found.
    fn widest(&self) -> Option<usize> {
        let steps = step_indices(&self.probes);
        let stakes = |upper: &usize| {
            let [low, high] = [&self.probes[upper - 1], &self.probes[*upper]];
            let high_ms = high.found.as_ref()?.ms;
            let lower_ms = low.found.as_ref().map_or(f64::INFINITY, |point| point.ms);
            let gap = high.budget - low.budget;
            // Small gains add up to a step too, which is then anywhere in the gap.
            let faster = is_faster(high_ms, lower_ms) || steps.binary_search(upper).is_ok();
            let open = faster && gap > resolution(high.budget);
            let gain = (lower_ms / high_ms).ln();
            let width = ((high.budget.0 as f64 + 1.0) / (low.budget.0 as f64 + 1.0)).ln();
            open.then_some(gain * width)
        };
        let gaps = (1..self.probes.len()).filter_map(|upper| Some((stakes(&upper)?, upper)));
        // Of equals the lowest.
        gaps.reduce(|best, gap| if gap.0 > best.0 { gap } else { best }).map(|(_, upper)| upper)
    }

    /// Where to look in a gap, and whether that is just below its upper end's step.
    fn between(&mut self, upper: usize) -> (Bytes, bool) {
        let low = self.probes[upper - 1].budget.0;
        let high = &mut self.probes[upper];
        let is_step = high.found.as_ref().is_some_and(|point| point.needed_bytes == high.budget);
        if is_step && !high.below {
            return (high.budget - Bytes(1), true);
        }
        // Just below it again next time.
        high.below = false;
        let high = high.budget.0;
        let middle = match low {
            0 => high / 2,
            low => (low as f64 * high as f64).sqrt() as u64,
        };
        (Bytes(middle.clamp(low + 1, high - 1)), false)
    }
}

/// The indices of the probes that are steps: the first found, and each that is faster than the step
/// before.
fn step_indices<P>(probes: &[Probe<P>]) -> Vec<usize> {
    let mut last_ms = f64::INFINITY;
    let is_step = |(index, probe): (usize, &Probe<P>)| {
        let ms = probe.found.as_ref()?.ms;
        is_faster(ms, last_ms).then(|| {
            last_ms = ms;
            index
        })
    };
    probes.iter().enumerate().filter_map(is_step).collect()
}

/// The budgets at which the time falls.
fn steps<P>(probes: Vec<Probe<P>>) -> Vec<Step<P>> {
    let indices = step_indices(&probes);
    let mut steps = Vec::new();
    let mut before = None;
    for (index, Probe { budget, found, .. }) in probes.into_iter().enumerate() {
        if let Some(point) = found.filter(|_| indices.binary_search(&index).is_ok()) {
            steps.push(Step { point, slower_at: before });
        }
        before = Some(budget);
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const RANGE: Range = Range { low: Bytes::gib(1), high: Bytes::gib(24) };

    /// A staircase: budgets with the time from there on.
    type Stairs = Vec<(u64, f64)>;

    fn time(stairs: &Stairs, budget: Bytes) -> Option<(u64, f64)> {
        stairs.iter().rev().find(|(from, _)| *from <= budget.0).copied()
    }

    /// Its curve by at most `plans_max` plans, which say what they need or not, and how many were
    /// made.
    fn found(stairs: &Stairs, range: Range, plans_max: usize, tells: bool) -> (Curve<u64>, usize) {
        let mut calls = 0;
        let curve = curve(range, plans_max, |budget| {
            calls += 1;
            assert!(range.low <= budget && budget <= range.high, "{budget:?}");
            Ok::<_, Infallible>(time(stairs, budget).map(|(from, ms)| {
                let needed_bytes = if tells { Bytes(from) } else { budget };
                Point { budget, needed_bytes, ms, plan: from }
            }))
        });
        let Ok(curve) = curve;
        (curve, calls)
    }

    fn stairs() -> impl Strategy<Value = Stairs> {
        let step = (RANGE.low.0 / 2..RANGE.high.0 * 5 / 4, 0.5_f64..0.999);
        prop::collection::vec(step, 1..12).prop_map(|mut steps| {
            steps.sort_by_key(|step| step.0);
            steps.dedup_by_key(|step| step.0);
            let mut ms = 60_000.0;
            let mut fall = |(from, factor): (u64, f64)| {
                ms *= factor;
                (from, ms)
            };
            steps.into_iter().map(&mut fall).collect()
        })
    }

    proptest! {
        #[test]
        fn every_step_is_found(stairs in stairs(), tells: bool) {
            let (curve, calls) = found(&stairs, RANGE, 1000, tells);
            prop_assert!(curve.complete);
            prop_assert_eq!(curve.plans, calls);
            for pair in curve.steps.windows(2) {
                prop_assert!(pair[0].point.budget < pair[1].point.budget);
                prop_assert!(pair[0].point.ms > pair[1].point.ms);
            }
            for step in &curve.steps {
                // What the curve says of a budget is what a plan with it takes.
                let (_, ms) = time(&stairs, step.point.budget).unwrap();
                prop_assert_eq!(ms, step.point.ms);
                if let Some(slower) = step.slower_at {
                    let within = resolution(step.point.budget);
                    prop_assert!(step.point.budget - slower <= within);
                }
            }
            // And each real step is one of its own, or in one with others that are as near.
            for (from, ms) in stairs.iter().filter(|(from, _)| RANGE.low.0 < *from && *from <= RANGE.high.0) {
                let step = curve.steps.iter().find(|step| step.point.ms <= *ms).unwrap();
                let late = step.point.budget.0.saturating_sub(*from);
                prop_assert!(late <= resolution(step.point.budget).0, "{} B late", late);
            }
        }

        #[test]
        fn plans_are_bounded_and_the_curve_still_true(stairs in stairs(), tells: bool, plans_max in 2_usize..20) {
            let (curve, calls) = found(&stairs, RANGE, plans_max, tells);
            prop_assert!(calls <= plans_max, "{} calls of {}", calls, plans_max);
            for step in &curve.steps {
                prop_assert_eq!(time(&stairs, step.point.budget).unwrap().1, step.point.ms);
            }
            prop_assert!(curve.steps.is_sorted_by(|a, b| a.point.ms > b.point.ms));
            // The ends are always there.
            let best = time(&stairs, RANGE.high).map(|(_, ms)| ms);
            prop_assert_eq!(curve.steps.last().map(|step| step.point.ms), best);
        }
    }

    #[test]
    fn plans_that_tell_what_they_need_are_few() {
        let gib = |gib: u64| gib << 30;
        let stairs = vec![(gib(1), 60.0), (gib(3), 30.0), (gib(10), 20.0), (gib(16), 10.0)];
        let (curve, calls) = found(&stairs, RANGE, 1000, true);
        let budgets: Vec<u64> = curve.steps.iter().map(|step| step.point.budget.0).collect();
        assert_eq!(budgets, [gib(1), gib(3), gib(10), gib(16)]);
        let exact = |step: &Step<u64>| step.slower_at == Some(step.point.budget - Bytes(1));
        assert!(curve.complete && curve.steps[1..].iter().all(exact));
        let (_, blind) = found(&stairs, RANGE, 1000, false);
        assert!(2 * calls < blind, "{calls} against {blind}");
    }

    #[test]
    fn a_curve_may_begin_at_nothing_or_be_nothing() {
        let range = Range { low: Bytes::ZERO, high: Bytes::mib(64) };
        let stairs = vec![(0, 9.0), (5 << 20, 4.0), (40 << 20, 3.0)];
        for tells in [true, false] {
            let (curve, _) = found(&stairs, range, 200, tells);
            assert!(curve.complete);
            let times: Vec<f64> = curve.steps.iter().map(|step| step.point.ms).collect();
            assert_eq!(times, [9.0, 4.0, 3.0]);
        }
        let (curve, calls) = found(&vec![(1 << 40, 1.0)], range, 200, true);
        assert_eq!((curve.steps.len(), curve.complete, calls), (0, true, 2));
    }

    #[test]
    fn what_is_worse_with_more_memory_is_left_out() {
        let curve = curve(RANGE, 50, |budget| {
            let ms = if budget > Bytes::gib(12) { 20.0 } else { 10.0 };
            Ok::<_, Infallible>(Some(Point { budget, needed_bytes: budget, ms, plan: () }))
        });
        let Ok(curve) = curve;
        assert_eq!(curve.steps.len(), 1);
        assert_eq!(curve.steps[0].point.budget, RANGE.low);
    }
}
