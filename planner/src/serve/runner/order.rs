//! One order of a slot, from the request to what became of it.

use std::cell::RefCell;
use std::sync::Arc;

use protocol::{Job, JobShape, ModelDescription};
use serde_json::Value;

use super::super::conditioning::{Found, PromptKeys};
use super::super::described::{DescribeError, DescribedModel, OpenedFiles};
use super::super::desk::action::RunOrder;
use super::super::desk::event::{FinishedWork, Said, SlotId};
use super::super::desk::job::{ErrorCode, JobError};
use super::super::failures::{internal, of_plan, of_request, of_session, of_setup};
use super::super::shared::ServedHost;
use super::SlotBell;
use super::finished::{JobNotices, encoders_on_gpu, finished, pictures};
use super::heard::{AskedPlan, BeforeRun, HeardRun};
use super::switch::RunSwitch;
use super::told::{RunTeller, SlotListener};
use crate::engine::host::SetupError;
use crate::engine::session::{Session, SessionError};
use crate::engine::supervise::{Outcome, Work};
use crate::engine::warm::{Holding, Loaded, Warm};
use crate::job::joined::{JoinedJob, JoiningJob};
use crate::job::record::{FileHashes, FinishedRun};
use crate::job::{PreparedJob, ResolvedJob};
use crate::planning::PlanError;

/// What became of an order.
pub enum EndedRun {
    /// What was asked for is there.
    Done(Box<FinishedWork>),
    /// It was to end.
    Cancelled,
    /// Its plan is in another run's way: nothing was loaded by it.
    InTheWay,
    /// It could not be done.
    Failed(Box<JobError>),
}

impl From<JobError> for EndedRun {
    fn from(error: JobError) -> EndedRun {
        EndedRun::Failed(Box::new(error))
    }
}

impl From<DescribeError> for EndedRun {
    fn from(error: DescribeError) -> EndedRun {
        JobError::from(error).into()
    }
}

/// An order's jobs as they are sent.
struct OrderedJob {
    model: Arc<DescribedModel>,
    /// With the shape of all of them together.
    resolved: ResolvedJob,
    job: Job,
    /// Of each of them.
    notices: Vec<JobNotices>,
    /// What its prompts are known by, where what text encoders give is kept.
    keys: Option<PromptKeys>,
    /// What text encoders gave for them before.
    found: Option<Found>,
}

/// A slot's executor, which outlives its orders.
pub struct SlotExecutor {
    /// Whose it is.
    pub slot: SlotId,
    /// What all threads share.
    pub shared: Arc<ServedHost>,
    /// What ends a run.
    pub switch: Arc<RunSwitch>,
    /// Whom it tells.
    pub teller: RunTeller,
    bell: SlotBell,
    warm: Option<Warm>,
    /// The files that the executor has open.
    opened: OpenedFiles,
    /// Of the plan that is loaded.
    document: Option<Arc<Value>>,
}

impl SlotExecutor {
    /// One that is not started yet.
    pub fn new(
        slot: SlotId,
        shared: Arc<ServedHost>,
        switch: Arc<RunSwitch>,
        teller: RunTeller,
        bell: SlotBell,
    ) -> SlotExecutor {
        let opened = OpenedFiles::default();
        SlotExecutor { slot, shared, switch, teller, bell, warm: None, opened, document: None }
    }

    /// What it has loaded.
    pub fn held(&self) -> Option<Loaded> {
        self.warm.as_ref().and_then(Warm::held)
    }

    /// Ends the executor, if there is one: a word, 5 s, and then by force. What it had of devices
    /// is free then.
    pub fn end(&mut self) {
        self.document = None;
        if let Some(warm) = self.warm.take() {
            warm.end_settled();
        }
    }

    /// Whether the idle executor has ended by itself; what is left of it is ended then.
    pub fn end_lost(&mut self) -> bool {
        let is_lost = self.warm.as_mut().is_some_and(|warm| warm.session.is_gone());
        if is_lost {
            self.end();
        }
        is_lost
    }

    /// Carries out an order.
    pub fn run(&mut self, order: &RunOrder) -> EndedRun {
        let ended = match self.try_run(order) {
            Ok(work) => return EndedRun::Done(Box::new(work)),
            // Whatever went wrong meanwhile: it was not wanted any more.
            Err(_) if self.switch.is_cancelled() => EndedRun::Cancelled,
            Err(EndedRun::InTheWay) => return EndedRun::InTheWay,
            Err(ended) => ended,
        };
        // Those that were changed while it ran are not the ones that it found fault with.
        if let EndedRun::Failed(error) = &ended
            && error.code == ErrorCode::BadModel
            && !self.opened.have_changed()
        {
            self.teller.tell(Said::Damaged { because: error.message.clone() });
        }
        self.end_lost();
        ended
    }

