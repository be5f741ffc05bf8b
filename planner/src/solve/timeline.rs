//! The timeline: how long a job takes, from the times of its components and from what is loaded
//! early.
//!
//! Loads go one after the other, as storage is one. What is not early is waited for before its
//! phase computes; what is early comes while earlier phases compute, in the order in which it is
//! needed, and its phase waits for the rest. While streamed weights are read from the storage,
//! nothing else is.
//!
//! Times are whole ticks, so that sums are the same in any order and ties are ties. What is added
//! up is a multiple of the job's [`TimeStep`]; what is compared, of [16](TimeStep::compared), so
//! that no plan is preferred for a difference that nobody can predict.

use std::cmp::Ordering;

use protocol::Phase;
use protocol::limits::COMPONENTS_MAX;
use protocol::plan::ATTENTION_CHUNK;
use protocol::profile::ComponentProfile;

use super::Problem;
use super::component_ms::ComponentMs;
use super::place::Place;
use super::time::SegmentTimes;
use crate::policy::Objective;

/// A tick is 2^-20 ms, about a nanosecond.
const TICKS_PER_MS: f64 = (1 << 20) as f64;

/// A job whose denoise phase takes the least that any device allows has at least so many steps
/// there, and less than twice as many: one step is less than a hundredth of a percent of it.
const STEPS_LEAST: f64 = (1 << 14) as f64;

/// Jobs are compared by whole multiples of so many steps, each less than a tenth of a percent of
/// the job: of two that are that near the simpler one is better.
const STEPS_COMPARED: u64 = 16;

/// The finest difference between times that is added up, in ticks: a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeStep(u64);

impl TimeStep {
    /// The step of a problem's jobs. It depends on no budget, on no pin, and on no device's being
    /// usable.
    pub fn of(problem: &Problem<'_>) -> TimeStep {
        let Problem { inventory, profile, .. } = problem;
        let denoises = |component: &&ComponentProfile| component.phase == Phase::Denoise;
        let any = profile.components.iter().any(|component| denoises(&component));
        let counted = profile.components.iter().filter(|component| !any || denoises(component));
        let least_s = counted.map(|component| {
            let times = SegmentTimes::new(inventory, component, ATTENTION_CHUNK);
            let devices = (0..inventory.devices.len()).map(Some).chain([None]);
            let once_s = devices.map(|device| times.once_s(device)).fold(f64::INFINITY, f64::min);
            f64::from(component.calls) * once_s
        });
        let least_s: f64 = least_s.filter(|seconds| seconds.is_finite()).sum();
        let step = (1e3 * least_s * TICKS_PER_MS / STEPS_LEAST) as u64;
        TimeStep(1 << step.max(1).ilog2())
    }

    /// The nearest whole steps of a time, in ticks.
    pub fn ticks(self, ms: f64) -> u64 {
        ((ms * TICKS_PER_MS / self.0 as f64).round() as u64).saturating_mul(self.0)
    }

    /// What a job of so many ticks is compared by, and is predicted to take, in ticks: no more than
    /// it has.
    pub fn compared(self, ticks: u64) -> u64 {
        ticks - ticks % self.compared_steps()
    }

    /// The most ticks of jobs that are as good as one that is compared by these.
    pub fn most(self, compared: u64) -> u64 {
        compared.saturating_add(self.compared_steps() - 1)
    }

    fn compared_steps(self) -> u64 {
        self.0.saturating_mul(STEPS_COMPARED)
    }
}

/// Phases of the longest timeline.
pub const PHASES_MAX: usize = 4;

/// When a load may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// In its own phase only.
    No,
    /// In the phase before it too.
    PhaseBefore,
    /// In any phase before it.
    Any,
}

/// What one component adds to the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadInterval {
    /// Its phase's place in the timeline.
    pub phase: usize,
    /// Its held weights on their way, in ticks.
    pub load: u64,
    /// Its calls, in ticks.
    pub compute: u64,
    /// How much of `compute` leaves the storage to the loads of others.
    pub hides: u64,
    /// When its load may be on its way.
    pub early: Prefetch,
}

