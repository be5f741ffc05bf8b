//! FLUX.1: prompt → CLIP (pooled) and T5 (sequence) → DiT by steps → VAE; with a picture to start from, the
//! VAE's encoder first.
//!
//! Follows diffusers' `FluxPipeline` and `FluxImg2ImgPipeline` in what is computed and in which order in f32,
//! but for a batch from one picture: there each of its pictures is what it would be alone.

mod pictures;
mod preview;
mod prompts;

use std::time::Instant;

use protocol::message::Progress;
use protocol::{Failure, Job, JobShape, Phase, UsageReport};

use super::dump::Dump;
use super::latents::{LatentShape, draw, noise_tokens, pack, read_initial};
use super::noise::{CpuGenerator, image_seed};
use super::{Observer, finite};
use crate::backend::CancelFlag;
use crate::failure::{bad_model, bad_request};
use crate::job::{JobBuffers, JobLayout};
use crate::models::{Flux, Model};
use crate::runtime::Runtime;
use crate::sampler::{euler_step, guide, model_timestep};

/// Guidance is embedded in thousandths, as timesteps are (`FluxTransformer2DModel.forward`).
const GUIDANCE_SCALE: f32 = 1000.0;

/// Base of the rotary embedding's frequencies (`FluxPosEmbed`).
const ROPE_THETA: f64 = 10_000.0;

/// Names of the two prompts in dumped tensors: conditional, unconditional.
const PROMPT_NAMES: [&str; 2] = ["c", "u"];

/// Runs a job by the runtime's plan.
pub fn generate(
    runtime: &mut Runtime,
    job: &Job,
    cancel: &CancelFlag,
    observer: &mut dyn Observer,
) -> Result<UsageReport, Failure> {
    let start = Instant::now();
    let shape = runtime.plan.job.clone();
    if shape.true_cfg != (job.true_cfg_scale > 1.0) {
        return Err(bad_request("the plan and the job disagree on true classifier-free guidance"));
    }
    if shape.init_image != job.init_image.is_some() {
        return Err(bad_request("the plan and the job disagree on a picture to start from"));
    }
    if shape.init_image && job.init_latents.is_some() {
        return Err(bad_request("a job starts from a picture or from latents, not from both"));
    }
    let layout = runtime.model.job_layout(&shape, &runtime.plan.options)?;
    let buffers = JobBuffers::allocate(&layout, runtime.host_memory())?;
    if let Some(preview) = &buffers.preview {
        observer.previews(preview.turn());
    }
    let dump = Dump::new(job.dump_tensors);
    let ids = Vec::new();
    let mut run = Run { runtime, job, layout, buffers, dump, cancel, observer, ids };
    run.tokenize()?;
    if shape.init_image {
        run.timed(Phase::Encode, Run::encode)?;
    }
    run.timed(Phase::Condition, Run::condition)?;
    run.timed(Phase::Denoise, Run::denoise)?;
    run.timed(Phase::Decode, Run::decode)?;
    let Run { runtime, dump, observer, .. } = run;
    if let Some(tensors) = dump.serialize() {
        observer.tensors(&tensors)?;
    }
    let total_ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(runtime.take_accounts().report(&runtime.plan, total_ms))
}

struct Run<'a> {
    runtime: &'a mut Runtime,
    job: &'a Job,
    layout: JobLayout,
    buffers: JobBuffers,
    dump: Dump,
    cancel: &'a CancelFlag,
    observer: &'a mut dyn Observer,
    /// Token ids of each prompt: CLIP's and T5's.
    ids: Vec<[Vec<i32>; 2]>,
}

