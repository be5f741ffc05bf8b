//! From a request to what is planned and sent, in two steps: [`JobRequest::prepare`] looks at
//! everything that needs no executor, [`PreparedJob::resolve`] at what only a model's description
//! says.
//!
//! Not here: budgets and devices, which are the host's ([`crate::engine::host`]), and whether a
//! size is one that the model makes, which the plan's checker says.

use std::collections::BTreeMap;
use std::path::Path;

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::Rng;
use protocol::plan::Lora;
use protocol::profile::{GuidanceScale, JobDefaults};
use protocol::{GraphOptions, Job, JobItem, JobShape, ModelDescription, ModelSource};

use super::model::absolute;
use super::request::{GuidanceRequest, ShapeRequest};
use super::sampling::Sampling;
use super::seed::{Seed, picture_seed};
use super::{JobRequest, RequestError};
use crate::media::picture::Picture;
use crate::policy::lora::LoraRequest;
use crate::policy::tile::check_tile;
use crate::policy::{Policy, PolicyText};

/// How far a picture is changed where nothing else is said: the default of diffusers'
/// image-to-image pipelines.
const STRENGTH: f64 = 0.6;

/// A request of which everything is known that needs no executor.
#[derive(Debug)]
pub struct PreparedJob {
    /// What was asked, with the seed that was drawn where none was given.
    pub request: JobRequest,
    /// Where the model is, in absolute paths.
    pub model: ModelSource,
    /// What is wanted: the request's policy text over the host's.
    pub policy: Policy,
    /// The policy's LoRA files, by absolute paths.
    pub loras: Vec<Lora>,
    /// The picture to start from, known by its header.
    pub picture: Option<Picture>,
    /// Seed of the first picture.
    pub seed: u64,
}

/// A job on a model: all but its picture's pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedJob {
    /// Sizes and counts.
    pub shape: JobShape,
    /// How strongly it follows its prompt.
    pub guidance: Guidance,
    /// How it is denoised.
    pub sampling: Sampling,
    /// What beside the shape decides what is computed.
    pub options: GraphOptions,
    /// What was asked and has no effect on this model, a sentence each.
    pub notices: Vec<String>,
}

/// How strongly a job follows its prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// What the model's pipeline takes as `guidance_scale`.
    pub scale: f32,
    /// Classifier-free guidance with a second run; 1 is none.
    pub true_cfg: f32,
}

impl JobRequest {
    /// Looks at everything that needs no executor. `named` are the models that the host gave names
    /// to, `below` is the policy where the request says nothing.
    ///
    /// # Errors
    /// A number or text is beyond its limits, a file is not there, or the policy cannot be read.
    pub fn prepare(
        mut self,
        named: &BTreeMap<String, ModelSource>,
        below: &PolicyText,
    ) -> Result<PreparedJob, RequestError> {
        self.check()?;
        if self.start.strength.is_some() && self.start.image.is_none() {
            return Err(RequestError::StrengthWithoutPicture);
        }
        if self.start.image.is_some() && self.start.latents.is_some() {
            return Err(RequestError::TwoStarts);
        }
        let seed = self.seed.unwrap_or_default().draw()?;
        self.seed = Some(Seed::Given(seed));
        let picture = self.start.image.as_deref().map(Picture::open).transpose()?;
        let model = self.model.source(named)?;
        let policy = Policy::of(&self.policy.clone().over(below))?;
        let loras = policy.loras.iter().map(lora).collect::<Result<_, _>>()?;
        Ok(PreparedJob { request: self, model, policy, loras, picture, seed })
    }

    /// How far a picture to start from is changed.
    pub fn strength(&self) -> f64 {
        self.start.strength.unwrap_or(STRENGTH)
    }
}

