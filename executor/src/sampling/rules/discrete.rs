//! Rules over the integer times of a model's training: DDIM, DDPM, LCM, TCD, and PNDM's two.
//!
//! Their noise levels are variance-preserving, and where a step ends is counted from where it
//! begins, whatever the next entry of the table is, except for LCM and TCD.

use crate::sampling::path::{NoiseLevel, Path, Prediction};
use crate::sampling::sum::Sum;
use crate::sampling::training::TIMES;
use crate::sampling::trajectory::ModelCall;

/// Times of a run and the levels of training that they are of.
pub struct DiscretePath<'a> {
    /// For each time of training its product of alphas.
    pub products: &'a [f32],
    /// The product before the first time.
    pub last_product: f64,
    /// The times of the calls, all of them.
    pub times: Vec<i64>,
    /// How far each step goes: times of training over steps.
    pub stride: i64,
    /// What the model's output is.
    pub prediction: Prediction,
    /// Whether the picture that the model sees is clamped to -1 to 1.
    pub clamps: bool,
    /// The first step that runs.
    pub first: usize,
}

/// A step's variance in [`ddpm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variance {
    /// The posterior's.
    Small,
    /// The forward step's.
    Large,
}

impl DiscretePath<'_> {
    /// The product of alphas at a time, which may be before the first.
    fn product(&self, time: i64) -> f64 {
        match usize::try_from(time) {
            Ok(time) => f64::from(self.products[time]),
            Err(_) => self.last_product,
        }
    }

    fn level(&self, time: i64) -> NoiseLevel {
        NoiseLevel::of_product(self.product(time))
    }

    /// A call at a time, with the picture that the model sees there.
    pub(super) fn call(&self, time: i64) -> (ModelCall, Sum) {
        let at = self.level(time);
        let clock = |_: NoiseLevel| 0.0;
        let path = Path {
            levels: Vec::new(),
            times: Vec::new(),
            clock: &clock,
            prediction: self.prediction,
            first: 0,
        };
        let mut call = path.call_at(at, time as f64);
        let denoised = call.denoised;
        if self.clamps {
            call.clamped = Some(denoised);
        }
        (call, if self.clamps { Sum::CLAMPED } else { denoised })
    }

    fn running(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.times.iter().copied().enumerate().skip(self.first)
    }
}

/// DDIM (Song et al., 2021), with fresh noise by `eta`.
pub fn ddim(path: &DiscretePath<'_>, eta: f64) -> Vec<ModelCall> {
    let hop = |(_, time): (usize, i64)| {
        let (mut call, picture) = path.call(time);
        let (product, next) = (path.product(time), path.product(time - path.stride));
        let variance = (1.0 - next) / (1.0 - product) * (1.0 - product / next);
        let deviation = eta * variance.max(0.0).sqrt();
        let noise = path.prediction.noise(path.level(time), Sum::LATENTS);
        let along = (1.0 - next - deviation * deviation).max(0.0).sqrt();
        call.latents = picture * next.sqrt() + noise * along + Sum::NOISE * deviation;
        call.draws = eta > 0.0;
        call
    };
    path.running().map(hop).collect()
}

/// DDPM (Ho et al., 2020): the posterior's mean and fresh noise.
pub fn ddpm(path: &DiscretePath<'_>, variance: Variance) -> Vec<ModelCall> {
    /// Least variance, for its logarithm.
    const VARIANCE_MIN: f64 = 1e-20;
    let hop = |(_, time): (usize, i64)| {
        let (mut call, picture) = path.call(time);
        let before = time - path.stride;
        let product = path.product(time);
        let next = if before >= 0 { path.product(before) } else { 1.0 };
        let kept = product / next;
        let of_picture = next.sqrt() * (1.0 - kept) / (1.0 - product);
        let of_latents = kept.sqrt() * (1.0 - next) / (1.0 - product);
        call.latents = picture * of_picture + Sum::LATENTS * of_latents;
        if time > 0 {
            let posterior = (1.0 - next) / (1.0 - product) * (1.0 - kept);
            let variance = match variance {
                Variance::Small => posterior.max(VARIANCE_MIN),
                Variance::Large => 1.0 - kept,
            };
            call.latents = call.latents + Sum::NOISE * variance.sqrt();
            call.draws = true;
        }
        call
    };
    path.running().map(hop).collect()
}

