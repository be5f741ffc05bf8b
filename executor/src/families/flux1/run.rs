//! A job on FLUX.1: prompt → CLIP (pooled) and T5 (sequence) → DiT by steps → VAE; with a picture
//! to start from, the VAE's encoder first.
//!
//! Follows diffusers' `FluxPipeline` and `FluxImg2ImgPipeline` in what is computed and in which
//! order in f32, but for a batch from one picture: there each of its pictures is what it would be
//! alone.

use std::sync::Arc;

use protocol::{Failure, Phase};

use super::prompts::PromptIds;
use super::{CLIP_HIDDEN, Flux1, LATENTS, PATCH, ROPE, TEXT_HIDDEN, VELOCITY};
use crate::pipeline::latents::{FeatureOrder, Packing};
use crate::pipeline::pictures::PictureCodec;
use crate::pipeline::steps::SamplerSteps;
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::{guide, model_timestep};

/// Guidance is embedded in thousandths, as timesteps are (`FluxTransformer2DModel.forward`).
const GUIDANCE_SCALE: f32 = 1000.0;

/// Base of the rotary embedding's frequencies (`FluxPosEmbed`).
const ROPE_THETA: f64 = 10_000.0;

/// How `FluxPipeline._pack_latents` makes tokens.
const PACKING: Packing = Packing { patch: PATCH, order: FeatureOrder::ChannelsFirst };