impl PreparedJob {
    /// The job on a model.
    ///
    /// # Errors
    /// What is asked makes no sense for the model.
    pub fn resolve(&self, description: &ModelDescription) -> Result<ResolvedJob, RequestError> {
        let guidance = self.request.guidance.resolve(description)?;
        let mut notices = Vec::new();
        let sampling = self.request.sampling(description, &mut notices)?;
        let shape = self.shape(description, guidance, &sampling)?;
        check_tile(self.policy.vae_tile, description.side_multiple_pixels)?;
        let options = GraphOptions {
            exact_matmul: self.policy.exact_matmul,
            loras: self.loras.clone(),
            lora_runtime: self.lora_at_run_time(description),
            weights_as: self.request.weights_as,
            preview_every: self.preview_every(&shape)?,
            ..GraphOptions::default()
        };
        let takes_none = description.guidance == GuidanceScale::None;
        if self.request.guidance.guidance_scale.is_some() && takes_none {
            let sentence = "this model has no embedded guidance: --guidance-scale has no effect";
            notices.push(sentence.to_owned());
        }
        for flag in self.model.parts.keys().filter(|flag| flag.is_unused()) {
            notices
                .push(format!("no model takes anything from such a file: --{flag} has no effect"));
        }
        let normalises = description.guidance == GuidanceScale::BeyondPrompt;
        if self.request.guidance.cfg_normalization && !normalises {
            let sentence =
                "this family's guidance is not normalised: --cfg-normalization has no effect";
            notices.push(sentence.to_owned());
        }
        Ok(ResolvedJob { shape, guidance, sampling, options, notices })
    }

    fn shape(
        &self,
        description: &ModelDescription,
        guidance: Guidance,
        sampling: &Sampling,
    ) -> Result<JobShape, RequestError> {
        let defaults = &description.defaults;
        let ShapeRequest { width, height, steps, batch, max_sequence_length } = self.request.shape;
        let mut shape = JobShape {
            width: width.unwrap_or(defaults.width),
            height: height.unwrap_or(defaults.height),
            steps: match sampling.sigmas.len() as u32 {
                0 => steps.unwrap_or(defaults.steps),
                given => given,
            },
            batch: batch.unwrap_or(1),
            max_sequence_length: max_sequence_length.unwrap_or(defaults.max_sequence_length),
            true_cfg: guidance.true_cfg > 1.0,
            init_image: false,
            first_step: 0,
            conditioned: false,
            more_prompts: 0,
            sampler: sampling.sampler,
        };
        if let Some(picture) = &self.picture {
            let multiple = description.side_multiple_pixels;
            [shape.width, shape.height] = size([width, height], picture.size(), multiple);
            shape.init_image = true;
            shape.first_step = first_step(shape.steps, self.request.strength())?;
        }
        Ok(shape)
    }

    /// Components that LoRA are added to while they run: none without a LoRA.
    fn lora_at_run_time(&self, description: &ModelDescription) -> Vec<String> {
        let is_component = |name: &&String| description.components.iter().any(|c| c.name == **name);
        match self.loras.is_empty() {
            true => Vec::new(),
            false => self.request.lora_at_run_time.iter().filter(is_component).cloned().collect(),
        }
    }

    /// Steps from one preview to the next; 0 for none.
    fn preview_every(&self, shape: &JobShape) -> Result<u32, RequestError> {
        let steps = shape.steps_run();
        match self.request.preview_every {
            Some(0) => Err(RequestError::PreviewEveryZero),
            Some(every) if every > steps => Err(RequestError::PreviewEveryTooMany { every, steps }),
            every => Ok(every.unwrap_or(0)),
        }
    }

