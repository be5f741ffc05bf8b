//! A job of the daemon as data: what was asked for, and what became of it.

use std::fmt;
use std::sync::Arc;

use protocol::{Bytes, UsageReport};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::engine::lanes::Lanes;
use crate::job::{FailedAttempt, JobRequest};

/// The version of [`JobRecord`] in the store.
pub const RECORD_VERSION: u32 = 1;

/// A job's name: a ULID, made by the edge; later ones are greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How soon a job is wanted, from the soonest.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Somebody waits for it.
    Interactive,
    /// Nobody waits.
    #[default]
    Batch,
    /// Whenever nothing else is to be done.
    Background,
}

/// The wire that a job came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/jobs`.
    Native,
    /// `/v1/images`.
    OpenAi,
    /// AUTOMATIC1111's `/sdapi/v1`.
    Sdapi,
}

/// What becomes of a job whose client waits for it and leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// It is cancelled.
    #[default]
    Cancel,
    /// It goes on.
    Finish,
}

/// How long a model stays loaded after its last job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepAlive {
    /// So many milliseconds.
    Ms(u64),
    /// Until its memory is wanted.
    Always,
}

/// A client's own name for a job: sent again, it is the same job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// As the client wrote it.
    pub key: String,
    /// SHA-256 of the request's body, in hexadecimal digits.
    pub body_sha256: String,
}

/// A job as it is asked of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobOrder {
    /// What is to be made. The model by name, the seed drawn, and a picture to start from as a file
    /// of the daemon's own.
    pub request: JobRequest,
    /// The daemon's name of what makes it.
    pub model: String,
    /// How soon.
    pub class: Class,
    /// The wire that it came over.
    pub api: Api,
    /// Who asks: a token's name, what the request calls its user, or an address.
    pub client: String,
    /// The client's own label for the job (A1111's `force_task_id`).
    pub label: Option<String>,
    /// Milliseconds from acceptance in which it must be done.
    pub deadline_ms: Option<u64>,
    /// Where its client leaves.
    pub on_disconnect: OnDisconnect,
    /// How long its model stays loaded after it; as configured where it is `None`.
    pub keep_alive: Option<KeepAlive>,
    /// So that it is not done twice.
    pub idempotency: Option<IdempotencyKey>,
    /// The request as it came, without its pictures, to be shown.
    pub body: KeptJson,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// In the queue.
    Queued,
    /// In the queue, for want of memory that others use.
    Waiting,
    /// Its weights are on their way.
    Loading,
    /// It is computed.
    Running,
    /// Its pictures are written.
    Filing,
    /// Its pictures are there.
    Done,
    /// It could not be done.
    Failed,
    /// It was not wanted any more.
    Cancelled,
}

impl JobState {
    /// Whether nothing more will happen to it.
    pub fn is_ended(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }
}

/// Why a job was refused, or failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobError {
    /// For programs.
    pub code: ErrorCode,
    /// A sentence with hints.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// What would fit, as `plan --json` has it.
    pub nearest: Option<Value>,
}

impl JobError {
    /// An error that no field and no budget would mend.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> JobError {
        JobError { code, message: message.into(), param: None, nearest: None }
    }
}

/// What is wrong, by serve.md's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A field has a value that it cannot have.
    BadValue,
    /// Nothing here makes such a thing.
    UnsupportedValue,
    /// There is no such model.
    NoModel,
    /// There is no such job.
    NoJob,
    /// There was, and it was removed.
    Expired,
    /// It has ended already.
    Finished,
    /// Its smallest plan takes more than may be used.
    DoesNotFit,
    /// It would not be, or was not, done in time.
    Deadline,
    /// The key was used with another body.
    IdempotencyMismatch,
    /// The model's files are damaged.
    BadModel,
    /// The client has too many jobs.
    Quota,
    /// The executor died, and so did the next.
    ExecutorDied,
    /// Memory was short in each attempt.
    OutOfMemory,
    /// A device failed, and none is left.
    DeviceFailed,
    /// A fault of Berth.
    Internal,
    /// The daemon ended while it ran, and nobody waits for it.
    Interrupted,
    /// Too many jobs wait.
    QueueFull,
    /// The daemon is about to end.
    Draining,
    /// No jobs are started, and the client would wait.
    Paused,
    /// Jobs cannot be kept: nothing is accepted.
    Store,
    /// The pictures could not be written.
    Disk,
}

