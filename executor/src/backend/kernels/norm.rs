//! Normalisations of rows, in place. Means and variances are summed in `f64`.

use super::simd::{Isa, per_isa};
use super::widen::widen;
use super::workers::Workers;
use crate::weights::view::WeightView;

/// Features whose weights are widened at a time, on the stack.
const TILE: usize = 256;

/// About how many scalar operations a normalised element takes.
const OPERATIONS: usize = 8;

/// What a block's conditioning vector says of it: shifts, scales and gates.
#[derive(Debug, Clone, Copy)]
pub struct Modulation<'a> {
    /// `[batch, chunks · features]`.
    pub values: &'a [f32],
    /// How many sequences.
    pub batch: usize,
    /// Of one chunk, as of the activations.
    pub features: usize,
}

impl Modulation<'_> {
    /// Chunk `index` of sequence `batch`: `[features]`.
    pub(super) fn chunk(&self, batch: usize, index: usize) -> &[f32] {
        let stride = self.values.len() / self.batch;
        assert!(stride.is_multiple_of(self.features) && (index + 1) * self.features <= stride);
        &self.values[batch * stride + index * self.features..][..self.features]
    }

    /// How many tokens each sequence of `x`, `[batch, tokens, features]`, has.
    pub(super) fn tokens(&self, x: &[f32]) -> usize {
        let tokens = x.len() / (self.batch * self.features);
        assert_eq!(x.len(), self.batch * tokens * self.features, "not [batch, tokens, features]");
        tokens
    }
}

/// Each row of `x`, `[rows, features]`, to mean 0 and variance 1, then times the first of `affine`
/// plus the second, both `[features]`.
pub fn layer_norm(
    workers: &Workers,
    x: &mut [f32],
    features: usize,
    eps: f32,
    affine: Option<(WeightView<'_>, WeightView<'_>)>,
) {
    if let Some((weight, bias)) = affine {
        assert!(weight.shape == [features] && bias.shape == [features], "affine");
    }
    let isa = workers.isa();
    workers.for_each_chunk(x, features, OPERATIONS, |_, rows| {
        for row in rows.chunks_exact_mut(features) {
            let (mean, scale) = mean_and_scale(isa, row, eps);
            let Some((weight, bias)) = affine else {
                row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
                continue;
            };
            for (tile, part) in row.chunks_mut(TILE).enumerate() {
                let (mut weights, mut biases) = ([0.0; TILE], [0.0; TILE]);
                widen(isa, weight, tile * TILE, &mut weights[..part.len()]);
                widen(isa, bias, tile * TILE, &mut biases[..part.len()]);
                for ((x, weight), bias) in part.iter_mut().zip(weights).zip(biases) {
                    *x = (*x - mean) * scale * weight + bias;
                }
            }
        }
    });
}

/// Each token of `x`, `[batch, tokens, features]`, to mean 0 and variance 1, then times (1 + scale)
/// plus shift: the modulation's chunks `scale_chunk` and `shift_chunk`.
pub fn ada_layer_norm(
    workers: &Workers,
    x: &mut [f32],
    modulation: Modulation<'_>,
    shift_chunk: usize,
    scale_chunk: usize,
    eps: f32,
) {
    let tokens = modulation.tokens(x);
    let isa = workers.isa();
    workers.for_each_chunk(x, modulation.features, OPERATIONS, |first, rows| {
        for (row, index) in rows.chunks_exact_mut(modulation.features).zip(first..) {
            let shift = modulation.chunk(index / tokens, shift_chunk);
            let scale = modulation.chunk(index / tokens, scale_chunk);
            let (mean, normal) = mean_and_scale(isa, row, eps);
            for ((x, shift), scale) in row.iter_mut().zip(shift).zip(scale) {
                *x = (*x - mean) * normal * (1.0 + scale) + shift;
            }
        }
    });
}

/// Each row of `x`, `[rows, features]`, divided by its root mean square, times `weight`,
/// `[features]`. For a norm of each head, `features` is the size of a head.
pub fn rms_norm(
    workers: &Workers,
    x: &mut [f32],
    features: usize,
    eps: f32,
    weight: WeightView<'_>,
) {
    assert_eq!(weight.shape, [features], "weight");
    let isa = workers.isa();
    workers.for_each_chunk(x, features, OPERATIONS, |_, rows| {
        let mut weights = [0.0; TILE];
        widen(isa, weight, 0, &mut weights[..features.min(TILE)]);
        for row in rows.chunks_exact_mut(features) {
            let mean_square = sum_of_squares(isa, row, 0.0) / features as f64;
            let scale = (1.0 / (mean_square + f64::from(eps)).sqrt()) as f32;
            for (tile, part) in row.chunks_mut(TILE).enumerate() {
                // Rows of one tile, as those of heads are, share what is widened already.
                if features > TILE {
                    widen(isa, weight, tile * TILE, &mut weights[..part.len()]);
                }
                part.iter_mut().zip(weights).for_each(|(x, weight)| *x = *x * scale * weight);
            }
        }
    });
}