    /// The job itself, with the pixels that it starts from.
    ///
    /// # Errors
    /// The negative prompt has no effect and was not to be left out, the latents' path cannot be
    /// sent, or the picture cannot be read to its end.
    pub fn job(&self, resolved: &ResolvedJob) -> Result<Job, RequestError> {
        let ResolvedJob { shape, guidance, sampling, .. } = resolved;
        let request = &self.request;
        let has_negative = guidance.true_cfg > 1.0;
        let latents = request.start.latents.as_deref();
        Ok(Job {
            items: self.items(resolved)?,
            guidance_scale: guidance.scale,
            true_cfg_scale: guidance.true_cfg,
            cfg_normalization: request.guidance.cfg_normalization && has_negative,
            scheduler: sampling.scheduler,
            sigmas: sampling.sigmas.clone(),
            eta: sampling.eta,
            rng: request.rng.unwrap_or(Rng::Cpu),
            init_image: self.picture.as_ref().map(|picture| shared(picture, shape)).transpose()?,
            init_latents: latents.map(|path| absolute("path", path)).transpose()?,
            dump_tensors: request.dump_tensors,
            conditioning: Vec::new(),
            keep_conditioning: false,
        })
    }
}

impl PreparedJob {
    /// What is asked of each of its pictures.
    ///
    /// # Errors
    /// The negative prompt has no effect and was not to be left out.
    pub fn items(&self, resolved: &ResolvedJob) -> Result<Vec<JobItem>, RequestError> {
        let prompts = &self.request.prompts;
        let has_negative = resolved.guidance.true_cfg > 1.0;
        let negative = prompts.negative_prompt.as_ref();
        if negative.is_some() && !has_negative && !prompts.negative_may_be_unused {
            return Err(RequestError::NegativeWithoutGuidance);
        }
        let item = |index| JobItem {
            prompt: prompts.prompt.clone().unwrap_or_default(),
            prompt_2: prompts.prompt_2.clone(),
            negative_prompt: negative.filter(|_| has_negative).cloned().unwrap_or_default(),
            seed: picture_seed(self.seed, index),
        };
        Ok((0..resolved.shape.batch).map(item).collect())
    }
}

impl GuidanceRequest {
    /// The guidance of a job on a model.
    fn resolve(&self, description: &ModelDescription) -> Result<Guidance, RequestError> {
        let defaults = &description.defaults;
        let (scale, true_cfg) = match (self.cfg_scale, description.guidance) {
            (Some(scale), GuidanceScale::Embedded) => (Some(scale), self.true_cfg_scale),
            (Some(scale), _) => (self.guidance_scale, Some(scale)),
            (None, _) => (self.guidance_scale, self.true_cfg_scale),
        };
        if matches!(
            description.guidance,
            GuidanceScale::BeyondPrompt | GuidanceScale::ClassifierFree
        ) {
            let gives_way = self.true_cfg_may_be_unused && scale.is_some();
            let true_cfg = true_cfg.filter(|_| !gives_way);
            return one_guidance(scale, true_cfg, defaults, description.guidance);
        }
        Ok(Guidance {
            scale: scale.unwrap_or(defaults.guidance_scale),
            true_cfg: true_cfg.unwrap_or(defaults.true_cfg_scale),
        })
    }
}

/// The guidance where both numbers say the same, the second counted from 1, and the first from 0 or
/// from 1 too. Of the model's own the one counts that asks for guidance.
fn one_guidance(
    scale: Option<f32>,
    true_cfg: Option<f32>,
    defaults: &JobDefaults,
    counted: GuidanceScale,
) -> Result<Guidance, RequestError> {
    let from_zero = counted == GuidanceScale::BeyondPrompt;
    let least = if from_zero { 0.0 } else { 1.0 };
    let scale_of = |true_cfg: f32| {
        let scale = if from_zero { true_cfg - 1.0 } else { true_cfg };
        scale.max(least)
    };
    let scale = match (scale, true_cfg) {
        (Some(scale), Some(true_cfg)) if scale.max(least) != scale_of(true_cfg) => {
            let counted = if from_zero { ", counted from 0 and from 1" } else { "" };
            return Err(RequestError::TwoGuidances { scale, true_cfg, counted });
        }
        (Some(scale), _) => scale,
        (None, Some(true_cfg)) => scale_of(true_cfg),
        (None, None) => defaults.guidance_scale.max(scale_of(defaults.true_cfg_scale)),
    };
    Ok(Guidance { scale, true_cfg: if from_zero { 1.0 + scale } else { scale } })
}

