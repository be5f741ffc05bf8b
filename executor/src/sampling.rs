//! Samplers: which noise levels a run visits, and what becomes of the latents between them.
//!
//! ```text
//! table (flow, tables)  noise levels of a run, and the model's time at each
//! rule  (rules)         a path of levels → a trajectory: every call of the model as factors
//! trajectory            is applied to latents, call by call
//! ```
//! It is pure arithmetic over slices: it knows no device, no text and no image, and draws no noise.
//!
//! Invariants:
//! - How many calls, kept tensors and draws of noise a run has follows from its rule and its steps.
//! - Every rule is a weighted sum of what a step has in hand, with factors in `f64`.

pub mod flow;
pub mod named;
pub mod path;
pub mod rules;
pub mod sum;
pub mod tables;
pub mod training;
pub mod trajectory;

mod config;
mod curves;
mod empirical;
mod error;

pub use error::{FLOW_SAMPLERS, FLOW_SCHEDULERS, MU_MAX, STEPS, SamplerError};
pub use flow::{CONFIG_BYTES_MAX, FlowMatchConfig, SigmaTable};

/// An element of a picture's latents at a noise level, as
/// `FlowMatchEulerDiscreteScheduler.scale_noise` mixes it.
pub fn add_noise(latent: f32, noise: f32, sigma: f32) -> f32 {
    sigma * noise + (1.0 - sigma) * latent
}

/// The number whose sinusoids a DiT embeds, for a step's `timestep`: diffusers' pipelines divide by
/// 1000 and its transformers multiply by 1000 again, whatever `num_train_timesteps` is; the two
/// roundings in `f32` do not always cancel.
pub fn model_timestep(timestep: f32) -> f32 {
    (timestep / 1000.0) * 1000.0
}

/// True classifier-free guidance, in place of `conditional`: `unconditional + scale * (conditional
/// - unconditional)`. Both are model outputs of one step.
pub fn guide(conditional: &mut [f32], unconditional: &[f32], scale: f32) {
    assert_eq!(conditional.len(), unconditional.len(), "both passes have one shape");
    for (with, without) in conditional.iter_mut().zip(unconditional) {
        *with = without + scale * (*with - without);
    }
}

#[cfg(test)]
mod tests;
