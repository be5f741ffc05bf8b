//! Operations on each element, in place.

use std::ops::Range;

use super::math::apply;
use super::norm::Modulation;
use super::simd::per_isa;
use super::widen::widen;
use super::workers::Workers;
use crate::graph::Activation;
use crate::weights::view::WeightView;

/// Elements that are widened at a time, on the stack.
const TILE: usize = 256;

/// About how many scalar operations an element of an activation function takes.
const ACTIVATION_OPERATIONS: usize = 16;

/// `x += y`, element by element.
pub fn add(workers: &Workers, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    workers.for_each_chunk(x, 1, 1, |first, x| {
        x.iter_mut().zip(&y[first..]).for_each(|(x, y)| *x += y);
    });
}

/// `x *= y`, element by element.
pub fn mul(workers: &Workers, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    workers.for_each_chunk(x, 1, 1, |first, x| {
        x.iter_mut().zip(&y[first..]).for_each(|(x, y)| *x *= y);
    });
}

/// `x += gate · y`: `x`, `y` `[batch, tokens, features]`, the gate chunk `gate_chunk` of the
/// modulation.
pub fn gated_add(
    workers: &Workers,
    x: &mut [f32],
    y: &[f32],
    modulation: Modulation<'_>,
    gate_chunk: usize,
) {
    assert_eq!(x.len(), y.len());
    let (tokens, features) = (modulation.tokens(x), modulation.features);
    let isa = workers.isa();
    workers.for_each_chunk(x, features, 2, |first, x| {
        let y = y[first * features..].chunks_exact(features);
        for ((x, y), row) in x.chunks_exact_mut(features).zip(y).zip(first..) {
            add_product(isa, x, y, modulation.chunk(row / tokens, gate_chunk));
        }
    });
}

per_isa! {
    fn add_product<L>(x: &mut [f32], y: &[f32], gate: &[f32]) {
        for ((x, &y), &gate) in x.iter_mut().zip(y).zip(gate) {
            *x = L::mul_add(gate, y, *x);
        }
    }
}

/// `x[.., added] += scale · y`: `x` `[rows, features]`, `y` `[rows, length of added]`.
pub fn scaled_add(
    workers: &Workers,
    x: &mut [f32],
    features: usize,
    added: Range<usize>,
    y: &[f32],
    scale: f32,
) {
    assert!(!added.is_empty() && added.end <= features, "{added:?} of {features} features");
    assert_eq!(x.len() / features, y.len() / added.len(), "rows");
    assert!(x.len().is_multiple_of(features) && y.len().is_multiple_of(added.len()));
    let isa = workers.isa();
    workers.for_each_chunk(x, features, 2, |first, x| {
        let y = y[first * added.len()..].chunks_exact(added.len());
        for (x, y) in x.chunks_exact_mut(features).zip(y) {
            add_scaled(isa, &mut x[added.clone()], y, scale);
        }
    });
}

per_isa! {
    fn add_scaled<L>(x: &mut [f32], y: &[f32], scale: f32) {
        for (x, &y) in x.iter_mut().zip(y) {
            *x = L::mul_add(scale, y, *x);
        }
    }
}

/// `x = activation(x)`, element by element.
pub fn activate(workers: &Workers, x: &mut [f32], activation: Activation) {
    let isa = workers.isa();
    workers.for_each_chunk(x, 1, ACTIVATION_OPERATIONS, |_, x| apply(isa, activation, x));
}

/// Rotates neighbouring features: `(x0 cos - x1 sin, x1 cos + x0 sin)`. `x`: `[batch, tokens,
/// heads, head_dim]`; `table`: `[tokens, head_dim / 2, 2]`, cosine and sine.
pub fn rope(
    workers: &Workers,
    x: &mut [f32],
    table: &[f32],
    tokens: usize,
    heads: usize,
    head_dim: usize,
) {
    let isa = workers.isa();
    let rotate = |head: &mut [f32], rotations: &[f32]| rotate(isa, head, rotations);
    rotate_heads(workers, x, table, [tokens, heads, head_dim], rotate);
}

/// Rotates each head, `[head_dim]`, by its token's row of `table`, as `rotate` pairs its features.
pub(super) fn rotate_heads(
    workers: &Workers,
    x: &mut [f32],
    table: &[f32],
    [tokens, heads, head_dim]: [usize; 3],
    rotate: impl Fn(&mut [f32], &[f32]) + Sync,
) {
    assert!(head_dim.is_multiple_of(2), "features are rotated in pairs");
    assert_eq!(table.len(), tokens * head_dim, "table");
    assert!(x.len().is_multiple_of(tokens * heads * head_dim), "x");
    workers.for_each_chunk(x, heads * head_dim, 3, |first, x| {
        for (token, index) in x.chunks_exact_mut(heads * head_dim).zip(first..) {
            let rotations = &table[index % tokens * head_dim..][..head_dim];
            token.chunks_exact_mut(head_dim).for_each(|head| rotate(head, rotations));
        }
    });
}

per_isa! {
    fn rotate<L>(x: &mut [f32], rotations: &[f32]) {
        for (x, rotation) in x.as_chunks_mut::<2>().0.iter_mut().zip(rotations.as_chunks::<2>().0) {
            let ([x0, x1], [cos, sin]) = (*x, *rotation);
            *x = [x0 * cos - x1 * sin, x1 * cos + x0 * sin];
        }
    }
}

