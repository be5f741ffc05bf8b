//! The pipeline: from a prompt to pictures, by a loaded plan.
//!
//! ```text
//! generate  plan and job compared, buffers allocated
//!   ├ start         the family's: prompts to token ids, buffers taken
//!   ├ conditioning  embeddings that the job brings, where the text encoders' results would be
//!   └ each phase    entered, run by the family, left; its time recorded
//! ```
//! This is the driver, and what families share of the work between components: all of it is host
//! work on small buffers. What a family does in a phase is its own [`JobPhases`]. Computation goes
//! through the runtime.

mod conditioning;
mod running;

pub mod latents;
pub mod noise;
pub mod pictures;
pub mod preview;
pub mod steps;
pub mod tiles;
pub mod tokens;

pub mod dump;
pub mod finite;
pub mod image;

use std::time::Instant;

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::Progress;
use protocol::notice::Notice;
use protocol::{Embeddings, Failure, Job, Phase, UsageReport};

use crate::backend::{CancelFlag, Turn};
use crate::failure::bad_request;
use crate::runtime::Runtime;

pub use dump::Dump;
pub use image::Picture;
pub use running::RunningJob;

/// Hears of a running job.
pub trait Observer {
    /// The job got further.
    fn progress(&mut self, progress: Progress);
    /// The user should know of something.
    fn notice(&mut self, notice: Notice);
    /// Previews may come, each once the turn of the one before was taken back.
    fn previews(&mut self, turn: Turn);
    /// A preview of this width and height, in 8-bit RGB.
    fn preview(&mut self, size: [u32; 2], pixels: IpcSharedMemory);
    /// A picture is finished.
    fn picture(&mut self, picture: Picture<'_>) -> Result<(), Failure>;
    /// What the text encoders gave for one of the prompts, in their order, where the job wants it.
    fn conditioned(&mut self, embeddings: Embeddings);
    /// The intermediate tensors, where the job asked for them, as the bytes of a safetensors file.
    fn tensors(&mut self, bytes: &[u8]) -> Result<(), Failure>;
}

/// What a family does in the phases of one job, with its buffers for it.
pub trait JobPhases {
    /// Runs a phase whose components have their weights and arenas: writes their inputs, runs them,
    /// reads their outputs. Nothing that grows with the job is allocated.
    fn run(&mut self, phase: Phase, job: &mut RunningJob<'_>) -> Result<(), Failure>;

    /// What the text encoders give, where it lies: for each prompt its parts, in one order for all
    /// jobs of the family. Read once they have run, and written where a job brings it.
    fn embeddings(&mut self) -> Vec<Vec<&mut [f32]>>;
}

/// How a family starts a job: what must be known before its first phase, so that what is wrong is
/// told early.
pub type StartJob<'a> = &'a dyn Fn(&mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure>;

/// Runs a job by the runtime's plan; the answer is what it used.
pub fn generate(
    runtime: &mut Runtime,
    job: &Job,
    cancel: &CancelFlag,
    observer: &mut dyn Observer,
    start: StartJob<'_>,
) -> Result<UsageReport, Failure> {
    let result = run_phases(runtime, job, cancel, observer, start);
    if result.is_err() {
        runtime.abandon();
    }
    result
}

fn run_phases(
    runtime: &mut Runtime,
    job: &Job,
    cancel: &CancelFlag,
    observer: &mut dyn Observer,
    start: StartJob<'_>,
) -> Result<UsageReport, Failure> {
    let begun = Instant::now();
    check_job(runtime, job)?;
    let phases_run = phases_run(runtime, job);
    let mut running = RunningJob::new(runtime, job, cancel, observer)?;
    let mut phases = start(&mut running)?;
    if !job.conditioning.is_empty() {
        conditioning::take(&job.conditioning, &mut phases.embeddings())?;
    }
    for &phase in &phases_run {
        let next = running.shape().phase_after(phase).filter(|next| phases_run.contains(next));
        running.timed(phase, next, phases.as_mut())?;
        if phase == Phase::Condition && job.keep_conditioning {
            conditioning::tell(&mut phases.embeddings(), running.observer)?;
        }
    }
    running.finish()?;
    drop(phases);
    drop(running);
    let total_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(runtime.report(total_ms))
}

/// The phases that a job goes through: one that brings its embeddings leaves out theirs, if the
/// plan has it.
fn phases_run(runtime: &Runtime, job: &Job) -> Vec<Phase> {
    let runs = |phase: &&Phase| **phase != Phase::Condition || job.conditioning.is_empty();
    runtime.plan.job.timeline().iter().filter(runs).copied().collect()
}

/// Whether a job is one that the plan was made for.
fn check_job(runtime: &Runtime, job: &Job) -> Result<(), Failure> {
    let shape = &runtime.plan.job;
    if shape.init_image != job.init_image.is_some() {
        return Err(bad_request("the plan and the job disagree on a picture to start from"));
    }
    let pictures = job.items.len();
    if pictures != shape.batch as usize {
        let batch = shape.batch;
        return Err(bad_request(format!("{pictures} pictures for a plan of {batch}")));
    }
    let texts = job.texts(shape.true_cfg).all.len();
    if texts != shape.prompts() as usize {
        let planned = shape.prompts();
        return Err(bad_request(format!("{texts} different prompts for a plan of {planned}")));
    }
    if shape.conditioned && job.conditioning.is_empty() {
        return Err(bad_request("the plan has no text encoders, and the job no embeddings"));
    }
    if shape.init_image && job.init_latents.is_some() {
        return Err(bad_request("a job starts from a picture or from latents, not from both"));
    }
    Ok(())
}