    fn try_run(&mut self, order: &RunOrder) -> Result<FinishedWork, EndedRun> {
        let host = self.shared.host();
        let requests = [&order.request].into_iter().chain(&order.company);
        let asked = requests.map(|request| self.shared.prepare(request, &host));
        let asked = asked.collect::<Result<Vec<PreparedJob>, JobError>>()?;
        host.check(&asked[0].policy).map_err(|error| of_setup(&error))?;
        self.go_on()?;
        // Lost in a panic, by which its process ends.
        let mut warm = self.executor()?;
        let result = self.run_on(&mut warm, order, &asked);
        self.warm = Some(warm);
        result
    }

    /// The executor that is there and knows the files as they are, or a new one.
    fn executor(&mut self) -> Result<Warm, EndedRun> {
        if self.end_lost() {
            tracing::info!(slot = self.slot.0, "the idle executor is gone: another one starts");
        }
        if !self.opened.have_changed()
            && let Some(warm) = self.warm.take()
        {
            return Ok(warm);
        }
        self.end();
        self.opened = OpenedFiles::default();
        let (teller, switch) = (self.teller.clone(), Arc::clone(&self.switch));
        let listener = SlotListener { teller, switch, bell: self.bell.clone() };
        let session = Session::start(&self.shared.program, listener);
        Ok(Warm::taking_turns(session.map_err(|error| ended(&error))?))
    }

    fn run_on(
        &mut self,
        warm: &mut Warm,
        order: &RunOrder,
        all: &[PreparedJob],
    ) -> Result<FinishedWork, EndedRun> {
        let ordered = self.look_at(warm, order, all)?;
        let asked = &all[0];
        let OrderedJob { model, job, notices, found, .. } = &ordered;
        let description = &model.description;
        let begin = |_| FileHashes::begin(asked, description, model.fingerprint(), &asked.loras);
        let hashing = order.job.as_ref().map(begin).transpose();
        let hashing = hashing.map_err(|error| internal(error.to_string()))?;
        let work = match &order.job {
            Some(_) => Work::Generate(Box::new(job.clone())),
            None => Work::Load,
        };
        self.go_on()?;
        self.load_for_size(warm, order, asked, &ordered)?;
        let (mut outcome, since_load_ms) =
            self.carry_out(warm, asked, (description, &ordered.resolved), &work, order.anew)?;
        if order.job.is_some() {
            self.shared.devices_worked(&outcome.inventory, &outcome.plan);
            self.shared.learn_anew();
        }
        self.keep_conditioning(asked, &ordered, &mut outcome);
        let files = hashing.map(FileHashes::files).unwrap_or_default();
        model.keep_fingerprint(files.fingerprint.as_ref());
        let made = |(asked, of): (_, &JobNotices)| FinishedRun {
            asked,
            job,
            pictures: of.pictures.clone(),
            plan: &outcome.plan,
            description,
            files: &files,
            encoders_on_gpu: found.as_ref().map(|found| &*found.on_gpu),
        };
        let made = all.iter().zip(notices).map(made);
        let pictures = made.flat_map(|made| pictures(&outcome, &made)).collect();
        Ok(finished(outcome, pictures, since_load_ms, &work, notices))
    }

    /// Looks at jobs by their model's files as they are, and at what is known of their prompts.
    fn look_at(
        &mut self,
        warm: &mut Warm,
        order: &RunOrder,
        all: &[PreparedJob],
    ) -> Result<OrderedJob, EndedRun> {
        let asked = &all[0];
        let model = self.shared.describe(&mut warm.session, &asked.model)?;
        self.opened = model.opened_for(asked)?;
        let joining = |asked| JoiningJob::new(asked, &model.description);
        let members = all.iter().map(joining).collect::<Result<Vec<_>, _>>();
        let members = members.map_err(|error| of_request(&error))?;
        let joined = JoinedJob::of(&members.iter().collect::<Vec<_>>(), &model.description);
        let joined = joined.map_err(|error| of_request(&error))?;
        let joined = joined.ok_or_else(|| internal("jobs run together that differ"))?;
        let notices = members.iter().zip(joined.pictures).map(|(member, pictures)| JobNotices {
            pictures,
            resolved: member.resolved.notices.clone(),
        });
        let notices = notices.collect();
        let mut resolved = ResolvedJob { shape: joined.shape, ..members[0].resolved.clone() };
        let job = asked.job(&resolved).map_err(|error| of_request(&error))?;
        let mut job = Job { items: joined.items, ..job };
        let keys = order
            .job
            .as_ref()
            .and_then(|_| self.shared.conditioning.keys(asked, &resolved, &model, &job));
        let found = keys.as_ref().and_then(|keys| self.shared.conditioning.find(keys));
        resolved.shape.conditioned = found.is_some();
        job.keep_conditioning = keys.is_some() && found.is_none();
        job.conditioning = found.as_ref().map(|found| found.embeddings.clone()).unwrap_or_default();
        Ok(OrderedJob { model, resolved, job, notices, keys, found })
    }

