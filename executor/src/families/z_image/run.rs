//! A job on Z-Image: prompt → Qwen3 → DiT by steps → VAE; with a picture to start from, the VAE's
//! encoder first.
//!
//! Follows diffusers' `ZImagePipeline` and `ZImageImg2ImgPipeline` in what is computed and in which
//! order in f32, but for a batch from one picture: there each of its pictures is what it would be
//! alone. With guidance the two prompts go through the DiT one after the other, each as long as it
//! is.

use std::ops::Range;
use std::sync::Arc;

use protocol::{Failure, Phase};

use super::prompts::Caption;
use super::{LATENTS, LLM_ROPE, PATCH, PREDICTION, ROPE, TEXT_HIDDEN, ZImage};
use crate::components::vae::job::VaeRange;
use crate::pipeline::latents::{FeatureOrder, LatentShape, Packing, unpack_for_vae};
use crate::pipeline::pictures::PictureCodec;
use crate::pipeline::steps::SamplerSteps;
use crate::pipeline::{JobPhases, RunningJob};
use crate::runtime::{Bound, PASSES_MAX};

/// How `ZImageTransformer2DModel.patchify_and_embed` makes tokens.
const PACKING: Packing = Packing { patch: PATCH, order: FeatureOrder::ChannelsLast };

/// Noise levels of the sampler's time axis, which the pipeline turns round.
const TIMES: f32 = 1000.0;

/// Names of the two prompts in dumped tensors: conditional, unconditional.
const PROMPT_NAMES: [&str; 2] = ["c", "u"];

/// What a job has beside what all families' jobs have.
pub struct ZImageJob {
    model: Arc<ZImage>,
    /// Each prompt's tokens.
    captions: Vec<Caption>,
    /// For each prompt `[caption tokens, features]`.
    text_hidden: Vec<Vec<f32>>,
    /// For each prompt the DiT's result, as latents.
    prediction: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`.
    latents: Vec<f32>,
    /// The text encoder's positions: `[caption tokens, head width]`.
    llm_rope: Vec<f32>,
    /// For each prompt the DiT's positions: `[image tokens filled up + caption tokens, head
    /// width]`.
    rope: Vec<Vec<f32>>,
    pictures: PictureCodec,
}

impl JobPhases for ZImageJob {
    fn run(&mut self, phase: Phase, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        match phase {
            Phase::Load => Ok(()),
            Phase::Encode => self.pictures.encode(job),
            Phase::Condition => self.condition(job),
            Phase::Denoise => self.denoise(job),
            Phase::Decode => self.pictures.decode(job, &self.latents),
        }
    }

    fn embeddings(&mut self) -> Vec<Vec<&mut [f32]>> {
        let features = self.model.llm.config.hidden_size;
        let prompts = self.captions.iter().zip(&mut self.text_hidden);
        prompts.map(|(caption, hidden)| vec![&mut hidden[..caption.tokens() * features]]).collect()
    }
}

impl ZImageJob {
    /// Takes the job's buffers, and turns its prompts into token ids.
    pub fn start(job: &mut RunningJob<'_>) -> Result<ZImageJob, Failure> {
        let model: Arc<ZImage> = Arc::clone(&job.runtime.model).downcast();
        Ok(ZImageJob {
            captions: model.tokenize(job)?,
            text_hidden: job.buffers.take_all(TEXT_HIDDEN),
            prediction: job.buffers.take_all(PREDICTION),
            latents: job.buffers.take(LATENTS),
            llm_rope: job.buffers.take(LLM_ROPE),
            rope: job.buffers.take_all(ROPE),
            pictures: PictureCodec::take(&model.vae.config, PACKING, job)?,
            model,
        })
    }

    /// Which of a component's graphs takes a prompt.
    fn variant(&self, job: &RunningJob<'_>, prompt: usize) -> usize {
        self.model.variant(job.shape(), &self.captions[prompt])
    }

    fn condition(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let llm = &self.model.llm.config;
        llm.rotary_table(&mut self.llm_rope);
        let of = self.captions.len();
        let prompts = self.captions.iter().zip(&mut self.text_hidden).enumerate();
        for (prompt, (caption, hidden)) in prompts {
            let tokens = caption.tokens();
            let hidden = &mut hidden[..tokens * llm.hidden_size];
            let encoder = job.runtime.variant("llm", self.model.variant(job.shape(), caption));
            encoder.write("rope", 0, &self.llm_rope[..tokens * llm.head_dim()])?;
            encoder.write_ids("input_ids", &caption.ids[..tokens])?;
            encoder.run(job.cancel)?;
            encoder.read("hidden_state", hidden)?;
            job.check_finite("llm", hidden, None)?;
            let name = format!("text_encoder.{}", PROMPT_NAMES[prompt]);
            let given = job.shape().max_sequence_length as usize;
            job.dump.ids(&format!("{name}.input_ids"), &caption.ids[..given]);
            let known = &hidden[..caption.length * llm.hidden_size];
            let shape = [1, caption.length, llm.hidden_size];
            job.dump.floats(&format!("{name}.hidden_states.m2"), &shape, known);
            job.progress(Phase::Condition, prompt as u32 + 1, of as u32);
        }
        Ok(())
    }

