//! A job on Stable Diffusion 3: prompt → CLIP-L, CLIP-G and T5 → transformer by steps → VAE; with a
//! picture to start from, the VAE's encoder first.
//!
//! Follows diffusers' `StableDiffusion3Pipeline` and `StableDiffusion3Img2ImgPipeline` in what is
//! computed and in which order in f32, but for a batch from one picture: there each of its pictures
//! is what it would be alone.

use std::sync::Arc;

use protocol::{Failure, Phase};

use super::prompts::TextIds;
use super::{CLIP_STATES, LATENTS, POOLED, POSITIONS, Sd3, TEXT_ENCODERS, TEXT_STATES, VELOCITY};
use crate::components::vae::job::VaeRange;
use crate::pipeline::latents::{FeatureOrder, LatentShape, Packing, unpack_for_vae};
use crate::pipeline::pictures::PictureCodec;
use crate::pipeline::steps::SamplerSteps;
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::guide;

/// What a job has beside what all families' jobs have.
pub struct Sd3Job {
    model: Arc<Sd3>,
    /// Token ids of each text.
    ids: Vec<TextIds>,
    /// For each text `[CLIP's tokens + text tokens, features]`.
    text_states: Vec<Vec<f32>>,
    /// For each text `[features]`.
    pooled: Vec<Vec<f32>>,
    /// What a CLIP gives of one text: `[tokens, features]`.
    clip_states: Vec<f32>,
    /// For each pass of the transformer in a step its result, as latents.
    velocity: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`.
    latents: Vec<f32>,
    /// `[image tokens, features]`.
    positions: Vec<f32>,
    /// One token's features, on their way to another order.
    token: Vec<f32>,
    pictures: PictureCodec,
}

impl JobPhases for Sd3Job {
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
        let texts = self.text_states.iter_mut().zip(&mut self.pooled);
        texts.map(|(states, pooled)| vec![&mut states[..], &mut pooled[..]]).collect()
    }
}

impl Sd3Job {
    /// Takes the job's buffers, and turns its prompts into token ids.
    pub fn start(job: &mut RunningJob<'_>) -> Result<Sd3Job, Failure> {
        let model: Arc<Sd3> = Arc::clone(&job.runtime.model).downcast();
        // A patch's features as the convolution of patches takes them.
        let patch = model.dit.config.patch_size;
        let packing = Packing { patch, order: FeatureOrder::ChannelsFirst };
        Ok(Sd3Job {
            ids: model.tokenize(job)?,
            text_states: job.buffers.take_all(TEXT_STATES),
            pooled: job.buffers.take_all(POOLED),
            clip_states: job.buffers.take(CLIP_STATES),
            velocity: job.buffers.take_all(VELOCITY),
            latents: job.buffers.take(LATENTS),
            positions: job.buffers.take(POSITIONS),
            token: vec![0.0; model.dit.config.token_features()],
            pictures: PictureCodec::take(&model.vae.config, packing, job)?,
            model,
        })
    }

    fn condition(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let encoders = self.model.text_encoder_count();
        let of = encoders * self.ids.len() as u32;
        let ids = std::mem::take(&mut self.ids);
        for (text, ids) in ids.iter().enumerate() {
            // What no encoder writes is zero: the width beyond CLIP's, and T5's part without T5.
            self.text_states[text].fill(0.0);
            let called = job.dumped_text(text);
            for (which, ids) in ids.clip.iter().enumerate() {
                self.encode_clip(job, which, text, &called, ids)?;
                let done = encoders * text as u32 + which as u32 + 1;
                job.progress(Phase::Condition, done, of);
            }
            if let (Some(ids), Some(t5)) = (&ids.t5, &self.model.t5) {
                let width = t5.config.d_model;
                let states = &mut self.text_states[text][self.model.clip_tokens() * width..];
                let name = format!("text_encoder_3.{called}");
                job.encode_text("t5", &name, ids, [ids.len(), width], states)?;
                job.progress(Phase::Condition, encoders * (text as u32 + 1), of);
            }
        }
        Ok(())
    }

    /// Runs one of the two CLIP on a text: its states stand beside the other's.
    fn encode_clip(
        &mut self,
        job: &mut RunningJob<'_>,
        which: usize,
        text: usize,
        called: &str,
        ids: &[i32],
    ) -> Result<(), Failure> {
        let model = Arc::clone(&self.model);
        let [clip_l, _] = model.clip();
        let (clip, component) = (&model.clip()[which].config, TEXT_ENCODERS[which]);
        let (tokens, width) = (clip.max_position_embeddings, clip.hidden_size);
        let name = ["text_encoder", "text_encoder_2"][which];
        let name = format!("{name}.{called}");
        let encoder = job.runtime.component(component);
        encoder.write_ids("input_ids", ids)?;
        encoder.run(job.cancel)?;
        job.dump.ids(&format!("{name}.input_ids"), ids);
        if job.dump.is_wanted() {
            let states = &mut self.clip_states[..tokens * width];
            job.runtime.component(component).read("last_hidden_state", states)?;
            job.dump.floats(&format!("{name}.last_hidden_state"), &[1, tokens, width], states);
        }
        let states = &mut self.clip_states[..tokens * width];
        job.runtime.component(component).read("hidden_state", states)?;
        job.check_finite(component, states, None)?;
        job.dump.floats(&format!("{name}.hidden_states.m2"), &[1, tokens, width], states);
        let row_len = model.dit.config.joint_attention_dim;
        let column = if which == 0 { 0 } else { clip_l.config.hidden_size };
        let rows = self.text_states[text].chunks_exact_mut(row_len);
        for (row, states) in rows.zip(states.chunks_exact(width)) {
            row[column..column + width].copy_from_slice(states);
        }

        let width = clip.embedding_dim();
        let embeds = &mut self.clip_states[..tokens * width];
        job.runtime.component(component).read("text_embeds", embeds)?;
        job.check_finite(component, embeds, None)?;
        let unsigned: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let embeds = &embeds[clip.pooled_token(&unsigned) * width..][..width];
        job.dump.floats(&format!("{name}.text_embeds"), &[1, width], embeds);
        let column = if which == 0 { 0 } else { clip_l.config.embedding_dim() };
        self.pooled[text][column..column + width].copy_from_slice(embeds);
        Ok(())
    }

    fn denoise(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let batch = job.shape().batch as usize;
        let shape = self.pictures.shape();
        let mut steps =
            SamplerSteps::start(&mut self.pictures, job, &self.model.sampler, &mut self.latents)?;
        let grid = self.model.image_grid(job.shape());
        let dit = &self.model.dit;
        dit.config.positions(&dit.files, grid, &mut self.positions);
        self.dump_texts(job);

        let component = job.runtime.component("dit");
        let passes = self.velocity.len();
        // The passes of one call have inputs of their own, the calls of a step the same ones.
        let calls = component.calls(passes);
        for pass in calls[0].clone() {
            for item in 0..batch {
                component.pass(pass).write("positions", item, &self.positions)?;
            }
            if calls.len() == 1 {
                self.write_texts(job, pass)?;
            }
        }
        for model_call in 0..steps.calls() {
            let step = steps.step(model_call);
            let component = job.runtime.component("dit");
            for pass in calls[0].clone() {
                component.pass(pass).write("latents", 0, &self.latents)?;
                for item in 0..batch {
                    component.pass(pass).write("timestep", item, &[steps.timestep(model_call)])?;
                }
            }
            for call in &calls {
                if calls.len() > 1 {
                    self.write_texts(job, call.start)?;
                }
                let component = job.runtime.component("dit");
                component.run(job.cancel)?;
                for pass in call.clone() {
                    component.pass(pass).read("velocity", &mut self.velocity[pass])?;
                    reorder(shape, &mut self.token, &mut self.velocity[pass]);
                    job.check_finite("dit", &self.velocity[pass], Some(step))?;
                }
            }
            // The pipeline's batch has the negative prompt's half first.
            for pass in (0..passes).rev() {
                dump(
                    job,
                    &format!("transformer.call{model_call}.out"),
                    shape,
                    &self.velocity[pass],
                );
            }
            if let [conditional, unconditional] = self.velocity.as_mut_slice() {
                guide(conditional, unconditional, job.job.true_cfg_scale);
            }
            let output = &mut self.velocity[0];
            steps.apply(&mut self.pictures, model_call, &mut self.latents, output);
            job.check_finite("dit", &self.latents, Some(step))?;
            dump(job, &format!("latents.step{model_call}"), shape, &self.latents);
            job.progress(Phase::Denoise, model_call as u32 + 1, steps.calls() as u32);
            if let Some(ended) = steps.ended(model_call) {
                let expected = |place: usize| self.velocity[0][place];
                job.show_preview(ended, shape, &self.model.rgb_map, expected);
            }
        }
        Ok(())
    }

    /// Gives the transformer the embeddings of a pass, of each picture its own.
    fn write_texts(&self, job: &RunningJob<'_>, pass: usize) -> Result<(), Failure> {
        let component = job.runtime.component("dit").pass(pass);
        for (item, &text) in job.texts.rows[pass].iter().enumerate() {
            component.write("encoder_hidden_states", item, &self.text_states[text])?;
            component.write("pooled", item, &self.pooled[text])?;
        }
        Ok(())
    }

    /// Dumps what the transformer is given of the texts, as its first call has it.
    fn dump_texts(&self, job: &mut RunningJob<'_>) {
        let rows = job.texts.rows.clone();
        let features = self.model.dit.config.joint_attention_dim;
        for &text in rows.iter().rev().flatten() {
            let (states, pooled) = (&self.text_states[text], &self.pooled[text]);
            let name = "transformer.call0.in.encoder_hidden_states";
            job.dump.append(name, &[states.len() / features, features], states);
            job.dump.append("transformer.call0.in.pooled_projections", &[pooled.len()], pooled);
        }
    }
}

impl Sd3 {
    fn text_encoder_count(&self) -> u32 {
        if self.t5.is_some() { 3 } else { 2 }
    }
}

/// Brings tokens from the order of the transformer's result, cell by cell, into that of packed
/// latents, channel by channel. `token` has room for one.
fn reorder(shape: LatentShape, token: &mut [f32], packed: &mut [f32]) {
    let (channels, cells) = (shape.channels, shape.packing.patch * shape.packing.patch);
    for features in packed.chunks_exact_mut(shape.features()) {
        token.copy_from_slice(features);
        for (cell, values) in token.chunks_exact(channels).enumerate() {
            for (channel, value) in values.iter().enumerate() {
                features[channel * cells + cell] = *value;
            }
        }
    }
}

/// Adds each picture's packed latents to a dumped tensor `[pictures, channels, height, width]`.
fn dump(job: &mut RunningJob<'_>, name: &str, shape: LatentShape, packed: &[f32]) {
    if !job.dump.is_wanted() {
        return;
    }
    let mut values = vec![0.0; shape.elements()];
    for packed in packed.chunks_exact(shape.elements()) {
        unpack_for_vae(shape, shape.whole(), packed, &VaeRange::SAME, &mut values);
        job.dump.append_nhwc(name, [shape.height, shape.width, shape.channels], &values);
    }
}
