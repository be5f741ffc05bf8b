//! The messages between planner and executor.
//!
//! ```text
//! planner                                executor
//!   starts it with a one-shot server name
//!                     ◄── Handshake ──     connects: its command sender, its event receiver
//!   Hello{version}    ──►            ◄──   Event::Hello, or Failed(WrongVersion)
//!   Inspect, Measure, Size, Verify ──► ◄── Inspected, Measured, Sized, Verified
//!   Calibrate, SelfTest ──►          ◄──   Calibrated, SelfTested
//!   Load{plan}        ──►            ◄──   Files, Progress*, Loaded
//!   Generate{job}*    ──►            ◄──   Notice*, Progress*, Conditioned*, Preview*, Output*,
//!                                          Tensors?, Usage, Done
//!   PreviewTaken      ──►  (once for each Preview: until then no other one comes)
//!   Cancel            ──►  (any time; a running command ends with Failed(Cancelled))
//!   Unload            ──►            ◄──   Unloaded
//!   Bye               ──►                  ends
//!                                    ◄──   Heartbeat, at any time
//! ```
//! Any command may be answered by [`Event::Failed`] in place of its own answer; the executor then
//! waits for the next command.

mod names;
mod texts;

use ipc_channel::ipc::{IpcReceiver, IpcSender, IpcSharedMemory};
use serde::{Deserialize, Serialize};

use crate::calibration::{Calibration, CalibrationDevice};
use crate::limits::{PROMPT_BYTES_MAX, STEPS_MAX, STRING_BYTES_MAX, TooLong};
use crate::model::ModelSource;
use crate::notice::{FileState, Notice};
use crate::phase::Phase;
use crate::plan::{DeviceId, GraphOptions, JobShape, PieceSizes, Plan};
use crate::profile::{BackendKind, Layout, LayoutBytes, ModelDescription, ModelProfile};
use crate::sampler::Scheduler;
use crate::self_test::{SelfTest, SelfTestShare};
use crate::units::Bytes;
use crate::usage::UsageReport;

pub use texts::{JobTexts, PromptText};

/// Both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 23;

/// The executor's first and only message over the one-shot server.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handshake {
    /// Where the planner sends its commands.
    pub commands: IpcSender<Command>,
    /// Where the planner hears events.
    pub events: IpcReceiver<Event>,
}

/// What the planner asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Command {
    /// The first command.
    Hello {
        /// [`PROTOCOL_VERSION`] of the planner.
        version: u32,
        /// Whether libraries that GPUs are used with are to be told of, which loads them.
        libraries: bool,
    },
    /// What is in a model's files?
    Inspect {
        /// Where the model is.
        model: ModelSource,
        /// Whether tokenizers are made, to see whether that can be done: no size depends on them.
        makes_tokenizers: bool,
    },
    /// What does a model need for this job shape, in these pieces?
    Measure {
        /// Where the model is.
        model: ModelSource,
        /// The sizes asked for.
        job: JobShape,
        /// What beside the job decides what is computed, but for the pieces.
        options: GraphOptions,
        /// The pieces: a profile for each.
        pieces: Vec<PieceSizes>,
        /// Worker threads of the host's kernels.
        threads: u32,
    },
    /// What do these layouts of components take, to the byte?
    Size {
        /// Where the model is.
        model: ModelSource,
        /// The sizes asked for.
        job: JobShape,
        /// What beside the job decides what is computed.
        options: GraphOptions,
        /// Worker threads of the host's kernels.
        threads: u32,
        /// The layouts; each component may stand in several.
        layouts: Vec<Layout>,
    },
    /// What does this very plan use? Nothing is allocated.
    Verify {
        /// What is to be scheduled; nothing is allocated.
        plan: Box<Plan>,
    },
    /// Take this plan, and load what is resident in it.
    Load {
        /// What is to be carried out.
        plan: Box<Plan>,
        /// Also allocate and load every phase once, in order, without computing, to measure it.
        rehearse: bool,
    },
    /// How fast are the host, its storage and these devices? Takes seconds; nothing may be loaded.
    Calibrate {
        /// What is measured beside the host.
        devices: Vec<CalibrationDevice>,
        /// Worker threads of the host's kernels.
        threads: u32,
        /// A directory on the storage that holds models: a file is written there, read, and
        /// removed.
        directory: String,
    },
    /// Do the kernels compute as the host does on these devices, and do copies between them arrive
    /// as they were?
    SelfTest {
        /// GPUs, with what may be used of them.
        devices: Vec<CalibrationDevice>,
        /// Worker threads of the host's kernels.
        threads: u32,
        /// Which of the cases.
        share: SelfTestShare,
    },
    /// Run a job by the loaded plan.
    Generate {
        /// Generation of the plan that the job was made for.
        generation: u64,
        /// What is asked of the loaded plan.
        job: Box<Job>,
    },
    /// The last preview has been read: its memory may be written again.
    PreviewTaken,
    /// End the running command soon.
    Cancel,
    /// Free everything that the plan allocated.
    Unload,
    /// End the process.
    Bye,
}

