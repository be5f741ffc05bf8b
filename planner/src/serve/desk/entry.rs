//! A job as the desk holds it: its record, and what is only known while the daemon runs.

use std::sync::Arc;

use protocol::message::Progress;

use super::action::ProgressView;
use super::event::{FiledPicture, PreviewImage, RoomTimes, SlotId, Ticket};
use super::job::{JobError, JobRecord, JobState};
use crate::job::JobRequest;
use crate::job::seed::{Seed, picture_seed};

/// A job.
#[derive(Debug)]
pub struct Entry {
    /// What will be, or is, in the store.
    pub record: Arc<JobRecord>,
    /// Whether that is all of it. Of an ended job the desk keeps [`JobRecord::brief`] once the
    /// store has the rest.
    pub whole: bool,
    /// Where it is.
    pub state: JobState,
    /// Whether it is not accepted yet: its first record is on its way to the disk.
    pub coming: bool,
    /// Whether its last record is on its way to the disk.
    pub closing: bool,
    /// Who waits for its end.
    pub waiters: Vec<Ticket>,
    /// Files of its pictures for those who wait.
    pub filed: Vec<FiledPicture>,
    /// When it was accepted, or taken up after a restart, by the desk's clock.
    pub since_ms: u64,
    /// When it must be done, by the desk's clock.
    pub deadline_at: Option<u64>,
    /// The greater, the further in front of its class; 0 where it was not put there.
    pub front: u64,
    /// How often younger ones passed it.
    pub passed: u32,
    /// When the first of those passed it.
    pub passed_since: Option<u64>,
    /// What it waits for beside its turn.
    pub want: Option<Want>,
    /// Since when memory has been short for it.
    pub short_since: Option<u64>,
    /// Which models were to give way when it was quoted, where that was weighed.
    pub weighed: Option<WeighedRoom>,
    /// Whether it did not fit beside other models: they are unloaded for it.
    pub needs_all: bool,
    /// What the surveyor said of it beside what runs, where it was asked.
    pub beside: Option<BesideTimes>,
    /// How often its plan came into the way of another run.
    pub conflicts: u32,
    /// Whether it runs with no other job: one that it ran with failed, or may have.
    pub runs_alone: bool,
    /// Why some of its pictures are not on the disk.
    pub disk_error: Option<JobError>,
    /// The run that is under way.
    pub run: Option<RunState>,
    /// Why it is to end before its time.
    pub ending: Option<EndReason>,
    /// Pictures that were made, filed or not.
    pub made: u32,
    /// Runs whose pictures are being written.
    pub filing: u32,
}

/// Which models give way to a job, as it was weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct WeighedRoom {
    /// When.
    pub at_ms: u64,
    /// The models of others that were loaded then.
    pub others: Vec<SlotId>,
    /// Those of them that give way.
    pub unloaded: Vec<SlotId>,
}

/// What the surveyor said of a job beside what ran then.
#[derive(Debug, Clone, PartialEq)]
pub struct BesideTimes {
    /// The desk's count of what runs and is loaded, by which it was asked.
    pub standing: u64,
    /// What it takes and which models are unloaded for it; `None` where it does not fit beside
    /// them, or only in their way.
    pub times: Option<(RoomTimes, Vec<SlotId>)>,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Want {
    /// When it may be tried again.
    pub until_ms: u64,
    /// A sentence.
    pub because: String,
}

/// A run that is under way, of all of a job's pictures or some.
#[derive(Debug, Clone, PartialEq)]
pub struct RunState {
    /// Where.
    pub slot: SlotId,
    /// When it began.
    pub begun_ms: u64,
    /// Predicted milliseconds, with its load.
    pub predicted_ms: f64,
    /// How far it is.
    pub progress: Option<Progress>,
    /// What its first picture will be like.
    pub preview: Option<Arc<PreviewImage>>,
}

/// Why a running job ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// It is not wanted any more.
    Cancelled,
    /// It was not done in time.
    Deadline,
    /// The daemon ends: the job goes back to the queue.
    Stop,
}

impl Entry {
    /// A job that was accepted, or taken up, now.
    pub fn new(record: JobRecord, now_ms: u64) -> Entry {
        let whole = !record.state.is_ended();
        let record = if whole { record } else { record.brief() };
        let deadline_at = record.order.deadline_ms.map(|ms| now_ms.saturating_add(ms));
        Entry {
            state: record.state,
            coming: false,
            closing: false,
            made: record.pictures.len() as u32,
            record: Arc::new(record),
            whole,
            waiters: Vec::new(),
            filed: Vec::new(),
            since_ms: now_ms,
            deadline_at,
            front: 0,
            passed: 0,
            passed_since: None,
            want: None,
            short_since: None,
            weighed: None,
            needs_all: false,
            beside: None,
            conflicts: 0,
            runs_alone: false,
            disk_error: None,
            run: None,
            ending: None,
            filing: 0,
        }
    }

    /// The record, to be changed. Copies it where somebody still looks at it.
    pub fn record_mut(&mut self) -> &mut JobRecord {
        Arc::make_mut(&mut self.record)
    }

    /// Its end is in the store: what only that must know goes.
    pub fn shorten(&mut self) {
        self.record = Arc::new((*self.record).clone().brief());
        self.whole = false;
    }

    /// Whether it waits for its turn.
    pub fn is_queued(&self) -> bool {
        matches!(self.state, JobState::Queued | JobState::Waiting) && !self.coming && !self.closing
    }

    /// Whether it begins only when nothing runs: memory was short for it, or it was in others' way.
    pub fn needs_quiet(&self) -> bool {
        self.needs_all || self.needs_machine() || self.short_since.is_some()
    }

    /// Whether nothing begins beside it either: its plans come into others' way.
    pub fn needs_machine(&self) -> bool {
        self.conflicts > 1
    }

    /// The daemon's name of what makes its pictures.
    pub fn model(&self) -> &str {
        &self.record.order.model
    }

    /// What its next run makes.
    pub fn next_request(&self) -> JobRequest {
        let order = &self.record.order;
        let mut request = order.request.clone();
        request.shape.batch = Some(self.left().min(self.record.offer.batch).max(1));
        if let Some(Seed::Given(seed)) = request.seed {
            request.seed = Some(Seed::Given(picture_seed(seed, self.made)));
        }
        request
    }

    /// Pictures that are not made yet.
    pub fn left(&self) -> u32 {
        self.record.wanted().saturating_sub(self.made)
    }

    /// How far it is, for whoever watches.
    pub fn progress(&self, now_ms: u64) -> Option<ProgressView> {
        let run = self.run.as_ref()?;
        let Progress { phase, step, of } = run.progress?;
        let left = run.left_ms(now_ms);
        Some(ProgressView { phase: phase.to_string(), step, of, eta_ms: Some(left) })
    }
}

impl RunState {
    /// Predicted milliseconds that it still takes.
    pub fn left_ms(&self, now_ms: u64) -> f64 {
        let gone = now_ms.saturating_sub(self.begun_ms) as f64;
        (self.predicted_ms - gone).max(0.0)
    }
}