/// Latent consistency (Luo et al., 2023): the picture that the model sees, less at small times,
/// brought to the next time by fresh noise.
pub fn lcm(path: &DiscretePath<'_>) -> Vec<ModelCall> {
    /// What times are multiplied by (`timestep_scaling`).
    const SCALING: f64 = 10.0;
    /// Deviation of the data (`sigma_data`).
    const DATA: f64 = 0.5;
    let hop = |(step, time): (usize, i64)| {
        let (mut call, picture) = path.call(time);
        let scaled = time as f64 * SCALING;
        let square = scaled * scaled + DATA * DATA;
        let picture = picture * (scaled / square.sqrt()) + Sum::LATENTS * (DATA * DATA / square);
        call.denoised = picture;
        call.latents = match path.times.get(step + 1) {
            Some(&next) => {
                call.draws = true;
                let to = path.level(next);
                picture * to.signal + Sum::NOISE * to.noise
            }
            None => picture,
        };
        call
    };
    path.running().map(hop).collect()
}

/// Trajectory consistency (Zheng et al., 2024): to a time before the next one by the model, and up
/// to that by fresh noise; by `eta` more of the latter.
pub fn tcd(path: &DiscretePath<'_>, eta: f64) -> Vec<ModelCall> {
    let hop = |(step, time): (usize, i64)| {
        let (mut call, picture) = path.call(time);
        let next = path.times.get(step + 1).copied().unwrap_or(0);
        // The product is f32, as in diffusers.
        let lower = ((1.0 - eta) as f32 * next as f32).floor() as i64;
        let noise = path.prediction.noise(path.level(time), Sum::LATENTS);
        let to = path.level(lower);
        call.latents = picture * to.signal + noise * to.noise;
        if eta > 0.0 && step + 1 < path.times.len() {
            let kept = path.product(next) / path.product(lower);
            call.latents = call.latents * kept.sqrt() + Sum::NOISE * (1.0 - kept).sqrt();
            call.draws = true;
        }
        call
    };
    path.running().map(hop).collect()
}

/// Times for [`lcm`] and [`tcd`]: spread over `original` times of training, those of the
/// distillation, of which a start from a picture leaves out the highest.
pub fn consistency_times(steps: usize, original: usize, strength: f64) -> Vec<i64> {
    let stride = TIMES / original;
    let all = (original as f64 * strength) as usize;
    // Places from the highest down, in equal strides.
    let place = |step: usize| (step as f64 * (all as f64 / steps as f64)).floor() as usize;
    (0..steps).map(|step| ((all - place(step)) * stride) as i64 - 1).collect()
}

/// Times of [`plms`]: the second one twice, where there is one.
pub fn plms_times(times: &[i64]) -> Vec<i64> {
    let count = times.len().min(2);
    times[..count].iter().chain(&times[count.min(1)..]).copied().collect()
}

/// Times of [`pndm`]: of the first three each twice with the middle of its step, but the very first
/// once and its last one left out.
pub fn pndm_times(times: &[i64], stride: i64) -> Vec<i64> {
    let mut all = Vec::new();
    for &time in times.iter().take(3) {
        let next = time - stride;
        all.extend([time, next + stride / 2, next + stride / 2, next]);
    }
    all.extend(times.iter().skip(3));
    all
}

