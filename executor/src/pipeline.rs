//! The pipeline: from a prompt to pictures, by a loaded plan.
//!
//! What a family does between its components (tokenize, pack, guide, step) is one file each; all of it
//! is host work on small buffers. Computation of components goes through the runtime.

pub mod dump;
pub mod finite;
pub mod flux;
pub mod image;
pub mod latents;
pub mod noise;
pub mod tiles;

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::Progress;
use protocol::notice::Notice;
use protocol::{Failure, Job, UsageReport};

pub use dump::Dump;
pub use image::Picture;

use crate::backend::{CancelFlag, Turn};
use crate::models::Model;
use crate::runtime::Runtime;

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
    /// The intermediate tensors, where the job asked for them, as the bytes of a safetensors file.
    fn tensors(&mut self, bytes: &[u8]) -> Result<(), Failure>;
}

/// Runs a job; the answer is what it used.
pub fn generate(
    runtime: &mut Runtime,
    job: &Job,
    cancel: &CancelFlag,
    observer: &mut dyn Observer,
) -> Result<UsageReport, Failure> {
    let result = match *runtime.model {
        Model::Flux(_) => flux::generate(runtime, job, cancel, observer),
    };
    match result {
        Ok(mut usage) => {
            runtime.report_idle(&mut usage);
            Ok(usage)
        }
        Err(failure) => {
            runtime.abandon();
            Err(failure)
        }
    }
}
