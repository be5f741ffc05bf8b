//! What the desk has others do.

use std::sync::Arc;

use protocol::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::{
    FiledPicture, MadePicture, PreviewImage, QueryId, Quoted, ServedModel, SlotId, Ticket, WriteId,
};
use super::job::{Class, JobError, JobId, JobRecord, JobState};
use crate::job::JobRequest;

/// One thing to do. The main loop has it done in the order of the list.
#[derive(Debug)]
pub enum Action {
    /// Answers who asked; each ticket once.
    Answer(Ticket, Reply),
    /// Tells all who watch the job, the model or the queue.
    Tell(Note),
    /// Asks the surveyor.
    Survey(QueryId, Box<QuoteOrder>),
    /// Asks the surveyor what a job takes with each choice of models that are unloaded for it.
    Weigh(QueryId, Box<RoomOrder>),
    /// Asks the surveyor what a loaded model's jobs would gain by a plan for what is free now.
    Regain(QueryId, Box<GainOrder>),
    /// Asks the surveyor which jobs gain by running together.
    Join(QueryId, Box<JoinOrder>),
    /// Runs a job on a slot's executor, which is started where there is none.
    Run(SlotId, u64, Box<RunOrder>),
    /// Ends the slot's run soon; the executor stays.
    Cancel(SlotId),
    /// Ends the slot's executor.
    End(SlotId, EvictReason),
    /// Keeps a record, to the disk.
    Store(WriteId, Change),
    /// Encodes and writes a run's pictures.
    File(Box<FileOrder>),
    /// Removes an ended job's files.
    Erase(Box<JobRecord>),
    /// Rings in so many milliseconds; takes the place of an earlier one.
    Wake(u64),
    /// Ends the daemon with this exit code.
    Exit(u8),
}

/// Why a model that is loaded has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictReason {
    /// Nobody asked for it for as long as it is kept.
    Idle,
    /// Another model wants its memory.
    Room,
    /// Somebody said so, or the daemon is about to end.
    Asked,
}

/// A question to the surveyor.
#[derive(Debug, Clone, PartialEq)]
pub struct QuoteOrder {
    /// What would be made.
    pub request: JobRequest,
    /// Whether the plan's document says what was rejected.
    pub explain: bool,
    /// The slot of its model.
    pub slot: Option<SlotId>,
    /// Models that are unloaded for it; all others stay.
    pub unloaded: Vec<SlotId>,
    /// Whether an executor computes now: what is free is then not what is free for a job.
    pub busy: bool,
}

/// A question to the surveyor: which models are to be unloaded?
#[derive(Debug, Clone, PartialEq)]
pub struct RoomOrder {
    /// What would be made.
    pub request: JobRequest,
    /// The slot of its model.
    pub slot: Option<SlotId>,
    /// Models that would be unloaded: all that may be first, and then other choices, the smaller
    /// ones before those that have them in them.
    pub choices: Vec<Vec<SlotId>>,
    /// Slots that run on while it runs; where there are none, it begins when nothing runs.
    pub running: Vec<SlotId>,
    /// Whether an executor computes now.
    pub busy: bool,
}

/// A question to the surveyor: what would be gained by a plan for what is free now?
#[derive(Debug, Clone, PartialEq)]
pub struct GainOrder {
    /// What was made last.
    pub request: JobRequest,
    /// Where its model is loaded.
    pub slot: SlotId,
}

/// A question to the surveyor: which of these jobs gain by running together?
#[derive(Debug, Clone, PartialEq)]
pub struct JoinOrder {
    /// What would be made, of the job whose turn it is first.
    pub requests: Vec<JobRequest>,
    /// The slot of their model.
    pub slot: Option<SlotId>,
    /// Models that are unloaded for them; all others stay.
    pub unloaded: Vec<SlotId>,
    /// Whether an executor computes now.
    pub busy: bool,
}

/// What a runner is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOrder {
    /// Whose pictures; `None` for a model that is only loaded.
    pub job: Option<JobId>,
    /// What is made: all of the job, or one run of it.
    pub request: JobRequest,
    /// What is made of other jobs in the same run, in the order of their pictures behind these.
    pub company: Vec<JobRequest>,
    /// By the name that the daemon gives it.
    pub model: String,
    /// Whether the model is loaded by a plan for what is free now, though the loaded one does.
    pub anew: bool,
}