/// What a job will take, as the surveyor says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether the model's weights lie where they are wanted.
    pub warm: bool,
    /// Until they do, in milliseconds.
    pub load_ms: f64,
    /// From then to the last picture, in milliseconds.
    pub run_ms: f64,
    /// Pictures of one run; a job of more is several runs.
    pub batch: u32,
    /// Predicted peaks by device, `host` among them.
    pub peak_bytes: Vec<(String, Bytes)>,
    /// What it computes on; empty where that is not known.
    #[serde(default)]
    pub lanes: Lanes,
    /// What beside times of this very machine they were predicted from: `measured` where runs on it
    /// have corrected them.
    pub confidence: Confidence,
    /// What was asked and has no effect, a sentence each.
    pub notices: Vec<String>,
}

/// What a prediction of times rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Runs on this machine.
    Measured,
    /// A profile, or what devices say of themselves.
    Predicted,
}

/// A picture's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureRecord {
    /// Its place in the job, from 0.
    pub index: u32,
    /// The seed of its noise.
    pub seed: u64,
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Of the file.
    pub size_bytes: u64,
    /// The file below the folder of pictures; `None` where it could not be written.
    pub file: Option<String>,
    /// Its settings, as they stand in it.
    pub infotext: String,
}

/// All that is known of a job. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// [`RECORD_VERSION`].
    pub v: u32,
    /// Its name.
    pub id: JobId,
    /// What was asked.
    pub order: JobOrder,
    /// Whether its client waits for its end.
    pub synchronous: bool,
    /// Where it is.
    pub state: JobState,
    /// When it was accepted.
    pub created_at: u64,
    /// When its first run began.
    pub started_at: Option<u64>,
    /// When it ended.
    pub ended_at: Option<u64>,
    /// What it was predicted to take when it was accepted.
    pub offer: Offer,
    /// Milliseconds that it was predicted to wait.
    pub predicted_wait_ms: f64,
    /// How often it was begun.
    pub attempts: u32,
    /// How often the daemon ended while it ran.
    pub daemon_deaths: u32,
    /// What became of attempts that failed.
    pub failures: Vec<FailedAttempt>,
    /// What is made so far.
    pub pictures: Vec<PictureRecord>,
    /// The last run's plan, as `plan --json` has it.
    pub plan: Option<KeptJson>,
    /// What the last run took.
    pub usage: Option<UsageReport>,
    /// What the user should know of it, a sentence each.
    pub notices: Vec<String>,
    /// Why it failed.
    pub error: Option<JobError>,
}

/// A document, as JSON on one line: a daemon holds a request for each job and a plan for each that
/// has not ended, and a tree of values takes ten times as much. Into records and answers it goes as
/// it is.
#[derive(Debug, Clone)]
pub struct KeptJson(Arc<RawValue>);

impl KeptJson {
    /// Of a document.
    pub fn of(document: &Value) -> KeptJson {
        KeptJson(to_raw_value(document).expect("a document can be written").into())
    }
}

impl Serialize for KeptJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeptJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeptJson, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| KeptJson(text.into()))
    }
}

impl PartialEq for KeptJson {
    fn eq(&self, other: &KeptJson) -> bool {
        self.0.get() == other.0.get()
    }
}

impl JobRecord {
    /// Pictures that were asked for.
    pub fn wanted(&self) -> u32 {
        self.order.request.shape.batch.unwrap_or(1)
    }

    /// What lists, limits and a retry need of an ended job: a plan alone takes ten times as much,
    /// and a daemon holds a thousand ended jobs.
    pub fn brief(mut self) -> JobRecord {
        self.plan = None;
        self.usage = None;
        self.failures = Vec::new();
        self
    }
}
