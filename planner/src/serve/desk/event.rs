//! What the desk is told.

use std::sync::Arc;

use protocol::message::Progress;
use protocol::{Bytes, UsageReport};
use serde::Serialize;
use serde_json::Value;

use super::job::{Class, JobError, JobId, JobOrder, JobState, KeepAlive, Offer, PictureRecord};
use crate::engine::lanes::Lanes;
use crate::job::infotext::Settings;
use crate::job::{FailedAttempt, JobRequest};

/// A question of the edge; answered once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A question to the surveyor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// A record on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// A model's place for an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// The time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Milliseconds since the daemon's start; never falls.
    pub ms: u64,
    /// Milliseconds since 1970, by the system's clock.
    pub unix_ms: u64,
}

/// Everything that can happen.
#[derive(Debug)]
pub enum DeskEvent {
    /// Somebody asks.
    Asked {
        /// To be answered by.
        ticket: Ticket,
        /// Who.
        asker: Asker,
        /// What.
        ask: Ask,
    },
    /// Who asked has gone.
    Left {
        /// The question.
        ticket: Ticket,
    },
    /// The surveyor answers.
    Quoted {
        /// The question.
        query: QueryId,
        /// What it takes, or why it cannot be.
        result: Result<Box<Quoted>, JobError>,
    },
    /// The surveyor has weighed what a job takes with each choice of models that are unloaded for
    /// it.
    Weighed {
        /// The question.
        query: QueryId,
        /// By choice, in the question's order; `None` where the job does not fit then, or where a
        /// smaller choice gives the same.
        result: Result<Vec<Option<RoomTimes>>, JobError>,
    },
    /// What a loaded model's jobs would gain by a plan for what is free now.
    Regained {
        /// The question.
        query: QueryId,
        /// What that is; `None` where the loaded plan is for other jobs, or nothing else fits.
        result: Result<Option<GainTimes>, JobError>,
    },
    /// The surveyor has looked at jobs that may run together.
    Joined {
        /// The question.
        query: QueryId,
        /// Those that gain by it; `None` where none do.
        result: Result<Option<JoinTimes>, JobError>,
    },
    /// A slot's executor tells.
    Runner {
        /// Which.
        slot: SlotId,
        /// Which start of its executor.
        epoch: u64,
        /// What.
        said: Said,
    },
    /// A record is on the disk, or is not.
    Stored {
        /// Which.
        write: WriteId,
        /// Why not, as a sentence.
        result: Result<(), String>,
    },
    /// A run's pictures are encoded, and written as far as they can be.
    Filed {
        /// Whose pictures.
        job: JobId,
        /// The pictures; those without a file could not be written.
        pictures: Vec<FiledPicture>,
        /// Why some were not written, as a sentence.
        error: Option<String>,
    },
    /// The models that there are, anew.
    Models(Vec<ServedModel>),
    /// What is free where pictures are kept.
    DiskFree(Bytes),
    /// What loaded models could have of memories now, while nothing runs.
    Free(Vec<SlotFree>),
    /// What computes one thing at a time, anew.
    Lanes(Lanes),
    /// The operator should know of something, until that is acknowledged: a sentence.
    Warned(String),
    /// The time that was asked for by [`Wake`](super::action::Action::Wake) has come.
    Rang,
    /// The process was sent a signal.
    Signal(OperatorSignal),
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// A token's name, what the request calls its user, or an address.
    pub client: String,
    /// Whether it may see and end others' jobs, pause, drain and unload.
    pub admin: bool,
}

/// What is asked.
#[derive(Debug)]
pub enum Ask {
    /// Do this job.
    Submit {
        /// The name that it is to have.
        id: JobId,
        /// What.
        order: Box<JobOrder>,
        /// Whether the answer is to be the ended job, and not the accepted one.
        wait: bool,
    },
    /// What would this job take?
    Plan {
        /// What.
        request: Box<JobRequest>,
        /// By the name that the daemon gives it.
        model: String,
        /// Whether the plan's document says what was rejected.
        explain: bool,
    },
    /// Where is it?
    Show(JobId),
    /// Which are there? The newest first.
    List(Box<JobFilter>),
    /// End it.
    Cancel(JobId),
    /// End what this client runs over A1111's routes.
    InterruptSdapi,
    /// The same job again.
    Retry {
        /// One that has failed or was cancelled.
        id: JobId,
        /// The new one's name.
        new: JobId,
    },
    /// Another place in the queue.
    Reorder {
        /// Which.
        id: JobId,
        /// Its class from now on.
        class: Option<Class>,
        /// Whether it goes before all of its class.
        front: Option<bool>,
    },
    /// Forget an ended job, and its files.
    Delete(JobId),
    /// Start no more jobs; `unload`: and free all memory.
    Pause {
        /// Whether idle models are unloaded.
        unload: bool,
    },
    /// Go on.
    Resume,
    /// The order of the queue, with predicted starts.
    Queue,
    /// The models, and which are loaded.
    Models,
    /// Load a model before anybody asks for a picture.
    LoadModel {
        /// By the name that the daemon gives it.
        model: String,
        /// How long it stays.
        keep_alive: Option<KeepAlive>,
    },
    /// Free a model's memory.
    UnloadModel {
        /// By the name that the daemon gives it.
        model: String,
    },
    /// The checkpoint that A1111's routes use where a request names none; set where one is given.
    Checkpoint(Option<String>),
    /// What the operator was warned of is known.
    Acknowledge,
    /// Take no more jobs and end.
    Drain,
    /// Whether jobs can be taken.
    Ready,
}

