//! The steps of a job: its sampler's calls of the model, and the fresh noise of those that draw
//! some.
//!
//! Everything is host work on the job's own buffers, made before the first call.

use protocol::Failure;

use super::RunningJob;
use super::noise::CpuGenerator;
use super::pictures::PictureCodec;
use crate::failure::{bad_model, bad_request};
use crate::models::buffers::{FRESH_NOISE, HISTORY};
use crate::sampling::FlowMatchConfig;
use crate::sampling::named::{flow_table, flow_trajectory};
use crate::sampling::trajectory::Trajectory;

/// The steps of a job that run.
pub struct SamplerSteps {
    trajectory: Trajectory,
    /// For each call the step that it is of, of those that run.
    step_of_call: Vec<usize>,
    /// What the sampler keeps: `[batch, image tokens, channels]` each.
    history: Vec<Vec<f32>>,
    /// `[batch, image tokens, channels]`; empty where no noise is drawn.
    noise: Vec<f32>,
    /// One for each picture, where noise is drawn: as it is after the first latents.
    generators: Vec<CpuGenerator>,
}

impl SamplerSteps {
    /// The job's steps, with the batch's packed latents before the first one that runs.
    pub fn start(
        pictures: &mut PictureCodec,
        running: &mut RunningJob<'_>,
        sampler: &FlowMatchConfig,
        latents: &mut [f32],
    ) -> Result<SamplerSteps, Failure> {
        let (shape, job) = (running.shape().clone(), running.job);
        let (steps, first) = (shape.steps as usize, shape.first_step as usize);
        let asked = flow_table(job.scheduler, &job.sigmas).map_err(bad_request)?;
        if !job.sigmas.is_empty() && job.sigmas.len() != steps {
            let given = job.sigmas.len();
            return Err(bad_request(format!("{given} sigmas for a plan of {steps} steps")));
        }
        let eta = job.eta.map(f64::from);
        if eta.is_some_and(|eta| !(0.0..=1.0).contains(&eta)) {
            return Err(bad_request("eta must be a number from 0 to 1"));
        }
        let tokens = pictures.shape().tokens();
        let table = sampler.table(&asked, steps, tokens).map_err(bad_model)?;
        let trajectory = flow_trajectory(shape.sampler, &table, first, eta).map_err(bad_request)?;
        running.dump.floats("sigmas", &[table.sigmas.len()], &table.sigmas);
        running.dump.floats("timesteps", &[table.timesteps.len()], &table.timesteps);
        let generators = pictures.initial_latents(running, table.sigmas[first], latents)?;
        let step_of_call = trajectory.calls.iter().scan(0, |step, call| {
            let this = *step;
            *step += usize::from(call.ends_step);
            Some(this)
        });
        Ok(SamplerSteps {
            step_of_call: step_of_call.collect(),
            history: running.buffers.take_all(HISTORY),
            noise: running.buffers.take(FRESH_NOISE),
            generators: if trajectory.draws() { generators } else { Vec::new() },
            trajectory,
        })
    }

    /// How often the model is called.
    pub fn calls(&self) -> usize {
        self.trajectory.calls.len()
    }

    /// A call's level on the model's time axis.
    pub fn timestep(&self, call: usize) -> f32 {
        self.trajectory.calls[call].time as f32
    }

    /// The step that a call is of, of those that run, from 0.
    pub fn step(&self, call: usize) -> usize {
        self.step_of_call[call]
    }

    /// The step that ends with a call, from 1.
    pub fn ended(&self, call: usize) -> Option<usize> {
        self.trajectory.calls[call].ends_step.then(|| self.step(call) + 1)
    }

    /// Changes the batch's packed latents by the model's output of a call, and puts in place of
    /// that the pictures that the model sees in them.
    pub fn apply(
        &mut self,
        pictures: &mut PictureCodec,
        call: usize,
        latents: &mut [f32],
        output: &mut [f32],
    ) {
        let call = &self.trajectory.calls[call];
        if call.draws {
            let item = pictures.shape().elements();
            let tokens = self.noise.chunks_exact_mut(item);
            for (generator, tokens) in self.generators.iter_mut().zip(tokens) {
                pictures.draw_noise(generator, tokens);
            }
        }
        call.apply(latents, output, &self.noise, &mut self.history);
    }
}
