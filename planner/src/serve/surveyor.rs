//! The surveyor: says what a job would take, on an executor that never loads anything, so that no
//! question waits for a running job.
//!
//! ```text
//! quote ──► request looked at ──► model described ──► inventory, as if nothing were loaded
//!       ──► the loaded plan does: warm │ one that keeps its weights │ its own │ a smaller batch
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
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::desk::action::QuoteOrder;
use super::desk::event::{DeskEvent, QueryId, Quoted};
use super::desk::job::{ErrorCode, JobError};
use super::failures::{internal, of_plan, of_request, of_session, of_setup};
use super::shared::{OpenedFiles, ServedHost};
use crate::engine::session::{ExecutorListener, Interrupts, Session, SessionError};
use crate::job::PreparedJob;
use crate::planning::{PlanError, Request};
use inventory::IdleInventory;
use offer::{ChosenPlan, quoted};
use surveys::{AGE_MAX, Surveys};

/// What the surveyor is told.
enum SurveyorOrder {
    /// Say what this would take.
    Quote(QueryId, Box<QuoteOrder>),
    /// Look into the models that nobody has looked into.
    Describe,
}

/// The way to the surveyor's thread.
pub struct Surveyor {
    questions: Sender<SurveyorOrder>,
    /// Ends when the thread does; nothing is sent.
    ended: Receiver<()>,
}

impl Surveyor {
    /// Starts the thread; the executor is started by the first question. Answers go to `events`.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(shared: Arc<ServedHost>, events: Sender<DeskEvent>) -> io::Result<Surveyor> {
        let (questions, received) = channel();
        let (alive, ended) = channel();
        let work = move || {
            answer(shared, &received, &events);
            drop::<Sender<()>>(alive);
        };
        std::thread::Builder::new().name("surveyor".to_owned()).spawn(work)?;
        Ok(Surveyor { questions, ended })
    }

    /// Asks what a job would take.
    pub fn quote(&self, query: QueryId, order: Box<QuoteOrder>) {
        let sent = self.questions.send(SurveyorOrder::Quote(query, order));
        debug_assert!(sent.is_ok(), "the thread ends with its questions");
    }

    /// Has it look into models that nobody has looked into, whenever nothing is asked. The desk's
    /// queue is rung each time that one is described.
    pub fn describe(&self) {
        let _ = self.questions.send(SurveyorOrder::Describe);
    }

    /// Ends it, and waits so long at most until its executor is gone.
    pub fn finish(self, grace: Duration) {
        let Surveyor { questions, ended } = self;
        drop(questions);
        let _ = ended.recv_timeout(grace);
    }
}

/// Answers questions until nobody can ask any more.
fn answer(shared: Arc<ServedHost>, orders: &Receiver<SurveyorOrder>, events: &Sender<DeskEvent>) {
    let mut bench = SurveyBench::new(shared);
    let mut undescribed = VecDeque::new();
    loop {
        let order = match undescribed.is_empty() {
            true => bench.wait(orders),
            false => orders.try_recv(),
        };
        match order {
            Ok(SurveyorOrder::Quote(query, order)) => {
                let result = bench.caught(|bench| bench.quote(&order));
                let _ = events.send(DeskEvent::Quoted { query, result: result.map(Box::new) });
            }
            Ok(SurveyorOrder::Describe) => undescribed = bench.shared.undescribed().into(),
            Err(TryRecvError::Empty) => {
                let name: Option<String> = undescribed.pop_front();
                let described = bench.caught(|bench| bench.describe(&name.unwrap_or_default()));
                if let Err(error) = described {
                    tracing::warn!(error = error.message, "a model is not described");
                }
                let _ = events.send(DeskEvent::Rang);
            }
            Err(TryRecvError::Disconnected) => break,
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

    /// Waits for an order. Surveys that are too old for any question are not kept meanwhile.
    fn wait(&mut self, orders: &Receiver<SurveyorOrder>) -> Result<SurveyorOrder, TryRecvError> {
        if !self.surveys.is_empty() {
            match orders.recv_timeout(AGE_MAX) {
                Ok(order) => return Ok(order),
                Err(RecvTimeoutError::Timeout) => self.surveys.clear(),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
            }
        }
        orders.recv().map_err(|_| TryRecvError::Disconnected)
    }

    /// Ends the executor in order.
    fn end(mut self) {
        if let Some(session) = self.session.take() {
            session.end();
        }
    }

    /// Does something, of which a panic is an error as others are.
    fn caught<T>(
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
    fn describe(&mut self, name: &str) -> Result<(), JobError> {
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
            let failed = self.shared.failed_devices(&request.inventory);
            let request = Request { explain: order.explain, failed, ..request };
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
