//! DPM-Solver and DPM-Solver++: exponential integrators over the logarithm of signal over noise,
//! with what the model said at earlier steps (Lu et al., 2022); as ordinary and as stochastic
//! equations, in several steps and within one.

use crate::sampling::path::{NoiseLevel, Path};
use crate::sampling::sum::Sum;
use crate::sampling::trajectory::ModelCall;

/// What the integral is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrand {
    /// The picture that the model sees: DPM-Solver++.
    Picture,
    /// The noise that it sees: DPM-Solver.
    Noise,
}

/// How the second-order term is weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighing {
    /// Half the first one's weight.
    Midpoint,
    /// By the integral.
    Heun,
}

/// One of these solvers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Solver {
    /// 1 to 3.
    pub order: usize,
    /// What is integrated.
    pub integrand: Integrand,
    /// How terms of the second order are weighed.
    pub weighing: Weighing,
    /// How much fresh noise there is: 0 is the ordinary equation.
    pub eta: f64,
    /// The sign of the half in the third-order term of the stochastic equation: +1 by the Taylor
    /// series, -1 as diffusers has it.
    pub third_half_sign: f64,
    /// Which steps at the end are of lower order.
    pub ending: Ending,
    /// Whether a draw belongs to the last step too, where the noise counts nothing.
    pub draws_at_end: bool,
}

/// Which steps at the end of a run are of lower order than the solver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ending {
    /// The last two in tables of fewer than 15 steps, however many of them run.
    pub few_steps: bool,
    /// The last one in all tables.
    pub last: bool,
}

/// Tables of fewer steps end by lower orders (`lower_order_final`).
const FEW_STEPS: usize = 15;

impl Ending {
    /// The highest order of a step.
    pub fn order_max(self, step: usize, steps: usize) -> usize {
        let is_short = self.few_steps && steps < FEW_STEPS;
        match steps - step {
            1 if is_short || self.last => 1,
            2 if is_short => 2,
            _ => usize::MAX,
        }
    }
}

impl Solver {
    /// DPM-Solver++ as an ordinary equation.
    pub const fn plus_plus(order: usize) -> Solver {
        Solver {
            order,
            integrand: Integrand::Picture,
            weighing: Weighing::Midpoint,
            eta: 0.0,
            third_half_sign: 1.0,
            ending: Ending { few_steps: true, last: true },
            draws_at_end: false,
        }
    }

    /// The same as a stochastic equation.
    pub const fn stochastic(order: usize) -> Solver {
        Solver { eta: 1.0, ..Solver::plus_plus(order) }
    }

    /// In steps of which each uses what the model said at those before it. The order rises by one
    /// a step from the first that runs.
    pub fn multistep(&self, path: &Path<'_>) -> Vec<ModelCall> {
        let mut calls = Vec::new();
        for (index, (step, from, to)) in path.hops().enumerate() {
            let mut call = path.call(step);
            let order = self.order.min(index + 1).min(self.ending.order_max(step, path.steps()));
            // A step to the clean picture has no other terms: they would be infinite.
            let order = if to.is_clean() { 1 } else { order };
            let outputs = self.outputs(path, from);
            let back = |place: usize| path.levels[step - place].log_ratio();
            let stride = to.log_ratio() - from.log_ratio();
            let slopes = match order {
                1 => Vec::new(),
                2 => vec![slope(outputs[0] - outputs[1], (back(0) - back(1)) / stride)],
                _ => {
                    let ratios = [(back(0) - back(1)) / stride, (back(1) - back(2)) / stride];
                    let [near, far] = [0, 1]
                        .map(|place| slope(outputs[place] - outputs[place + 1], ratios[place]));
                    let both = ratios[0] + ratios[1];
                    let first = near + (near - far) * (ratios[0] / both);
                    vec![first, (near - far) * (1.0 / both)]
                }
            };
            call.latents = self.integrate([from, to], Sum::LATENTS, outputs[0], &slopes);
            call.draws = self.eta > 0.0 && (self.draws_at_end || !to.is_clean());
            call.history = self.kept(&outputs);
            calls.push(call);
        }
        calls
    }

    /// In groups of steps of the orders 1, 2 and 3, each of which starts anew where its group does
    /// (diffusers' `DPMSolverSinglestepScheduler`).
    pub fn singlestep(&self, path: &Path<'_>, orders: &[usize]) -> Vec<ModelCall> {
        // The latents at the start of a group stand behind the outputs.
        let start = self.order - 1;
        let mut calls = Vec::new();
        for (index, (step, _, to)) in path.hops().enumerate() {
            let mut call = path.call(step);
            let order = orders[step].min(index + 1);
            let outputs = self.outputs(path, path.levels[step]);
            let latents = if order == 1 { Sum::LATENTS } else { Sum::history(start) };
            let from = path.levels[step + 1 - order];
            let stride = to.log_ratio() - from.log_ratio();
            // How far the group's outputs are from its first one, in strides.
            let ratio =
                |place: usize| (path.levels[step - place].log_ratio() - from.log_ratio()) / stride;
            let slopes = match order {
                1 => Vec::new(),
                2 => vec![slope(outputs[0] - outputs[1], ratio(0))],
                _ => {
                    let [far, near] =
                        [0, 1].map(|place| slope(outputs[place] - outputs[2], ratio(place)));
                    let [r0, r1] = [ratio(0), ratio(1)];
                    let first = (near * r0 - far * r1) * (1.0 / (r0 - r1));
                    match self.weighing {
                        // By the last output alone.
                        Weighing::Midpoint => vec![far, Sum::ZERO],
                        Weighing::Heun => vec![first, (far - near) * (2.0 / (r0 - r1))],
                    }
                }
            };
            call.latents = self.integrate([from, to], latents, outputs[order - 1], &slopes);
            call.draws = self.eta > 0.0 && (self.draws_at_end || !to.is_clean());
            call.history = self.kept(&outputs);
            if order == 1 && self.order > 1 {
                call.history.push((start, Sum::LATENTS));
            }
            calls.push(call);
        }
        calls
    }