/// Where initial noise comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rng {
    /// As torch's CPU generator (mt19937 and Box-Muller).
    Cpu,
}

/// The part of a job that sizes do not depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its pictures, as many as its plan's batch has.
    pub items: Vec<JobItem>,
    /// What the model's pipeline takes as `guidance_scale`: see [`crate::profile::GuidanceScale`].
    pub guidance_scale: f32,
    /// Classifier-free guidance with a second run; 1 is none.
    pub true_cfg_scale: f32,
    /// Whether what guidance makes is kept as long as what the prompt alone gives, where the
    /// family's pipeline can (`cfg_normalization`).
    pub cfg_normalization: bool,
    /// The table of noise levels.
    pub scheduler: Scheduler,
    /// Levels in place of a table's, one for each step's start, before the model shifts them; empty
    /// for none.
    pub sigmas: Vec<f32>,
    /// How much fresh noise a sampler takes that takes some, 0 to 1; its own where it is `None`.
    pub eta: Option<f32>,
    /// Where noise comes from.
    pub rng: Rng,
    /// A picture to start from, as 8-bit RGB of the job's width and height.
    pub init_image: Option<IpcSharedMemory>,
    /// A safetensors file with the initial latents (`latents_init` or `noise_nchw`), in place of
    /// noise.
    pub init_latents: Option<String>,
    /// Whether the intermediate tensors are wanted.
    pub dump_tensors: bool,
    /// What the text encoders give for each of the job's texts, in the order of [`Job::texts`], if
    /// that is known of all; else none. No text encoder runs then, whether the plan has some or
    /// not.
    pub conditioning: Vec<Embeddings>,
    /// Whether what the text encoders give is wanted, where they run.
    pub keep_conditioning: bool,
}

/// What is asked of one picture of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobItem {
    /// What the picture should show.
    pub prompt: String,
    /// The prompt of the long text encoder, where it differs.
    pub prompt_2: Option<String>,
    /// The negative prompt, used with true classifier-free guidance.
    pub negative_prompt: String,
    /// The seed of its noise.
    pub seed: u64,
}

/// What the text encoders of a model give for one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Embeddings {
    /// Values of 4 bytes each, as the executor's processor has them in memory: what is in which
    /// place is the family's own.
    pub values: IpcSharedMemory,
}

/// What the executor says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The answer to [`Command::Hello`].
    Hello {
        /// [`PROTOCOL_VERSION`] of the executor.
        version: u32,
        /// The backends that it can compute on.
        backends: Vec<BackendKind>,
        /// Why CUDA is not among them, as a clause with a hint.
        why_no_cuda: Option<String>,
        /// Where it is and libraries are asked for, which cuBLASLt multiplies there; or that none
        /// does and why, with a hint.
        cublas: Option<String>,
        /// The program with its kernels, as some digits that are others where it is another one;
        /// empty where it does not compute on GPUs.
        program: String,
    },
    /// The answer to [`Command::Inspect`].
    Inspected(Box<ModelDescription>),
    /// The answer to [`Command::Measure`], in its order.
    Measured(Vec<ModelProfile>),
    /// The answer to [`Command::Size`], in its order.
    Sized(Vec<LayoutBytes>),
    /// The answer to [`Command::Verify`].
    Verified(Vec<VerifiedBytes>),
    /// The answer to [`Command::Calibrate`].
    Calibrated(Box<Calibration>),
    /// The answer to [`Command::SelfTest`].
    SelfTested(Box<SelfTest>),
    /// The answer to [`Command::Load`]; with phases where it was rehearsed.
    Loaded(Box<UsageReport>),
    /// The files that the plan to be loaded reads, as they were when they were opened.
    Files(Vec<FileState>),
    /// What the user should know of the running job.
    Notice(Notice),
    /// Where the running command is.
    Progress(Progress),
    /// What the text encoders gave for a prompt: one for each text, in the order of
    /// [`Job::texts`]. The memory is the planner's, and in no plan.
    Conditioned(Embeddings),
    /// What the first picture of the batch will be like.
    Preview(Preview),
    /// Something that the job made is finished.
    Output(Output),
    /// The intermediate tensors as the bytes of a safetensors file.
    Tensors(IpcSharedMemory),
    /// What the job used; follows its pictures.
    Usage(Box<UsageReport>),
    /// The job is done.
    Done {
        /// Generation of the plan that it ran by.
        generation: u64,
    },
    /// The answer to [`Command::Unload`].
    Unloaded,
    /// It could not be done, and nothing of it is left.
    Failed(Failure),
    /// The executor's process runs, however long its command takes: sent each
    /// [`HEARTBEAT_MS`](crate::limits::HEARTBEAT_MS), and no answer to anything.
    Heartbeat,
}

