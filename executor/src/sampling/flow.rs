//! Noise levels of flow matching: which of them a run visits.
//!
//! Numbers follow diffusers' `FlowMatchEulerDiscreteScheduler` as its pipelines call it,
//! operation by operation in `f32`. (`scheduler_config.json` keeps its name; Berth's own scheduler
//! is something else.)
//!
//! Invariants:
//! - A [`FlowMatchConfig`] holds only what this file can compute; the rest is refused when it is
//!   read.
//! - A [`SigmaTable`] is finite, positive but for the 0 that ends it, and never rises.

pub use super::config::{CONFIG_BYTES_MAX, FlowMatchConfig};

use super::config::{LevelGrid, Settings, ShiftRule, TimeShift};
use super::curves::{Curve, Ends, linspace};
use super::empirical;
use super::error::{MU_MAX, STEPS, SamplerError};

/// The noise levels of a run, from noise to image.
#[derive(Debug, Clone, PartialEq)]
pub struct SigmaTable {
    /// One level for each step's start, 1 being pure noise, then the final 0: `steps + 1` values.
    pub sigmas: Vec<f32>,
    /// Each step's level on the model's time axis, `sigma * num_train_timesteps`: `steps` values.
    pub timesteps: Vec<f32>,
}

/// How levels are chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum FlowTable {
    /// As the model's pipeline does it.
    Own,
    /// From the highest level of training to the lowest in equal strides, before they are shifted.
    Normal,
    /// The same with one level more, which is left out.
    SgmUniform,
    /// Levels of training at equal strides from the highest.
    Simple,
    /// Between the ends of the model's own.
    Curved(Curve),
    /// What diffusers' DPM-Solver classes make for flow matching: they begin below pure noise.
    BelowOne,
    /// What its UniPC class makes.
    OpenEnd,
    /// These, before they are shifted.
    Given(Vec<f32>),
}

impl FlowMatchConfig {
    /// The model's own levels of `steps` steps. `image_tokens` is the length of the packed latent
    /// sequence; only dynamic shifting looks at it.
    ///
    /// # Errors
    /// Steps outside [`STEPS`]; an image whose shift is out of range; one step with
    /// `shift_terminal`.
    pub fn sigmas(&self, steps: usize, image_tokens: usize) -> Result<SigmaTable, SamplerError> {
        self.table(&FlowTable::Own, steps, image_tokens)
    }

    /// The levels of `steps` steps by one of the tables; for [`FlowTable::Given`] that is how many
    /// are given.
    ///
    /// # Errors
    /// As [`FlowMatchConfig::sigmas`].
    pub fn table(
        &self,
        table: &FlowTable,
        steps: usize,
        image_tokens: usize,
    ) -> Result<SigmaTable, SamplerError> {
        if !STEPS.contains(&steps) {
            return Err(SamplerError::Steps { got: steps });
        }
        let settings = &self.0;
        let mut sigmas = match (table, settings.grid) {
            (FlowTable::Own | FlowTable::Curved(_), LevelGrid::Given) => {
                settings.shift_given(uniform_grid(steps), image_tokens)?
            }
            (FlowTable::Own | FlowTable::Curved(_), LevelGrid::Trained)
            | (FlowTable::Normal, _) => settings.shift_trained(steps, steps, image_tokens)?,
            (FlowTable::SgmUniform, _) => {
                let mut sigmas = settings.shift_trained(steps + 1, steps, image_tokens)?;
                sigmas.truncate(steps);
                sigmas
            }
            (FlowTable::Simple, _) => {
                settings.shift_given(settings.whole_times(steps), image_tokens)?
            }
            (FlowTable::BelowOne, _) => settings.shift_given(below_one(steps), image_tokens)?,
            (FlowTable::OpenEnd, _) => settings.shift_given(open_end(steps), image_tokens)?,
            (FlowTable::Given(levels), _) => settings.shift_given(levels.clone(), image_tokens)?,
        };
        if let Some(terminal) = settings.shift_terminal {
            stretch_to_terminal(&mut sigmas, terminal)?;
        }
        if let FlowTable::Curved(curve) = table {
            bend(&mut sigmas, *curve);
        }
        let timesteps =
            sigmas.iter().map(|sigma| sigma * settings.num_train_timesteps as f32).collect();
        sigmas.push(0.0);
        Ok(SigmaTable { sigmas, timesteps })
    }
}

impl Settings {
    /// Shifts levels that a pipeline gave, in `f32`.
    fn shift_given(
        &self,
        mut sigmas: Vec<f32>,
        image_tokens: usize,
    ) -> Result<Vec<f32>, SamplerError> {
        if self.use_dynamic_shifting {
            let mu = self.mu(image_tokens, sigmas.len())?;
            match self.time_shift_type {
                TimeShift::Exponential => shift_towards_noise(&mut sigmas, mu.exp() as f32),
                TimeShift::Linear => shift_towards_noise(&mut sigmas, mu as f32),
            }
        } else {
            let (shift, less_one) = (self.shift as f32, (self.shift - 1.0) as f32);
            for sigma in &mut sigmas {
                *sigma = shift * *sigma / (1.0 + less_one * *sigma);
            }
        }
        Ok(sigmas)
    }