/// The LoRA file that is wanted, by its absolute path: the executor may have another working
/// directory.
fn lora(LoraRequest { path, weight }: &LoraRequest) -> Result<Lora, RequestError> {
    let absolute = absolute("path", Path::new(path))?;
    match Path::new(&absolute).is_file() {
        true => Ok(Lora { path: absolute, weight: *weight }),
        false => Err(RequestError::NoLora(path.clone())),
    }
}

/// A picture's pixels at a job's size, where the executor can read them.
fn shared(picture: &Picture, shape: &JobShape) -> Result<IpcSharedMemory, RequestError> {
    // The size is the user's: nothing is made of it before it is known to be one of a picture.
    protocol::check::check_job(shape).map_err(|found| RequestError::Shape(found.sentences()))?;
    let pixels = picture.pixels(shape.width as usize, shape.height as usize)?;
    Ok(IpcSharedMemory::from_bytes(&pixels))
}

/// The size asked for; what is not asked for follows the picture's, to the nearest multiple.
fn size(asked: [Option<u32>; 2], picture: [usize; 2], multiple: u32) -> [u32; 2] {
    let [width, height] = picture.map(|side| side as f64);
    let nearest = |side: f64| {
        let multiples = (side / f64::from(multiple)).round().max(1.0);
        (multiples * f64::from(multiple)) as u32
    };
    match asked {
        [None, None] => [nearest(width), nearest(height)],
        [Some(asked), None] => [asked, nearest(f64::from(asked) * height / width)],
        [None, Some(asked)] => [nearest(f64::from(asked) * width / height), asked],
        [Some(width), Some(height)] => [width, height],
    }
}

/// The first of the sampler's steps that runs, as `get_timesteps` of diffusers' image-to-image
/// pipelines counts in f64.
fn first_step(steps: u32, strength: f64) -> Result<u32, RequestError> {
    let all = f64::from(steps);
    let first = (all - (all * strength).min(all)).max(0.0) as u32;
    match first < steps {
        true => Ok(first),
        false => Err(RequestError::NoStep { strength, steps, least: least_strength(steps) }),
    }
}

/// The least strength by which one of the steps runs, rounded up to as few digits as people write.
fn least_strength(steps: u32) -> f64 {
    let rounded = |scale: f64| (scale / f64::from(steps)).ceil() / scale;
    if steps < 100 { rounded(100.0) } else { rounded(10_000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_of_the_size_follows_the_picture() {
        let sizes = |asked| size(asked, [1000, 700], 16);
        assert_eq!(sizes([None, None]), [1008, 704]);
        assert_eq!(sizes([Some(500), None]), [500, 352]);
        assert_eq!(sizes([None, Some(64)]), [96, 64]);
        assert_eq!(sizes([Some(30), Some(40)]), [30, 40]);
        assert_eq!(size([None, None], [3, 9000], 16), [16, 9008]);
        assert_eq!(size([Some(u32::MAX), None], [1, 9000], 16), [u32::MAX, u32::MAX]);
    }

    #[test]
    fn steps_are_counted_as_the_reference_counts_them() {
        // The results of the same expression in Python.
        for (steps, strength, first) in [
            (28, 0.6, 11),
            (4, 0.6, 1),
            (10, 0.3, 7),
            (50, 0.56, 21),
            (5, 0.35, 3),
            (4, 0.01, 3),
            (12, 1.0, 0),
        ] {
            assert_eq!(first_step(steps, strength).unwrap(), first, "{steps} at {strength}");
        }
        let error = first_step(8, 0.0).unwrap_err().to_string();
        assert!(error.contains("--strength 0 ") && error.contains("--strength 0.13"), "{error}");
        for steps in 1..=1000 {
            let least = least_strength(steps);
            assert!(least <= 1.0 && first_step(steps, least).is_ok(), "{steps} steps: {least}");
        }
    }
}
