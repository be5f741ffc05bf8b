//! The phases of a job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A step of the time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Weights of resident components go to their devices.
    Load,
    /// The VAE encoder turns a given picture into latents: image-to-image only.
    Encode,
    /// The text encoders turn the prompt into embeddings.
    Condition,
    /// The DiT runs once or twice for each step.
    Denoise,
    /// The VAE decoder turns latents into a picture.
    Decode,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 5] =
        [Phase::Load, Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];

    /// The phase's name as in the plan's document.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Encode => "encode",
            Phase::Condition => "condition",
            Phase::Denoise => "denoise",
            Phase::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
