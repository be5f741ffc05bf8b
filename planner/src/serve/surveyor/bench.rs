//! What the surveyor works with: an executor of its own, surveys that were made before, and what
//! would be free if nothing were loaded.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use protocol::{JobShape, Phase};

use super::super::described::{DescribedModel, OpenedFiles};
use super::super::desk::action::{GainOrder, QuoteOrder, RoomOrder};
use super::super::desk::event::{GainTimes, Quoted, RoomTimes, SlotId};
use super::super::desk::job::{ErrorCode, JobError};
use super::super::failures::{internal, of_plan, of_request, of_session, of_setup};
use super::super::shared::ServedHost;
use super::offer::{ChosenPlan, PlannedMs, quoted};
use super::surveys::Surveys;
use crate::engine::host::SetupError;
use crate::engine::lanes::Lanes;
use crate::engine::session::{ExecutorListener, Interrupts, Session, SessionError};
use crate::engine::warm::{Loaded, sooner, whole_first};
use crate::inventory::Inventory;
use crate::job::model::ModelName;
use crate::job::{JobRequest, PreparedJob, ResolvedJob};
use crate::planning::{PlanError, Request};
use crate::solve::Solution;

/// What the surveyor works with.
pub struct SurveyBench {
    pub(super) shared: Arc<ServedHost>,
    session: Option<Session>,
    /// By model, the files that the executor has had open.
    opened: BTreeMap<String, OpenedFiles>,
    surveys: Surveys,
}

impl SurveyBench {
    /// With no executor yet.
    pub fn new(shared: Arc<ServedHost>) -> SurveyBench {
        // Now nothing of this daemon runs.
        if let Err(error) = shared.inventory_if_idle(None) {
            tracing::warn!(%error, "what is free cannot be read yet");
        }
        let (opened, surveys) = (BTreeMap::new(), Surveys::default());
        SurveyBench { shared, session: None, opened, surveys }
    }

    /// Whether surveys are kept.
    pub fn has_surveys(&self) -> bool {
        !self.surveys.is_empty()
    }

    /// Forgets surveys that are too old for any question.
    pub fn forget_surveys(&mut self) {
        self.surveys.clear();
    }

    /// The models that nobody has looked into yet, by name.
    pub fn undescribed(&self) -> Vec<String> {
        self.shared.undescribed()
    }

    /// Ends the executor in order.
    pub fn end(mut self) {
        if let Some(session) = self.session.take() {
            session.end();
        }
    }

