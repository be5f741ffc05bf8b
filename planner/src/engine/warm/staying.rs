//! Jobs that bring their embeddings, on an executor whose plan has text encoders: when they run by
//! that plan, and when by one of their own.
//!
//! The loaded plan does for such a job as it is: the phase of the text encoders is left out. A plan
//! without them may be faster, as the denoiser has their room. But then the next new prompt moves
//! the weights back. So what jobs lose by staying is added up, and the other plan is loaded once
//! that has come to what loading it and going back take: whatever prompts follow, moving weights
//! costs no more than it has saved or would have.

use protocol::{JobShape, Phase, Plan, Residency};

use super::{Decision, Loaded, Warm, fits_budgets};
use crate::engine::session::Session;
use crate::planning::{PlanError, Request, Survey, plan, plan_keeping};
use crate::solve::Solution;

/// A plan of their own is no faster where it saves less of a job than this: predictions are not
/// that good.
const SAVED_PART_MIN: f64 = 0.05;

/// What jobs of one kind lose that bring their embeddings and run by a plan with text encoders.
#[derive(Clone)]
pub(super) struct Staying {
    request: Request,
    /// What such a job takes by the loaded plan.
    next_ms: f64,
    /// How much of that it would not take by one of its own.
    loses_ms: f64,
    /// What it takes to load that one, and to go back.
    moving_ms: f64,
    /// What was lost so far.
    lost_ms: f64,
}

impl Warm {
    /// Decides how a job begins that brings its embeddings, where the loaded plan has text encoders
    /// and else does for it; `None` for every other job.
    pub(super) fn decide_conditioned(
        &mut self,
        request: &Request,
        generation: u64,
    ) -> Result<Option<Decision>, PlanError> {
        let Some(loaded) = self.loaded.as_mut().filter(|loaded| loaded.covers(request)) else {
            return Ok(None);
        };
        if loaded.staying_of(request).is_none() {
            let executor = self.session.pid();
            let staying = Staying::weigh(&mut self.session, request, &loaded.plan, generation)?;
            if self.session.pid() != executor {
                // It died of the questions: what it held is gone.
                self.loaded = None;
                return Ok(None);
            }
            loaded.staying = Some(staying);
        }
        if let Some(staying) = loaded.staying.as_mut().filter(|staying| !staying.is_over()) {
            staying.lost_ms += staying.loses_ms;
            return Ok(Some(Decision::Reuse));
        }
        match plan(&mut self.session, request, generation) {
            Ok(own) => Ok(Some(Decision::load(own))),
            Err(PlanError::Infeasible(_)) => Ok(Some(Decision::Reuse)),
            Err(error) => Err(error),
        }
    }
}

impl Loaded {
    /// Whether it does as it is for a job that brings its embeddings, though it has text encoders.
    pub fn covers(&self, request: &Request) -> bool {
        if !request.job.conditioned || self.plan.job.conditioned {
            return false;
        }
        let asked = self.request.as_ref().map(|asked| conditioned(asked, true));
        // What comes early for a phase that is left out is in the bytes of the one before.
        let of_encoders = |phase| phase == Phase::Condition;
        let comes_early = self.plan.job.init_image
            && self.plan.components.iter().any(|c| of_encoders(c.phase) && c.prefetch);
        asked.is_some_and(|asked| asked.asks_the_same(&self.where_it_is(&asked, request)))
            && !comes_early
            && fits_budgets(&self.plan, request)
    }

    /// Whether the next job that it covers runs by it.
    pub(super) fn stays(&self, request: &Request) -> bool {
        self.covers(request) && self.staying_of(request).is_none_or(|staying| !staying.is_over())
    }

    /// Whether it was made for the same question, but for embeddings that the job brings, and takes
    /// more than there is by now.
    pub fn is_too_large(&self, request: &Request) -> bool {
        let is_asked = self
            .request
            .as_ref()
            .map(|asked| (asked, conditioned(request, asked.job.conditioned)))
            .is_some_and(|(asked, request)| {
                asked.asks_the_same(&self.where_it_is(asked, &request))
            });
        is_asked && !fits_budgets(&self.plan, request)
    }

