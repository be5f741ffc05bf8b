//! The arguments of a job's shape, and of what it depends on beside.

use clap::Args;

use crate::planning::ShapeRequest;

/// What is asked of a job's shape.
#[derive(Debug, Args)]
pub struct ShapeArguments {
    /// Width of the picture in pixels [default: the model's]
    #[arg(long, value_name = "PIXELS")]
    pub width: Option<u32>,
    /// Height of the picture in pixels [default: the model's]
    #[arg(long, value_name = "PIXELS")]
    pub height: Option<u32>,
    /// Denoising steps [default: the model's]
    #[arg(long)]
    pub steps: Option<u32>,
    /// Pictures made together, with seeds that count up [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub batch: Option<u32>,
    /// Text tokens of the long text encoder [default: the model's]
    #[arg(long, value_name = "TOKENS")]
    pub max_sequence_length: Option<u32>,
    /// Embedded guidance of guidance-distilled models [default: the model's]
    #[arg(long, value_name = "SCALE")]
    pub guidance_scale: Option<f32>,
    /// Classifier-free guidance: above 1 the DiT runs a second time on the negative prompt [default: the model's]
    #[arg(long, value_name = "SCALE")]
    pub true_cfg_scale: Option<f32>,
    /// The denoising rule
    #[arg(long, value_enum, default_value = "euler")]
    pub sampler: Sampler,
}

/// The denoising rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sampler {
    /// Flow matching by Euler's method.
    Euler,
}

impl ShapeArguments {
    /// The request that they make.
    pub fn request(&self) -> ShapeRequest {
        let Sampler::Euler = self.sampler;
        ShapeRequest {
            width: self.width,
            height: self.height,
            steps: self.steps,
            batch: self.batch,
            max_sequence_length: self.max_sequence_length,
            true_cfg_scale: self.true_cfg_scale,
        }
    }
}
