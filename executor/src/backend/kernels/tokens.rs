//! Operations that make or move whole tokens: lookup, joining and cutting of sequences, and the
//! tables of time and of relative position.

use super::widen::{widen, widen_strided};
use super::workers::Workers;
use crate::weights::view::WeightView;

/// `out[i] = weight[ids[i]]`. `weight`: `[entries, width]`; `out`: `[ids, width]`.
pub fn embedding(workers: &Workers, ids: &[i32], weight: WeightView<'_>, out: &mut [f32]) {
    assert_eq!(weight.shape.len(), 2, "weight is not [entries, width]");
    let (entries, width) = (weight.shape[0], weight.shape[1]);
    assert_eq!(out.len(), ids.len() * width, "out");
    workers.for_each_chunk(out, width, 1, |first, out| {
        for (row, &id) in out.chunks_exact_mut(width).zip(&ids[first..]) {
            let id = usize::try_from(id).ok().filter(|&id| id < entries);
            let id = id.expect("the caller checked the token ids");
            widen(workers.isa(), weight, id * width, row);
        }
    });
}

/// `out[i] = cat(a[i], b[i])` along the tokens. `a`: `[batch, a_tokens, features]`, `b`: `[batch,
/// b_tokens, features]`; `out`: `[batch, a_tokens + b_tokens, features]`.
pub fn concat_tokens(
    workers: &Workers,
    a: &[f32],
    b: &[f32],
    batch: usize,
    features: usize,
    out: &mut [f32],
) {
    assert_eq!(out.len(), a.len() + b.len(), "out");
    let (a_tokens, b_tokens) = (tokens(a, batch, features), tokens(b, batch, features));
    workers.for_each_chunk(out, features, 1, |first, out| {
        for (row, index) in out.chunks_exact_mut(features).zip(first..) {
            let (sequence, token) = (index / (a_tokens + b_tokens), index % (a_tokens + b_tokens));
            let (from, token) = match token.checked_sub(a_tokens) {
                None => (a, sequence * a_tokens + token),
                Some(token) => (b, sequence * b_tokens + token),
            };
            row.copy_from_slice(&from[token * features..(token + 1) * features]);
        }
    });
}

/// `out[i] = x[i, from..from + count]`. `x`: `[batch, tokens, features]`; `out`: `[batch, count,
/// features]`.
pub fn slice_tokens(
    workers: &Workers,
    x: &[f32],
    batch: usize,
    features: usize,
    from: usize,
    out: &mut [f32],
) {
    let (tokens, count) = (tokens(x, batch, features), tokens(out, batch, features));
    assert!(from + count <= tokens, "slice outside the tokens");
    workers.for_each_chunk(out, features, 1, |first, out| {
        for (row, index) in out.chunks_exact_mut(features).zip(first..) {
            let token = index / count * tokens + from + index % count;
            row.copy_from_slice(&x[token * features..(token + 1) * features]);
        }
    });
}

/// How many tokens each sequence of `x`, `[batch, tokens, features]`, has.
fn tokens(x: &[f32], batch: usize, features: usize) -> usize {
    let tokens = x.len() / (batch * features);
    assert_eq!(x.len(), batch * tokens * features, "not [batch, tokens, features]");
    tokens
}

/// `out[i] = [cos(scale · (t[i] · freq))..., sin(scale · (t[i] · freq))...]` with `freq =
/// 10000^(-j / (dim / 2))`. `t`: `[batch]`; `out`: `[batch, dim]`.
///
/// Frequencies, their products with `t` and angles are rounded to `f32`, as the models were trained
/// with; the rounding of an angle near 1000 is what a sine then shows.
pub fn sinusoid(t: &[f32], scale: f32, dim: usize, out: &mut [f32]) {
    /// The longest period over the shortest, from the original transformer.
    const PERIODS: f64 = 10_000.0;
    assert!(dim.is_multiple_of(2) && dim > 0, "cosines and sines come in pairs");
    assert_eq!(out.len(), t.len() * dim, "out");
    let half = dim / 2;
    for (row, &t) in out.chunks_exact_mut(dim).zip(t) {
        let (cosines, sines) = row.split_at_mut(half);
        for (index, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
            let exponent = -(PERIODS.ln() as f32) * index as f32 / half as f32;
            let angle = f64::from(scale * (t * f64::from(exponent).exp() as f32));
            (*cosine, *sine) = (angle.cos() as f32, angle.sin() as f32);
        }
    }
}

/// The bias of each distance between tokens: `out[head, key - query + tokens - 1] =
/// table[bucket(key - query), head]`. `table`: `[buckets, heads]`; `out`: `[heads, 2 · tokens -
/// 1]`.
pub fn relative_position_bias(
    tokens: usize,
    buckets: usize,
    max_distance: usize,
    table: WeightView<'_>,
    out: &mut [f32],
) {
    assert!(table.shape.len() == 2 && table.shape[0] == buckets, "table");
    assert!(tokens > 0 && buckets >= 4 && max_distance > buckets / 4, "no logarithmic buckets");
    let heads = table.shape[1];
    let offsets = 2 * tokens - 1;
    assert_eq!(out.len(), heads * offsets, "out");
    for offset in 0..offsets {
        let later = offset >= tokens;
        let distance = offset.abs_diff(tokens - 1);
        let bucket = distance_bucket(distance, buckets / 2, max_distance);
        let row = bucket + if later { buckets / 2 } else { 0 };
        for head in 0..heads {
            let value = &mut out[head * offsets + offset..][..1];
            widen_strided(table, row * heads + head, 1, value);
        }
    }
}