/// The mean of a row, and one over the root of its variance plus `eps`.
pub(super) fn mean_and_scale(isa: Isa, row: &[f32], eps: f32) -> (f32, f32) {
    let mean = sum(isa, row) / row.len() as f64;
    let variance = sum_of_squares(isa, row, mean) / row.len() as f64;
    (mean as f32, (1.0 / (variance + f64::from(eps)).sqrt()) as f32)
}

/// Running sums: enough that the compiler can keep them in vectors.
const LANES: usize = 16;

per_isa! {
    fn sum<L>(row: &[f32]) -> f64 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = row.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                sums[lane] += f64::from(block[lane]);
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
    }
}

per_isa! {
    /// The sum of the squares of the distances from `centre`.
    pub(super) fn sum_of_squares<L>(row: &[f32], centre: f64) -> f64 {
        let mut sums = [0.0; LANES];
        let (blocks, rest) = row.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                let distance = f64::from(block[lane]) - centre;
                sums[lane] += distance * distance;
            }
        }
        let square = |&x: &f32| (f64::from(x) - centre) * (f64::from(x) - centre);
        sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{self, Random, Stored, assert_close, for_each_workers};

    const STORAGES: [StorageType; 3] = [StorageType::F32, StorageType::F16, StorageType::BF16];
    const EPS: f32 = 1e-5;

    fn normalised(row: &[f32]) -> Vec<f64> {
        testing::normalised(row, EPS)
    }

    #[test]
    fn layer_norm_matches_the_reference() {
        for (rows, features) in [(1, 1), (3, 17), (40, 300), (70, 4100)] {
            for storage in STORAGES {
                let mut random = Random::new(features as u64);
                let x = random.far_from_zero(rows * features);
                let weight = Stored::random(&mut random, storage, &[features]);
                let bias = Stored::random(&mut random, storage, &[features]);
                let plain: Vec<f64> = x.chunks(features).flat_map(normalised).collect();
                let affine: Vec<f64> = plain
                    .iter()
                    .enumerate()
                    .map(|(at, x)| {
                        let (w, b) = (weight.values[at % features], bias.values[at % features]);
                        x * f64::from(w) + f64::from(b)
                    })
                    .collect();
                for_each_workers(|workers| {
                    let mut y = x.clone();
                    layer_norm(workers, &mut y, features, EPS, None);
                    assert_close(&y, &plain, 1e-5, "plain");
                    let mut y = x.clone();
                    let views = Some((weight.view(), bias.view()));
                    layer_norm(workers, &mut y, features, EPS, views);
                    assert_close(&y, &affine, 1e-5, "affine");
                    y
                });
            }
        }
    }

    #[test]
    fn ada_layer_norm_takes_its_chunks_of_its_sequence() {
        let (batch, tokens, features, chunks) = (2, 90, 111, 6);
        let mut random = Random::new(3);
        let x = random.far_from_zero(batch * tokens * features);
        let values = random.normals(batch * chunks * features);
        let expected: Vec<f64> = x
            .chunks(features)
            .enumerate()
            .flat_map(|(row, values_of_row)| {
                let at = row / tokens * chunks * features;
                let (shift, scale) = (&values[at + 3 * features..], &values[at + 4 * features..]);
                let normal = normalised(values_of_row).into_iter().zip(scale).zip(shift);
                normal
                    .map(|((x, &scale), &shift)| x * (1.0 + f64::from(scale)) + f64::from(shift))
                    .collect::<Vec<f64>>()
            })
            .collect();
        for_each_workers(|workers| {
            let mut y = x.clone();
            let modulation = Modulation { values: &values, batch, features };
            ada_layer_norm(workers, &mut y, modulation, 3, 4, EPS);
            assert_close(&y, &expected, 1e-5, "ada");
            y
        });
    }

    #[test]
    fn rms_norm_matches_the_reference() {
        for (rows, features) in [(1, 1), (700, 128), (9, 256), (5, 1001)] {
            for storage in STORAGES {
                let mut random = Random::new(features as u64);
                let x = random.normals(rows * features);
                let weight = Stored::random(&mut random, storage, &[features]);
                let mut expected = Vec::new();
                for row in x.chunks(features) {
                    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let root = (squares / features as f64 + f64::from(EPS)).sqrt();
                    let pairs = row.iter().zip(&weight.values);
                    expected.extend(pairs.map(|(&x, &w)| f64::from(x) / root * f64::from(w)));
                }
                for_each_workers(|workers| {
                    let mut y = x.clone();
                    rms_norm(workers, &mut y, features, EPS, weight.view());
                    assert_close(&y, &expected, 1e-5, "rms");
                    y
                });
            }
        }
    }
}
