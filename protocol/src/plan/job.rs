//! What of a job decides sizes.

use serde::{Deserialize, Serialize};

use crate::phase::Phase;

/// What of a job decides sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Height of the picture in pixels.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Pictures made together.
    pub batch: u32,
    /// Tokens of the long text encoder, padding included.
    pub max_sequence_length: u32,
    /// Whether the DiT runs a second time in each step, on the negative prompt
    /// (`--true-cfg-scale`).
    pub true_cfg: bool,
    /// Whether the job starts from a picture.
    pub init_image: bool,
    /// Steps of the sampler's table that are left out at its start: above 0 for a job that starts
    /// from a picture at less than full strength.
    pub first_step: u32,
}

impl JobShape {
    /// The phases that a plan for this job states bytes for, in order. `Load` holds a subset of the
    /// first one's.
    pub const fn timeline(&self) -> &'static [Phase] {
        const WHOLE: [Phase; 4] = [Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];
        if self.init_image { &WHOLE } else { WHOLE.split_at(1).1 }
    }

    /// Steps that run.
    pub const fn steps_run(&self) -> u32 {
        self.steps.saturating_sub(self.first_step)
    }
}
