//! How long a component may take by itself, for a job that is worth a look.

use super::super::Problem;
use super::super::component_ms::ComponentMs;
use super::super::timeline::{LoadInterval, PHASES_MAX, PhaseSums, TimeStep, position};
use super::{Choices, OtherSums};
use crate::policy::Objective;

/// Times of a component with which a job may end in time, whatever the others take.
pub struct Allowance {
    objective: Objective,
    step: TimeStep,
    phase: usize,
    /// What the others take at least, and what a job may take beside that: one of these suffices.
    beside: Vec<(OtherSums, u64)>,
}

impl Allowance {
    /// For jobs of `ticks_max` at most, beside the least that each other component can take.
    pub fn beside(
        problem: &Problem<'_>,
        choices: &Choices,
        component: usize,
        ticks_max: u64,
    ) -> Allowance {
        let phase_of = |index: usize| {
            position(problem.job.timeline(), problem.profile.components[index].phase)
        };
        let others = (0..choices.of.len()).filter(|other| *other != component);
        let least: Vec<PhaseSums> = others
            .map(|other| {
                let [own, after] = choices.of[other].least_own_and_after();
                // Places that are not made yet may come earlier than these.
                let before = choices.of[other].least_compute;
                PhaseSums { phase: phase_of(other), before, own, after }
            })
            .collect();
        let sum = |phase| least.iter().map(|sums| sums.at(phase)).fold(0, u64::saturating_add);
        let sums: [u64; PHASES_MAX] = std::array::from_fn(sum);
        let phase = phase_of(component);
        Allowance {
            objective: problem.objective,
            step: choices.step,
            phase,
            beside: vec![(OtherSums::of(&sums, phase), ticks_max)],
        }
    }

    /// What this or another one allows, of the same component for the same job.
    pub fn or(mut self, other: Allowance) -> Allowance {
        self.beside.extend(other.beside);
        self
    }

    /// Whether a place with these times is within it: as if its load were on its way from the
    /// start, and nothing of it loaded anew.
    pub fn has(&self, ms: ComponentMs) -> bool {
        let interval = LoadInterval::freest(self.objective, ms, self.phase, self.step);
        let sums = interval.phase_sums();
        let mut beside = self.beside.iter();
        beside.any(|(others, ticks_max)| others.longest(&sums) <= *ticks_max)
    }
}
