//! A job on FLUX.2 klein: prompt → Qwen3 (three states) → DiT by steps → VAE; with a picture to
//! start from, the VAE's encoder first.
//!
//! Follows diffusers' `Flux2KleinPipeline` in what is computed and in which order in f32. A picture
//! to start from is changed by its strength, as image-to-image pipelines do; it is no reference
//! beside the latents.

use std::sync::Arc;

use protocol::{Failure, Phase};

use super::{Flux2, LATENTS, LLM_ROPE, PATCH, ROPE, STATES, TEXT_HIDDEN, TEXT_STATE, VELOCITY};
use crate::components::vae::job::VaeRange;
use crate::pipeline::latents::{FeatureOrder, Packing};
use crate::pipeline::pictures::PictureCodec;
use crate::pipeline::steps::SamplerSteps;
use crate::pipeline::tokens::TokenIds;
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::{guide, model_timestep};

/// How `Flux2KleinPipeline._patchify_latents` makes tokens.
const PACKING: Packing = Packing { patch: PATCH, order: FeatureOrder::ChannelsFirst };

/// What a job has beside what all families' jobs have.
pub struct Flux2Job {
    model: Arc<Flux2>,
    /// Token ids of each text.
    ids: Vec<TokenIds>,
    /// For each text `[text tokens, states × features]`.
    text_hidden: Vec<Vec<f32>>,
    /// One state: `[text tokens, features]`.
    text_state: Vec<f32>,
    /// For each pass of the DiT in a step its result, as latents.
    velocity: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`.
    latents: Vec<f32>,
    /// The text encoder's positions: `[text tokens, head width]`.
    llm_rope: Vec<f32>,
    /// The DiT's positions: `[text tokens + image tokens, head width]`.
    rope: Vec<f32>,
    pictures: PictureCodec,
}

impl JobPhases for Flux2Job {
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
        self.text_hidden.iter_mut().map(|hidden| vec![&mut hidden[..]]).collect()
    }
}

impl Flux2Job {
    /// Takes the job's buffers, and turns its prompts into token ids.
    pub fn start(job: &mut RunningJob<'_>) -> Result<Flux2Job, Failure> {
        let model: Arc<Flux2> = Arc::clone(&job.runtime.model).downcast();
        let statistics = model.vae.config.statistics(&model.vae.files)?;
        let pictures = PictureCodec::take(&model.vae.config.kl, PACKING, job)?.stepping_tokens();
        Ok(Flux2Job {
            ids: model.tokenize(job)?,
            text_hidden: job.buffers.take_all(TEXT_HIDDEN),
            text_state: job.buffers.take(TEXT_STATE),
            velocity: job.buffers.take_all(VELOCITY),
            latents: job.buffers.take(LATENTS),
            llm_rope: job.buffers.take(LLM_ROPE),
            rope: job.buffers.take(ROPE),
            pictures: pictures.of_tokens(VaeRange::Features(statistics)),
            model,
        })
    }

    fn condition(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        self.model.llm.config.rotary_table(&mut self.llm_rope);
        let of = self.ids.len() as u32;
        let ids = std::mem::take(&mut self.ids);
        for (text, ids) in ids.iter().enumerate() {
            let encoder = job.runtime.component("llm");
            encoder.write("rope", 0, &self.llm_rope)?;
            encoder.write_ids("input_ids", &ids.ids)?;
            encoder.write_ids("known", &[ids.length as i32])?;
            encoder.run(job.cancel)?;
            let name = format!("text_encoder.{}", job.dumped_text(text));
            job.dump.ids(&format!("{name}.input_ids"), &ids.ids);
            for state in 0..STATES.len() {
                self.take_state(job, text, state, &name)?;
            }
            job.progress(Phase::Condition, text as u32 + 1, of);
        }
        Ok(())
    }

    /// Puts one of the encoder's states beside the others of a text.
    fn take_state(
        &mut self,
        job: &mut RunningJob<'_>,
        text: usize,
        state: usize,
        name: &str,
    ) -> Result<(), Failure> {
        let llm = &self.model.llm.config;
        let (features, (output, layer)) = (llm.hidden_size, STATES[state]);
        job.runtime.component("llm").read(output, &mut self.text_state)?;
        job.check_finite("llm", &self.text_state, None)?;
        let rows = self.text_hidden[text].chunks_exact_mut(STATES.len() * features);
        for (row, values) in rows.zip(self.text_state.chunks_exact(features)) {
            row[state * features..(state + 1) * features].copy_from_slice(values);
        }
        // Counted from the last, as the reference files do.
        let from_last = llm.num_hidden_layers + 1 - layer;
        let shape = [1, self.text_state.len() / features, features];
        job.dump.floats(&format!("{name}.hidden_states.m{from_last}"), &shape, &self.text_state);
        Ok(())
    }

    fn denoise(&mut self, job: &mut RunningJob<'_>) -> Result<(), Failure> {
        let batch = job.shape().batch as usize;
        let shape = self.pictures.shape();
        let mut steps =
            SamplerSteps::start(&mut self.pictures, job, &self.model.sampler, &mut self.latents)?;
        let text_tokens = job.shape().max_sequence_length as usize;
        self.model.dit.config.rotary_table(&mut self.rope, text_tokens, shape.width / PATCH);

        // The passes of one call have inputs of their own, the calls of a step the same ones.
        let passes = self.velocity.len();
        let calls = job.runtime.component("dit").calls(passes);
        for pass in calls[0].clone() {
            job.runtime.component("dit").pass(pass).write("rope", 0, &self.rope)?;
            if calls.len() == 1 {
                self.write_prompts(job, pass)?;
            }
        }
        let dumped = shape.packed_batch(batch);
        for model_call in 0..steps.calls() {
            let step = steps.step(model_call);
            let timestep = model_timestep(steps.timestep(model_call));
            let component = job.runtime.component("dit");
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
    fn write_prompts(&self, job: &mut RunningJob<'_>, pass: usize) -> Result<(), Failure> {
        let component = job.runtime.component("dit").pass(pass);
        for (item, &text) in job.texts.rows[pass].iter().enumerate() {
            component.write("encoder_hidden_states", item, &self.text_hidden[text])?;
        }
        Ok(())
    }
}
