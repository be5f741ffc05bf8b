//! A desk that answers by script, and remembers what it was told.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;

use super::super::state::Edge;
use super::super::testing::{picture, view, view_of};
use crate::serve::desk::action::{ModelView, Reply, SlotState};
use crate::serve::desk::event::{Ask, Asker, DeskEvent, Quoted, ServedModel, Ticket};
use crate::serve::desk::job::{ErrorCode, JobError, JobOrder, JobRecord, JobState, KeptJson};
use protocol::Bytes;

/// A job that has ended, with one picture.
pub const DONE: &str = "01ARZ3NDEKTSV4RRFFQ69G5FA1";

/// A job that runs.
pub const RUNNING: &str = "01ARZ3NDEKTSV4RRFFQ69G5FA2";

/// A job that is removed.
pub const REMOVED: &str = "01ARZ3NDEKTSV4RRFFQ69G5FA3";

/// The prompt of a job that is never answered.
pub const NEVER: &str = "never";

/// What was told.
#[derive(Clone, Default)]
pub struct FakeDesk {
    pub left: Arc<Mutex<Vec<Ticket>>>,
    pub unanswered: Arc<Mutex<Vec<Ticket>>>,
    pub askers: Arc<Mutex<Vec<Asker>>>,
    pub orders: Arc<Mutex<Vec<JobOrder>>>,
    pub not_ready: Arc<Mutex<Vec<String>>>,
}

impl FakeDesk {
    pub fn start(edge: Edge, events: Receiver<DeskEvent>) -> FakeDesk {
        let desk = FakeDesk::default();
        let told = desk.clone();
        thread::spawn(move || {
            for event in events {
                match event {
                    DeskEvent::Asked { ticket, asker, ask } => {
                        told.askers.lock().unwrap().push(asker);
                        match told.reply(ask) {
                            Some(reply) => edge.answer(ticket, reply),
                            None => told.unanswered.lock().unwrap().push(ticket),
                        }
                    }
                    DeskEvent::Left { ticket } => told.left.lock().unwrap().push(ticket),
                    other => panic!("the edge tells {other:?}"),
                }
            }
        });
        desk
    }

    fn reply(&self, ask: Ask) -> Option<Reply> {
        Some(match ask {
            Ask::Submit { id, order, .. } => {
                let prompt = order.request.prompts.prompt.clone().unwrap_or_default();
                self.orders.lock().unwrap().push((*order).clone());
                match prompt.as_str() {
                    NEVER => return None,
                    "full" => refused(ErrorCode::QueueFull, Some(7)),
                    "quota" => refused(ErrorCode::Quota, Some(9)),
                    "huge" => refused(ErrorCode::DoesNotFit, None),
                    "again" => refused(ErrorCode::IdempotencyMismatch, None),
                    _ => Reply::Job(Box::new(view_of(&id.0, *order, JobState::Queued))),
                }
            }
            Ask::Plan { request, .. } => match request.prompts.prompt.as_deref() {
                Some("huge") => refused(ErrorCode::DoesNotFit, None),
                Some("broken") => refused(ErrorCode::BadModel, None),
                _ => Reply::Quote {
                    quoted: Box::new(Quoted {
                        offer: view(DONE, "ann", JobState::Done).record.offer.clone(),
                        plan: Arc::new(json!({"feasible": true})),
                    }),
                    wait_ms: 250.0,
                    evicts: vec!["large".to_owned()],
                },
            },
            Ask::Show(id) => match id.0.as_str() {
                DONE => {
                    let mut view = view(DONE, "ann", JobState::Done);
                    Arc::make_mut(&mut view.record).pictures = vec![picture(0)];
                    view.whole = false;
                    Reply::Job(Box::new(view))
                }
                RUNNING => Reply::Job(Box::new(view(RUNNING, "ann", JobState::Running))),
                REMOVED => refused(ErrorCode::Expired, None),
                _ => refused(ErrorCode::NoJob, None),
            },
            Ask::Cancel(id) if id.0 == DONE => refused(ErrorCode::Finished, None),
            Ask::Retry { new, .. } => Reply::Job(Box::new(view(&new.0, "ann", JobState::Queued))),
            Ask::List(filter) => {
                let all = vec![view(RUNNING, "ann", JobState::Running); 3];
                Reply::Jobs(all.into_iter().take(filter.limit).collect())
            }
            Ask::Queue => {
                let jobs = vec![view(RUNNING, "ann", JobState::Running)];
                Reply::Queue { jobs, paused: false }
            }
            Ask::Models => Reply::Models(vec![model("demo"), model("large")]),
            Ask::Ready => {
                let reasons = self.not_ready.lock().unwrap().clone();
                Reply::Ready { reasons, warnings: vec!["mind the gap".to_owned()] }
            }
            _ => Reply::Accepted,
        })
    }
}

/// What the store has of the job that has ended.
pub fn whole_record() -> JobRecord {
    let mut record = (*view(DONE, "ann", JobState::Done).record).clone();
    record.pictures = vec![picture(0)];
    record.plan = Some(KeptJson::of(&json!({"feasible": true})));
    record
}

fn model(name: &str) -> ModelView {
    ModelView {
        model: ServedModel {
            name: name.to_owned(),
            files_bytes: Bytes(7),
            modified_ms: 5000,
            keep_alive: None,
            class: None,
            preload: false,
        },
        state: SlotState::Warm,
        idle_bytes: vec![("cuda0".to_owned(), Bytes(5))],
        expires_in_ms: Some(1000),
        problem: None,
    }
}

fn refused(code: ErrorCode, retry_after_s: Option<u64>) -> Reply {
    let mut error = JobError::new(code, "it cannot be; hint: ask for less");
    error.nearest = (code == ErrorCode::DoesNotFit).then(|| json!({"width": 512}));
    Reply::Refused { error: Box::new(error), retry_after_s }
}
