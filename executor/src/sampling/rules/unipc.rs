//! UniPC: a predictor, and a corrector that does the step before anew once the model has said more
//! (Zhao et al., 2023), as diffusers' `UniPCMultistepScheduler` orders it.

use super::exponential::{Integrand, slope};
use crate::sampling::path::{NoiseLevel, Path};
use crate::sampling::sum::Sum;
use crate::sampling::trajectory::ModelCall;

/// The function `B(h)` of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// `h`.
    Bh1,
    /// `e^h - 1`.
    Bh2,
}

/// One of these rules.
#[derive(Debug, Clone, PartialEq)]
pub struct UniPc {
    /// 1 to 3.
    pub order: usize,
    /// What is integrated.
    pub integrand: Integrand,
    /// The function `B(h)`.
    pub scale: Scale,
    /// Whether each of the last steps has no more order than there are steps left.
    pub lower_at_end: bool,
    /// Steps that are not done anew.
    pub uncorrected: Vec<usize>,
}

/// The highest order.
const ORDER_MAX: usize = 3;

/// Where the latents of the step before stand, behind the outputs.
const BEFORE: usize = ORDER_MAX;

impl UniPc {
    /// What diffusers takes by default.
    pub const fn of_order(order: usize) -> UniPc {
        UniPc {
            order,
            integrand: Integrand::Picture,
            scale: Scale::Bh2,
            lower_at_end: true,
            uncorrected: Vec::new(),
        }
    }

    /// The calls of a run.
    pub fn calls(&self, path: &Path<'_>) -> Vec<ModelCall> {
        let mut calls = Vec::new();
        let mut order_before = 0;
        for (index, (step, from, _)) in path.hops().enumerate() {
            let mut call = path.call(step);
            let output = match self.integrand {
                Integrand::Picture => path.prediction.denoised(from, Sum::LATENTS),
                Integrand::Noise => path.prediction.noise(from, Sum::LATENTS),
            };
            let kept: [Sum; ORDER_MAX] = std::array::from_fn(Sum::history);
            let is_corrected = index > 0 && !self.uncorrected.contains(&(step - 1));
            let latents = match is_corrected {
                true => {
                    let outputs = [output, kept[0], kept[1], kept[2]];
                    self.corrected(path, step, order_before, &outputs)
                }
                false => Sum::LATENTS,
            };
            let left = if self.lower_at_end { path.steps() - step } else { usize::MAX };
            let order = self.order.min(left).min(index + 1);
            let outputs = [output, kept[0], kept[1]];
            call.latents = self.predicted(path, step, order, latents, &outputs);
            call.history = outputs.iter().take(self.order).copied().enumerate().collect();
            // The corrector's place follows the outputs that this order has.
            call.history.push((self.before(), latents));
            order_before = order;
            calls.push(call);
        }
        calls
    }

    /// Where the latents at the start of the step before are kept.
    fn before(&self) -> usize {
        self.order.min(BEFORE)
    }

    /// The latents at the end of a step, by the outputs at its start and before, the newest first.
    fn predicted(
        &self,
        path: &Path<'_>,
        step: usize,
        order: usize,
        latents: Sum,
        outputs: &[Sum],
    ) -> Sum {
        let hop = Hop::of(self, [path.levels[step], path.levels[step + 1]]);
        let start = hop.first_order(latents, outputs[0]);
        if order == 1 {
            return start;
        }
        let ratios = hop.ratios(path, step, order);
        let weights = match order {
            2 => vec![0.5],
            _ => solve(&hop.system(&ratios[..order - 1]), &hop.moments(order)[..order - 1]),
        };
        let slopes = (1..order).map(|back| slope(outputs[back] - outputs[0], ratios[back - 1]));
        let sum = slopes.zip(weights).fold(Sum::ZERO, |sum, (slope, weight)| sum + slope * weight);
        start + sum * hop.of_terms
    }

