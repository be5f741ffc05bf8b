//! A job from plan to result: attempts, and what each failure means for the next one.
//!
//! ```text
//! inventory ──► plan ──► inventory ──► load ──► run ──► done
//!     ▲                      │          │        │
//!     │                      └──────────┼────────┼─ OutOfMemory: less of the device, same executor
//!     │                                 ├────────┼─ DeviceFailed: without it, same executor
//!     │                                 ├────────┴─ DeviceLost: a new executor, once more with it
//!     │                                 └────────── death: a new executor
//!     └── next attempt, at most [`ATTEMPTS_MAX`] in all: what was learnt stays
//! ```
//! GPUs of a plan are tested before it is loaded, if that was not done (`testing`); what they
//! compute wrongly is not planned there. What is free is read again for each attempt, and once more
//! just before a load: less than the plan takes is as `OutOfMemory`. How many deaths a job may have
//! is the session's count. An executor that lost a device ends; the first such attempt of each
//! device is none of those that are counted, the second one has failed.
//!
//! Every attempt has a plan of its own with the next generation. What an attempt made is dropped
//! with it. An executor that died before there was a plan to load, when the model was opened too,
//! counts as an attempt.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Image, Output, Preview, Progress};
use protocol::notice::Notice;
use protocol::{Command, Embeddings, Event, Failure, FailureKind, Job, Phase, Plan, UsageReport};

use crate::engine::session::{Session, SessionError};
use crate::engine::warm::{Decision, Holding, Loaded, Planned, Warm, next_ms};
use crate::inventory::Inventory;
use crate::job::FailedAttempt;
use crate::planning::{PlanError, Request, verify};
use crate::self_test::SelfTests;
use crate::solve::{PlanReport, Solution};
use notices::JobNotices;
use retry::{Attempt, Next, RetryPolicy};

mod free;
mod notices;
pub(crate) mod retry;
mod testers;
mod testing;

pub use testers::test as test_gpus;

/// How many plans of one job are tried.
pub const ATTEMPTS_MAX: u64 = 3;

/// Where a command is that has begun to load.
const LOADING: Progress = Progress { phase: Phase::Load, step: 0, of: 0 };

/// What is to be done by a plan.
#[derive(Debug, Clone)]
pub enum Work {
    /// Load it, go through all phases without computing, unload.
    Rehearse,
    /// Load it: the next job of this shape begins at once.
    Load,
    /// Make pictures.
    Generate(Box<Job>),
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The plan that it ran by.
    pub plan: Plan,
    /// Why it is so; empty for a plan that was given.
    pub report: PlanReport,
    /// What it was made for, or what was there when it was given.
    pub inventory: Inventory,
    /// What the next such job was predicted to take, in milliseconds: less than the plan says where
    /// the job brings its embeddings and the plan has text encoders.
    pub next_ms: f64,
    /// What it used.
    pub usage: UsageReport,
    /// The pictures in order.
    pub images: Vec<Image>,
    /// The intermediate tensors, where they were asked for.
    pub tensors: Option<IpcSharedMemory>,
    /// What the text encoders gave for each prompt, where they ran and it was wanted.
    pub conditioning: Vec<Embeddings>,
    /// Plans that were tried.
    pub attempts: u64,
    /// What became of all of them but the last, in order.
    pub failures: Vec<FailedAttempt>,
    /// What the user should know, from all of them.
    pub notices: Vec<Notice>,
}

impl Outcome {
    /// What a plan has come to when it is loaded: nothing yet.
    fn of(plan: &Plan, report: &PlanReport, inventory: &Inventory) -> Outcome {
        Outcome {
            plan: plan.clone(),
            report: report.clone(),
            inventory: inventory.clone(),
            next_ms: plan.predicted_ms.next_total,
            usage: UsageReport::default(),
            images: Vec::new(),
            tensors: None,
            conditioning: Vec::new(),
            attempts: 1,
            failures: Vec::new(),
            notices: Vec::new(),
        }
    }
}

impl FailedAttempt {
    fn new(generation: u64, progress: Option<Progress>, error: &SessionError) -> FailedAttempt {
        let mut failed = FailedAttempt {
            generation,
            phase: progress.map(|progress| progress.phase),
            device: None,
            reason: error.to_string(),
            requested_bytes: None,
            free_bytes: None,
        };
        match error {
            SessionError::Failed(Failure {
                kind: FailureKind::OutOfMemory { device, requested_bytes, free_bytes, .. },
                ..
            }) => {
                failed.device = Some(device.clone());
                failed.requested_bytes = Some(*requested_bytes);
                failed.free_bytes = *free_bytes;
            }
            _ => failed.device = error.failed_device().or(error.lost_device()).cloned(),
        }
        failed
    }
}

