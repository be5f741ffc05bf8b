//! What is asked of a job, as plain data that every door makes: the command line, a picture's
//! settings, and whoever sends it as a document.
//!
//! What is `None` is the model's, or the host profile's. Nothing here looks at a file: whether
//! there is such a model or picture is seen when the request is prepared ([`super::resolve`]).

use std::path::PathBuf;

use protocol::limits::{BATCH_MAX, PROMPT_BYTES_MAX, STRING_BYTES_MAX, TooLong};
use protocol::message::Rng;
use protocol::{Sampler, Scheduler, StorageType};
use serde::{Deserialize, Serialize};

use super::RequestError;
use super::model::ModelName;
use super::seed::Seed;
use crate::policy::PolicyText;

/// A job as it is asked for. Where its pictures go is not part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobRequest {
    /// What makes the pictures.
    pub model: ModelName,
    /// What the pictures are to show, and what not.
    pub prompts: Prompts,
    /// Sizes and counts.
    pub shape: ShapeRequest,
    /// How strongly the prompt is followed.
    pub guidance: GuidanceRequest,
    /// What the pictures are made from beside noise.
    pub start: StartRequest,
    /// Seed of the first picture; random where nobody says one.
    pub seed: Option<Seed>,
    /// Where noise comes from; torch's CPU generator where nobody says.
    pub rng: Option<Rng>,
    /// The denoising rule; the model's where nobody says.
    pub sampler: Option<Sampler>,
    /// The table of noise levels, likewise.
    pub scheduler: Option<Scheduler>,
    /// Levels in place of a table's, one for each step's start, before the model shifts them.
    pub sigmas: Option<Vec<f32>>,
    /// How much fresh noise the rule takes, 0 to 1; its own where nobody says.
    pub eta: Option<f32>,
    /// Whether a rule or a table that the model does not have gives way to its own; else it is an
    /// error.
    pub sampler_may_be_unused: bool,
    /// What may be used, what is pinned by hand, LoRA files, tiles and arithmetic, as users write
    /// it; over the host profile's.
    pub policy: PolicyText,
    /// Components that LoRA are added to while they run, wherever they are placed; the placement
    /// may add more. Names that the model does not have do not count.
    pub lora_at_run_time: Vec<String>,
    /// Steps from one preview to the next; no previews where it is `None`.
    pub preview_every: Option<u32>,
    /// Whether the intermediate tensors are wanted.
    pub dump_tensors: bool,
    /// For a look at files that are not there: sizes as if each matrix were of this type.
    pub weights_as: Option<StorageType>,
}

/// The texts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prompts {
    /// What the pictures are to show; the same as an empty one where it is `None`.
    pub prompt: Option<String>,
    /// A prompt of its own for the long text encoder.
    pub prompt_2: Option<String>,
    /// What the pictures are not to show.
    pub negative_prompt: Option<String>,
    /// Whether a negative prompt that has no effect is left out; else it is an error.
    pub negative_may_be_unused: bool,
}

/// What is asked of a job's sizes and counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShapeRequest {
    /// Width in pixels; by default the picture's that the job starts from, or the model's.
    pub width: Option<u32>,
    /// Height in pixels, likewise.
    pub height: Option<u32>,
    /// How many levels of noise are gone through.
    pub steps: Option<u32>,
    /// Pictures made together; 1 where nobody says.
    pub batch: Option<u32>,
    /// Text tokens of the long text encoder.
    pub max_sequence_length: Option<u32>,
}

/// How strongly a job is to follow its prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuidanceRequest {
    /// What the model's pipeline calls so.
    pub guidance_scale: Option<f32>,
    /// Classifier-free guidance with a second run; 1 is none.
    pub true_cfg_scale: Option<f32>,
    /// Whether that gives way to `guidance_scale` where both are one guidance; else it is an error
    /// that they disagree.
    pub true_cfg_may_be_unused: bool,
    /// Whether what guidance makes is kept as long as what the prompt alone gives.
    pub cfg_normalization: bool,
    /// The guidance that the model has, whichever of the two that is.
    pub cfg_scale: Option<f32>,
}

/// What a job starts from in place of noise alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StartRequest {
    /// A picture's file.
    pub image: Option<PathBuf>,
    /// How far that picture is changed, 0 to 1.
    pub strength: Option<f64>,
    /// A safetensors file with initial latents.
    pub latents: Option<PathBuf>,
}

impl JobRequest {
    /// Checks every number and text against its limits, whoever made the request.
    ///
    /// # Errors
    /// The first that is beyond them.
    pub fn check(&self) -> Result<(), RequestError> {
        self.prompts.check()?;
        self.shape.check()?;
        self.guidance.check()?;
        self.model.check()?;
        self.check_sampling()?;
        let strength = self.start.strength;
        if let Some(strength) = strength.filter(|strength| !(0.0..=1.0).contains(strength)) {
            return Err(number("strength", "a number from 0 to 1", strength));
        }
        for text in self.policy.texts() {
            at_most("policy", text, STRING_BYTES_MAX)?;
        }
        for name in &self.lora_at_run_time {
            at_most("component's name", name, STRING_BYTES_MAX)?;
        }
        Ok(())
    }
}

impl Prompts {
    fn check(&self) -> Result<(), RequestError> {
        for (what, text) in [
            ("prompt", &self.prompt),
            ("second prompt", &self.prompt_2),
            ("negative prompt", &self.negative_prompt),
        ] {
            at_most(what, text.as_deref().unwrap_or_default(), PROMPT_BYTES_MAX)?;
        }
        Ok(())
    }
}

impl ShapeRequest {
    /// Only the number of pictures, of which each has a place before the model is looked at: the
    /// other numbers are held against their limits with the model's own ([`protocol::check`]).
    fn check(&self) -> Result<(), RequestError> {
        match self.batch.filter(|batch| *batch > BATCH_MAX) {
            Some(batch) => Err(RequestError::Batch(batch)),
            None => Ok(()),
        }
    }
}

impl GuidanceRequest {
    fn check(&self) -> Result<(), RequestError> {
        for (flag, scale) in [
            ("guidance-scale", self.guidance_scale),
            ("true-cfg-scale", self.true_cfg_scale),
            ("cfg-scale", self.cfg_scale),
        ] {
            if let Some(scale) = scale.filter(|scale| !scale.is_finite() || *scale < 0.0) {
                return Err(number(flag, "a number ≥ 0", scale));
            }
        }
        Ok(())
    }
}

fn number(flag: &'static str, expected: &'static str, got: impl ToString) -> RequestError {
    RequestError::Number { flag, expected, got: got.to_string() }
}

fn at_most(what: &'static str, text: &str, limit: usize) -> Result<(), TooLong> {
    match text.len() {
        got if got > limit => Err(TooLong { what, got, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