impl Run<'_> {
    /// Enters a phase, runs it, leaves it, and records how long it computed.
    fn timed(
        &mut self,
        phase: Phase,
        body: fn(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.progress(phase, 0, 1);
        self.runtime.enter(phase, self.cancel)?;
        let start = Instant::now();
        body(self)?;
        self.runtime.record_ms(phase, start.elapsed().as_secs_f64() * 1e3);
        self.runtime.leave(phase);
        Ok(())
    }

    fn progress(&mut self, phase: Phase, step: u32, of: u32) {
        self.observer.progress(Progress { phase, step, of });
    }

    /// Checks a component's result; `step` counts the steps that are run, from 0.
    fn check_finite(
        &self,
        component: &str,
        values: &[f32],
        step: Option<usize>,
    ) -> Result<(), Failure> {
        let plan = &self.runtime.plan;
        let step = step.map(|step| [step as u32 + 1, plan.job.steps_run()]);
        finite::check(values, component, step, !plan.options.loras.is_empty())
    }

    fn model(&self) -> &Flux {
        let Model::Flux(model) = &*self.runtime.model;
        model
    }

    fn condition(&mut self) -> Result<(), Failure> {
        let of = 2 * self.layout.prompts as u32;
        for (prompt, called) in PROMPT_NAMES.iter().enumerate().take(self.layout.prompts) {
            let [tokens, features] = self.layout.clip_hidden;
            let ids = std::mem::take(&mut self.ids[prompt][0]);
            let component = self.runtime.component("clip");
            component.write_ids("input_ids", &ids)?;
            component.run(self.cancel)?;
            component.read("last_hidden_state", &mut self.buffers.clip_hidden[prompt])?;
            self.check_finite("clip", &self.buffers.clip_hidden[prompt], None)?;
            let name = format!("text_encoder.{called}");
            let pooled = self.pooled_range(&ids);
            let hidden = &self.buffers.clip_hidden[prompt];
            self.dump.ids(&format!("{name}.input_ids"), &ids);
            self.dump.floats(&format!("{name}.last_hidden_state"), &[1, tokens, features], hidden);
            self.dump.floats(
                &format!("{name}.pooler_output"),
                &[1, features],
                &hidden[pooled.clone()],
            );
            // The pooled state moves to the front: nothing reads the others after this.
            self.buffers.clip_hidden[prompt].copy_within(pooled, 0);
            self.progress(Phase::Condition, 2 * prompt as u32 + 1, of);

            let [tokens, features] = self.layout.text_hidden;
            let ids = std::mem::take(&mut self.ids[prompt][1]);
            let component = self.runtime.component("t5");
            component.write_ids("input_ids", &ids)?;
            component.run(self.cancel)?;
            component.read("last_hidden_state", &mut self.buffers.text_hidden[prompt])?;
            self.check_finite("t5", &self.buffers.text_hidden[prompt], None)?;
            let name = format!("text_encoder_2.{called}");
            let hidden = &self.buffers.text_hidden[prompt];
            self.dump.ids(&format!("{name}.input_ids"), &ids);
            self.dump.floats(&format!("{name}.last_hidden_state"), &[1, tokens, features], hidden);
            self.progress(Phase::Condition, 2 * prompt as u32 + 2, of);
        }
        Ok(())
    }

    fn pooled_range(&self, ids: &[i32]) -> std::ops::Range<usize> {
        let unsigned: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let features = self.layout.clip_hidden[1];
        let start = self.model().clip().pooled_token(&unsigned) * features;
        start..start + features
    }

    fn denoise(&mut self) -> Result<(), Failure> {
        let JobShape { steps, first_step, .. } = self.runtime.plan.job;
        let [batch, image_tokens, _] = self.layout.latents;
        let table =
            self.model().sampler().sigmas(steps as usize, image_tokens).map_err(bad_model)?;
        self.dump.floats("sigmas", &[table.sigmas.len()], &table.sigmas);
        self.dump.floats("timesteps", &[table.timesteps.len()], &table.timesteps);
        self.initial_latents(table.sigmas[first_step as usize])?;
        self.rope();

        let guidance =
            self.model().transformer().guidance_embeds.then_some(self.job.guidance_scale);
        let component = self.runtime.component("dit");
        component.write("rope", 0, &self.buffers.rope)?;
        if let Some(guidance) = guidance {
            for item in 0..batch {
                component.write("guidance", item, &[guidance * GUIDANCE_SCALE])?;
            }
        }
        let prompts = self.layout.prompts;
        if prompts == 1 {
            self.write_prompt(0)?;
        }
        for step in 0..(steps - first_step) as usize {
            let component = self.runtime.component("dit");
            let level = first_step as usize + step;
            let timestep = model_timestep(table.timesteps[level]);
            component.write("latents", 0, &self.buffers.latents)?;
            for item in 0..batch {
                component.write("timestep", item, &[timestep])?;
            }
            for prompt in 0..prompts {
                if prompts > 1 {
                    self.write_prompt(prompt)?;
                }
                let component = self.runtime.component("dit");
                component.run(self.cancel)?;
                component.read("velocity", &mut self.buffers.velocity[prompt])?;
                self.check_finite("dit", &self.buffers.velocity[prompt], Some(step))?;
                let name = format!("transformer.call{}.out", step * prompts + prompt);
                self.dump.floats(&name, &self.layout.latents, &self.buffers.velocity[prompt]);
            }
            if let [conditional, unconditional] = self.buffers.velocity.as_mut_slice() {
                guide(conditional, unconditional, self.job.true_cfg_scale);
            }
            let (sigma, next) = (table.sigmas[level], table.sigmas[level + 1]);
            euler_step(&mut self.buffers.latents, &self.buffers.velocity[0], sigma, next);
            self.check_finite("dit", &self.buffers.latents, Some(step))?;
            self.dump.floats(
                &format!("latents.step{step}"),
                &self.layout.latents,
                &self.buffers.latents,
            );
            self.progress(Phase::Denoise, step as u32 + 1, steps - first_step);
            self.preview(step + 1, next);
        }
        Ok(())
    }

    /// Gives the DiT one prompt's embeddings, for each picture of the batch.
    fn write_prompt(&self, prompt: usize) -> Result<(), Failure> {
        let component = self.runtime.component("dit");
        let pooled = &self.buffers.clip_hidden[prompt][..self.layout.clip_hidden[1]];
        for item in 0..self.layout.latents[0] {
            component.write("encoder_hidden_states", item, &self.buffers.text_hidden[prompt])?;
            component.write("pooled", item, pooled)?;
        }
        Ok(())
    }

    fn latent_shape(&self) -> LatentShape {
        let [height, width, channels] = self.layout.vae_latents;
        LatentShape { height, width, channels }
    }

    /// Noise, or the given picture at the noise level `sigma` of the first step.
    fn initial_latents(&mut self, sigma: f32) -> Result<(), Failure> {
        let (shape, range) = (self.latent_shape(), self.vae_range());
        let batch = self.layout.latents[0];
        let item = self.layout.vae_latents.iter().product::<usize>();
        if let Some(path) = &self.job.init_latents {
            read_initial(path.as_ref(), shape, batch, &mut self.buffers.latents)
                .map_err(bad_request)?;
            if !finite::all_finite(&self.buffers.latents) {
                return Err(bad_request(format!(
                    "{path} holds latents that are infinite or no numbers; hint: make them anew"
                )));
            }
        } else {
            for index in 0..batch {
                let mut generator = CpuGenerator::new(image_seed(self.job.seed, index));
                let nchw = [shape.channels, shape.height, shape.width];
                // The decoder's buffer has this size, and is not in use before the last phase.
                let JobBuffers { vae_latents: noise, latents, moments, .. } = &mut self.buffers;
                let latents = &mut latents[index * item..][..item];
                if self.job.init_image.is_some() {
                    generator.standard_normal(noise);
                    draw(shape, moments, noise, range, latents);
                }
                generator.standard_normal(noise);
                self.dump.append("noise_nchw", &nchw, noise);
                match self.job.init_image {
                    Some(_) => noise_tokens(shape, noise, sigma, latents),
                    None => pack(shape, noise, latents),
                }
            }
        }
        self.dump.floats("latents_init", &self.layout.latents, &self.buffers.latents);
        Ok(())
    }

    /// The rotary table: text at position 0 of every axis, then the picture's tokens at (0, row, column).
    fn rope(&mut self) {
        let [text_tokens, _] = self.layout.text_hidden;
        let [_, half, _] = self.layout.rope;
        let columns = self.layout.vae_latents[1] / crate::models::flux::PATCH;
        let axes = self.model().transformer().axes_dims_rope;
        for (token, row) in self.buffers.rope.chunks_mut(2 * half).enumerate() {
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
