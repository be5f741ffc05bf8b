//! A model that was measured once: plans of one job for any budgets.

use std::time::Instant;

use super::measured::MeasuredModel;
use super::{DoesNotFit, PlanError, Request, difference, does_not_fit, verify};
use crate::engine::session::Session;
use crate::solve::{
    Infeasible, KnownChoices, LayoutQuery, Lists, OpenLayouts, Problem, Solution, better, explain,
    fits, infeasible, refined, turns_that_may_beat,
};

/// A model that was measured for a job on a host: plans for any budgets there, without measuring it
/// again.
pub struct Survey {
    measured: MeasuredModel,
    /// Components whose LoRA products are added while they run.
    runtime: Vec<String>,
}

impl Survey {
    /// Measures the model.
    pub fn new(session: &mut Session, request: &Request) -> Result<Survey, PlanError> {
        let mut runtime = request.options.lora_runtime.clone();
        let measured = MeasuredModel::ask(session, request, &request.job, &mut runtime)?;
        Ok(Survey { measured, runtime })
    }

    /// Makes a plan with a request's budgets; everything else of it is as it was measured.
    pub fn plan(
        &mut self,
        session: &mut Session,
        request: &Request,
        generation: u64,
    ) -> Result<Solution, PlanError> {
        let begun = Instant::now();
        let mut solution = match self.solve(session, request, generation)? {
            Ok(solution) => solution,
            Err(infeasible) if request.keeps.is_some() || request.budgets.idle.is_some() => {
                // What else would fit is a plan's to say that is bound to nothing.
                let job = request.job.clone();
                let error = DoesNotFit { job, infeasible, largest: None };
                return Err(PlanError::Infeasible(Box::new(error)));
            }
            Err(infeasible) => {
                return Err(does_not_fit(session, request, &self.runtime, infeasible));
            }
        };
        let (ms, predicted_ms) =
            (begun.elapsed().as_millis() as u64, solution.plan.predicted_ms.total);
        for component in &solution.plan.components {
            let (placement, residency) = (component.placement(), component.residency);
            tracing::debug!(name = component.name, ?placement, ?residency, devices = ?component.devices, "places");
        }
        tracing::debug!(generation, ms, predicted_ms, "solved a plan");
        solution.plan.keeps_weights_of = request.keeps.as_ref().map(|loaded| loaded.generation);
        protocol::check::check(&solution.plan).map_err(PlanError::Violation)?;
        let verified = verify(session, &solution.plan)?;
        match difference(&solution.plan, &verified) {
            None => Ok(solution),
            Some(difference) => Err(PlanError::Unsettled(difference)),
        }
    }

    /// Finds the best plan. Splits in turns are asked for where they may be better, or where the
    /// report tells of them.
    pub(super) fn solve(
        &mut self,
        session: &mut Session,
        request: &Request,
        generation: u64,
    ) -> Result<Result<Solution, Infeasible>, PlanError> {
        self.measured.forget_plan();
        let changes = self.fits_with_changes(session, request)?;
        let (first, all) = (self.measured.first_lists(), self.measured.all_lists());
        let mut known = KnownChoices::default();
        let problems = self.problems(request, &first, changes);
        let mut best = better(&problems, generation, None, &mut known);
        let lists = match &best {
            _ if first == all => first.clone(),
            Some(best) => {
                let may_beat = turns_that_may_beat(&problems, best, request.longer_max);
                self.measured.complete_plan(session, request, &may_beat)?;
                may_beat
                    .iter()
                    .map(|turns| turns.as_ref().map_or(Lists::First, |_| Lists::All))
                    .collect()
            }
            None => {
                self.measured.complete(session, request)?;
                all.clone()
            }
        };
        if lists != first {
            let problems = self.problems(request, &lists, changes);
            best = better(&problems, generation, best.as_ref(), &mut known).or(best);
        }
        let mut open = None;
        // Weights that are changed when they are loaded are not streamed, and those that are loaded
        // lie where they are.
        let is_free = !changes && request.keeps.is_none();
        if let Some(found) = best.take_if(|_| is_free) {
            let refined = self.refine(session, request, generation, found, &lists, &mut known)?;
            (best, open) = (Some(refined.0), refined.1);
        }
        let mut solution = match best {
            Some(best) if !request.explain => return Ok(Ok(best)),
            best => best,
        };
        self.measured.complete(session, request)?;
        let mut problems = self.problems(request, &all, changes);
        if let Some(solution) = &mut solution {
            if let (Some(open), Some(at)) = (open, solution.problem()) {
                open.add_to(&mut problems[at]);
            }
            explain(&problems, solution, &mut known);
        }
        Ok(solution.ok_or_else(|| infeasible(&problems)))
    }

    /// Looks for a better plan than the best one in these lists of devices, where no weights are
    /// changed when they are loaded. The answer has the layouts that were looked at too.
    fn refine(
        &self,
        session: &mut Session,
        request: &Request,
        generation: u64,
        best: Solution,
        lists: &[Lists],
        known: &mut KnownChoices,
    ) -> Result<(Solution, Option<OpenLayouts>), PlanError> {
        let Some(at) = best.problem() else { return Ok((best, None)) };
        let problems = self.measured.problems(request, lists);
        let (wanted, bytes) = self.measured.asked(at, &problems[at], lists);
        let size = |wanted: &[LayoutQuery]| self.measured.size(session, request, at, wanted);
        let effort = (generation, request.longer_max);
        refined(&problems, best, (&wanted, &bytes), size, effort, known)
    }

    /// Whether a plan fits in which each component's weights can be changed when they are loaded,
    /// but for those whose LoRA products are added while they run anyway. Weights that are streamed
    /// or split by rows cannot be: only for want of other room, and then all products are added so.
    fn fits_with_changes(
        &mut self,
        session: &mut Session,
        request: &Request,
    ) -> Result<bool, PlanError> {
        if request.options.loras.is_empty() {
            return Ok(false);
        }
        let all = self.measured.all_lists();
        if fits(&self.problems(request, &all, true)) {
            return Ok(true);
        }
        let problems = self.measured.problems(request, &all);
        self.runtime = problems[0].profile.components.iter().map(|c| c.name.clone()).collect();
        drop(problems);
        self.measured = MeasuredModel::ask(session, request, &request.job, &mut self.runtime)?;
        Ok(false)
    }

    /// The problems of a request; `changes`: without places where weights cannot be changed.
    fn problems<'a>(
        &'a self,
        request: &'a Request,
        lists: &[Lists],
        changes: bool,
    ) -> Vec<Problem<'a>> {
        let problems = self.measured.problems(request, lists);
        match changes {
            true => problems.iter().map(|p| p.without_products(&self.runtime)).collect(),
            false => problems,
        }
    }
}
