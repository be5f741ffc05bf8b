//! Rules that follow the slope of latents over noise: Euler, Heun, DPM2, and their ancestral forms.
//!
//! They are for latents whose signal is a linear function of the noise: variance-exploding ones
//! (k-diffusion's), and those of flow matching.

use crate::sampling::path::{NoiseLevel, Path};
use crate::sampling::sum::Sum;
use crate::sampling::trajectory::ModelCall;

/// Noise that is put in before each step, and taken out by it (Karras et al., 2022, algorithm 2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Churn {
    /// How much, over all steps.
    pub amount: f64,
    /// The levels between which that happens.
    pub range: [f64; 2],
    /// What that noise is multiplied by.
    pub scale: f64,
}

impl Churn {
    /// None.
    pub const NONE: Churn = Churn { amount: 0.0, range: [0.0, f64::INFINITY], scale: 1.0 };

    /// The most that a level grows by.
    const GROWTH_MAX: f64 = std::f64::consts::SQRT_2 - 1.0;

    fn growth(&self, sigma: f64, steps: usize) -> f64 {
        let is_in_range = (self.range[0]..=self.range[1]).contains(&sigma);
        if is_in_range { (self.amount / steps as f64).min(Self::GROWTH_MAX) } else { 0.0 }
    }
}

/// Euler's method. The model sees the latents as they are before churn, as in diffusers'
/// `EulerDiscreteScheduler`.
pub fn euler(path: &Path<'_>, churn: Churn) -> Vec<ModelCall> {
    let hop = |(step, from, to): (usize, NoiseLevel, NoiseLevel)| {
        let mut call = path.call(step);
        let (mut at, mut latents) = (from, Sum::LATENTS);
        let growth = churn.growth(from.noise, path.steps());
        if growth > 0.0 {
            at.noise = from.noise * (1.0 + growth);
            let added = (at.noise * at.noise - from.noise * from.noise).sqrt();
            latents = latents + Sum::NOISE * (churn.scale * added);
            call.draws = true;
        }
        call.latents = latents + path.prediction.slope(at, latents) * (to.noise - at.noise);
        call
    };
    path.hops().map(hop).collect()
}

/// How an ancestral step splits: down to a level, then up by fresh noise.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Split {
    down: f64,
    up: f64,
}

impl Split {
    /// Of variance-exploding latents (k-diffusion's `get_ancestral_step`).
    fn of(from: f64, to: f64, eta: f64) -> Split {
        let variance = to * to * (from * from - to * to) / (from * from);
        let up = to.min(eta * variance.sqrt());
        Split { down: (to * to - up * up).sqrt(), up }
    }
}

/// Euler's method down to a lower level, then fresh noise up. Some programs draw at the last step
/// too, where the noise counts nothing.
pub fn euler_ancestral(path: &Path<'_>, eta: f64, draws_at_end: bool) -> Vec<ModelCall> {
    let hop = |(step, from, to): (usize, NoiseLevel, NoiseLevel)| {
        let mut call = path.call(step);
        let Split { down, up } = Split::of(from.noise, to.noise, eta);
        let slope = path.prediction.slope(from, Sum::LATENTS);
        call.latents = Sum::LATENTS + slope * (down - from.noise) + Sum::NOISE * up;
        call.draws = draws_at_end || !to.is_clean();
        call
    };
    path.hops().map(hop).collect()
}

/// The same for flow matching: what is left of the picture's share after the lower level is scaled
/// up to that of the next one (ComfyUI's `sample_euler_ancestral_RF`).
pub fn euler_ancestral_flow(path: &Path<'_>, eta: f64) -> Vec<ModelCall> {
    let hop = |(step, from, to): (usize, NoiseLevel, NoiseLevel)| {
        let mut call = path.call(step);
        if to.is_clean() {
            call.latents = call.denoised;
            return call;
        }
        let down = to.noise * (1.0 + (to.noise / from.noise - 1.0) * eta);
        let kept = down / from.noise;
        let lower = Sum::LATENTS * kept + call.denoised * (1.0 - kept);
        // Two levels of pure noise have no picture whose share could be scaled.
        let scale = if down < 1.0 { (1.0 - to.noise) / (1.0 - down) } else { 1.0 };
        let added = (to.noise * to.noise - (down * scale) * (down * scale)).max(0.0).sqrt();
        call.latents = lower * scale + Sum::NOISE * added;
        call.draws = true;
        call
    };
    path.hops().map(hop).collect()
}

/// The picture that the model sees, brought to the next level by fresh noise, as k-diffusion's
/// `sample_lcm` and diffusers' `FlowMatchLCMScheduler` do it.
pub fn consistency(path: &Path<'_>, draws_at_end: bool) -> Vec<ModelCall> {
    let hop = |(step, _, to): (usize, NoiseLevel, NoiseLevel)| {
        let mut call = path.call(step);
        call.latents = call.denoised * to.signal + Sum::NOISE * to.noise;
        call.draws = draws_at_end || !to.is_clean();
        call
    };
    path.hops().map(hop).collect()
}