    /// So many levels between those of training, shifted in `f64`. A static shift moves them a
    /// second time: diffusers takes the ends from the table that it has shifted when it was made
    /// (`FlowMatchEulerDiscreteScheduler.set_timesteps`), and models are judged by that.
    fn shift_trained(
        &self,
        count: usize,
        steps: usize,
        image_tokens: usize,
    ) -> Result<Vec<f32>, SamplerError> {
        let train = f64::from(self.num_train_timesteps);
        // The ends of the table are f32.
        let end = |level: u32| {
            let sigma = level as f32 / self.num_train_timesteps as f32;
            let (shift, less_one) = (self.shift as f32, (self.shift - 1.0) as f32);
            let shifted = shift * sigma / (1.0 + less_one * sigma);
            f64::from(if self.use_dynamic_shifting { sigma } else { shifted }) * train
        };
        let mut sigmas = linspace(end(self.num_train_timesteps), end(1), count);
        sigmas.iter_mut().for_each(|sigma| *sigma /= train);
        if self.use_dynamic_shifting {
            let mu = self.mu(image_tokens, steps)?;
            let weight = match self.time_shift_type {
                TimeShift::Exponential => mu.exp(),
                TimeShift::Linear => mu,
            };
            sigmas.iter_mut().for_each(|sigma| *sigma = weight / (weight + (1.0 / *sigma - 1.0)));
        } else {
            let shift = self.shift;
            sigmas.iter_mut().for_each(|x| *x = shift * *x / (1.0 + (shift - 1.0) * *x));
        }
        Ok(sigmas.into_iter().map(|sigma| sigma as f32).collect())
    }

    /// Levels of training at equal strides from the highest, rounded up to one of them.
    fn whole_times(&self, steps: usize) -> Vec<f32> {
        let (train, stride) =
            (self.num_train_timesteps, f64::from(self.num_train_timesteps) / steps as f64);
        let level = |step: usize| {
            let left = train - (step as f64 * stride) as u32;
            (f64::from(left) / f64::from(train)) as f32
        };
        (0..steps).map(level).collect()
    }

    /// The logarithmic shift, by its rule.
    fn mu(&self, image_tokens: usize, steps: usize) -> Result<f64, SamplerError> {
        let mu = match self.shift_rule {
            ShiftRule::Linear => self.linear_mu(image_tokens),
            ShiftRule::Empirical => empirical::mu(image_tokens, steps),
        };
        let lowest = match self.time_shift_type {
            TimeShift::Exponential => -MU_MAX,
            TimeShift::Linear => (-MU_MAX).exp(),
        };
        if (lowest..=MU_MAX).contains(&mu) {
            Ok(mu)
        } else {
            Err(SamplerError::Mu { image_tokens, mu })
        }
    }

    /// On the line through (`base_image_seq_len`, `base_shift`) and (`max_image_seq_len`,
    /// `max_shift`), extended on both sides.
    fn linear_mu(&self, image_tokens: usize) -> f64 {
        let base_tokens = f64::from(self.base_image_seq_len);
        let tokens_span = f64::from(self.max_image_seq_len) - base_tokens;
        let slope = (self.max_shift - self.base_shift) / tokens_span;
        image_tokens as f64 * slope + (self.base_shift - slope * base_tokens)
    }
}

/// From 1 down to `1 / steps` in equal strides, rounded.
fn uniform_grid(steps: usize) -> Vec<f32> {
    linspace(1.0, 1.0 / steps as f64, steps).into_iter().map(|sigma| sigma as f32).collect()
}

/// The lowest level of training where there are 1000, as diffusers' solvers count.
const LOWEST: f64 = 0.001;

/// From just below 1 down to a stride above 0.
fn below_one(steps: usize) -> Vec<f32> {
    let signals = linspace(1.0, LOWEST, steps + 1);
    signals.into_iter().skip(1).rev().map(|signal| (1.0 - signal) as f32).collect()
}

/// From 1 down to a stride above the lowest level.
fn open_end(steps: usize) -> Vec<f32> {
    let mut levels = linspace(1.0, LOWEST, steps + 1);
    levels.truncate(steps);
    levels.into_iter().map(|level| level as f32).collect()
}

/// `x` becomes `weight / (weight + 1 / x - 1)`: levels rise where the weight is above 1.
fn shift_towards_noise(sigmas: &mut [f32], weight: f32) {
    for sigma in sigmas {
        *sigma = weight / (weight + (1.0 / *sigma - 1.0));
    }
}

/// Moves all levels but the two ends to where a curve has them.
fn bend(sigmas: &mut [f32], curve: Curve) {
    // One level has no other end.
    let [first, .., last] = sigmas else { return };
    let ends = Ends { highest: f64::from(*first), lowest: f64::from(*last) };
    let levels = ends.along(curve, sigmas.len());
    // Powers and logarithms may miss the ends by a rounding.
    for (sigma, level) in sigmas.iter_mut().zip(levels) {
        *sigma = level.clamp(ends.lowest, ends.highest) as f32;
    }
}

/// Scales the distances from 1 so that the last level becomes `terminal`.
fn stretch_to_terminal(sigmas: &mut [f32], terminal: f64) -> Result<(), SamplerError> {
    let farthest = 1.0 - sigmas.last().expect("a run has a step");
    // One step has the level 1 alone, which cannot be scaled to the terminal.
    if farthest == 0.0 {
        return Err(SamplerError::SingleStepTerminal);
    }
    let scale = farthest / (1.0 - terminal) as f32;
    for sigma in sigmas {
        *sigma = 1.0 - (1.0 - *sigma) / scale;
    }
    Ok(())
}
