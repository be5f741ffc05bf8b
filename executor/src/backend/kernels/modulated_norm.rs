//! Normalisations whose weight is modulated, and sums with what they make. The factors of all
//! features, weight and modulation together, are formed once for each sequence, in scratch.

use super::norm::{Modulation, mean_and_scale, sum_of_squares};
use super::simd::{Isa, per_isa};
use super::widen::widen;
use super::workers::Workers;
use crate::weights::view::WeightView;

/// About how many scalar operations a normalised element takes.
const OPERATIONS: usize = 8;

/// How many elements of scratch [`scaled_norm`] and [`gated_norm_add`] need for so many sequences.
pub fn modulated_scratch_len(batch: usize, features: usize) -> usize {
    batch * features
}

/// Each token of `x`, `[batch, tokens, features]`, normalised, times (1 + scale): chunk
/// `scale_chunk` of the modulation. With a weight `[features]` it is divided by its root mean
/// square and multiplied with that; without, it is brought to mean 0 and variance 1.
pub fn scaled_norm(
    workers: &Workers,
    x: &mut [f32],
    weight: Option<WeightView<'_>>,
    modulation: Modulation<'_>,
    scale_chunk: usize,
    eps: f32,
    scratch: &mut [f32],
) {
    let (features, tokens) = (modulation.features, modulation.tokens(x));
    let isa = workers.isa();
    let factors = &mut scratch[..modulated_scratch_len(modulation.batch, features)];
    for (item, factors) in factors.chunks_exact_mut(features).enumerate() {
        start_factors(isa, weight, factors);
        let scales = modulation.chunk(item, scale_chunk);
        factors.iter_mut().zip(scales).for_each(|(factor, scale)| *factor *= 1.0 + scale);
    }
    let factors = &*factors;
    workers.for_each_chunk(x, features, OPERATIONS, |first, rows| {
        for (row, index) in rows.chunks_exact_mut(features).zip(first..) {
            let factors = &factors[index / tokens * features..][..features];
            let (mean, normal) = match weight {
                Some(_) => (0.0, inverse_root_mean_square(isa, row, eps)),
                None => mean_and_scale(isa, row, eps),
            };
            scale_row(isa, row, factors, mean, normal);
        }
    });
}