    /// The latents at the end of the step before, done anew; the newest output is that at its end.
    fn corrected(&self, path: &Path<'_>, step: usize, order: usize, outputs: &[Sum; 4]) -> Sum {
        let hop = Hop::of(self, [path.levels[step - 1], path.levels[step]]);
        let start = hop.first_order(Sum::history(self.before()), outputs[1]);
        let mut ratios = hop.ratios(path, step - 1, order);
        ratios.push(1.0);
        let weights = match order {
            1 => vec![0.5],
            _ => solve(&hop.system(&ratios), &hop.moments(order)),
        };
        let mut slopes: Vec<Sum> = (1..order)
            .map(|back| slope(outputs[1 + back] - outputs[1], ratios[back - 1]))
            .collect();
        slopes.push(outputs[0] - outputs[1]);
        let terms = slopes.into_iter().zip(weights);
        start + terms.fold(Sum::ZERO, |sum, (slope, weight)| sum + slope * weight) * hop.of_terms
    }
}

/// A step's numbers.
struct Hop {
    ends: [NoiseLevel; 2],
    integrand: Integrand,
    /// The paper's `h`: its sign is the integrand's.
    stride: f64,
    /// `B(h)`.
    scale: f64,
    /// What the terms above the first order are multiplied by.
    of_terms: f64,
}

impl Hop {
    fn of(rule: &UniPc, ends: [NoiseLevel; 2]) -> Hop {
        let length = ends[1].log_ratio() - ends[0].log_ratio();
        let (stride, level) = match rule.integrand {
            Integrand::Picture => (-length, ends[1].signal),
            Integrand::Noise => (length, ends[1].noise),
        };
        let scale = match rule.scale {
            Scale::Bh1 => stride,
            Scale::Bh2 => stride.exp_m1(),
        };
        Hop { ends, integrand: rule.integrand, stride, scale, of_terms: -level * scale }
    }

    fn first_order(&self, latents: Sum, output: Sum) -> Sum {
        let [from, to] = self.ends;
        let grown = self.stride.exp_m1();
        match self.integrand {
            Integrand::Picture => latents * (to.noise / from.noise) - output * (to.signal * grown),
            Integrand::Noise => latents * (to.signal / from.signal) - output * (to.noise * grown),
        }
    }

    /// How far back the outputs before a step are, in lengths of it.
    fn ratios(&self, path: &Path<'_>, step: usize, order: usize) -> Vec<f64> {
        let [from, to] = self.ends.map(NoiseLevel::log_ratio);
        let ratio = |back: usize| (path.levels[step - back].log_ratio() - from) / (to - from);
        (1..order).map(ratio).collect()
    }

    /// Powers of ratios, a row each.
    fn system(&self, ratios: &[f64]) -> Vec<Vec<f64>> {
        let row = |power: usize| ratios.iter().map(|ratio| ratio.powi(power as i32)).collect();
        (0..ratios.len()).map(row).collect()
    }

    /// What the powers are to give.
    fn moments(&self, order: usize) -> Vec<f64> {
        let mut moments = Vec::with_capacity(order);
        let mut phi = self.stride.exp_m1() / self.stride - 1.0;
        let mut factorial = 1.0;
        for power in 1..=order {
            moments.push(phi * factorial / self.scale);
            factorial *= (power + 1) as f64;
            phi = phi / self.stride - 1.0 / factorial;
        }
        moments
    }
}

/// Solves a system of at most three equations by Gauss's elimination.
fn solve(rows: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let count = values.len();
    let mut rows: Vec<Vec<f64>> = rows.to_vec();
    let mut values = values.to_vec();
    for pivot in 0..count {
        let largest =
            |a: &usize, b: &usize| rows[*a][pivot].abs().total_cmp(&rows[*b][pivot].abs());
        let best = (pivot..count).max_by(largest).expect("there is a row left");
        rows.swap(pivot, best);
        values.swap(pivot, best);
        for row in pivot + 1..count {
            let (above, below) = rows.split_at_mut(row);
            let factor = below[0][pivot] / above[pivot][pivot];
            for (value, known) in below[0].iter_mut().zip(&above[pivot]) {
                *value -= factor * known;
            }
            values[row] -= factor * values[pivot];
        }
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|column| rows[row][column] * values[column]).sum();
        values[row] = (values[row] - known) / rows[row][row];
    }
    values
}