/// The bucket of a distance in one direction: half of them for each distance alone, the others
/// growing by a constant factor up to `max_distance`. In `f32`, whose rounding decides at borders.
fn distance_bucket(distance: usize, buckets: usize, max_distance: usize) -> usize {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    // Rounded from f64, so that it is the nearest f32 whatever mathematical library there is.
    let ln = |x: f32| f64::from(x).ln() as f32;
    let range = (max_distance as f64 / exact as f64).ln() as f32;
    let share = ln(distance as f32 / exact as f32) / range;
    (exact + (share * (buckets - exact) as f32) as usize).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers};

    #[test]
    fn embeddings_are_rows_of_the_weight() {
        let mut random = Random::new(1);
        for storage in [StorageType::F32, StorageType::F16, StorageType::BF16] {
            let weight = Stored::random(&mut random, storage, &[50, 33]);
            let ids = [49, 0, 7, 7];
            for_each_workers(|workers| {
                let mut out = vec![0.0; ids.len() * 33];
                embedding(workers, &ids, weight.view(), &mut out);
                for (row, id) in out.chunks(33).zip([49, 0, 7, 7]) {
                    assert_eq!(row, &weight.values[id * 33..(id + 1) * 33]);
                }
                out
            });
        }
    }

    #[test]
    #[should_panic(expected = "checked the token ids")]
    fn a_token_id_outside_the_weight_is_a_bug() {
        let weight = Stored::random(&mut Random::new(1), StorageType::F32, &[5, 2]);
        embedding(&Workers::new(1).unwrap(), &[-1], weight.view(), &mut [0.0; 2]);
    }

    #[test]
    fn slices_undo_concatenation() {
        for (batch, a_tokens, b_tokens, features) in [(1, 1, 1, 1), (2, 3, 5, 7), (3, 900, 70, 130)]
        {
            let mut random = Random::new(2);
            let a = random.normals(batch * a_tokens * features);
            let b = random.normals(batch * b_tokens * features);
            for_each_workers(|workers| {
                let mut out = vec![0.0; a.len() + b.len()];
                concat_tokens(workers, &a, &b, batch, features, &mut out);
                let last = (batch - 1) * (a_tokens + b_tokens) * features;
                assert_eq!(
                    out[last..][..features],
                    a[(batch - 1) * a_tokens * features..][..features]
                );
                assert_eq!(out[a_tokens * features..][..features], b[..features]);
                let (mut front, mut back) = (vec![0.0; a.len()], vec![0.0; b.len()]);
                slice_tokens(workers, &out, batch, features, 0, &mut front);
                slice_tokens(workers, &out, batch, features, a_tokens, &mut back);
                assert!(front == a && back == b);
                out
            });
        }
    }

    #[test]
    fn sinusoids_of_known_angles() {
        let mut out = [0.0; 8];
        sinusoid(&[0.0, 1000.0], 1.0, 4, &mut out);
        let angle = 1000.0 * f64::from(0.01f32);
        let expected = [1.0, 1.0, 0.0, 0.0];
        assert_close(&out[..4], &expected, 1e-7, "zero");
        let expected = [1000f64.cos(), angle.cos(), 1000f64.sin(), angle.sin()];
        assert_close(&out[4..], &expected, 1e-6, "a thousand");
        // Scaled last: a product that is rounded before it is scaled is seen in the angle.
        let time = 0.8371234_f32;
        sinusoid(&[time, 0.0], 1000.0, 4, &mut out);
        let angle = f64::from(1000.0 * (time * 0.01));
        assert_close(&out[1..2], &[angle.cos()], 1e-7, "scaled");
        assert_close(&out[3..4], &[angle.sin()], 1e-7, "scaled");
    }

    #[test]
    fn distances_fall_into_buckets() {
        // 32 buckets up to 128: 16 for each direction, of which 8 hold one distance each. The
        // other borders are at 8 · 16^(n/8): 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5.
        let borders = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        for distance in 0..1000 {
            let expected = borders.iter().filter(|&&border| border <= distance).count() - 1;
            assert_eq!(distance_bucket(distance, 16, 128), expected, "{distance}");
        }
    }

    #[test]
    fn the_bias_of_a_later_key_is_in_the_second_half() {
        let table: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let table = Stored::new(StorageType::BF16, &[32, 2], table);
        let mut out = [0.0; 10];
        relative_position_bias(3, 32, 128, table.view(), &mut out);
        assert_eq!(out, [4.0, 2.0, 0.0, 34.0, 36.0, 5.0, 3.0, 1.0, 35.0, 37.0]);
    }
}
