//! One order of a slot, from the request to what became of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use protocol::{Bytes, DeviceId, Job, Phase, Plan};
use serde_json::Value;

use super::super::conditioning::PromptKeys;
use super::super::desk::action::RunOrder;
use super::super::desk::event::{FinishedWork, MadePicture, PreviewImage, Said, SlotId};
use super::super::desk::job::{ErrorCode, JobError};
use super::super::failures::{internal, of_plan, of_request, of_session, of_setup};
use super::super::shared::{DescribeError, DescribedModel, OpenedFiles, ServedHost};
use super::SlotBell;
use super::switch::RunSwitch;
use super::told::{RunTeller, SlotListener};
use crate::engine::session::{Session, SessionError};
use crate::engine::supervise::{Outcome, Work};
use crate::engine::warm::{Holding, Loaded, Warm};
use crate::inventory::Inventory;
use crate::job::record::{FileHashes, FinishedRun, on_gpu};
use crate::job::{JobEvent, PreparedJob, ResolvedJob};
use crate::planning::PlanError;
use crate::render::document::PlanDocument;
use crate::render::notices::sentence;
use crate::solve::PlanReport;

/// What became of an order.
pub enum EndedRun {
    /// What was asked for is there.
    Done(Box<FinishedWork>),
    /// It was to end.
    Cancelled,
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
        let asked = self.shared.prepare(&order.request, &host)?;
        host.check(&asked.policy).map_err(|error| of_setup(&error))?;
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
        asked: &PreparedJob,
    ) -> Result<FinishedWork, EndedRun> {
        let host = self.shared.host();
        let model = self.shared.describe(&mut warm.session, &asked.model)?;
        self.opened = model.opened_for(asked)?;
        let description = &model.description;
        let mut resolved = asked.resolve(description).map_err(|error| of_request(&error))?;
        let mut job = asked.job(&resolved).map_err(|error| of_request(&error))?;
        let keys = order.job.as_ref().and_then(|_| self.keys(asked, &resolved, &model, &job));
        let found = keys.as_ref().and_then(|keys| self.shared.conditioning.find(keys));
        resolved.shape.conditioned = found.is_some();
        job.keep_conditioning = keys.is_some() && found.is_none();
        job.conditioning = found.as_ref().map(|found| found.embeddings.clone()).unwrap_or_default();
        let begin = |_| FileHashes::begin(asked, description, model.fingerprint(), &asked.loras);
        let hashing = order.job.as_ref().map(begin).transpose();
        let hashing = hashing.map_err(|error| internal(error.to_string()))?;
        let work = match &order.job {
            Some(_) => Work::Generate(Box::new(job.clone())),
            None => Work::Load,
        };
        self.go_on()?;
        // The inventory of the last request: the one that a plan is made for.
        let inventory = std::cell::RefCell::new(None);
        let others = self.shared.loaded_without(&[self.slot]);
        let others: Vec<&Plan> = others.iter().map(|loaded| &loaded.plan).collect();
        let request = |holding: Holding<'_>| {
            let request = host.request_beside(asked, &resolved, description, holding.plan, &others);
            let mut request = request.map_err(|error| PlanError::Inventory(error.into()))?;
            request.failed = self.shared.failed_devices(&request.inventory);
            *inventory.borrow_mut() = Some(request.inventory.clone());
            Ok(request)
        };
        let mut run = HeardRun::new(self);
        let mut hear = |event| run.hear(event, inventory.borrow().as_ref());
        let result = host.run(warm, &request, &work, None, &mut hear);
        let HeardRun { document, load_began, ended_at, .. } = run;
        self.document = document;
        if let Err(PlanError::Session(error)) = &result
            && let (Some(device), Some(inventory)) = (error.failed_device(), &*inventory.borrow())
        {
            self.shared.device_failed(inventory, device, &error.to_string());
        }
        let mut outcome = result.map_err(|error| match &error {
            PlanError::Session(error) => ended(error),
            error => of_plan(error, &asked.model).into(),
        })?;
        if order.job.is_some() {
            self.shared.devices_worked(&outcome.inventory, &outcome.plan);
            self.shared.learn_anew();
        }
        // What was read of other files is what nobody knows.
        if let Some(keys) = keys.filter(|_| model.is_current())
            && self.keys(asked, &resolved, &model, &job).as_ref() == Some(&keys)
        {
            let conditioning = std::mem::take(&mut outcome.conditioning);
            let on_gpu = encoders_on_gpu(&outcome.plan);
            self.shared.conditioning.keep(&keys, &on_gpu, conditioning);
        }
        let files = hashing.map(FileHashes::files).unwrap_or_default();
        model.keep_fingerprint(files.fingerprint.as_ref());
        let made = FinishedRun {
            asked,
            job: &job,
            plan: &outcome.plan,
            description,
            files: &files,
            encoders_on_gpu: found.as_ref().map(|found| &*found.on_gpu),
        };
        let pictures = pictures(&outcome, &made);
        let load_ms = load_began.map(|began| {
            let ended_at = ended_at.unwrap_or_else(Instant::now);
            ended_at.duration_since(began).as_secs_f64() * 1e3
        });
        Ok(finished(outcome, pictures, load_ms, &work, resolved.notices))
    }

    /// What the job's prompts are known by, where what text encoders give is kept.
    fn keys(
        &self,
        asked: &PreparedJob,
        resolved: &ResolvedJob,
        model: &DescribedModel,
        job: &Job,
    ) -> Option<PromptKeys> {
        let is_on = self.shared.conditioning.is_on();
        is_on.then(|| PromptKeys::of_job(asked, resolved, model, job)).flatten()
    }

    /// Goes on, unless the order is to end.
    fn go_on(&self) -> Result<(), EndedRun> {
        match self.switch.is_cancelled() {
            true => Err(EndedRun::Cancelled),
            false => Ok(()),
        }
    }
}

