//! The arguments of a job's shape, and of what it depends on beside: a part of its request.

use std::path::PathBuf;

use clap::Args;
use protocol::{Sampler, Scheduler};

use super::{named, number};
use crate::job::JobRequest;
use crate::job::request::{GuidanceRequest, ShapeRequest, StartRequest};

/// What is asked of a job's shape.
#[derive(Debug, Args)]
pub struct ShapeArguments {
    /// Width of the picture in pixels [default: the given picture's, or the model's]
    #[arg(short = 'W', long, value_name = "PIXELS", allow_negative_numbers = true,
        value_parser = number::count())]
    width: Option<u32>,
    /// Height of the picture in pixels [default: the given picture's, or the model's]
    #[arg(short = 'H', long, value_name = "PIXELS", allow_negative_numbers = true,
        value_parser = number::count())]
    height: Option<u32>,
    /// Denoising steps [default: the model's]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = number::count())]
    steps: Option<u32>,
    /// Pictures made together, with seeds that count up [default: 1]
    #[arg(short, long, value_name = "COUNT", allow_negative_numbers = true,
        value_parser = number::count())]
    batch: Option<u32>,
    /// Text tokens of the long text encoder [default: the model's]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true,
        value_parser = number::count())]
    max_sequence_length: Option<u32>,
    /// What the model's pipeline in diffusers calls so: embedded guidance of guidance-distilled
    /// models, or classifier-free guidance that is counted from 0 [default: the model's]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale())]
    guidance_scale: Option<f32>,
    /// Classifier-free guidance: above 1 the DiT runs a second time on the negative prompt
    /// [default: the model's]
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale())]
    true_cfg_scale: Option<f32>,
    /// The guidance that the model has: --guidance-scale where that is embedded, else
    /// --true-cfg-scale
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true,
        value_parser = number::scale(), conflicts_with_all = ["guidance_scale", "true_cfg_scale"])]
    cfg_scale: Option<f32>,
    /// Keep what classifier-free guidance makes no longer than what the prompt alone gives, as
    /// pipelines with cfg_normalization do
    #[arg(long)]
    cfg_normalization: bool,
    /// A picture to start from, PNG, JPEG or WebP. It is stretched to the width and height; without
    /// these, its own size is taken, to what the model can do. Where it is transparent it is white
    #[arg(long, value_name = "FILE")]
    init_image: Option<PathBuf>,
    /// How far the given picture is changed: near 0 hardly, 1 as if there were none [default: 0.6]
    #[arg(long, value_name = "PART", allow_negative_numbers = true,
        value_parser = number::part())]
    strength: Option<f64>,
    /// The denoising rule: euler, euler_ancestral, heun, dpmpp_2s, dpmpp_2m, dpmpp_2m_sde,
    /// dpmpp_2m_sde_heun, uni_pc or lcm; or another name that ComfyUI, AUTOMATIC1111 or diffusers
    /// has for it, as "DPM++ 2M" [default: the model's]
    #[arg(long, value_name = "NAME", ignore_case = true, hide_possible_values = true,
        value_parser = named::sampler())]
    sampler: Option<Sampler>,
    /// The table of noise levels: automatic, normal, sgm_uniform, simple, karras, exponential, beta
    /// or kl_optimal [default: the model's]
    #[arg(long, value_name = "NAME", ignore_case = true, hide_possible_values = true,
        value_parser = named::scheduler())]
    scheduler: Option<Scheduler>,
    /// Noise levels in place of a table's, one for each step's start, from at most 1 down to above
    /// 0. The model shifts them as it does its own: 1,0.75,0.5,0.25
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = number::level())]
    sigmas: Option<Vec<f32>>,
    /// How much fresh noise a sampler takes that takes some, 0 to 1 [default: 1]
    #[arg(long, value_name = "PART", allow_negative_numbers = true,
        value_parser = number::part())]
    eta: Option<f64>,
}

impl ShapeArguments {
    /// A request that says what these arguments do, and nothing else.
    pub fn request(&self) -> JobRequest {
        JobRequest {
            shape: ShapeRequest {
                width: self.width,
                height: self.height,
                steps: self.steps,
                batch: self.batch,
                max_sequence_length: self.max_sequence_length,
            },
            guidance: GuidanceRequest {
                guidance_scale: self.guidance_scale,
                true_cfg_scale: self.true_cfg_scale,
                cfg_scale: self.cfg_scale,
                cfg_normalization: self.cfg_normalization,
                ..GuidanceRequest::default()
            },
            start: StartRequest {
                image: self.init_image.clone(),
                strength: self.strength,
                latents: None,
            },
            sampler: self.sampler,
            scheduler: self.scheduler,
            sigmas: self.sigmas.clone(),
            eta: self.eta.map(|eta| eta as f32),
            ..JobRequest::default()
        }
    }
}