/// Which jobs a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only those that are there now.
    pub state: Option<JobState>,
    /// Only those that it makes.
    pub model: Option<String>,
    /// Older than this one.
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: usize,
    /// Only those that their client calls so.
    pub label: Option<String>,
}

/// What the surveyor found.
#[derive(Debug, Clone)]
pub struct Quoted {
    /// What it takes.
    pub offer: Offer,
    /// The plan, as `plan --json` has it.
    pub plan: Arc<Value>,
}

/// What a job takes beside models that stay loaded, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RoomTimes {
    /// With the load of its model.
    pub job_ms: f64,
    /// The same job once more.
    pub next_ms: f64,
    /// What it computes on.
    pub lanes: Lanes,
}

/// What a loaded model could have of each memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFree {
    /// Where the model is loaded.
    pub slot: SlotId,
    /// Of devices and the host.
    pub memories: Vec<FreeMemory>,
}

/// What is free of a memory for one model, with what that holds of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeMemory {
    /// What there was when its plan was made.
    pub planned: Bytes,
    /// What there is by the last reading.
    pub now: Bytes,
}

/// A plan for what is free now beside the loaded one, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GainTimes {
    /// Until its weights are in their places.
    pub load_ms: f64,
    /// What each job would take less.
    pub saved_ms: f64,
}

/// Jobs that run together, and what that takes, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinTimes {
    /// Their places in the question; the first job is always one of them.
    pub jobs: Vec<usize>,
    /// Until their model's weights are in their places.
    pub load_ms: f64,
    /// From then to the last picture.
    pub run_ms: f64,
}

/// What a slot's executor tells.
#[derive(Debug)]
pub enum Said {
    /// A process runs.
    Started {
        /// Its id.
        pid: u32,
    },
    /// A plan is about to be loaded, or does already.
    Planned {
        /// As `plan --json` has it.
        plan: Arc<Value>,
        /// What it computes on.
        lanes: Lanes,
        /// Whether weights are to be loaded.
        loads: bool,
        /// Why a loaded plan for the same question did not do.
        because: Option<FreeChange>,
    },
    /// The run got further.
    Progress(Progress),
    /// What its first picture will be like.
    Preview(Arc<PreviewImage>),
    /// An attempt failed, and another one follows.
    Retrying {
        /// How, as a sentence.
        because: String,
    },
    /// The run made its pictures.
    Done(Box<FinishedWork>),
    /// It was ended because it was to end.
    Cancelled,
    /// Its plan is in the way of another run: it was ended before anything was loaded by it.
    InTheWay,
    /// The model's files, as they still are, are damaged: jobs of it fail until they are others.
    Damaged {
        /// What is wrong with them, as a sentence.
        because: String,
    },
    /// It could not be done. The executor is gone, and its memory is free.
    Failed {
        /// Why.
        error: Box<JobError>,
        /// What became of its attempts.
        failures: Vec<FailedAttempt>,
    },
    /// The executor is gone, and its memory is free.
    Gone,
    /// The executor ended by itself while nothing ran. What is ordered next starts another one.
    Lost,
}

/// How free memory has changed, so that a plan is made anew for the same question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeChange {
    /// The loaded plan takes more than there is.
    Less,
    /// There is so much more that another plan is worth its load.
    More,
}

/// A picture on its way, small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewImage {
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel.
    pub pixels: Vec<u8>,
}

/// What a run made, and what it took.
#[derive(Debug)]
pub struct FinishedWork {
    /// Its pictures, in order; those of jobs that ran together one job after the other.
    pub pictures: Vec<MadePicture>,
    /// What it took.
    pub usage: UsageReport,
    /// What it was predicted to take, in milliseconds: warm or from a cold start, as it ran.
    pub predicted_ms: f64,
    /// What it took, in milliseconds.
    pub measured_ms: f64,
    /// What the executor keeps until its next job, by device.
    pub idle_bytes: Vec<(String, Bytes)>,
    /// What became of attempts before the last.
    pub failures: Vec<FailedAttempt>,
    /// What the user of each of its jobs should know, a sentence each.
    pub notices: Vec<Vec<String>>,
}

/// A picture as the executor made it.
#[derive(Debug, Clone)]
pub struct MadePicture {
    /// Its place among those that the run made of its job, from 0.
    pub index: u32,
    /// The seed of its noise.
    pub seed: u64,
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel.
    pub pixels: Arc<Vec<u8>>,
    /// How it was made.
    pub settings: Settings,
}

/// A picture as a file.
#[derive(Debug, Clone)]
pub struct FiledPicture {
    /// What is kept of it.
    pub record: PictureRecord,
    /// The PNG file, for who waits.
    pub png: Arc<Vec<u8>>,
}

/// A model that can be asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServedModel {
    /// What requests call it.
    pub name: String,
    /// Bytes of its files together.
    pub files_bytes: Bytes,
    /// When the youngest of its files was written, in milliseconds since 1970.
    pub modified_ms: u64,
    /// How long it stays loaded, where its configuration says so.
    #[serde(skip)]
    pub keep_alive: Option<KeepAlive>,
    /// Its jobs' class, where its configuration says so.
    #[serde(skip)]
    pub class: Option<Class>,
    /// Whether it is loaded at the start.
    #[serde(skip)]
    pub preload: bool,
}

/// What the operator sends the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorSignal {
    /// SIGTERM, SIGINT: no new jobs; the running one may end. Once more: it is cancelled.
    Stop,
    /// SIGHUP: models, aliases and tokens are read again. The main loop's own: the desk is told of
    /// the models alone.
    Reload,
}