    /// The question for a job that brings its embeddings as if it did not, where text encoders are
    /// loaded that may stay: a new prompt may follow.
    pub fn with_encoders(&self, request: &Request) -> Option<Request> {
        let has_encoders = !self.plan.job.conditioned && self.may_keep(request);
        (has_encoders && request.job.conditioned).then(|| conditioned(request, false))
    }

    /// What a job takes by this plan that begins with it, in milliseconds.
    pub fn next_ms(&self, request: &Request) -> f64 {
        match self.staying_of(request) {
            Some(staying) if self.covers(request) => staying.next_ms,
            _ => next_ms(&self.plan, &request.job),
        }
    }

    fn staying_of(&self, request: &Request) -> Option<&Staying> {
        self.staying.as_ref().filter(|staying| staying.request.asks_the_same(request))
    }
}

impl Staying {
    /// Looks at both plans.
    fn weigh(
        session: &mut Session,
        request: &Request,
        loaded: &Plan,
        generation: u64,
    ) -> Result<Staying, PlanError> {
        if is_all_there(loaded) {
            let (request, next_ms) = (request.clone(), next_ms_of_rest(loaded));
            return Ok(Staying { request, next_ms, loses_ms: 0.0, moving_ms: 0.0, lost_ms: 0.0 });
        }
        // The loaded places without text encoders: as it takes that leaves out their phase.
        let as_loaded = plan_keeping(session, request, loaded, generation)?;
        let own = Survey::new(session, request)?.plan(session, request, generation);
        let own = match own {
            Ok(own) => Some(own),
            Err(PlanError::Infeasible(_)) => None,
            Err(error) => return Err(error),
        };
        let ms = |solution: &Solution| solution.plan.predicted_ms;
        let next_ms = as_loaded.as_ref().map(|solution| ms(solution).next_total);
        let saved_ms = match (next_ms, own.as_ref().map(ms)) {
            (Some(next_ms), Some(own)) => next_ms - own.next_total,
            _ => 0.0,
        };
        let loading_ms = |plan: &Plan| plan.predicted_ms.total - plan.predicted_ms.next_total;
        let next_ms = next_ms.unwrap_or_else(|| next_ms_of_rest(loaded));
        Ok(Staying {
            request: request.clone(),
            next_ms,
            loses_ms: if saved_ms >= SAVED_PART_MIN * next_ms { saved_ms } else { 0.0 },
            moving_ms: own.map_or(0.0, |own| loading_ms(&own.plan)) + loading_ms(loaded),
            lost_ms: 0.0,
        })
    }

    /// Whether what the next job would lose makes it worth to move.
    fn is_over(&self) -> bool {
        self.loses_ms > 0.0 && self.lost_ms + self.loses_ms >= self.moving_ms
    }
}

/// Plans a job with the text encoders that may stay (`whole`), where there are some and that fits,
/// else as it was asked.
///
/// # Errors
/// As `plan`.
pub fn whole_first<T>(
    whole: Option<Request>,
    request: &Request,
    mut plan: impl FnMut(&Request) -> Result<T, PlanError>,
) -> Result<T, PlanError> {
    match whole.map(|whole| plan(&whole)) {
        None | Some(Err(PlanError::Infeasible(_))) => plan(request),
        Some(planned) => planned,
    }
}

/// What a job takes by a plan that is loaded, in milliseconds: without the phase of the text
/// encoders where it brings its embeddings.
pub fn next_ms(plan: &Plan, job: &JobShape) -> f64 {
    match job.conditioned && !plan.job.conditioned {
        true => next_ms_of_rest(plan),
        false => plan.predicted_ms.next_total,
    }
}

/// Whether nothing but text encoders is loaded or streamed for a job: with more room nothing would
/// be faster.
fn is_all_there(plan: &Plan) -> bool {
    let mut others = plan.components.iter().filter(|c| c.phase != Phase::Condition);
    others.all(|component| component.residency == Residency::Resident)
}

fn next_ms_of_rest(plan: &Plan) -> f64 {
    let ms = &plan.predicted_ms;
    (ms.next_total - ms.phases[Phase::Condition]).max(0.0)
}

/// The same question for a job that brings its embeddings, or not.
fn conditioned(request: &Request, conditioned: bool) -> Request {
    let mut request = request.clone();
    request.job.conditioned = conditioned;
    request
}