/// Pseudo-numerical methods (Liu et al., 2022) without their first steps by Runge and Kutta: the
/// first time is stepped from twice. `times` holds the second one twice.
pub fn plms(path: &DiscretePath<'_>) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (index, (_, time)) in path.running().enumerate() {
        let (mut call, _) = path.call(time);
        let newest = outputs();
        call.ends_step = index != 0;
        if index == 1 {
            // The mean of both ends' outputs, over the same step again.
            let mean = (Sum::OUTPUT + Sum::history(0)) * 0.5;
            let start = Sum::history(START);
            call.latents = transfer(path, start, [time + path.stride, time], mean);
            calls.push(call);
            continue;
        }
        let combined = adams_bashforth(&newest, index.clamp(1, 4));
        call.latents = transfer(path, Sum::LATENTS, [time, time - path.stride], combined);
        call.history = newest.iter().take(START).copied().enumerate().collect();
        if index == 0 {
            call.history.push((START, Sum::LATENTS));
        }
        calls.push(call);
    }
    calls
}

/// Pseudo-numerical methods whose first three steps are of four calls each, by Runge and Kutta;
/// `times` are those of all calls.
pub fn pndm(path: &DiscretePath<'_>) -> Vec<ModelCall> {
    /// Calls of the first steps.
    const FIRST: usize = 12;
    /// Where the sum of a step's outputs stands.
    const SUM: usize = START + 1;
    let mut calls = Vec::new();
    for (index, time) in path.times.iter().copied().enumerate().take(FIRST) {
        let (mut call, _) = path.call(time);
        let stage = index % 4;
        let start = if stage == 0 { Sum::LATENTS } else { Sum::history(START) };
        let begun = path.times[index - stage];
        let far = if stage % 2 == 0 { path.stride / 2 } else { 0 };
        let ends = [begun, time - far];
        let (weighed, sum) = match stage {
            0 => (Sum::OUTPUT, Sum::OUTPUT * (1.0 / 6.0)),
            1 | 2 => (Sum::OUTPUT, Sum::history(SUM) + Sum::OUTPUT * (1.0 / 3.0)),
            _ => (Sum::history(SUM) + Sum::OUTPUT * (1.0 / 6.0), Sum::ZERO),
        };
        call.latents = transfer(path, start, ends, weighed);
        call.history = vec![(SUM, sum)];
        if stage == 0 {
            call.history.push((START, Sum::LATENTS));
            call.history.extend(outputs().iter().take(START).copied().enumerate());
        }
        call.ends_step = stage == 3;
        calls.push(call);
    }
    for time in path.times.iter().copied().skip(FIRST) {
        let (mut call, _) = path.call(time);
        let newest = outputs();
        let combined = adams_bashforth(&newest, 4);
        call.latents = transfer(path, Sum::LATENTS, [time, time - path.stride], combined);
        call.history = newest.iter().take(START).copied().enumerate().collect();
        calls.push(call);
    }
    calls
}

/// Where the latents at a step's start are kept, behind three outputs.
const START: usize = 3;

/// The model's output with those before it.
fn outputs() -> [Sum; 4] {
    [Sum::OUTPUT, Sum::history(0), Sum::history(1), Sum::history(2)]
}

/// The output that a step of a multistep method of this order goes by.
fn adams_bashforth(outputs: &[Sum; 4], order: usize) -> Sum {
    let weights: &[f64] = match order {
        1 => &[1.0],
        2 => &[3.0 / 2.0, -1.0 / 2.0],
        3 => &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
        _ => &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
    };
    outputs.iter().zip(weights).fold(Sum::ZERO, |sum, (output, weight)| sum + *output * *weight)
}

/// Latents brought from one time to another by an output (`PNDMScheduler._get_prev_sample`).
fn transfer(path: &DiscretePath<'_>, latents: Sum, times: [i64; 2], output: Sum) -> Sum {
    let [product, next] = times.map(|time| path.product(time));
    let NoiseLevel { signal, noise } = path.level(times[0]);
    let output = match path.prediction {
        Prediction::Velocity => output * signal + latents * noise,
        _ => output,
    };
    let scale = (next / product).sqrt();
    let below = product * (1.0 - next).sqrt() + (product * (1.0 - product) * next).sqrt();
    latents * scale - output * ((next - product) / below)
}
