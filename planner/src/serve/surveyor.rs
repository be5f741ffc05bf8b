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
//! Invariants: each question is answered once. One on which the executor dies is asked of another
//! executor, once, where the desk still waits for it.

mod bench;
mod joining;
mod offer;
mod surveys;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::desk::action::{GainOrder, JoinOrder, QuoteOrder, RoomOrder};
use super::desk::config::SURVEY_MS_MAX;
use super::desk::event::{DeskEvent, QueryId};
use super::desk::job::{ErrorCode, JobError};
use super::shared::ServedHost;
use bench::SurveyBench;
use surveys::AGE_MAX;

/// What the surveyor is told.
enum SurveyorOrder {
    /// Say what this would take.
    Quote(QueryId, Box<QuoteOrder>),
    /// Say what it takes with each choice of models that are unloaded.
    Weigh(QueryId, Box<RoomOrder>),
    /// Say what would be gained by a plan for what is free now.
    Regain(QueryId, Box<GainOrder>),
    /// Say which of these jobs gain by running together.
    Join(QueryId, Box<JoinOrder>),
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

    /// Asks what a job takes with each choice of models that are unloaded for it.
    pub fn weigh(&self, query: QueryId, order: Box<RoomOrder>) {
        let sent = self.questions.send(SurveyorOrder::Weigh(query, order));
        debug_assert!(sent.is_ok(), "the thread ends with its questions");
    }

    /// Asks what a loaded model's jobs would gain by a plan for what is free now.
    pub fn regain(&self, query: QueryId, order: Box<GainOrder>) {
        let sent = self.questions.send(SurveyorOrder::Regain(query, order));
        debug_assert!(sent.is_ok(), "the thread ends with its questions");
    }

    /// Asks which jobs gain by running together.
    pub fn join(&self, query: QueryId, order: Box<JoinOrder>) {
        let sent = self.questions.send(SurveyorOrder::Join(query, order));
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
            true => wait(&mut bench, orders),
            false => orders.try_recv(),
        };
        match order {
            Ok(SurveyorOrder::Quote(query, order)) => {
                let result = asked(&mut bench, |bench| bench.quote(&order));
                let _ = events.send(DeskEvent::Quoted { query, result: result.map(Box::new) });
            }
            Ok(SurveyorOrder::Weigh(query, order)) => {
                let result = asked(&mut bench, |bench| bench.weigh(&order));
                let _ = events.send(DeskEvent::Weighed { query, result });
            }
            Ok(SurveyorOrder::Regain(query, order)) => {
                let result = bench.caught(|bench| bench.regain(&order));
                let _ = events.send(DeskEvent::Regained { query, result });
            }
            Ok(SurveyorOrder::Join(query, order)) => {
                let result = bench.caught(|bench| bench.join(&order));
                let _ = events.send(DeskEvent::Joined { query, result });
            }
            Ok(SurveyorOrder::Describe) => undescribed = bench.undescribed().into(),
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

/// Answers a question, of which the first executor may die.
fn asked<T>(
    bench: &mut SurveyBench,
    question: impl Fn(&mut SurveyBench) -> Result<T, JobError>,
) -> Result<T, JobError> {
    let begun = Instant::now();
    match bench.caught(&question) {
        Err(error)
            if error.code == ErrorCode::ExecutorDied
                && begun.elapsed() < Duration::from_millis(SURVEY_MS_MAX) =>
        {
            bench.caught(&question)
        }
        answered => answered,
    }
}

/// Waits for an order. Surveys that are too old for any question are not kept meanwhile.
fn wait(
    bench: &mut SurveyBench,
    orders: &Receiver<SurveyorOrder>,
) -> Result<SurveyorOrder, TryRecvError> {
    if bench.has_surveys() {
        match orders.recv_timeout(AGE_MAX) {
            Ok(order) => return Ok(order),
            Err(RecvTimeoutError::Timeout) => bench.forget_surveys(),
            Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
        }
    }
    orders.recv().map_err(|_| TryRecvError::Disconnected)
}