/// Heun's method: Euler's step, then the mean of the slopes at both its ends. The last step is
/// Euler's alone.
pub fn heun(path: &Path<'_>) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (step, from, to) in path.hops() {
        let mut first = path.call(step);
        let half = path.prediction.slope(from, Sum::LATENTS) * ((to.noise - from.noise) / 2.0);
        first.latents = Sum::LATENTS + half * 2.0;
        if to.is_clean() {
            calls.push(first);
            continue;
        }
        first.history = vec![(0, Sum::LATENTS + half)];
        first.ends_step = false;
        let mut second = path.call(step + 1);
        let slope = path.prediction.slope(to, Sum::LATENTS);
        second.latents = Sum::history(0) + slope * ((to.noise - from.noise) / 2.0);
        calls.extend([first, second]);
    }
    calls
}

/// The midpoint method over the logarithm of the noise (k-diffusion's `sample_dpm_2`); with `eta`
/// the step goes down to a lower level, then up by fresh noise.
pub fn dpm2(path: &Path<'_>, eta: Option<f64>) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (step, from, to) in path.hops() {
        let Split { down, up } = match eta {
            Some(eta) => Split::of(from.noise, to.noise, eta),
            None => Split { down: to.noise, up: 0.0 },
        };
        let mut first = path.call(step);
        let slope = path.prediction.slope(from, Sum::LATENTS);
        if to.is_clean() {
            first.latents = Sum::LATENTS + slope * (to.noise - from.noise);
            calls.push(first);
            continue;
        }
        let middle = NoiseLevel { noise: (from.noise * down).sqrt(), ..from };
        first.latents = Sum::LATENTS + slope * (middle.noise - from.noise);
        first.history = vec![(0, Sum::LATENTS)];
        first.ends_step = false;
        let mut second = path.call_between(middle);
        let slope = path.prediction.slope(middle, Sum::LATENTS);
        second.latents = Sum::history(0) + slope * (down - from.noise) + Sum::NOISE * up;
        second.draws = eta.is_some();
        calls.extend([first, second]);
    }
    calls
}

/// DPM-Solver++(2S) with ancestral noise (k-diffusion's `sample_dpmpp_2s_ancestral`).
pub fn two_stage_ancestral(path: &Path<'_>, eta: f64) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (step, from, to) in path.hops() {
        let Split { down, up } = Split::of(from.noise, to.noise, eta);
        let mut first = path.call(step);
        if down == 0.0 {
            first.latents = first.denoised + Sum::NOISE * up;
            first.draws = !to.is_clean();
            calls.push(first);
            continue;
        }
        let middle = NoiseLevel { noise: (from.noise * down).sqrt(), ..from };
        first.latents = towards(first.denoised, Sum::LATENTS, middle.noise / from.noise);
        first.history = vec![(0, Sum::LATENTS)];
        first.ends_step = false;
        let mut second = path.call_between(middle);
        let lower = towards(second.denoised, Sum::history(0), down / from.noise);
        second.latents = lower + Sum::NOISE * up;
        second.draws = true;
        calls.extend([first, second]);
    }
    calls
}

/// DPM-Solver++ as a stochastic equation in two sub-steps, each ancestral (k-diffusion's
/// `sample_dpmpp_sde`). Each call's noise is that of a Brownian path over its sub-step, divided by
/// the square root of the sub-step's length.
pub fn two_stage_stochastic(path: &Path<'_>, eta: f64) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (step, from, to) in path.hops() {
        let mut first = path.call(step);
        if to.is_clean() {
            first.latents = first.denoised;
            calls.push(first);
            continue;
        }
        let middle = NoiseLevel { noise: (from.noise * to.noise).sqrt(), ..from };
        let Split { down, up } = Split::of(from.noise, middle.noise, eta);
        let lower = towards(first.denoised, Sum::LATENTS, down / from.noise);
        first.latents = lower + Sum::NOISE * up;
        first.history = vec![(0, Sum::LATENTS)];
        first.ends_step = false;
        first.draws = true;
        let mut second = path.call_between(middle);
        let Split { down, up } = Split::of(from.noise, to.noise, eta);
        let lower = towards(second.denoised, Sum::history(0), down / from.noise);
        second.latents = lower + Sum::NOISE * up;
        second.draws = true;
        calls.extend([first, second]);
    }
    calls
}

/// Part of the latents, the rest the picture.
fn towards(picture: Sum, latents: Sum, kept: f64) -> Sum {
    latents * kept + picture * (1.0 - kept)
}
