//! The flag for previews.

use anyhow::{Result, bail};
use clap::Args;
use protocol::JobShape;

/// Whether the picture is to be seen while it is made.
#[derive(Debug, Args)]
pub struct PreviewArguments {
    /// Show what the picture will be like, every N steps: a rough PNG beside the output, as
    /// berth.preview.png for berth.png; of a batch the first picture. It is removed when the job
    /// ends [default: none]
    #[arg(long, value_name = "N")]
    preview: Option<u32>,
}

impl PreviewArguments {
    /// Steps from one preview to the next; 0 for none.
    pub fn every(&self, job: &JobShape) -> Result<u32> {
        let steps = job.steps_run();
        match self.preview {
            Some(0) => bail!("--preview is 0; hint: give at least 1, or leave it out"),
            Some(every) if every > steps => {
                bail!(
                    "--preview {every} is more than the {steps} steps that run; hint: give at most {steps}"
                )
            }
            every => Ok(every.unwrap_or(0)),
        }
    }
}