    /// Does something, of which a panic is an error as others are.
    pub fn caught<T>(
        &mut self,
        work: impl FnOnce(&mut SurveyBench) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| work(self)));
        tracing::debug!(ms = begun.elapsed().as_millis() as u64, "answered");
        let result = result.unwrap_or_else(|panic| {
            self.forget();
            Err(of_panic(&*panic))
        });
        // The executor knows damaged files as they were, and what it had open is not known.
        if result.as_ref().is_err_and(|error| error.code == ErrorCode::BadModel) {
            self.forget();
        }
        result
    }

    /// Looks into a model.
    pub fn describe(&mut self, name: &str) -> Result<(), JobError> {
        let Some(source) = self.shared.source_of(name) else { return Ok(()) };
        let mut session = self.session()?;
        let described = self.shared.describe(&mut session, &source);
        if let Ok(model) = &described {
            self.opened.insert(source.to_string(), model.opened_alone());
        }
        self.session = (!session.is_gone()).then_some(session);
        described.map(drop).map_err(JobError::from)
    }

    /// The next question begins with another executor.
    fn forget(&mut self) {
        self.session = None;
        self.opened.clear();
        self.surveys.clear();
    }

    /// What a job takes, and by which plan.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn quote(&mut self, order: &QuoteOrder) -> Result<Quoted, JobError> {
        let QuoteOrder { request, explain, slot, unloaded, busy } = order;
        self.about(request, *slot, *busy, |bench, session, question| {
            let away = Away { unloaded, running: &[] };
            let (planned, request) = bench.plan(session, question, away, *explain)?;
            let notices = &question.resolved.notices;
            quoted(&planned, &request, question.resolved.shape.batch, notices)
        })
    }

    /// What a job takes with each choice of models that are unloaded, the first of which has all of
    /// them, while some others run on. A choice that has another one in it, by which the job is as
    /// soon done as by the first, is not looked at.
    pub fn weigh(&mut self, order: &RoomOrder) -> Result<Vec<Option<RoomTimes>>, JobError> {
        let RoomOrder { request, slot, choices, running, busy } = order;
        // Beside others what is free now counts, not what was when they began.
        let busy = *busy && running.is_empty();
        self.about(request, *slot, busy, |bench, session, question| {
            let mut weighed = Vec::with_capacity(choices.len());
            for choice in choices {
                let times = match has_better(choice, choices, &weighed) {
                    true => Ok(None),
                    false => bench.times(session, question, Away { unloaded: choice, running }),
                };
                weighed.push(times?);
            }
            Ok(weighed)
        })
    }

    /// What a loaded model's next jobs would gain by a plan for what is free now; `None` where the
    /// loaded plan is for others, or there is no other.
    pub fn regain(&mut self, order: &GainOrder) -> Result<Option<GainTimes>, JobError> {
        let GainOrder { request, slot } = order;
        self.about(request, Some(*slot), false, |bench, session, question| {
            let mut resolved = question.resolved.clone();
            // A model is loaded with its text encoders: a new prompt may follow.
            resolved.shape.conditioned = false;
            let request = bench.request(question, &resolved, Away::NOBODY, false)?;
            if bench.shared.placed_for(&question.name, &request.job).is_some() {
                return Ok(None);
            }
            let loaded = bench.shared.loaded(*slot).filter(|loaded| loaded.does(&request));
            let Some(loaded) = loaded else { return Ok(None) };
            let own = match bench.surveys.own(session, &request) {
                Ok(own) => own.plan.predicted_ms,
                Err(PlanError::Infeasible(_)) => return Ok(None),
                Err(error) => return Err(of_plan(&error, &question.asked.model)),
            };
            Ok(Some(GainTimes {
                load_ms: (own.total - own.next_total).max(0.0),
                saved_ms: loaded.next_ms(&request) - own.next_total,
            }))
        })
    }

    /// What a job takes with a choice; `None` where it does not fit, or is in the way of what runs.
    fn times(
        &mut self,
        session: &mut Session,
        question: &JobQuestion,
        away: Away<'_>,
    ) -> Result<Option<RoomTimes>, JobError> {
        match self.plan(session, question, away, false) {
            Ok((planned, request)) => {
                let PlannedMs { load_ms, run_ms } =
                    planned.ms(&request, question.resolved.shape.batch);
                let lanes = Lanes::of(planned.plan());
                let others = self.shared.others(question.slot.as_slice());
                let running = others.that(true).into_iter().filter(|_| away.is_beside());
                let is_free = !running.map(Lanes::of).any(|taken| taken.shares(&lanes));
                let times = RoomTimes { job_ms: load_ms + run_ms, next_ms: run_ms, lanes };
                Ok(is_free.then_some(times))
            }
            Err(error) if error.code == ErrorCode::DoesNotFit => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks at a job and answers a question about it.
    pub(super) fn about<T>(
        &mut self,
        request: &JobRequest,
        slot: Option<SlotId>,
        busy: bool,
        answer: impl FnOnce(&mut SurveyBench, &mut Session, &JobQuestion) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let host = self.shared.host();
        let asked = self.shared.prepare(request, &host)?;
        let inventory = self.inventory(busy).map_err(|e| of_setup(&e))?;
        self.renew_if_changed(&asked);
        let mut session = self.session()?;
        let question = self.look_at(&mut session, (request, asked), inventory, slot);
        let answered = question.and_then(|question| answer(self, &mut session, &question));
        match session.is_gone() {
            true => self.forget(),
            false => self.session = Some(session),
        }
        answered
    }

    /// What would be free if nothing were loaded; where something runs (or `busy` says so) as it
    /// was before, if that is known.
    fn inventory(&self, busy: bool) -> Result<Inventory, SetupError> {
        let last = busy.then(|| self.shared.last_idle_inventory()).flatten();
        last.map_or_else(|| self.shared.inventory_if_idle(None), Ok)
    }

    fn look_at(
        &mut self,
        session: &mut Session,
        (request, asked): (&JobRequest, PreparedJob),
        inventory: Inventory,
        slot: Option<SlotId>,
    ) -> Result<JobQuestion, JobError> {
        let name = match &request.model {
            ModelName::Name(name) => name.clone(),
            ModelName::Files(source) => source.to_string(),
        };
        let model = self.shared.describe(session, &asked.model)?;
        self.opened.insert(asked.model.to_string(), model.opened_for(&asked)?);
        let mut resolved = asked.resolve(&model.description).map_err(|e| of_request(&e))?;
        // What would be sent is looked at too: an error belongs to this answer, not to the run's.
        let job = asked.job(&resolved).map_err(|error| of_request(&error))?;
        let conditioning = &self.shared.conditioning;
        let keys = conditioning.keys(&asked, &resolved, &model, &job);
        resolved.shape.conditioned = keys.is_some_and(|keys| conditioning.has(&keys));
        Ok(JobQuestion { asked, name, resolved, model, inventory, slot })
    }

    /// An executor knows files as they were when it opened them.
    fn renew_if_changed(&mut self, asked: &PreparedJob) {
        let opened = self.opened.get(&asked.model.to_string());
        if opened.is_some_and(OpenedFiles::have_changed) {
            self.forget();
        }
    }

    /// The executor, started where there is none; lost in a panic.
    fn session(&mut self) -> Result<Session, JobError> {
        if let Some(mut session) = self.session.take()
            && !session.is_gone()
        {
            session.begin_job();
            return Ok(session);
        }
        self.forget();
        let session = Session::start(&self.shared.program, SurveyListener);
        session.map_err(|error| of_session(&error))
    }

    /// The plan that a job would run by once some models are unloaded; of fewer pictures at a time
    /// where all do not fit together.
    fn plan(
        &mut self,
        session: &mut Session,
        question: &JobQuestion,
        away: Away<'_>,
        explain: bool,
    ) -> Result<(ChosenPlan, Request), JobError> {
        let mut resolved = question.resolved.clone();
        loop {
            let request = self.request(question, &resolved, away, explain)?;
            match self.plan_on_slot(session, question, &request) {
                Err(PlanError::Infeasible(_)) if resolved.shape.batch > 1 => {
                    resolved.shape.batch /= 2;
                }
                planned => {
                    let planned = planned.map_err(|error| of_plan(&error, &question.asked.model));
                    return Ok((planned?, request));
                }
            }
        }
    }

    /// The request of a job's plan once some models are unloaded.
    pub(super) fn request(
        &self,
        question: &JobQuestion,
        resolved: &ResolvedJob,
        away: Away<'_>,
        explain: bool,
    ) -> Result<Request, JobError> {
        let JobQuestion { asked, model, inventory, slot, .. } = question;
        let host = self.shared.host();
        let left_out: Vec<SlotId> = away.unloaded.iter().chain(slot).copied().collect();
        let others = self.shared.others(&left_out);
        // For a job that waits for what runs, that is idle when its turn comes.
        let others = if away.is_beside() { others } else { others.idle() };
        let (description, inventory) = (&model.description, inventory.clone());
        let request = host.request_beside(asked, resolved, description, inventory, &others.each());
        let mut request = request.map_err(|error| of_setup(&error))?;
        request.failed = self.shared.failed_devices(&request.inventory);
        request.explain = explain;
        Ok(request)
    }

    /// The plan that a job would run by on its slot, as [`Warm::decide`] has it.
    ///
    /// [`Warm::decide`]: crate::engine::warm::Warm::decide
    pub(super) fn plan_on_slot(
        &mut self,
        session: &mut Session,
        question: &JobQuestion,
        request: &Request,
    ) -> Result<ChosenPlan, PlanError> {
        let loaded = question.slot.and_then(|slot| self.shared.loaded(slot));
        let loaded = loaded.filter(|loaded| loaded.changed_files().is_empty());
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.does(request)) {
            return Ok(ChosenPlan::Loaded(Arc::clone(loaded)));
        }
        if loaded.as_ref().is_some_and(|loaded| loaded.covers(request)) {
            let own = self.surveys.own(session, request)?;
            return Ok(ChosenPlan::New(Box::new(own)));
        }
        let loaded = loaded.as_deref();
        let placed_for = self.shared.placed_for(&question.name, &request.job);
        let stays_placed = placed_for.is_some();
        if let Some(shape) = placed_for.filter(|shape| loaded.is_none() && *shape != request.job)
            && let Some(solution) = self.plan_for_size(session, request, shape)?
        {
            return Ok(ChosenPlan::New(Box::new(solution)));
        }
        let whole = loaded.and_then(|loaded| loaded.with_encoders(request));
        whole_first(whole, request, |request| {
            self.plan_anew(session, request, loaded, stays_placed)
        })
    }

    /// The plan of a job that leaves weights where those of a larger one are, which is loaded
    /// first; `None` where either does not fit.
    fn plan_for_size(
        &mut self,
        session: &mut Session,
        request: &Request,
        larger: JobShape,
    ) -> Result<Option<Solution>, PlanError> {
        let larger = Request { job: larger, explain: false, ..request.clone() };
        let placed = match self.surveys.own(session, &larger) {
            Ok(placed) => placed.plan,
            Err(PlanError::Infeasible(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut kept = self.surveys.keeping(session, request, &placed)?;
        if let Some(Solution { plan, .. }) = &mut kept {
            let load_ms = placed.predicted_ms.total - placed.predicted_ms.next_total;
            plan.keeps_weights_of = None;
            plan.predicted_ms.total = plan.predicted_ms.next_total + load_ms;
            plan.predicted_ms.phases[Phase::Load] = placed.predicted_ms.phases[Phase::Load];
        }
        Ok(kept)
    }

    /// The sooner done of a plan that keeps the loaded weights and one that does not; the first one
    /// where weights stay placed.
    fn plan_anew(
        &mut self,
        session: &mut Session,
        request: &Request,
        loaded: Option<&Loaded>,
        stays_placed: bool,
    ) -> Result<ChosenPlan, PlanError> {
        let mut kept = match loaded.filter(|loaded| loaded.may_keep(request)) {
            Some(loaded) => self.surveys.keeping(session, request, &loaded.plan)?,
            None => None,
        };
        if let Some(kept) = kept.take_if(|_| stays_placed) {
            return Ok(ChosenPlan::New(Box::new(kept)));
        }
        let own = self.surveys.own(session, request);
        sooner(kept, own).map(|solution| ChosenPlan::New(Box::new(solution)))
    }
}

/// What of other slots is otherwise for a job than now.
#[derive(Clone, Copy)]
pub(super) struct Away<'a> {
    /// Models that are unloaded for it.
    pub unloaded: &'a [SlotId],
    /// Slots that run while it does; where there are none, it begins when nothing runs.
    pub running: &'a [SlotId],
}

impl Away<'_> {
    /// Nobody.
    pub const NOBODY: Away<'static> = Away { unloaded: &[], running: &[] };

    fn is_beside(self) -> bool {
        !self.running.is_empty()
    }
}

/// A job that is asked about, as it was looked at.
pub(super) struct JobQuestion {
    pub asked: PreparedJob,
    /// Of its model.
    name: String,
    resolved: ResolvedJob,
    pub model: Arc<DescribedModel>,
    /// With all that is loaded counted as free.
    inventory: Inventory,
    /// Of its model.
    pub slot: Option<SlotId>,
}

/// Times that differ by less than this part are the same.
const SAME_MS: f64 = 0.001;

/// Whether a choice that was weighed before has no model that this one has not, and is as good as
/// to unload all.
fn has_better(choice: &[SlotId], choices: &[Vec<SlotId>], weighed: &[Option<RoomTimes>]) -> bool {
    let Some(Some(best)) = weighed.first() else { return false };
    let is_as_good = |times: &RoomTimes| {
        times.job_ms <= best.job_ms * (1.0 + SAME_MS)
            && times.next_ms <= best.next_ms * (1.0 + SAME_MS)
    };
    let before = choices.iter().zip(weighed).skip(1);
    before
        .filter(|(_, times)| times.as_ref().is_some_and(is_as_good))
        .any(|(other, _)| other.iter().all(|slot| choice.contains(slot)))
}

fn of_panic(panic: &(dyn Any + Send)) -> JobError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(%text, "the surveyor panicked");
    internal(format!("no quote: {text}; this is a fault of Berth, please report it"))
}

/// Hears of the surveyor's executors: the log alone is told.
struct SurveyListener;

impl ExecutorListener for SurveyListener {
    fn starting(&mut self, _: Interrupts) {}

    fn started(&mut self, pid: u32) {
        tracing::debug!(pid, "the surveyor's executor runs");
    }

    fn died(&mut self, error: &SessionError) {
        tracing::warn!(%error, "the surveyor's executor died");
    }

    fn silent(&mut self, seconds: u64) {
        tracing::warn!(seconds, "the surveyor's executor is silent");
    }

    fn answers(&mut self) {}
}