/// What is to be filed.
#[derive(Debug)]
pub struct FileOrder {
    /// Whose pictures.
    pub job: JobId,
    /// When it was accepted, in milliseconds since 1970.
    pub created_at: u64,
    /// Its pictures before these.
    pub first: u32,
    /// What its run made.
    pub pictures: Vec<MadePicture>,
}

/// What the store is to keep.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A job as it is now.
    Put(Box<JobRecord>),
    /// Nothing of this job but that there was one.
    Remove(JobId),
    /// What is not of a job.
    Settings(DeskSettings),
}

/// What the desk keeps beside jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeskSettings {
    /// Whether no jobs are started.
    pub paused: bool,
    /// The model that A1111's routes use where a request names none.
    pub checkpoint: Option<String>,
}

/// An answer.
#[derive(Debug)]
pub enum Reply {
    /// It cannot be.
    Refused {
        /// Why.
        error: Box<JobError>,
        /// When it may be asked again, in seconds.
        retry_after_s: Option<u64>,
    },
    /// The job that was asked for, or accepted.
    Job(Box<JobView>),
    /// A job that ended, with the files of its pictures where they were made just now.
    Ended(Box<JobView>, Vec<FiledPicture>),
    /// What a job would take, and how long it would wait for its turn, in milliseconds.
    Quote {
        /// What the surveyor says.
        quoted: Box<Quoted>,
        /// Predicted, until it would begin.
        wait_ms: f64,
        /// Models that would be unloaded.
        evicts: Vec<String>,
    },
    /// Jobs, the newest first.
    Jobs(Vec<JobView>),
    /// Jobs in the order in which they will run, and whether none is started.
    Queue {
        /// What runs is first.
        jobs: Vec<JobView>,
        /// Whether no jobs are started.
        paused: bool,
    },
    /// All that can be asked for, loaded or not.
    Models(Vec<ModelView>),
    /// The checkpoint of A1111's routes.
    Checkpoint(Option<String>),
    /// Whether jobs can be taken.
    Ready {
        /// Why not, a sentence each; empty where they can be.
        reasons: Vec<String>,
        /// What the operator should know, a sentence each, until it is acknowledged.
        warnings: Vec<String>,
    },
    /// It is done, or will be.
    Accepted,
}

/// A job as it is shown.
#[derive(Debug, Clone)]
pub struct JobView {
    /// What the store has of it.
    pub record: Arc<JobRecord>,
    /// Whether that is all of it, and not [`JobRecord::brief`].
    pub whole: bool,
    /// Where it is now, which may be further than the record.
    pub state: JobState,
    /// Its place in the queue: 0 runs.
    pub position: Option<usize>,
    /// How far it is.
    pub progress: Option<ProgressView>,
    /// What it waits for, as a sentence.
    pub waiting: Option<String>,
    /// Predicted milliseconds from now to its start.
    pub starts_in_ms: Option<f64>,
    /// Predicted milliseconds from now to its end.
    pub ends_in_ms: Option<f64>,
    /// What its first picture will be like.
    pub preview: Option<Arc<PreviewImage>>,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgressView {
    /// What is being done.
    pub phase: String,
    /// How many of its steps are done.
    pub step: u32,
    /// Steps of the phase.
    pub of: u32,
    /// Predicted milliseconds to the job's end.
    pub eta_ms: Option<f64>,
}

/// A model as it is shown.
#[derive(Debug, Clone)]
pub struct ModelView {
    /// What can be asked for.
    pub model: ServedModel,
    /// Where its slot is.
    pub state: SlotState,
    /// What its executor keeps between jobs, by device.
    pub idle_bytes: Vec<(String, Bytes)>,
    /// Milliseconds until it is unloaded.
    pub expires_in_ms: Option<u64>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// Where a model's slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotState {
    /// Nothing is loaded.
    Cold,
    /// It is kept for a job that is about to run.
    Kept,
    /// Weights are on their way.
    Loading,
    /// A job runs.
    Running,
    /// It is loaded, and nothing runs.
    Warm,
    /// Its executor is about to be gone.
    Evicting,
}

/// What whoever watches is told.
#[derive(Debug, Clone)]
pub enum Note {
    /// A job is where it was not before.
    State(Box<JobView>),
    /// A job got further.
    Progress(JobId, ProgressView),
    /// What a job's first picture will be like.
    Preview(JobId, Arc<PreviewImage>),
    /// A job's plan is about to be loaded.
    Plan(JobId, Arc<Value>),
    /// A model is where it was not before.
    Model(String, SlotState),
    /// The queue's order changed by hand.
    Reordered(JobId, Class),
}
