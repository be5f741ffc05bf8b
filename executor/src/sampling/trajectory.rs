//! A run as data: which calls of the model there are, and what becomes of the latents after each.
//!
//! How many calls, tensors of history and draws of noise there are is known before the first call.

use super::sum::{HISTORY_MAX, Sum, Terms};

/// One call of the model and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCall {
    /// What the latents are multiplied by for the model.
    pub input_scale: f64,
    /// The noise of the latents that the model sees, over the signal in them.
    pub sigma: f64,
    /// The same on the model's time axis.
    pub time: f64,
    /// Whether noise is drawn after it, even if it then counts nothing: the generator moves on.
    pub draws: bool,
    /// What is clamped to -1 to 1, as [`Sum::CLAMPED`] in the other sums.
    pub clamped: Option<Sum>,
    /// The picture that the model sees in the latents.
    pub denoised: Sum,
    /// The latents after it.
    pub latents: Sum,
    /// The tensors of the history that change, each with its place.
    pub history: Vec<(usize, Sum)>,
    /// Whether a step of the table of noise levels ends with it.
    pub ends_step: bool,
}

/// All calls of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    /// In the order in which they are made.
    pub calls: Vec<ModelCall>,
}

impl Trajectory {
    /// Tensors of the latents' shape that a run keeps from one call to another.
    pub fn history_len(&self) -> usize {
        self.calls.iter().map(ModelCall::history_len).max().unwrap_or(0)
    }

    /// Whether noise is drawn after the first latents.
    pub fn draws(&self) -> bool {
        self.calls.iter().any(|call| call.draws)
    }
}

impl ModelCall {
    fn history_len(&self) -> usize {
        let written = self.history.iter().map(|(place, _)| place + 1);
        let sums = self.history.iter().map(|(_, sum)| sum).chain([&self.latents, &self.denoised]);
        written.chain(sums.map(Sum::history_len)).max().unwrap_or(0)
    }

    /// Changes latents and history by the model's output, and puts in place of that the picture
    /// that the model sees. All have the latents' shape; `noise` may be empty where none counts.
    pub fn apply(
        &self,
        latents: &mut [f32],
        output: &mut [f32],
        noise: &[f32],
        history: &mut [Vec<f32>],
    ) {
        assert_eq!(latents.len(), output.len(), "the model's output has the latents' shape");
        if let (Some(distance), []) = (self.latents.along_output(), self.history.as_slice()) {
            // In f32, one operation after the other, as diffusers does it.
            let (distance, next) = (distance as f32, (self.sigma + distance) as f32);
            for (latent, output) in latents.iter_mut().zip(output) {
                *latent += distance * *output;
                *output = *latent - next * *output;
            }
            return;
        }
        for (element, (latent, output)) in latents.iter_mut().zip(output).enumerate() {
            let mut terms = Terms {
                latents: f64::from(*latent),
                output: f64::from(*output),
                noise: noise.get(element).copied().map_or(0.0, f64::from),
                clamped: 0.0,
                history,
            };
            if let Some(clamped) = &self.clamped {
                terms.clamped = clamped.at(&terms, element).clamp(-1.0, 1.0);
            }
            *latent = self.latents.at(&terms, element) as f32;
            *output = self.denoised.at(&terms, element) as f32;
            // All of the history is read before any of it is written.
            let mut kept = [0.0; HISTORY_MAX];
            for (value, (_, sum)) in kept.iter_mut().zip(&self.history) {
                *value = sum.at(&terms, element) as f32;
            }
            for (value, (place, _)) in kept.iter().zip(&self.history) {
                history[*place][element] = *value;
            }
        }
    }
}