/// `x += gate · norm(y)`: `x`, `y` `[batch, tokens, features]`; the norm divides each token by its
/// root mean square and multiplies it with `weight`, `[features]`; the gate is the hyperbolic
/// tangent of a chunk of the modulation, or 1.
pub fn gated_norm_add(
    workers: &Workers,
    x: &mut [f32],
    y: &[f32],
    weight: WeightView<'_>,
    gate: Option<(Modulation<'_>, usize)>,
    eps: f32,
    scratch: &mut [f32],
) {
    assert_eq!(x.len(), y.len(), "y");
    let features = weight.shape.iter().product::<usize>();
    let (batch, tokens) = match gate {
        Some((modulation, _)) => (modulation.batch, modulation.tokens(x)),
        None => (1, x.len() / features),
    };
    let isa = workers.isa();
    let factors = &mut scratch[..modulated_scratch_len(batch, features)];
    for (item, factors) in factors.chunks_exact_mut(features).enumerate() {
        start_factors(isa, Some(weight), factors);
        if let Some((modulation, chunk)) = gate {
            let gates = modulation.chunk(item, chunk);
            factors.iter_mut().zip(gates).for_each(|(factor, gate)| *factor *= gate.tanh());
        }
    }
    let factors = &*factors;
    workers.for_each_chunk(x, features, OPERATIONS, |first, rows| {
        let y = y[first * features..].chunks_exact(features);
        for ((row, y), index) in rows.chunks_exact_mut(features).zip(y).zip(first..) {
            let factors = &factors[index / tokens * features..][..features];
            let normal = inverse_root_mean_square(isa, y, eps);
            add_scaled_row(isa, row, y, factors, normal);
        }
    });
}

/// The weight, or 1 for each feature.
fn start_factors(isa: Isa, weight: Option<WeightView<'_>>, factors: &mut [f32]) {
    match weight {
        Some(weight) => widen(isa, weight, 0, factors),
        None => factors.fill(1.0),
    }
}

fn inverse_root_mean_square(isa: Isa, row: &[f32], eps: f32) -> f32 {
    let mean_square = sum_of_squares(isa, row, 0.0) / row.len() as f64;
    (1.0 / (mean_square + f64::from(eps)).sqrt()) as f32
}

per_isa! {
    fn scale_row<L>(row: &mut [f32], factors: &[f32], mean: f32, normal: f32) {
        for (x, factor) in row.iter_mut().zip(factors) {
            *x = (*x - mean) * normal * factor;
        }
    }
}

per_isa! {
    fn add_scaled_row<L>(x: &mut [f32], y: &[f32], factors: &[f32], normal: f32) {
        for ((x, y), &factor) in x.iter_mut().zip(y).zip(factors) {
            *x = L::mul_add(y * normal, factor, *x);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers};

    const EPS: f32 = 1e-5;

    /// A row divided by its root mean square, and one brought to mean 0 and variance 1.
    fn normalised(row: &[f32], centred: bool) -> Vec<f64> {
        let count = row.len() as f64;
        let mean =
            if centred { row.iter().map(|&x| f64::from(x)).sum::<f64>() / count } else { 0.0 };
        let square = |&x: &f32| (f64::from(x) - mean).powi(2);
        let scale = (row.iter().map(square).sum::<f64>() / count + f64::from(EPS)).sqrt();
        row.iter().map(|&x| (f64::from(x) - mean) / scale).collect()
    }

    #[test]
    fn scaled_norms_match_the_reference() {
        let (batch, tokens) = (2, 3);
        for features in [1, 20, 300, 700] {
            let mut random = Random::new(features as u64);
            let x = random.normals(batch * tokens * features);
            let scales = random.normals(batch * 4 * features);
            let stored = Stored::random(&mut random, StorageType::BF16, &[features]);
            for weighted in [true, false] {
                let weight = &stored.values;
                let expected: Vec<f64> = x
                    .chunks(features)
                    .enumerate()
                    .flat_map(|(row, values)| {
                        let scale = &scales[(row / tokens * 4 + 2) * features..][..features];
                        let normal = normalised(values, !weighted);
                        let factor = |i: usize| {
                            let weight = if weighted { f64::from(weight[i]) } else { 1.0 };
                            weight * (1.0 + f64::from(scale[i]))
                        };
                        (0..features).map(|i| normal[i] * factor(i)).collect::<Vec<_>>()
                    })
                    .collect();
                for_each_workers(|workers| {
                    let mut out = x.clone();
                    let modulation = Modulation { values: &scales, batch, features };
                    let mut scratch = vec![f32::NAN; modulated_scratch_len(batch, features)];
                    let view = weighted.then(|| stored.view());
                    scaled_norm(workers, &mut out, view, modulation, 2, EPS, &mut scratch);
                    assert_close(&out, &expected, 3e-6, "scaled norm");
                    out
                });
            }
        }
    }

    #[test]
    fn gated_sums_match_the_reference() {
        let (batch, tokens) = (2, 3);
        for features in [1, 20, 300] {
            let mut random = Random::new(features as u64);
            let [x, y] = [0; 2].map(|_| random.normals(batch * tokens * features));
            let gates = random.normals(batch * 2 * features);
            let stored = Stored::random(&mut random, StorageType::F16, &[features]);
            for gated in [true, false] {
                let weight = &stored.values;
                let expected: Vec<f64> = (0..x.len())
                    .map(|at| {
                        let (row, i) = (at / features, at % features);
                        let normal = normalised(&y[row * features..][..features], false)[i];
                        let gate = f64::from(gates[(row / tokens * 2 + 1) * features + i]).tanh();
                        let gate = if gated { gate } else { 1.0 };
                        f64::from(x[at]) + gate * normal * f64::from(weight[i])
                    })
                    .collect();
                for_each_workers(|workers| {
                    let mut out = x.clone();
                    let modulation = Modulation { values: &gates, batch, features };
                    let mut scratch = vec![f32::NAN; modulated_scratch_len(batch, features)];
                    let gate = gated.then_some((modulation, 1));
                    gated_norm_add(workers, &mut out, &y, stored.view(), gate, EPS, &mut scratch);
                    assert_close(&out, &expected, 3e-6, "gated sum");
                    out
                });
            }
        }
    }
}