impl LoadInterval {
    /// A place's spell in a job that starts cold.
    pub fn cold(place: &Place, phase: usize, step: TimeStep) -> LoadInterval {
        LoadInterval::new(early(place), phase, step, place.ms)
    }

    /// The same on a warm executor: what is resident is there, and files are in the page cache.
    pub fn warm(place: &Place, phase: usize, step: TimeStep) -> LoadInterval {
        LoadInterval::new(early(place), phase, step, place.ms.again(place.reloads()))
    }

    /// The least of any place with these times, as an objective counts it: it reloads nothing, and
    /// its load may be on its way from the start.
    pub fn freest(
        objective: Objective,
        ms: ComponentMs,
        phase: usize,
        step: TimeStep,
    ) -> LoadInterval {
        let ms = if objective == Objective::Throughput { ms.again(false) } else { ms };
        LoadInterval::new(Prefetch::Any, phase, step, ms)
    }

    fn new(early: Prefetch, phase: usize, step: TimeStep, ms: ComponentMs) -> LoadInterval {
        let computes = ms.first_read + ms.compute;
        let compute = step.ticks(computes);
        let hides = step.ticks((computes - ms.storage).max(0.0)).min(compute);
        LoadInterval { phase, load: step.ticks(ms.load), compute, hides, early }
    }

    /// The least of a component that loads and computes no less than this.
    pub fn least(phase: usize, load: u64, compute: u64) -> LoadInterval {
        LoadInterval { phase, load, compute, hides: compute, early: Prefetch::Any }
    }

    /// The one of these that an objective counts.
    pub fn counted(
        objective: Objective,
        place: &Place,
        phase: usize,
        step: TimeStep,
    ) -> LoadInterval {
        match objective {
            Objective::Throughput => LoadInterval::warm(place, phase, step),
            Objective::Latency | Objective::Memory => LoadInterval::cold(place, phase, step),
        }
    }

    /// The sum of both.
    pub fn both(&self) -> u64 {
        self.load.saturating_add(self.compute)
    }

    /// How long the storage is busy with its weights.
    pub fn stored(&self) -> u64 {
        self.load.saturating_add(self.compute - self.hides)
    }

    /// What it adds to the sum that belongs to a phase: see [`PhaseSums`].
    pub fn phase_sums(&self) -> PhaseSums {
        let waits = if self.early == Prefetch::No { self.load } else { 0 };
        let before = self.compute.saturating_add(waits);
        PhaseSums { phase: self.phase, before, own: self.both(), after: self.stored() }
    }
}

/// What a component adds to the sums that belong to phases; each of these sums is a lower bound of
/// [`total`]. That of a phase holds all work of the storage that must be done by then, what is
/// computed from then on, and what waits for a later phase anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseSums {
    /// Its place in the timeline.
    pub phase: usize,
    /// To the sum of a phase before its own.
    pub before: u64,
    /// To that of its own.
    pub own: u64,
    /// To that of a phase after its own.
    pub after: u64,
}

impl PhaseSums {
    /// What it adds to the sum of a phase.
    pub fn at(&self, phase: usize) -> u64 {
        match phase.cmp(&self.phase) {
            Ordering::Less => self.before,
            Ordering::Equal => self.own,
            Ordering::Greater => self.after,
        }
    }
}

/// When a place's load may be on its way.
fn early(place: &Place) -> Prefetch {
    match (place.early, place.reloads()) {
        (false, _) => Prefetch::No,
        (true, true) => Prefetch::PhaseBefore,
        (true, false) => Prefetch::Any,
    }
}