/// Hears of the job while it runs.
pub trait Listener {
    /// A plan is about to be loaded.
    ///
    /// # Errors
    /// It is not to be: the job ends.
    fn planned(&mut self, solution: &Solution) -> Result<(), SessionError>;
    /// The plan that is loaded is about to be used as it is.
    ///
    /// # Errors
    /// It is not to be: the job ends.
    fn reused(&mut self) -> Result<(), SessionError>;
    /// The job got further.
    fn progress(&mut self, progress: Progress);
    /// A preview came; its pixels may change once this returns.
    fn preview(&mut self, preview: &Preview);
    /// The user should know of something, which is told once.
    fn notice(&mut self, notice: &Notice);
    /// An attempt failed, and another one follows by the same executor.
    fn retrying(&mut self, error: &SessionError);
}

/// Makes an attempt's request from the devices as they are now, with what this executor holds of
/// them.
pub type Inventorize<'a> = dyn Fn(Holding<'_>) -> Result<Request, PlanError> + 'a;

/// The attempts of a job that failed so far.
struct History {
    /// Generation of the first attempt.
    first: u64,
    failed: Vec<FailedAttempt>,
}

impl History {
    /// The generation of the attempt that follows.
    fn generation(&self) -> u64 {
        self.first + self.failed.len() as u64
    }

    fn add(&mut self, progress: Option<Progress>, error: &SessionError) {
        self.failed.push(FailedAttempt::new(self.generation(), progress, error));
    }

    /// Adds the deaths that the session has gone on from.
    fn add_deaths(&mut self, warm: &mut Warm, retries: &mut RetryPolicy) {
        for death in warm.take_deaths() {
            self.add(None, &death);
            retries.count_attempt();
        }
    }
}

/// Plans and runs a job, or runs it by a `given` plan. What the executor holds then, it goes on to
/// hold, unless the job failed: then it is freed. A rehearsal begins with nothing loaded.
///
/// # Errors
/// The last attempt's failure, or what no other plan could mend.
pub fn supervise(
    warm: &mut Warm,
    self_tests: &SelfTests,
    inventorize: &Inventorize<'_>,
    work: &Work,
    given: Option<&Plan>,
    listener: &mut dyn Listener,
) -> Result<Outcome, PlanError> {
    warm.session.begin_job();
    if matches!(work, Work::Rehearse) && warm.plan().is_some() {
        warm.unload()?;
    }
    let result = attempts(warm, self_tests, inventorize, work, given, listener);
    match &result {
        Err(PlanError::Session(error)) if !error.is_cancellation() => warm.forget(error),
        Err(_) => warm.speak_for_loaded(),
        Ok(_) => {}
    }
    result
}

/// The attempts of a job.
fn attempts(
    warm: &mut Warm,
    self_tests: &SelfTests,
    inventorize: &Inventorize<'_>,
    work: &Work,
    given: Option<&Plan>,
    listener: &mut dyn Listener,
) -> Result<Outcome, PlanError> {
    let mut retries = RetryPolicy::new(given.is_none());
    let mut history = History { first: warm.next_generation(), failed: Vec::new() };
    let mut heard = JobNotices::default();
    // For want of memory, after which less was to be planned.
    let mut killed = None;
    loop {
        history.add_deaths(warm, &mut retries);
        let mut request = inventorize(warm.holding())?;
        let mut tried = None;
        let mut decide = |warm: &mut Warm, request: &Request| {
            decide(warm, request, given, &retries, history.generation())
        };
        let mut tested = None;
        let decided =
            testing::decide(warm, self_tests, &mut request, given, &mut tested, &mut decide);
        for message in self_tests.told(&request.inventory) {
            let notice = Notice::SelfTest { message };
            if heard.notice(&notice) {
                listener.notice(&notice);
            }
        }
        history.add_deaths(warm, &mut retries);
        let attempted = decided.and_then(|next| {
            let mut outcome = match next {
                Decision::Reuse => {
                    listener.reused()?;
                    let loaded = warm.loaded();
                    let Loaded { plan, report, inventory, .. } = loaded;
                    let next_ms = loaded.next_ms(&request);
                    Outcome { next_ms, ..Outcome::of(plan, report, inventory) }
                }
                Decision::Load(mut solution) => {
                    solution.plan.generation = history.generation();
                    tried = Some(solution.plan.clone());
                    warm.reserve(&solution.plan);
                    let now = inventorize(warm.holding())?.inventory;
                    free::check(&solution.plan, &now).map_err(SessionError::from)?;
                    listener.planned(&solution)?;
                    let planned = Planned { request: &request, given: given.is_some() };
                    let next_ms = next_ms(&solution.plan, &request.job);
                    let outcome = load(warm, &solution, planned, work, listener, &mut heard)?;
                    Outcome { next_ms, ..outcome }
                }
            };
            tried = Some(outcome.plan.clone());
            if let Work::Generate(job) = work {
                let generation = outcome.plan.generation;
                let session = &mut warm.session;
                session.send(Command::Generate { generation, job: job.clone() })?;
                listen(session, listener, &mut outcome, &mut heard)?;
            }
            Ok(outcome)
        });
        let error = match attempted {
            Ok(outcome) => {
                let attempts = history.failed.len() as u64 + 1;
                let notices = heard.into_notices();
                return Ok(Outcome { attempts, failures: history.failed, notices, ..outcome });
            }
            Err(PlanError::Session(error)) => error,
            Err(infeasible @ PlanError::Infeasible(_)) => {
                return Err(killed.map_or(infeasible, PlanError::NothingLess));
            }
            Err(other) => return Err(other),
        };
        let files = heard.changed();
        if !files.is_empty() && !error.is_cancellation() {
            return Err(PlanError::FilesChanged { files: files.join(" and "), error });
        }
        // A plan whose GPUs cannot be tested is as one that cannot be loaded.
        let progress = tested.as_ref().map_or(warm.progress(), |_| Some(LOADING));
        let tried = tested.or(tried);
        let is_gone = error.lost_device().is_some();
        let error = retries.judge(error, &request.inventory);
        let attempt = Attempt { request: &request, plan: tried.as_ref(), progress };
        match retries.learn(&error, &attempt) {
            Next::Stop => return Err(error.into()),
            Next::Replan => {
                history.add(progress, &error);
                listener.retrying(&error);
                match is_gone {
                    true => warm.replace_gone()?,
                    false => warm.unload()?,
                }
            }
            Next::Restart => {
                warm.restart(error)?;
                for death in warm.take_deaths() {
                    history.add(progress, &death);
                    killed = killed.or(Some(death).filter(SessionError::is_for_want_of_memory));
                }
            }
        }
    }
}

