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
    others: OtherSums,
    ticks_max: u64,
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
                let [own, after, before] = choices.of[other].least_keys();
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
            others: OtherSums::of(&sums, phase),
            ticks_max,
        }
    }

    /// Whether a place with these times is within it: as if its load were on its way from the
    /// start, and nothing of it loaded anew.
    pub fn has(&self, ms: ComponentMs) -> bool {
        let interval = LoadInterval::freest(self.objective, ms, self.phase, self.step);
        self.others.longest(&interval.phase_sums()) <= self.ticks_max
    }
}