/// Hears what a run tells.
struct HeardRun<'a> {
    teller: &'a RunTeller,
    switch: &'a RunSwitch,
    shared: &'a ServedHost,
    /// Of the plan that is loaded, or about to be.
    document: Option<Arc<Value>>,
    /// Whether the desk knows of the plan.
    told: bool,
    /// When the last plan was about to be loaded, if any was.
    load_began: Option<Instant>,
    ended_at: Option<Instant>,
}

impl<'a> HeardRun<'a> {
    fn new(executor: &'a SlotExecutor) -> HeardRun<'a> {
        let SlotExecutor { teller, switch, shared, document, .. } = executor;
        let document = document.clone();
        HeardRun { teller, switch, shared, document, told: false, load_began: None, ended_at: None }
    }

    fn hear(&mut self, event: JobEvent, inventory: Option<&Inventory>) -> ControlFlow<()> {
        match event {
            JobEvent::Planned { plan, report } => {
                if self.switch.is_cancelled() {
                    return ControlFlow::Break(());
                }
                self.planned(&plan, &report, inventory);
            }
            JobEvent::Progress(progress) => {
                if let (false, Some(plan)) = (self.told, self.document.clone()) {
                    self.told = true;
                    self.teller.tell(Said::Planned { plan, loads: false });
                }
                self.teller.in_phase(progress.phase);
                self.teller.tell(Said::Progress(progress));
            }
            JobEvent::Preview { width, height, pixels } => {
                let preview = Arc::new(PreviewImage { width, height, pixels });
                self.teller.tell(Said::Preview(preview));
            }
            JobEvent::Retrying { because, device } => {
                self.document = None;
                if let (Some(device), Some(inventory)) = (device, inventory) {
                    self.shared.device_failed(inventory, &device, &because);
                }
                self.teller.retrying(because);
            }
            JobEvent::NotLearned { because } => {
                tracing::warn!(%because, "the run's times are not kept");
            }
            JobEvent::Output { .. } | JobEvent::Ended { .. } => {
                self.ended_at.get_or_insert_with(Instant::now);
            }
            // Told to the session's listener, or part of the result.
            JobEvent::ExecutorStarted { .. }
            | JobEvent::ExecutorDied { .. }
            | JobEvent::ExecutorSilent { .. }
            | JobEvent::ExecutorAnswers
            | JobEvent::Noticed { .. } => {}
        }
        ControlFlow::Continue(())
    }

    fn planned(&mut self, plan: &Plan, report: &PlanReport, inventory: Option<&Inventory>) {
        self.teller.planned(plan.generation);
        self.load_began = Some(Instant::now());
        self.ended_at = None;
        let document = inventory.and_then(|inventory| {
            serde_json::to_value(PlanDocument::new(plan, report, inventory)).ok()
        });
        self.document = document.map(Arc::new);
        if let Some(plan_document) = self.document.clone() {
            self.told = true;
            let loads = plan.keeps_weights_of.is_none();
            self.teller.tell(Said::Planned { plan: plan_document, loads });
        }
    }
}

/// How a run ended that its session ended.
fn ended(error: &SessionError) -> EndedRun {
    match error.is_cancellation() {
        true => EndedRun::Cancelled,
        false => of_session(error).into(),
    }
}

/// The pictures, copied once out of the memory that the executor shares.
fn pictures(outcome: &Outcome, made: &FinishedRun<'_>) -> Vec<MadePicture> {
    let picture = |image: &protocol::message::Image| MadePicture {
        index: image.index,
        seed: image.seed,
        width: image.width,
        height: image.height,
        pixels: Arc::new(image.pixels.to_vec()),
        settings: made.settings(image, None),
    };
    outcome.images.iter().map(picture).collect()
}

/// What an order took beside what it was predicted to: from the load on where there was one, which
/// then took so long with all that followed.
fn finished(
    outcome: Outcome,
    pictures: Vec<MadePicture>,
    from_load_ms: Option<f64>,
    work: &Work,
    resolved_notices: Vec<String>,
) -> FinishedWork {
    let Outcome { plan, report, usage, failures, next_ms, .. } = outcome;
    let ms = &plan.predicted_ms;
    let load_ms = (ms.total - ms.next_total).max(0.0);
    let (predicted_ms, measured_ms) = match (work, from_load_ms) {
        (Work::Generate(_), Some(measured_ms)) => (load_ms + next_ms, measured_ms),
        (Work::Generate(_), None) => (next_ms, usage.measured_ms.total),
        (_, Some(measured_ms)) => (load_ms, measured_ms),
        (_, None) => (0.0, 0.0),
    };
    let mut notices = resolved_notices;
    notices.extend(report.notices);
    notices.extend(outcome.notices.iter().map(sentence));
    let idle_bytes = idle_bytes(&plan);
    FinishedWork { pictures, usage, predicted_ms, measured_ms, idle_bytes, failures, notices }
}

/// The text encoders of a plan that GPUs compute.
fn encoders_on_gpu(plan: &Plan) -> Vec<String> {
    let is_encoder = |name: &String| {
        let mut encoders = plan.components.iter().filter(|c| c.phase == Phase::Condition);
        encoders.any(|encoder| encoder.name == *name)
    };
    on_gpu(plan).into_iter().filter(is_encoder).collect()
}

/// What a plan keeps between two jobs, of each device where that is anything.
fn idle_bytes(plan: &Plan) -> Vec<(String, Bytes)> {
    let devices = plan.devices.iter().map(|device| (device.id.0.clone(), device.idle_bytes));
    let host = (DeviceId::host().0, plan.host.idle_bytes);
    devices.chain([host]).filter(|(_, bytes)| *bytes > Bytes::ZERO).collect()
}