/// What a job has beside what all families' jobs have.
pub struct Flux1Job {
    model: Arc<Flux1>,
    /// Token ids of each text.
    ids: Vec<PromptIds>,
    /// For each text `[tokens, features]`; once it is encoded, the pooled state stands in front.
    clip_hidden: Vec<Vec<f32>>,
    /// For each text `[text tokens, features]`.
    text_hidden: Vec<Vec<f32>>,
    /// For each pass of the DiT in a step its result, as latents.
    velocity: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`.
    latents: Vec<f32>,
    /// `[text tokens + image tokens, head width / 2, 2]`.
    rope: Vec<f32>,
    pictures: PictureCodec,
}

impl JobPhases for Flux1Job {
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
        let pooled = self.model.clip.config.hidden_size;
        let prompts = self.clip_hidden.iter_mut().zip(&mut self.text_hidden);
        prompts.map(|(clip, text)| vec![&mut clip[..pooled], &mut text[..]]).collect()
    }
}

impl Flux1Job {
    /// Takes the job's buffers, and turns its prompts into token ids.
    pub fn start(job: &mut RunningJob<'_>) -> Result<Flux1Job, Failure> {
        let model: Arc<Flux1> = Arc::clone(&job.runtime.model).downcast();
        Ok(Flux1Job {
            ids: model.tokenize(job)?,
            clip_hidden: job.buffers.take_all(CLIP_HIDDEN),
            text_hidden: job.buffers.take_all(TEXT_HIDDEN),
            velocity: job.buffers.take_all(VELOCITY),
            latents: job.buffers.take(LATENTS),
            rope: job.buffers.take(ROPE),
            pictures: PictureCodec::take(&model.vae.config, PACKING, job)?.stepping_tokens(),
            model,
        })
    }

    fn condition(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let of = 2 * self.ids.len() as u32;
        let ids = std::mem::take(&mut self.ids);
        for (prompt, ids) in ids.iter().enumerate() {
            let called = job.dumped_text(prompt);
            self.encode_pooled(job, prompt, &called, &ids.clip)?;
            job.progress(Phase::Condition, 2 * prompt as u32 + 1, of);
            self.encode_sequence(job, prompt, &called, &ids.t5)?;
            job.progress(Phase::Condition, 2 * prompt as u32 + 2, of);
        }
        Ok(())
    }

    /// Runs CLIP on a prompt.
    fn encode_pooled(
        &mut self,
        job: &mut RunningJob<'_>,
        prompt: usize,
        called: &str,
        ids: &[i32],
    ) -> Result<(), Failure> {
        let hidden = &mut self.clip_hidden[prompt];
        let clip = &self.model.clip.config;
        let (tokens, features) = (clip.max_position_embeddings, clip.hidden_size);
        let name = format!("text_encoder.{called}");
        job.encode_text("clip", &name, ids, [tokens, features], hidden)?;
        let unsigned: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let start = clip.pooled_token(&unsigned) * features;
        let pooled = start..start + features;
        job.dump.floats(&format!("{name}.pooler_output"), &[1, features], &hidden[pooled.clone()]);
        // The pooled state moves to the front: nothing reads the others after this.
        hidden.copy_within(pooled, 0);
        Ok(())
    }

    /// Runs T5 on a prompt.
    fn encode_sequence(
        &mut self,
        job: &mut RunningJob<'_>,
        prompt: usize,
        called: &str,
        ids: &[i32],
    ) -> Result<(), Failure> {
        let name = format!("text_encoder_2.{called}");
        let shape = [ids.len(), self.model.t5.config.d_model];
        job.encode_text("t5", &name, ids, shape, &mut self.text_hidden[prompt])
    }

    fn denoise(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let batch = job.shape().batch as usize;
        let shape = self.pictures.shape();
        let mut steps =
            SamplerSteps::start(&mut self.pictures, job, &self.model.sampler, &mut self.latents)?;
        self.rotary_table(job.shape().max_sequence_length as usize);

        let component = job.runtime.component("dit");
        let passes = self.velocity.len();
        // The passes of one call have inputs of their own, the calls of a step the same ones.
        let calls = component.calls(passes);
        for pass in calls[0].clone() {
            let component = component.pass(pass);
            component.write("rope", 0, &self.rope)?;
            if self.model.dit.config.guidance_embeds {
                for item in 0..batch {
                    component.write(
                        "guidance",
                        item,
                        &[job.job.guidance_scale * GUIDANCE_SCALE],
                    )?;
                }
            }
            if calls.len() == 1 {
                self.write_prompts(job, pass)?;
            }
        }
        let dumped = shape.packed_batch(batch);
        for model_call in 0..steps.calls() {
            let step = steps.step(model_call);
            let component = job.runtime.component("dit");
            let timestep = model_timestep(steps.timestep(model_call));
            for pass in calls[0].clone() {
                component.pass(pass).write("latents", 0, &self.latents)?;
                for item in 0..batch {
                    component.pass(pass).write("timestep", item, &[timestep])?;
                }
            }
            for call in &calls {
                if calls.len() > 1 {
                    self.write_prompts(job, call.start)?;
                }
                let component = job.runtime.component("dit");
                component.run(job.cancel)?;
                for pass in call.clone() {
                    component.pass(pass).read("velocity", &mut self.velocity[pass])?;
                }
                for pass in call.clone() {
                    job.check_finite("dit", &self.velocity[pass], Some(step))?;
                    let name = format!("transformer.call{}.out", model_call * passes + pass);
                    job.dump.floats(&name, &dumped, &self.velocity[pass]);
                }
            }
            if let [conditional, unconditional] = self.velocity.as_mut_slice() {
                guide(conditional, unconditional, job.job.true_cfg_scale);
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

    /// Gives the DiT the embeddings of a pass, of each picture its own.
    fn write_prompts(&self, job: &RunningJob<'_>, pass: usize) -> Result<(), Failure> {
        let component = job.runtime.component("dit").pass(pass);
        let features = self.model.clip.config.hidden_size;
        for (item, &text) in job.texts.rows[pass].iter().enumerate() {
            component.write("encoder_hidden_states", item, &self.text_hidden[text])?;
            component.write("pooled", item, &self.clip_hidden[text][..features])?;
        }
        Ok(())
    }

    /// The rotary table: text at position 0 of every axis, then the picture's tokens at (0, row,
    /// column).
    fn rotary_table(&mut self, text_tokens: usize) {
        let columns = self.pictures.shape().width / PATCH;
        let axes = self.model.dit.config.axes_dims_rope;
        let row_len = self.model.dit.config.attention_head_dim;
        for (token, row) in self.rope.chunks_mut(row_len).enumerate() {
            let position = match token.checked_sub(text_tokens) {
                Some(image) => [0, image / columns, image % columns],
                None => [0; 3],
            };
            let angles = position.iter().zip(axes).flat_map(|(&position, axis)| {
                (0..axis / 2)
                    .map(move |i| position as f64 / ROPE_THETA.powf(2.0 * i as f64 / axis as f64))
            });
            for (pair, angle) in row.chunks_mut(2).zip(angles) {
                pair[0] = angle.cos() as f32;
                pair[1] = angle.sin() as f32;
            }
        }
    }
}
