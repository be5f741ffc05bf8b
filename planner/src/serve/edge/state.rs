//! What all handlers work with: the way to the desk, and what is told by it.
//!
//! Invariant: each question's ticket is answered, or the desk is told that who asked has left;
//! never both.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, oneshot, watch};
use ulid::Generator;

use super::config::{FolderOfPictures, KeepPicture, ReadRecord, Rescan};
use super::hosts::HostRules;
use super::journal::Journal;
use super::keep;
use super::limits::{EdgeLimits, NOTES_KEPT};
use super::settings::EdgeSettings;
use super::shown::ShownJobs;
use super::timeline::Timeline;
use super::tokens::Guardian;
use crate::serve::desk::action::{Note, Reply};
use crate::serve::desk::event::{Ask, Asker, DeskEvent, Ticket};
use crate::serve::desk::job::{ErrorCode, JobError, JobId, JobRecord, PictureRecord};
use crate::serve::metrics::Metrics;

/// A handler's way to everything else; cheap to clone.
#[derive(Clone)]
pub struct Edge(Arc<Shared>);

/// What an [`Edge`] is made of.
pub struct EdgeParts {
    /// To the main loop.
    pub events: Sender<DeskEvent>,
    /// At the start.
    pub settings: EdgeSettings,
    /// What is taken of clients.
    pub limits: EdgeLimits,
    /// Who may ask.
    pub guardian: Guardian,
    /// By which names.
    pub hosts: HostRules,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Keeps pictures of requests.
    pub inputs: KeepPicture,
    /// Where pictures of jobs are.
    pub pictures: FolderOfPictures,
    /// Where all of an ended job is.
    pub records: ReadRecord,
    /// Looks for models anew.
    pub rescan: Rescan,
}

struct Shared {
    parts: EdgeParts,
    settings: RwLock<Arc<EdgeSettings>>,
    open: Mutex<HashMap<Ticket, OpenQuestion>>,
    next: AtomicU64,
    ids: Mutex<Generator>,
    notes: broadcast::Sender<Arc<Note>>,
    journal: Journal,
    timeline: Timeline,
    shown: ShownJobs,
    bodies: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// One picture is kept at a time, so that no more threads than one wait for that.
    decoding: Semaphore,
    /// With how long answers under way may take.
    stopping: watch::Sender<Option<Duration>>,
}

impl Edge {
    /// An edge that nobody asks yet.
    pub fn new(mut parts: EdgeParts) -> Edge {
        let settings = RwLock::new(Arc::new(std::mem::take(&mut parts.settings)));
        let bodies = parts.limits.bodies_bytes.div_ceil(BODY_UNIT_BYTES);
        Edge(Arc::new(Shared {
            settings,
            open: Mutex::default(),
            next: AtomicU64::new(1),
            ids: Mutex::new(Generator::new()),
            notes: broadcast::channel(NOTES_KEPT).0,
            journal: Journal::new(),
            timeline: Timeline::default(),
            shown: ShownJobs::default(),
            bodies: Arc::new(Semaphore::new(bodies)),
            streams: Arc::new(Semaphore::new(parts.limits.streams)),
            decoding: Semaphore::new(1),
            stopping: watch::channel(None).0,
            parts,
        }))
    }

    /// Asks the desk and awaits its reply. Dropped before that, the desk is told
    /// [`DeskEvent::Left`]. How long it waits is the desk's to bound.
    pub async fn ask(&self, asker: Asker, ask: Ask) -> Reply {
        let (sender, answer) = oneshot::channel();
        let ticket = Ticket(self.0.next.fetch_add(1, Ordering::Relaxed));
        let open = OpenQuestion { asked_at: Instant::now(), sender };
        lock(&self.0.open).insert(ticket, open);
        let question = Question { edge: self, ticket };
        let is_read = ShownJobs::is_read(&ask);
        if self.0.parts.events.send(DeskEvent::Asked { ticket, asker, ask }).is_err() {
            return ending();
        }
        let reply = answer.await;
        drop(question);
        if !is_read {
            self.0.shown.changed();
        }
        reply.unwrap_or_else(|_| ending())
    }

    /// Gives a question its answer; nothing where who asked has left.
    pub fn answer(&self, ticket: Ticket, reply: Reply) {
        if let Some(open) = lock(&self.0.open).remove(&ticket) {
            let _ = open.sender.send(reply);
        }
    }

    /// How long ago a question was asked; `None` where nobody waits for its answer any more.
    pub fn waited(&self, ticket: Ticket) -> Option<Duration> {
        lock(&self.0.open).get(&ticket).map(|open| open.asked_at.elapsed())
    }