/// `x += weight[0..tokens]` for each sequence: learned positions. `x`: `[batch, tokens, features]`;
/// `weight`: `[max_tokens, features]`.
pub fn add_rows(
    workers: &Workers,
    x: &mut [f32],
    tokens: usize,
    features: usize,
    weight: WeightView<'_>,
) {
    assert!(x.len().is_multiple_of(tokens * features), "x is not [batch, tokens, features]");
    assert!(weight.shape.len() == 2 && weight.shape[1] == features, "weight");
    assert!(tokens <= weight.shape[0], "more tokens than positions");
    let isa = workers.isa();
    workers.for_each_chunk(x, features, 2, |first, x| {
        for (row, index) in x.chunks_exact_mut(features).zip(first..) {
            for (tile, part) in row.chunks_mut(TILE).enumerate() {
                let mut values = [0.0; TILE];
                let from = index % tokens * features + tile * TILE;
                widen(isa, weight, from, &mut values[..part.len()]);
                part.iter_mut().zip(values).for_each(|(x, value)| *x += value);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers};

    /// `kernel` of `x` must be `expected`, which is computed in f64 of the element's index.
    fn check(x: &[f32], expected: impl Fn(usize) -> f64, kernel: impl Fn(&Workers, &mut [f32])) {
        let expected: Vec<f64> = (0..x.len()).map(expected).collect();
        for_each_workers(|workers| {
            let mut y = x.to_vec();
            kernel(workers, &mut y);
            assert_close(&y, &expected, 1e-6, "elementwise");
            y
        });
    }

    #[test]
    fn sums_and_products() {
        let mut random = Random::new(1);
        for count in [1, 15, 300_000] {
            let (x, y) = (random.normals(count), random.normals(count));
            let wide = |at: usize| (f64::from(x[at]), f64::from(y[at]));
            check(&x, |at| wide(at).0 + wide(at).1, |workers, x| add(workers, x, &y));
            check(&x, |at| wide(at).0 * wide(at).1, |workers, x| mul(workers, x, &y));
        }
    }

    #[test]
    fn gated_add_takes_its_chunk_of_its_sequence() {
        let (batch, tokens, features, chunks) = (2, 700, 121, 3);
        let mut random = Random::new(2);
        let count = batch * tokens * features;
        let (x, y) = (random.normals(count), random.normals(count));
        let values = random.normals(batch * chunks * features);
        let modulation = Modulation { values: &values, batch, features };
        let expected = |at: usize| {
            let sequence = at / (tokens * features);
            let gate = values[sequence * chunks * features + 2 * features + at % features];
            f64::from(x[at]) + f64::from(gate) * f64::from(y[at])
        };
        check(&x, expected, |workers, x| gated_add(workers, x, &y, modulation, 2));
    }

    #[test]
    fn scaled_add_changes_its_features_only() {
        let rows = 900;
        let mut random = Random::new(6);
        for (features, added) in [(1, 0..1), (121, 0..121), (121, 17..80), (300, 299..300)] {
            let x = random.normals(rows * features);
            let y = random.normals(rows * added.len());
            let scale = -0.75;
            let expected = |at: usize| {
                let (row, feature) = (at / features, at % features);
                let y = |from| f64::from(scale) * f64::from(y[row * added.len() + feature - from]);
                let change = if added.contains(&feature) { y(added.start) } else { 0.0 };
                f64::from(x[at]) + change
            };
            check(&x, expected, |workers, x| {
                scaled_add(workers, x, features, added.clone(), &y, scale);
            });
        }
    }

    #[test]
    fn activations_are_applied_to_every_element() {
        let x = Random::new(3).normals(50_001);
        let silu = |at: usize| f64::from(x[at]) / (1.0 + (-f64::from(x[at])).exp());
        check(&x, silu, |workers, x| activate(workers, x, Activation::Silu));
    }

    #[test]
    fn rope_rotates_pairs_by_the_angles_of_the_token() {
        let (batch, tokens, heads, dim) = (2, 60, 3, 34);
        let mut random = Random::new(4);
        let x = random.normals(batch * tokens * heads * dim);
        let angles = random.normals(tokens * dim / 2);
        let table: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
        let expected = |at: usize| {
            let (token, feature) = (at / (heads * dim) % tokens, at % dim);
            let pair = (token * dim / 2 + feature / 2) * 2;
            let (cos, sin) = (f64::from(table[pair]), f64::from(table[pair + 1]));
            let even = at - at % 2;
            let (x0, x1) = (f64::from(x[even]), f64::from(x[even + 1]));
            if at.is_multiple_of(2) { x0 * cos - x1 * sin } else { x1 * cos + x0 * sin }
        };
        check(&x, expected, |workers, x| rope(workers, x, &table, tokens, heads, dim));
    }

    #[test]
    fn positions_are_added_to_each_sequence() {
        let (batch, tokens, features) = (2, 77, 301);
        let mut random = Random::new(5);
        let x = random.normals(batch * tokens * features);
        for storage in [StorageType::F32, StorageType::F16, StorageType::BF16] {
            let weight = Stored::random(&mut random, storage, &[80, features]);
            let expected =
                |at: usize| f64::from(x[at]) + f64::from(weight.values[at % (tokens * features)]);
            check(&x, expected, |workers, x| add_rows(workers, x, tokens, features, weight.view()));
        }
    }
}