/// Exact bytes of a plan's own schedule, on one device in one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedBytes {
    /// The device, or `host`.
    pub device: DeviceId,
    /// When these bytes are held.
    pub phase: Phase,
    /// Everything but the overhead.
    pub bytes: Bytes,
}

/// Where a running command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// How many are done.
    pub step: u32,
    /// Steps in all.
    pub of: u32,
}

/// What a picture will be like, told from its latents: a pixel for each of their cells.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Preview {
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel. The same memory in each preview of a job.
    pub pixels: IpcSharedMemory,
}

/// What a job makes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Output {
    /// A picture of its batch.
    Picture(Image),
}

/// A finished picture.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    /// Its place in the batch, from 0.
    pub index: u32,
    /// The seed of its noise.
    pub seed: u64,
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel.
    pub pixels: IpcSharedMemory,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure, for the planner to act on.
    pub kind: FailureKind,
    /// A sentence for people, with a hint where one helps.
    pub message: String,
}

/// What went wrong, as far as it can be told apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// An allocation did not fit.
    OutOfMemory {
        /// The device, or `host`.
        device: DeviceId,
        /// What was to be allocated.
        region: String,
        /// What one allocation asked for.
        requested_bytes: Bytes,
        /// Bytes that were free; `None` where nobody knows.
        free_bytes: Option<Bytes>,
    },
    /// A device does not answer any more, or a copy to or from it failed.
    DeviceFailed {
        /// Which one, by its name in the plan.
        device: DeviceId,
    },
    /// A device does nothing more for this executor, which ends once it has said so: its context
    /// is broken, and that of another process may not be.
    DeviceLost {
        /// Which one, by its name in the plan.
        device: DeviceId,
    },
    /// [`Command::Cancel`] ended it.
    Cancelled,
    /// A component's result is infinite or no number.
    NotFinite {
        /// What computed it.
        component: String,
        /// The denoising step, from 1; `None` outside of denoising.
        step: Option<u32>,
    },
    /// A file of the model is missing, damaged or not understood.
    BadModel,
    /// The request makes no sense for the model.
    BadRequest,
    /// The plan breaks a rule, or its own schedule exceeds it.
    PlanRefused,
    /// The plan or job belongs to a generation that is no longer current.
    StaleGeneration,
    /// Planner and executor are of different versions.
    WrongVersion,
    /// A fault of the executor.
    Internal,
}

fn at_most(what: &'static str, text: &str, limit: usize) -> Result<(), TooLong> {
    if text.len() <= limit { Ok(()) } else { Err(TooLong { what, got: text.len(), limit }) }
}

impl JobItem {
    fn check_limits(&self) -> Result<(), TooLong> {
        at_most("prompt", &self.prompt, PROMPT_BYTES_MAX)?;
        at_most("second prompt", self.prompt_2.as_deref().unwrap_or(""), PROMPT_BYTES_MAX)?;
        at_most("negative prompt", &self.negative_prompt, PROMPT_BYTES_MAX)
    }
}

impl Command {
    /// Checks every free string against its limit. Plans have a checker of their own.
    pub fn check_limits(&self) -> Result<(), TooLong> {
        match self {
            Command::Inspect { model, .. }
            | Command::Measure { model, .. }
            | Command::Size { model, .. } => {
                at_most("model path", &model.to_string(), STRING_BYTES_MAX)
            }
            Command::Calibrate { directory, .. } => {
                at_most("directory", directory, STRING_BYTES_MAX)
            }
            Command::Generate { job, .. } => {
                job.items.iter().try_for_each(JobItem::check_limits)?;
                let level_bytes = size_of::<f32>();
                let (what, limit) = ("list of sigmas", STEPS_MAX as usize * level_bytes);
                let got = job.sigmas.len() * level_bytes;
                if got > limit {
                    return Err(TooLong { what, got, limit });
                }
                let latents = job.init_latents.as_deref().unwrap_or("");
                at_most("path of the initial latents", latents, STRING_BYTES_MAX)
            }
            Command::Hello { .. }
            | Command::Verify { .. }
            | Command::Load { .. }
            | Command::SelfTest { .. }
            | Command::PreviewTaken
            | Command::Cancel
            | Command::Unload
            | Command::Bye => Ok(()),
        }
    }
}