    /// What is integrated, of this call and of those before it, the newest first.
    fn outputs(&self, path: &Path<'_>, at: NoiseLevel) -> [Sum; 3] {
        let newest = match self.integrand {
            Integrand::Picture => path.prediction.denoised(at, Sum::LATENTS),
            Integrand::Noise => path.prediction.noise(at, Sum::LATENTS),
        };
        [newest, Sum::history(0), Sum::history(1)]
    }

    /// What the next call needs of them.
    fn kept(&self, outputs: &[Sum; 3]) -> Vec<(usize, Sum)> {
        outputs.iter().take(self.order - 1).copied().enumerate().collect()
    }

    /// The latents at the end of a step, or of a group of steps, by the integrand at its start and
    /// its slopes there, of which each is over one stride.
    fn integrate(&self, ends: [NoiseLevel; 2], latents: Sum, output: Sum, slopes: &[Sum]) -> Sum {
        let [from, to] = ends;
        if to.is_clean() {
            assert!(self.integrand == Integrand::Picture, "the noise's integral is infinite there");
            return output * to.signal;
        }
        let stride = to.log_ratio() - from.log_ratio();
        let weights = match self.integrand {
            Integrand::Picture => self.picture_weights(stride),
            Integrand::Noise => self.noise_weights(stride),
        };
        let of_output = match self.integrand {
            Integrand::Picture => to.signal,
            Integrand::Noise => -to.noise,
        };
        let mut sum = latents * weights.latents(ends) + output * (of_output * weights.output);
        let factors = match slopes.len() {
            2 => [weights.heun, weights.third],
            _ => match self.weighing {
                Weighing::Midpoint => [weights.midpoint, 0.0],
                Weighing::Heun => [weights.heun, 0.0],
            },
        };
        for (slope, factor) in slopes.iter().zip(factors) {
            sum = sum + *slope * (of_output * factor);
        }
        sum + Sum::NOISE * (to.noise * weights.noise)
    }

    fn picture_weights(&self, stride: f64) -> Weights {
        let length = (1.0 + self.eta) * stride;
        let output = -(-length).exp_m1();
        let heun = 1.0 - output / length;
        let half = if self.eta > 0.0 { 0.5 * self.third_half_sign } else { 0.5 };
        Weights {
            decay: Decay::Noise((-self.eta * stride).exp()),
            output,
            midpoint: 0.5 * output,
            heun,
            third: half - heun / length,
            noise: (-(-2.0 * self.eta * stride).exp_m1()).sqrt(),
        }
    }

    /// With noise, by diffusers' `sde-dpmsolver`; there is no third order of it.
    fn noise_weights(&self, stride: f64) -> Weights {
        let output = stride.exp_m1();
        let doubled = if self.eta > 0.0 { 2.0 } else { 1.0 };
        let heun = output / stride - 1.0;
        Weights {
            decay: Decay::Signal,
            output: doubled * output,
            midpoint: doubled * 0.5 * output,
            heun: doubled * heun,
            third: (output - stride) / (stride * stride) - 0.5,
            noise: if self.eta > 0.0 { (2.0 * stride).exp_m1().sqrt() } else { 0.0 },
        }
    }
}

/// Factors of a step's terms, those of outputs still without the level's own.
struct Weights {
    decay: Decay,
    output: f64,
    midpoint: f64,
    heun: f64,
    third: f64,
    noise: f64,
}

/// What the latents shrink with.
enum Decay {
    /// The noise, and by so much more.
    Noise(f64),
    /// As the signal does, which is what an integral over the noise leaves.
    Signal,
}

impl Weights {
    fn latents(&self, [from, to]: [NoiseLevel; 2]) -> f64 {
        match self.decay {
            Decay::Noise(more) => to.noise / from.noise * more,
            Decay::Signal => to.signal / from.signal,
        }
    }
}

/// What outputs change by over a stride, by their change over a part of it. Over hardly any of it,
/// which only levels have that f32 can hardly tell apart, that is all rounding and noise.
pub(super) fn slope(change: Sum, part: f64) -> Sum {
    const PART_MIN: f64 = 1e-3;
    if part.abs() < PART_MIN { Sum::ZERO } else { change * (1.0 / part) }
}

/// The orders of a table's steps in groups, for [`Solver::singlestep`] (`get_order_list`).
pub fn grouped_orders(steps: usize, order: usize, ending: Ending) -> Vec<usize> {
    let mut orders: Vec<usize> = (0..steps).map(|step| step % order + 1).collect();
    if ending.few_steps {
        // No group is cut off: what is left over at the end goes by lower orders.
        let cut: &[usize] = match (order, steps % order) {
            (3, 0) => &[1, 2, 1],
            (2, 0) => &[1, 1],
            _ => &[],
        };
        orders.truncate(steps - cut.len());
        orders.extend(cut);
    }
    if let (Some(last), true) = (orders.last_mut(), ending.last) {
        *last = 1;
    }
    orders
}