/// Ticks of a job with these spells, in the order in which components run. Less to load or to
/// compute, with all of that hiding loads, or a load that may be on its way earlier, never makes it
/// longer.
///
/// # Panics
/// There are more than [`COMPONENTS_MAX`] spells.
pub fn total(intervals: &[LoadInterval]) -> u64 {
    let mut left = [0_u64; COMPONENTS_MAX];
    for (left, interval) in left.iter_mut().zip(intervals) {
        *left = interval.load;
    }
    assert!(intervals.len() <= left.len(), "{} components", intervals.len());
    let mut total = 0_u64;
    for phase in 0..PHASES_MAX {
        let mut hides = 0_u64;
        for (interval, left) in intervals.iter().zip(&mut left).filter(|(s, _)| s.phase == phase) {
            total = total.saturating_add(std::mem::take(left)).saturating_add(interval.compute);
            hides = hides.saturating_add(interval.hides);
        }
        // What is needed first comes first.
        for later in phase + 1..PHASES_MAX {
            for (interval, left) in
                intervals.iter().zip(&mut left).filter(|(s, _)| s.phase == later)
            {
                let comes = match interval.early {
                    Prefetch::No => false,
                    Prefetch::PhaseBefore => later == phase + 1,
                    Prefetch::Any => true,
                };
                let now = if comes { hides.min(*left) } else { 0 };
                (*left, hides) = (*left - now, hides - now);
            }
        }
    }
    total
}

/// Ticks as a time.
pub fn ms(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_MS
}

/// The place of a phase in a timeline.
pub fn position(timeline: &[Phase], phase: Phase) -> usize {
    timeline.iter().position(|known| *known == phase).expect("components compute in the timeline")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(phase: usize, load: u64, compute: u64, early: Prefetch) -> LoadInterval {
        LoadInterval { phase, load, compute, hides: compute, early }
    }

    #[test]
    fn what_is_early_comes_while_earlier_phases_compute() {
        let job = |early| total(&[interval(0, 5, 10, Prefetch::No), interval(1, 30, 7, early)]);
        assert_eq!(job(Prefetch::No), 5 + 10 + 30 + 7);
        assert_eq!(job(Prefetch::PhaseBefore), 5 + 10 + 20 + 7);
        assert_eq!(job(Prefetch::Any), 5 + 10 + 20 + 7);
        // Two phases before it, only what is resident may come.
        let job = |early| {
            total(&[
                interval(0, 0, 10, Prefetch::No),
                interval(1, 0, 4, Prefetch::No),
                interval(2, 9, 1, early),
            ])
        };
        assert_eq!(
            (job(Prefetch::No), job(Prefetch::PhaseBefore), job(Prefetch::Any)),
            (24, 20, 15)
        );
    }

    #[test]
    fn loads_share_one_storage_and_the_first_needed_goes_first() {
        let intervals = [
            interval(0, 0, 10, Prefetch::No),
            interval(2, 8, 1, Prefetch::Any),
            interval(1, 6, 2, Prefetch::Any),
        ];
        // 6 and 4 of the 8 come in the first phase, 2 more in the second.
        assert_eq!(total(&intervals), 10 + 2 + 2 + 1);
    }

    #[test]
    fn the_chains_bound_the_total_from_below_and_less_is_never_longer() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        for _ in 0..50_000 {
            let mut intervals: Vec<LoadInterval> = (0..1 + below(6))
                .map(|_| {
                    let early =
                        [Prefetch::No, Prefetch::PhaseBefore, Prefetch::Any][below(3) as usize];
                    let interval = interval(below(4) as usize, below(50), below(50), early);
                    LoadInterval { hides: below(interval.compute + 1), ..interval }
                })
                .collect();
            let before = total(&intervals);
            let bound_of = intervals.clone();
            let which = below(intervals.len() as u64) as usize;
            let LoadInterval { phase, load, compute, .. } = intervals[which];
            intervals[which] = LoadInterval::least(phase, below(load + 1), below(compute + 1));
            assert!(total(&intervals) <= before, "{bound_of:?}, less: {intervals:?}");
            let bound = (0..PHASES_MAX)
                .map(|phase| {
                    intervals.iter().map(|interval| interval.phase_sums().at(phase)).sum::<u64>()
                })
                .max();
            assert!(bound <= Some(total(&intervals)), "{intervals:?}");
        }
    }
}
