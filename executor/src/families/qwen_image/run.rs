//! A job on Qwen-Image: prompt → Qwen2.5-VL → DiT by steps → VAE; with a picture to start from, the
//! VAE's encoder first.
//!
//! Follows diffusers' `QwenImagePipeline` and `QwenImageImg2ImgPipeline` in what is computed and in
//! which order in f32, but for a batch from one picture: there each of its pictures is what it
//! would be alone. With guidance the two prompts go through the DiT one after the other, each as
//! long as it is.

use std::ops::Range;
use std::sync::Arc;

use protocol::{Failure, Phase};

use super::prompts::{DROPPED, TemplatedPrompt, filled};
use super::{LATENTS, LLM_ROPE, PATCH, QwenImage, ROPE, TEXT_HIDDEN, VELOCITY};
use crate::pipeline::latents::{FeatureOrder, Packing};
use crate::pipeline::pictures::PictureCodec;
use crate::pipeline::steps::SamplerSteps;
use crate::pipeline::{JobPhases, RunningJob};
use crate::runtime::{Bound, PASSES_MAX};
use crate::sampling::guide;

/// How `QwenImagePipeline._pack_latents` makes tokens.
const PACKING: Packing = Packing { patch: PATCH, order: FeatureOrder::ChannelsFirst };

/// By what the pipeline divides the sampler's times; the DiT multiplies their products with
/// frequencies by as much.
const TIMES: f32 = 1000.0;

/// Names of the two prompts in dumped tensors: conditional, unconditional.
const PROMPT_NAMES: [&str; 2] = ["c", "u"];