    /// Loads a cold model for the size that it is placed for: the job then leaves weights where
    /// they are. Where that does not fit, the job has a plan of its own.
    fn load_for_size(
        &mut self,
        warm: &mut Warm,
        order: &RunOrder,
        asked: &PreparedJob,
        ordered: &OrderedJob,
    ) -> Result<(), EndedRun> {
        let OrderedJob { model, resolved, .. } = ordered;
        let wide = self.shared.placed_for(&order.model, &resolved.shape);
        warm.set_stays_placed(wide.is_some());
        let is_first = |wide: &JobShape| warm.plan().is_none() && *wide != resolved.shape;
        let Some(shape) = wide.filter(is_first) else { return Ok(()) };
        let wide = ResolvedJob { shape, ..resolved.clone() };
        match self.carry_out(warm, asked, (&model.description, &wide), &Work::Load, false) {
            Err(EndedRun::Failed(error)) if is_short(&error) => Ok(()),
            loaded => loaded.map(drop),
        }
    }

    /// Has the executor do the work, `anew` by a better plan than the loaded one if there is one;
    /// with the milliseconds from a load to the end.
    fn carry_out(
        &mut self,
        warm: &mut Warm,
        asked: &PreparedJob,
        (description, resolved): (&ModelDescription, &ResolvedJob),
        work: &Work,
        anew: bool,
    ) -> Result<(Outcome, Option<f64>), EndedRun> {
        let host = self.shared.host();
        // The last request: the one that a plan is made for.
        let asked_for: RefCell<Option<AskedPlan>> = RefCell::new(None);
        let request = |holding: Holding<'_>| {
            let setup = |error: SetupError| PlanError::Inventory(error.into());
            let others = self.shared.others(&[self.slot]);
            let inventory = self.shared.inventory_if_idle(Some((self.slot, holding.plan)));
            let inventory = inventory.map_err(setup)?;
            let request =
                host.request_beside(asked, resolved, description, inventory, &others.each());
            let mut request = request.map_err(setup)?;
            request.failed = self.shared.failed_devices(&request.inventory);
            let claims = others.claims;
            *asked_for.borrow_mut() = Some(AskedPlan { request: request.clone(), claims });
            Ok(request)
        };
        warm.set_beside(self.shared.others(&[self.slot]).run());
        let before = BeforeRun {
            slot: self.slot,
            document: self.document.clone(),
            loaded: warm.held(),
            anew,
        };
        if anew {
            warm.look_for_better();
        }
        let mut run = HeardRun::new(&self.teller, &self.switch, &self.shared, before);
        let mut hear = |event| run.hear(event, asked_for.borrow().as_ref());
        let result = host.run(warm, &request, work, None, &mut hear);
        warm.set_beside(false);
        let (since_load_ms, is_in_the_way) = (run.since_load_ms(), run.is_in_the_way);
        self.document = run.document;
        if let Err(PlanError::Session(error)) = &result
            && let (Some(device), Some(asked)) = (error.failed_device(), &*asked_for.borrow())
        {
            self.shared.device_failed(&asked.request.inventory, device, &error.to_string());
        }
        if result.is_err() && is_in_the_way {
            return Err(EndedRun::InTheWay);
        }
        let outcome = result.map_err(|error| match &error {
            PlanError::Session(error) => ended(error),
            error => of_plan(error, &asked.model).into(),
        })?;
        Ok((outcome, since_load_ms))
    }

    /// Keeps what text encoders gave, unless files have changed since the job was looked at: what
    /// was read of other files is what nobody knows.
    fn keep_conditioning(&self, asked: &PreparedJob, ordered: &OrderedJob, outcome: &mut Outcome) {
        let OrderedJob { model, resolved, job, keys, .. } = ordered;
        let Some(keys) = keys.as_ref().filter(|_| model.is_current()) else { return };
        if self.shared.conditioning.keys(asked, resolved, model, job).as_ref() == Some(keys) {
            let conditioning = std::mem::take(&mut outcome.conditioning);
            let on_gpu = encoders_on_gpu(&outcome.plan);
            self.shared.conditioning.keep(keys, &on_gpu, conditioning);
        }
    }

    /// Goes on, unless the order is to end.
    fn go_on(&self) -> Result<(), EndedRun> {
        match self.switch.is_cancelled() {
            true => Err(EndedRun::Cancelled),
            false => Ok(()),
        }
    }
}

/// Whether there is too little memory.
fn is_short(error: &JobError) -> bool {
    matches!(error.code, ErrorCode::DoesNotFit | ErrorCode::OutOfMemory)
}

/// How a run ended that its session ended.
fn ended(error: &SessionError) -> EndedRun {
    match error.is_cancellation() {
        true => EndedRun::Cancelled,
        false => of_session(error).into(),
    }
}