    /// A name for a new job: a ULID, greater than those before it.
    pub fn new_job_id(&self) -> JobId {
        // More than 2⁸⁰ names in a millisecond are not asked for; the next one is then counted on.
        let id =
            lock(&self.0.ids).generate().unwrap_or_else(|full| full.commit_overflow_increment());
        JobId(id.to_string())
    }

    /// What requests are read by, as it is now.
    pub fn settings(&self) -> Arc<EdgeSettings> {
        self.0.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces them.
    pub fn set_settings(&self, settings: EdgeSettings) {
        let mut place = self.0.settings.write().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(settings);
    }

    /// Decodes and checks a picture of a request, keeps it by its content's hash, returns the file.
    ///
    /// # Errors
    /// [`ErrorCode::BadValue`] with `image` as its field, or [`ErrorCode::Disk`].
    pub async fn keep_picture(&self, bytes: Bytes) -> Result<PathBuf, JobError> {
        let _one = self.0.decoding.acquire().await;
        let keep = self.0.parts.inputs.clone();
        let kept = tokio::task::spawn_blocking(move || keep(bytes.to_vec())).await;
        let kept = kept.map(|kept| kept.map_err(keep::of_the_picture));
        kept.unwrap_or_else(|_| Err(JobError::new(ErrorCode::Internal, "a decoder has panicked")))
    }

    /// Notes of all jobs from now on.
    pub fn watch(&self) -> broadcast::Receiver<Arc<Note>> {
        self.0.notes.subscribe()
    }

    /// Lets all streams of events hear of something.
    pub fn tell(&self, note: Note) {
        self.0.shown.told(&note);
        let note = Arc::new(note);
        self.0.journal.add(note.clone());
        // Nobody may be watching.
        let _ = self.0.notes.send(note);
    }

    /// Notes with their numbers, for streams of events.
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// Readings of devices over time.
    pub fn timeline(&self) -> &Timeline {
        &self.0.timeline
    }

    /// Answers about running jobs that stand for a moment.
    pub fn shown(&self) -> &ShownJobs {
        &self.0.shown
    }

    /// What is taken of clients.
    pub fn limits(&self) -> &EdgeLimits {
        &self.0.parts.limits
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.parts.metrics
    }

    /// Who may ask.
    pub fn guardian(&self) -> &Guardian {
        &self.0.parts.guardian
    }

    /// By which names this server may be called.
    pub fn hosts(&self) -> &HostRules {
        &self.0.parts.hosts
    }

    /// The file of a job's picture, where there is one.
    pub fn picture_path(&self, picture: &PictureRecord) -> Option<PathBuf> {
        (self.0.parts.pictures)(picture)
    }

    /// All of a job, from the store; `None` where it is not there any more: blocking work.
    ///
    /// # Errors
    /// [`ErrorCode::Store`].
    pub fn record(&self, id: &JobId) -> Result<Option<JobRecord>, JobError> {
        (self.0.parts.records)(id)
    }

    /// Looks for models anew, and returns what is known of them: blocking work.
    ///
    /// # Errors
    /// Why it cannot be done, as a sentence.
    pub fn rescan(&self) -> Result<Value, String> {
        (self.0.parts.rescan)()
    }

    /// Room for so many more bytes of bodies, until it is dropped; `None` where there is none.
    pub fn body_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(BODY_UNIT_BYTES)).ok()?;
        self.0.bodies.clone().try_acquire_many_owned(units).ok()
    }

    /// Room for one more stream of events, until it is dropped; `None` where there is none.
    pub fn stream_room(&self) -> Option<OwnedSemaphorePermit> {
        self.0.streams.clone().try_acquire_owned().ok()
    }

    /// Holds something once the server is about to end, and streams with it: how long answers that
    /// are under way may take.
    pub fn stopping(&self) -> watch::Receiver<Option<Duration>> {
        self.0.stopping.subscribe()
    }

    /// Ends streams and, one after the other, connections.
    pub fn stop(&self, grace: Duration) {
        self.0.stopping.send_replace(Some(grace));
    }
}

/// In what sizes room for bodies is given.
const BODY_UNIT_BYTES: usize = 1 << 10;

/// A question that has no answer yet.
struct OpenQuestion {
    asked_at: Instant,
    sender: oneshot::Sender<Reply>,
}

/// A question on its way.
struct Question<'a> {
    edge: &'a Edge,
    ticket: Ticket,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        // What was answered is not in the map any more.
        if lock(&self.edge.0.open).remove(&self.ticket).is_some() {
            let left = DeskEvent::Left { ticket: self.ticket };
            let _ = self.edge.0.parts.events.send(left);
        }
    }
}

fn ending() -> Reply {
    let message = "the server is about to end; hint: ask again soon";
    let error = Box::new(JobError::new(ErrorCode::Draining, message));
    Reply::Refused { error, retry_after_s: None }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