/// What a job has beside what all families' jobs have.
pub struct QwenImageJob {
    model: Arc<QwenImage>,
    /// Each prompt's tokens.
    captions: Vec<TemplatedPrompt>,
    /// For each prompt `[template and text tokens, features]`; once it is encoded, the text's stand
    /// in front, filled up with zeros.
    text_hidden: Vec<Vec<f32>>,
    /// For each prompt the DiT's result, as latents.
    velocity: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`.
    latents: Vec<f32>,
    /// The text encoder's positions: `[template and text tokens, head width]`.
    llm_rope: Vec<f32>,
    /// For each prompt the DiT's positions: `[image tokens + text tokens, head width]`.
    rope: Vec<Vec<f32>>,
    pictures: PictureCodec,
}

impl JobPhases for QwenImageJob {
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
        let features = self.model.llm().hidden_size;
        let prompts = self.captions.iter().zip(&mut self.text_hidden);
        prompts
            .map(|(caption, hidden)| vec![&mut hidden[..filled(caption.text()) * features]])
            .collect()
    }
}

impl QwenImageJob {
    /// Takes the job's buffers, and turns its prompts into token ids.
    pub fn start(job: &mut RunningJob<'_>) -> Result<QwenImageJob, Failure> {
        let model: Arc<QwenImage> = Arc::clone(&job.runtime.model).downcast();
        Ok(QwenImageJob {
            captions: model.tokenize(job)?,
            text_hidden: job.buffers.take_all(TEXT_HIDDEN),
            velocity: job.buffers.take_all(VELOCITY),
            latents: job.buffers.take(LATENTS),
            llm_rope: job.buffers.take(LLM_ROPE),
            rope: job.buffers.take_all(ROPE),
            pictures: PictureCodec::take(&model.vae.config, PACKING, job)?.stepping_tokens(),
            model,
        })
    }

    fn condition(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let llm = self.model.llm();
        let features = llm.hidden_size;
        llm.rotary_table(&mut self.llm_rope);
        let of = self.captions.len();
        let prompts = self.captions.iter().zip(&mut self.text_hidden).enumerate();
        for (prompt, (caption, hidden)) in prompts {
            let (tokens, known) = (filled(caption.length), caption.length * features);
            let [variant, _] = QwenImage::variants(job.shape(), caption);
            let encoder = job.runtime.variant("llm", variant);
            encoder.write("rope", 0, &self.llm_rope[..tokens * llm.head_dim()])?;
            encoder.write_ids("input_ids", &caption.ids[..tokens])?;
            encoder.run(job.cancel)?;
            encoder.read("hidden_state", &mut hidden[..tokens * features])?;
            job.check_finite("llm", &hidden[..known], None)?;
            let name = format!("text_encoder.{}", PROMPT_NAMES[prompt]);
            job.dump.ids(&format!("{name}.input_ids"), &caption.ids[..caption.length]);
            let shape = [1, caption.length, features];
            job.dump.floats(&format!("{name}.last_hidden_state"), &shape, &hidden[..known]);
            // What fills the text up is hidden, yet must be numbers.
            hidden.copy_within(DROPPED * features..known, 0);
            let text = caption.text() * features;
            hidden[text..filled(caption.text()) * features].fill(0.0);
            let name = format!("transformer.call{prompt}.in.encoder_hidden_states");
            job.dump.floats(&name, &[1, caption.text(), features], &hidden[..text]);
            job.progress(Phase::Condition, prompt as u32 + 1, of as u32);
        }
        Ok(())
    }

    fn denoise(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let batch = job.shape().batch as usize;
        let shape = self.pictures.shape();
        let dumped = shape.packed_batch(batch);
        let mut steps =
            SamplerSteps::start(&mut self.pictures, job, &self.model.sampler, &mut self.latents)?;
        for rope in &mut self.rope {
            let cells = [shape.height / PATCH, shape.width / PATCH];
            self.model.dit.config.rotary_table(rope, cells);
        }
        // The graphs of two prompts may differ. Those of one call have inputs of their own, the
        // calls of a step have theirs in the same memory.
        let passes = self.velocity.len();
        let calls = self.dit(job).calls(passes);
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
                for pass in call.clone() {
                    job.check_finite("dit", &self.velocity[pass], Some(step))?;
                    let name = format!("transformer.call{}.out", model_call * passes + pass);
                    job.dump.floats(&name, &dumped, &self.velocity[pass]);
                }
            }
            if let [conditional, unconditional] = self.velocity.as_mut_slice() {
                guide_tokens(conditional, unconditional, job.job.true_cfg_scale, shape.features());
            }
            let output = &mut self.velocity[0];
            steps.apply(&mut self.pictures, model_call, &mut self.latents, output);
            job.check_finite("dit", &self.latents, Some(step))?;
            job.dump.floats(&format!("latents.step{model_call}"), &dumped, &self.latents);
            job.progress(Phase::Denoise, model_call as u32 + 1, steps.calls() as u32);
            if let Some(ended) = steps.ended(model_call) {
                let expected = |place: usize| self.velocity[0][place];
                job.show_preview(ended, shape, &self.model.rgb_map, expected);
            }
        }
        Ok(())
    }

    /// Gives the DiT one prompt's embeddings, for each picture of the batch, and its positions.
    fn write_prompt(&self, job: &RunningJob<'_>, prompt: usize) -> Result<(), Failure> {
        let dit = self.dit(job).pass(prompt);
        let (image, caption) = (self.model.image_tokens(job.shape()), &self.captions[prompt]);
        dit.write_ids("known_tokens", &[(image + caption.text()) as i32])?;
        let text = filled(caption.text());
        let hidden = &self.text_hidden[prompt][..text * self.model.llm().hidden_size];
        for item in 0..job.shape().batch as usize {
            dit.write("text", item, hidden)?;
        }
        let positions = (image + text) * self.model.dit.config.attention_head_dim;
        dit.write("rope", 0, &self.rope[prompt][..positions])
    }

    /// The DiT, for each prompt in its size.
    fn dit<'j>(&self, job: &'j RunningJob<'_>) -> Bound<'j> {
        let mut variants = [0; PASSES_MAX];
        for (variant, caption) in variants.iter_mut().zip(&self.captions) {
            [_, *variant] = QwenImage::variants(job.shape(), caption);
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
        for prompt in prompts.clone() {
            let dit = dit.pass(prompt);
            dit.write("latents", 0, &self.latents)?;
            for item in 0..job.shape().batch as usize {
                dit.write("timestep", item, &[timestep / TIMES])?;
            }
        }
        dit.pass(prompts.start).run(job.cancel)?;
        for prompt in prompts {
            dit.pass(prompt).read("velocity", &mut self.velocity[prompt])?;
        }
        Ok(())
    }
}

/// True classifier-free guidance, in place of `conditional`, each token of so many features brought
/// back to the length that it has by the prompt alone.
fn guide_tokens(conditional: &mut [f32], unconditional: &[f32], scale: f32, features: usize) {
    let tokens = conditional.chunks_exact_mut(features).zip(unconditional.chunks_exact(features));
    for (with, without) in tokens {
        let before = length(with);
        guide(with, without, scale);
        let after = length(with);
        // A token of zeros has no direction to keep.
        if after > 0.0 {
            let factor = before / after;
            with.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

/// The Euclidean length of values.
fn length(values: &[f32]) -> f32 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_keeps_its_own_length() {
        let mut conditional = [3.0, 4.0, 0.0, 2.0, 0.0, 0.0];
        let unconditional = [3.0, 0.0, 0.0, 1.0, 0.0, 0.0];
        guide_tokens(&mut conditional, &unconditional, 4.0, 2);
        // [3, 16] and [0, 5] before they are brought back to lengths of 5 and 2.
        let factor = 5.0 / 265_f32.sqrt();
        assert_eq!(conditional, [3.0 * factor, 16.0 * factor, 0.0, 2.0, 0.0, 0.0]);
    }
}
