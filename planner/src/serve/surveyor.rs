//! The surveyor: says what a job would take, on an executor that never loads anything, so that no
//! question waits for a running job.
//!
//! ```text
//! quote ──► request looked at ──► model described ──► inventory, as if nothing were loaded
//!       ──► the loaded plan does: warm │ one that keeps its weights │ one of its own │ smaller batch
//!       ──► Quoted
//! ```
//! Not here: whether and when the job runs ([`super::desk`]).
//!
//! Invariants: each question is answered once; one on which the executor dies is answered with
//! that, and the next one starts another executor.

mod inventory;
mod offer;
mod surveys;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::desk::action::QuoteOrder;
use super::desk::event::{DeskEvent, QueryId, Quoted};
use super::desk::job::JobError;
use super::failures::{internal, of_plan, of_request, of_session, of_setup};
use super::shared::{OpenedFiles, ServedHost};
use crate::engine::session::{ExecutorListener, Interrupts, Session, SessionError};
use crate::job::PreparedJob;
use crate::planning::{PlanError, Request};
use inventory::IdleInventory;
use offer::{ChosenPlan, quoted};
use surveys::Surveys;

/// The way to the surveyor's thread.
pub struct Surveyor {
    questions: Sender<(QueryId, Box<QuoteOrder>)>,
    thread: JoinHandle<()>,
}

impl Surveyor {
    /// Starts the thread; the executor is started by the first question. Answers go to `events`.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(shared: Arc<ServedHost>, events: Sender<DeskEvent>) -> io::Result<Surveyor> {
        let (questions, received) = channel();
        let work = move || answer(shared, &received, &events);
        let thread = std::thread::Builder::new().name("surveyor".to_owned()).spawn(work)?;
        Ok(Surveyor { questions, thread })
    }

    /// Asks what a job would take.
    pub fn quote(&self, query: QueryId, order: Box<QuoteOrder>) {
        let sent = self.questions.send((query, order));
        debug_assert!(sent.is_ok(), "the thread ends with its questions");
    }

    /// Whether it still answers.
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// Answers questions until nobody can ask any more.
fn answer(
    shared: Arc<ServedHost>,
    questions: &Receiver<(QueryId, Box<QuoteOrder>)>,
    events: &Sender<DeskEvent>,
) {
    let mut bench = SurveyBench::new(shared);
    for (query, order) in questions {
        let begun = std::time::Instant::now();
        let quote = AssertUnwindSafe(|| bench.quote(&order));
        let result = catch_unwind(quote).unwrap_or_else(|panic| {
            bench.forget();
            Err(of_panic(&*panic))
        });
        tracing::debug!(query = query.0, ms = begun.elapsed().as_millis() as u64, "quoted");
        if events.send(DeskEvent::Quoted { query, result: result.map(Box::new) }).is_err() {
            break;
        }
    }
    bench.end();
}

fn of_panic(panic: &(dyn Any + Send)) -> JobError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(%text, "the surveyor panicked");
    internal(format!("no quote: {text}; this is a fault of Berth, please report it"))
}

/// What the surveyor works with.
struct SurveyBench {
    shared: Arc<ServedHost>,
    session: Option<Session>,
    /// By model, the files that the executor has had open.
    opened: BTreeMap<String, OpenedFiles>,
    surveys: Surveys,
    idle: IdleInventory,
}

impl SurveyBench {
    fn new(shared: Arc<ServedHost>) -> SurveyBench {
        // Now nothing of this daemon runs.
        let mut idle = IdleInventory::default();
        if let Err(error) = idle.now(&shared, false) {
            tracing::warn!(%error, "what is free cannot be read yet");
        }
        let (opened, surveys) = (BTreeMap::new(), Surveys::default());
        SurveyBench { shared, session: None, opened, surveys, idle }
    }

    /// Ends the executor in order.
    fn end(mut self) {
        if let Some(session) = self.session.take() {
            session.end();
        }
    }

    /// The next question begins with another executor.
    fn forget(&mut self) {
        self.session = None;
        self.opened.clear();
        self.surveys.clear();
    }

    fn quote(&mut self, order: &QuoteOrder) -> Result<Quoted, JobError> {
        let host = self.shared.host();
        let asked = self.shared.prepare(&order.request, &host)?;
        let inventory = self.idle.now(&self.shared, order.busy).map_err(|e| of_setup(&e))?;
        self.renew_if_changed(&asked);
        let mut session = self.session()?;
        let quoted = self.quote_on(&mut session, order, &asked, inventory);
        match session.is_gone() {
            true => self.forget(),
            false => self.session = Some(session),
        }
        quoted
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

    fn quote_on(
        &mut self,
        session: &mut Session,
        order: &QuoteOrder,
        asked: &PreparedJob,
        inventory: crate::inventory::Inventory,
    ) -> Result<Quoted, JobError> {
        let host = self.shared.host();
        let model = self.shared.describe(session, &asked.model)?;
        self.opened.insert(asked.model.to_string(), model.opened_for(asked)?);
        let mut resolved = asked.resolve(&model.description).map_err(|e| of_request(&e))?;
        // What would be sent is looked at too: an error belongs to this answer, not to the run's.
        asked.job(&resolved).map_err(|error| of_request(&error))?;
        let pictures = resolved.shape.batch;
        loop {
            let request =
                host.request_on(asked, &resolved, &model.description, inventory.clone(), false);
            let request = request.map_err(|error| of_setup(&error))?;
            let request = Request { explain: order.explain, ..request };
            match self.plan(session, order, &request) {
                Err(PlanError::Infeasible(_)) if resolved.shape.batch > 1 => {
                    resolved.shape.batch /= 2;
                }
                Err(error) => return Err(of_plan(&error, &asked.model)),
                Ok(planned) => return quoted(&planned, &request, pictures, &resolved.notices),
            }
        }
    }

    /// The plan that the job would run by on its slot: the loaded one where that does, else the
    /// sooner done of one that keeps the loaded weights and one that does not.
    fn plan(
        &mut self,
        session: &mut Session,
        order: &QuoteOrder,
        request: &Request,
    ) -> Result<ChosenPlan, PlanError> {
        let loaded = order.slot.and_then(|slot| self.shared.loaded(slot));
        let loaded = loaded.filter(|loaded| loaded.changed_files().is_empty());
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.does(request)) {
            return Ok(ChosenPlan::Loaded(Arc::clone(loaded)));
        }
        let kept = match loaded.filter(|loaded| loaded.may_keep(request)) {
            Some(loaded) => self.surveys.keeping(session, request, &loaded.plan)?,
            None => None,
        };
        let own = self.surveys.own(session, request);
        let is_sooner = |kept: &crate::solve::Solution| match &own {
            Ok(own) => kept.plan.predicted_ms.total <= own.plan.predicted_ms.total,
            Err(_) => true,
        };
        match kept.filter(is_sooner) {
            Some(kept) => Ok(ChosenPlan::Kept(Box::new(kept))),
            None => own.map(|own| ChosenPlan::Own(Box::new(own))),
        }
    }
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
