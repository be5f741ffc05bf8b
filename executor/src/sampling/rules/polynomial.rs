//! Rules that put a polynomial through what the model said at the last steps, and integrate it:
//! LMS over the noise, DEIS over its logarithm.

use super::exponential::Ending;
use crate::sampling::path::{NoiseLevel, Path};
use crate::sampling::sum::Sum;
use crate::sampling::trajectory::ModelCall;

/// The linear multistep method of the fourth order (k-diffusion's `sample_lms`), of latents whose
/// signal is a linear function of the noise. The order rises by one a step from the first that
/// runs.
pub fn lms(path: &Path<'_>) -> Vec<ModelCall> {
    let hop = |(index, (step, from, to)): (usize, (usize, NoiseLevel, NoiseLevel))| {
        let mut call = path.call(step);
        let slopes = kept(path.prediction.slope(from, Sum::LATENTS));
        let order = (index + 1).min(ORDER);
        let nodes: Vec<f64> = (0..order).map(|back| path.levels[step - back].noise).collect();
        call.latents = (0..order).fold(Sum::LATENTS, |sum, node| {
            sum + slopes[node] * basis_integral(&nodes, node, [from.noise, to.noise])
        });
        call.history = shifted(&slopes, ORDER);
        call
    };
    path.hops().enumerate().map(hop).collect()
}

/// The highest order of [`lms`].
const ORDER: usize = 4;

/// DEIS of order 2 or 3 (Zhang and Chen, 2022; diffusers' `logrho`).
pub fn deis(path: &Path<'_>, order_max: usize, ending: Ending) -> Vec<ModelCall> {
    let mut calls = Vec::new();
    for (index, (step, from, to)) in path.hops().enumerate() {
        let mut call = path.call(step);
        let order = order_max.min(index + 1).min(ending.order_max(step, path.steps()));
        let outputs = kept(path.prediction.noise(from, Sum::LATENTS));
        let ratio = |step: usize| path.levels[step].noise / path.levels[step].signal;
        let nodes: Vec<f64> = (0..order).map(|back| ratio(step - back).ln()).collect();
        let ends = [ratio(step), ratio(step + 1)];
        let start = Sum::LATENTS * (1.0 / from.signal);
        let whole = (0..order)
            .fold(start, |sum, node| sum + outputs[node] * log_basis_integral(&nodes, node, ends));
        call.latents = whole * to.signal;
        call.history = shifted(&outputs, order_max);
        calls.push(call);
    }
    calls
}

/// The newest value with those before it.
fn kept(newest: Sum) -> [Sum; ORDER] {
    [newest, Sum::history(0), Sum::history(1), Sum::history(2)]
}

/// What the next step of a rule of this order needs of them.
fn shifted(values: &[Sum; ORDER], order: usize) -> Vec<(usize, Sum)> {
    values.iter().take(order - 1).copied().enumerate().collect()
}

/// The integral of the polynomial that is 1 at one node and 0 at the others, of at most the third
/// degree.
fn basis_integral(nodes: &[f64], one: usize, [start, end]: [f64; 2]) -> f64 {
    let basis = |at: f64| {
        let others = nodes.iter().enumerate().filter(|(node, _)| *node != one);
        others.map(|(_, node)| (at - node) / (nodes[one] - node)).product::<f64>()
    };
    // Gauss's rule of two points is exact up to the third degree.
    let (middle, half) = ((start + end) / 2.0, (end - start) / 2.0);
    let offset = half / 3.0_f64.sqrt();
    half * (basis(middle - offset) + basis(middle + offset))
}

/// The same where the polynomial is of the logarithm, of at most the second degree.
fn log_basis_integral(nodes: &[f64], one: usize, [start, end]: [f64; 2]) -> f64 {
    let others: Vec<f64> =
        nodes.iter().enumerate().filter(|(node, _)| *node != one).map(|(_, log)| *log).collect();
    let scale: f64 = others.iter().map(|other| nodes[one] - other).product();
    // Integrals of 1, ln x - c, (ln x - c)(ln x - d).
    let integral = |at: f64| {
        let log = at.ln();
        match others.as_slice() {
            [] => at,
            [c] => at * (log - 1.0 - c),
            [c, d] => at * (log * log - 2.0 * log + 2.0 - (c + d) * (log - 1.0) + c * d),
            _ => unreachable!("a rule of at most the third order"),
        }
    };
    (integral(end) - integral(start)) / scale
}