/// The loaded plan where it does, a new one, or the given one, checked again.
fn decide(
    warm: &mut Warm,
    request: &Request,
    given: Option<&Plan>,
    retries: &RetryPolicy,
    generation: u64,
) -> Result<Decision, PlanError> {
    let Some(given) = given else {
        let mut requests = retries.requests(request).into_iter();
        let mut careful = requests.next().expect("there is always the request itself");
        loop {
            match (plan_anew(warm, careful, retries, generation), requests.next()) {
                (Err(PlanError::Infeasible(_)), Some(less_careful)) => careful = less_careful,
                (result, _) => return result,
            }
        }
    };
    if warm.has_given(given)? {
        return Ok(Decision::Reuse);
    }
    let plan = Plan { generation, keeps_weights_of: None, ..given.clone() };
    protocol::check::check(&plan).map_err(PlanError::Given)?;
    verify(&mut warm.session, &plan)?;
    Ok(Decision::Load(Box::new(Solution::given(plan))))
}

/// A new plan that is not much like one that memory was short for. Where nothing else fits, it may
/// be.
fn plan_anew(
    warm: &mut Warm,
    mut request: Request,
    retries: &RetryPolicy,
    generation: u64,
) -> Result<Decision, PlanError> {
    let mut alike = None;
    loop {
        match (warm.decide(&request, generation), alike.take()) {
            (Err(PlanError::Infeasible(_)), Some(solution)) => return Ok(Decision::Load(solution)),
            (Err(error), _) => return Err(error),
            (Ok(Decision::Reuse), _) => return Ok(Decision::Reuse),
            (Ok(Decision::Load(solution)), _) => {
                match retries.much_less(&request, &solution.plan) {
                    None => return Ok(Decision::Load(solution)),
                    Some(smaller) => (request, alike) = (smaller, Some(solution)),
                }
            }
        }
    }
}

/// Gives a plan to the executor and hears it until all is in its place.
fn load(
    warm: &mut Warm,
    solution: &Solution,
    planned: Planned<'_>,
    work: &Work,
    listener: &mut dyn Listener,
    heard: &mut JobNotices,
) -> Result<Outcome, PlanError> {
    let rehearse = matches!(work, Work::Rehearse);
    let inventory = &planned.request.inventory;
    let mut outcome = Outcome::of(&solution.plan, &solution.report, inventory);
    warm.load(solution, planned, rehearse, |session| {
        listen(session, listener, &mut outcome, heard)?;
        Ok(heard.opened_files().to_vec())
    })?;
    Ok(outcome)
}

/// Listens until the running command is done.
fn listen(
    session: &mut Session,
    listener: &mut dyn Listener,
    outcome: &mut Outcome,
    heard: &mut JobNotices,
) -> Result<(), SessionError> {
    loop {
        match session.next_event()? {
            Event::Progress(progress) => listener.progress(progress),
            Event::Notice(notice) => {
                if heard.notice(&notice) {
                    listener.notice(&notice);
                }
            }
            Event::Files(files) => heard.files(files),
            Event::Preview(preview) => {
                listener.preview(&preview);
                session.tell(Command::PreviewTaken);
            }
            Event::Conditioned(embeddings) => outcome.conditioning.push(embeddings),
            Event::Output(Output::Picture(image)) => outcome.images.push(image),
            Event::Tensors(tensors) => outcome.tensors = Some(tensors),
            Event::Usage(usage) => outcome.usage = *usage,
            Event::Loaded(usage) => {
                outcome.usage = *usage;
                return Ok(());
            }
            Event::Done { .. } => return Ok(()),
            Event::Failed(failure) => return Err(failure.into()),
            other => tracing::warn!(?other, "an event that nobody asked for"),
        }
    }
}