    fn denoise(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let shape = self.pictures.shape();
        let mut steps =
            SamplerSteps::start(&mut self.pictures, job, &self.model.sampler, &mut self.latents)?;
        for (caption, rope) in self.captions.iter().zip(&mut self.rope) {
            let cells = [shape.height / PATCH, shape.width / PATCH];
            self.model.dit.config.rotary_table(rope, caption.tokens(), cells);
        }
        // The graphs of two prompts may differ. Those of one call have inputs of their own, the
        // calls of a step have theirs in the same memory.
        let prompts = self.prediction.len();
        let calls = self.dit(job).calls(prompts);
        if let [call] = calls.as_slice() {
            call.clone().try_for_each(|prompt| self.write_prompt(job, prompt))?;
        }
        for model_call in 0..steps.calls() {
            let step = steps.step(model_call);
            for call in &calls {
                if calls.len() > 1 {
                    self.write_prompt(job, call.start)?;
                }
                self.predict(job, call.clone(), steps.timestep(model_call))?;
                for prompt in call.clone() {
                    job.check_finite("dit", &self.prediction[prompt], Some(step))?;
                    self.dump_prediction(job, shape, model_call, prompt);
                }
            }
            self.guide(job);
            // The model predicts the way to the picture, and steps go by the way to noise.
            self.prediction[0].iter_mut().for_each(|value| *value = -*value);
            let output = &mut self.prediction[0];
            steps.apply(&mut self.pictures, model_call, &mut self.latents, output);
            job.check_finite("dit", &self.latents, Some(step))?;
            self.dump_latents(job, shape, model_call);
            job.progress(Phase::Denoise, model_call as u32 + 1, steps.calls() as u32);
            if let Some(ended) = steps.ended(model_call) {
                let expected = |place: usize| self.prediction[0][place];
                job.show_preview(ended, shape, &self.model.rgb_map, expected);
            }
        }
        Ok(())
    }

    /// Gives the DiT one prompt's embeddings, for each picture of the batch, and its positions.
    fn write_prompt(&self, job: &RunningJob<'_>, prompt: usize) -> Result<(), Failure> {
        let dit = self.dit(job).pass(prompt);
        let (caption, tokens) = (&self.captions[prompt], self.captions[prompt].tokens());
        dit.write_ids("caption_length", &[caption.length as i32])?;
        let hidden = &self.text_hidden[prompt][..tokens * self.model.llm.config.hidden_size];
        for item in 0..job.shape().batch as usize {
            dit.write("caption", item, hidden)?;
        }
        let positions = self.model.image_tokens_filled(job.shape()) + tokens;
        let head_dim = self.model.dit.config.head_dim();
        dit.write("rope", 0, &self.rope[prompt][..positions * head_dim])
    }

    /// The DiT, for each prompt in its size.
    fn dit<'j>(&self, job: &'j RunningJob<'_>) -> Bound<'j> {
        let mut variants = [0; PASSES_MAX];
        for (prompt, variant) in variants.iter_mut().enumerate().take(self.captions.len()) {
            *variant = self.variant(job, prompt);
        }
        job.runtime.component("dit").variants(variants)
    }

    /// Runs the DiT on the latents and the prompts that it was given.
    fn predict(
        &mut self,
        job: &RunningJob<'_>,
        prompts: Range<usize>,
        timestep: f32,
    ) -> Result<(), Failure> {
        let dit = self.dit(job);
        let time = (TIMES - timestep) / TIMES * self.model.dit.config.t_scale;
        for prompt in prompts.clone() {
            let dit = dit.pass(prompt);
            dit.write("latents", 0, &self.latents)?;
            for item in 0..job.shape().batch as usize {
                dit.write("timestep", item, &[time])?;
            }
        }
        dit.pass(prompts.start).run(job.cancel)?;
        for prompt in prompts {
            dit.pass(prompt).read("prediction", &mut self.prediction[prompt])?;
        }
        Ok(())
    }

    /// Moves what the prompt gives away from what the negative one gives, picture by picture.
    fn guide(&mut self, job: &RunningJob<'_>) {
        let [conditional, unconditional] = self.prediction.as_mut_slice() else { return };
        let scale = job.job.true_cfg_scale - 1.0;
        let item = self.pictures.shape().elements();
        let items = conditional.chunks_exact_mut(item).zip(unconditional.chunks_exact(item));
        for (with, without) in items {
            let before = job.job.cfg_normalization.then(|| length(with));
            for (with, without) in with.iter_mut().zip(without) {
                *with += scale * (*with - without);
            }
            let Some(before) = before else { continue };
            let after = length(with);
            if after > before {
                let factor = (before / after) as f32;
                with.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    fn dump_prediction(
        &self,
        job: &mut RunningJob<'_>,
        shape: LatentShape,
        model_call: usize,
        prompt: usize,
    ) {
        if !job.dump.is_wanted() {
            return;
        }
        let batch = job.shape().batch as usize;
        for (item, packed) in self.prediction[prompt].chunks_exact(shape.elements()).enumerate() {
            let name = format!("transformer.call{model_call}.out.{}", prompt * batch + item);
            let values = nhwc(shape, packed);
            job.dump.append_nhwc(&name, [shape.height, shape.width, shape.channels], &values);
        }
    }

    fn dump_latents(&self, job: &mut RunningJob<'_>, shape: LatentShape, step: usize) {
        if !job.dump.is_wanted() {
            return;
        }
        for packed in self.latents.chunks_exact(shape.elements()) {
            let values = nhwc(shape, packed);
            let name = format!("latents.step{step}");
            job.dump.append_nhwc(&name, [shape.height, shape.width, shape.channels], &values);
        }
    }
}

/// The Euclidean length of values.
fn length(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// One picture's tokens as `[height, width, channels]`, for a dump.
fn nhwc(shape: LatentShape, packed: &[f32]) -> Vec<f32> {
    let mut values = vec![0.0; packed.len()];
    unpack_for_vae(shape, shape.whole(), packed, &VaeRange::SAME, &mut values);
    values
}
