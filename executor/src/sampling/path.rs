//! What a rule is given: noise levels, what the model says at one of them, and its time axis.

use super::sum::Sum;
use super::trajectory::ModelCall;

/// How much of the picture and how much noise are in latents: `signal * picture + noise * normal`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseLevel {
    /// Factor of the picture.
    pub signal: f64,
    /// Factor of standard normal noise.
    pub noise: f64,
}

/// Which latents a level is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatentConvention {
    /// The whole picture with noise over it, as k-diffusion has it.
    VarianceExploding,
    /// Picture and noise in shares whose squares sum to 1, as most of diffusers' classes have it.
    VariancePreserving,
    /// Picture and noise in shares that sum to 1.
    Flow,
}

/// What a model's output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prediction {
    /// The noise in the latents, at variance 1.
    Noise,
    /// The velocity of variance-preserving latents (Salimans and Ho, 2022).
    Velocity,
    /// The picture.
    Sample,
    /// The way from the picture to the noise.
    Flow,
}

/// Noise levels and what belongs to them.
pub struct Path<'a> {
    /// Where each step begins, then where the last one ends.
    pub levels: Vec<NoiseLevel>,
    /// The time that the model is given where each step begins.
    pub times: Vec<f64>,
    /// That of a level between two of them.
    pub clock: &'a dyn Fn(NoiseLevel) -> f64,
    /// What the model's output is.
    pub prediction: Prediction,
    /// The first step that runs.
    pub first: usize,
}

impl NoiseLevel {
    /// The level whose noise is `sigma` times its signal; for [`LatentConvention::Flow`] whose
    /// noise is `sigma`.
    pub fn of(convention: LatentConvention, sigma: f64) -> NoiseLevel {
        match convention {
            LatentConvention::VarianceExploding => NoiseLevel { signal: 1.0, noise: sigma },
            LatentConvention::VariancePreserving => {
                let signal = 1.0 / (sigma * sigma + 1.0).sqrt();
                NoiseLevel { signal, noise: sigma * signal }
            }
            LatentConvention::Flow => NoiseLevel { signal: 1.0 - sigma, noise: sigma },
        }
    }

    /// The variance-preserving level of which the signal's square is `product`, a product of
    /// alphas.
    pub fn of_product(product: f64) -> NoiseLevel {
        NoiseLevel { signal: product.sqrt(), noise: (1.0 - product).sqrt() }
    }

    /// Whether it is the picture alone.
    pub fn is_clean(self) -> bool {
        self.noise == 0.0
    }

    /// The logarithm of signal over noise.
    pub fn log_ratio(self) -> f64 {
        self.signal.ln() - self.noise.ln()
    }

    /// The factor that makes it variance-preserving.
    pub fn unit_scale(self) -> f64 {
        1.0 / self.signal.hypot(self.noise)
    }
}

impl Prediction {
    /// The picture that the model sees in latents at a level.
    pub fn denoised(self, at: NoiseLevel, latents: Sum) -> Sum {
        match self {
            Prediction::Noise => (latents - Sum::OUTPUT * at.noise) * (1.0 / at.signal),
            Prediction::Velocity => {
                let scale = at.unit_scale();
                latents * (at.signal * scale * scale) - Sum::OUTPUT * (at.noise * scale)
            }
            Prediction::Sample => Sum::OUTPUT,
            Prediction::Flow => latents - Sum::OUTPUT * at.noise,
        }
    }

    /// The noise that the model sees in them.
    pub fn noise(self, at: NoiseLevel, latents: Sum) -> Sum {
        match self {
            Prediction::Noise => Sum::OUTPUT,
            Prediction::Velocity => {
                let scale = at.unit_scale();
                Sum::OUTPUT * (at.signal * scale) + latents * (at.noise * scale * scale)
            }
            _ => (latents - self.denoised(at, latents) * at.signal) * (1.0 / at.noise),
        }
    }

    /// How the latents change with the noise, where signal is a linear function of it.
    pub fn slope(self, at: NoiseLevel, latents: Sum) -> Sum {
        match self {
            Prediction::Noise | Prediction::Flow => Sum::OUTPUT,
            _ => (latents - self.denoised(at, latents)) * (1.0 / at.noise),
        }
    }
}

impl Path<'_> {
    /// How many steps there are, those before the first that runs included.
    pub fn steps(&self) -> usize {
        self.times.len()
    }

    /// The steps that run: each with its place, its level and the next one.
    pub fn hops(&self) -> impl Iterator<Item = (usize, NoiseLevel, NoiseLevel)> + '_ {
        let hops = self.levels.windows(2).enumerate().skip(self.first);
        hops.map(|(step, pair)| (step, pair[0], pair[1]))
    }

    /// A call of the model where a step begins. The latents stay what they are: that is for the
    /// rule to change.
    pub fn call(&self, step: usize) -> ModelCall {
        self.call_at(self.levels[step], self.times[step])
    }

    /// A call at a level between two steps.
    pub fn call_between(&self, at: NoiseLevel) -> ModelCall {
        self.call_at(at, (self.clock)(at))
    }

    /// A call at a level.
    pub fn call_at(&self, at: NoiseLevel, time: f64) -> ModelCall {
        // Models of other predictions were trained on variance-preserving latents.
        let is_flow = self.prediction == Prediction::Flow;
        ModelCall {
            input_scale: if is_flow { 1.0 } else { at.unit_scale() },
            sigma: at.noise,
            time,
            draws: false,
            clamped: None,
            denoised: self.prediction.denoised(at, Sum::LATENTS),
            latents: Sum::LATENTS,
            history: Vec::new(),
            ends_step: true,
        }
    }
}
