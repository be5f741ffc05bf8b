//! Attention against its definition in f64, and to the bit among chunks.

use half::bf16;

use super::shape::KEY_BLOCK_MAX;
use super::*;
use crate::backend::kernels::testing::{Random, assert_close, for_each_workers, scratch};

fn reference(
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f64> {
    let (dim, features) = (shape.head_dim, shape.heads * shape.head_dim);
    let kv_features = shape.kv_heads * dim;
    let mut out = vec![0.0; q.len()];
    for batch in 0..shape.batch {
        for head in 0..shape.heads {
            for query in 0..shape.query_tokens {
                let keys = if shape.causal { query + 1 } else { shape.key_tokens };
                let at_q = (batch * shape.query_tokens + query) * features + head * dim;
                let shared = head / (shape.heads / shape.kv_heads);
                let at_k = |key| (batch * shape.key_tokens + key) * kv_features + shared * dim;
                let scores: Vec<f64> = (0..keys)
                    .map(|key| {
                        let dot: f64 = (0..dim)
                            .map(|i| f64::from(q[at_q + i]) * f64::from(k[at_k(key) + i]))
                            .sum();
                        let offsets = shape.query_tokens + shape.key_tokens - 1;
                        let at = head * offsets + key + shape.query_tokens - 1 - query;
                        dot * f64::from(shape.scale) + bias.map_or(0.0, |b| f64::from(b[at]))
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let exps: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = exps.iter().sum();
                for i in 0..dim {
                    let weighed = |key: usize| exps[key] * f64::from(v[at_k(key) + i]);
                    out[at_q + i] = (0..keys).map(weighed).sum::<f64>() / sum;
                }
            }
        }
    }
    out
}

/// Compares every instruction set and some chunks with the reference; chunks to the bit.
fn check(shape: AttentionShape, bias: Option<&[f32]>) {
    let features = shape.heads * shape.head_dim;
    let mut random = Random::new(shape.key_tokens as u64);
    let q = random.normals(shape.batch * shape.query_tokens * features);
    let k = random.normals(shape.batch * shape.key_tokens * shape.kv_heads * shape.head_dim);
    let v = random.normals(k.len());
    let expected = reference(&shape, &q, &k, &v, bias);
    for_each_workers(|workers| {
        let attend = |query_chunk| {
            let shape = AttentionShape { query_chunk, ..shape };
            let mut out = vec![f32::NAN; q.len()];
            let mut scratch = scratch(attention_scratch_len(&shape, workers.count()));
            attention(workers, &shape, &q, &k, &v, bias, &mut out, &mut scratch);
            out
        };
        let out = attend(shape.query_chunk);
        assert_close(&out, &expected, 1e-5, &format!("{shape:?} {}", workers.isa()));
        let bits = |out: &[f32]| out.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for query_chunk in [1, 7, 32, 1000] {
            let same = bits(&attend(query_chunk)) == bits(&out);
            assert!(same, "{shape:?} {}: differs by chunks of {query_chunk}", workers.isa());
        }
        out
    });
}

/// Compares attention of rounded operands with the reference from rounded queries, keys and values:
/// what it forms besides, the weights, are rounded too, each by at most 1/256 of itself. Where
/// nothing is rounded it is the same bits as without.
fn check_rounded(shape: AttentionShape, bias: Option<&[f32]>) {
    let features = shape.heads * shape.head_dim;
    let mut random = Random::new(shape.key_tokens as u64);
    let q = random.normals(shape.batch * shape.query_tokens * features);
    let k = random.normals(shape.batch * shape.key_tokens * shape.kv_heads * shape.head_dim);
    let v = random.normals(k.len());
    let rounded = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect::<Vec<_>>();
    // Queries are rounded when they are scaled.
    let scale = shape.scale * std::f32::consts::LOG2_E;
    let scaled: Vec<f32> = q.iter().map(|&q| bf16::from_f32(q * scale).to_f32() / scale).collect();
    let (k_rounded, v_rounded) = (rounded(&k), rounded(&v));
    let expected = reference(&shape, &scaled, &k_rounded, &v_rounded, bias);
    let magnitudes: Vec<f32> = v_rounded.iter().map(|v| v.abs()).collect();
    let most = reference(&shape, &scaled, &k_rounded, &magnitudes, bias);
    for_each_workers(|workers| {
        let attend = |query_chunk, rounds| {
            let shape = AttentionShape { query_chunk, rounds, ..shape };
            let mut out = vec![f32::NAN; q.len()];
            let mut scratch = scratch(attention_scratch_len(&shape, workers.count()));
            attention(workers, &shape, &q, &k, &v, bias, &mut out, &mut scratch);
            out
        };
        let name = format!("{shape:?} {}", workers.isa());
        let out = attend(shape.query_chunk, true);
        match workers.isa().has_bf16_products() && shape.head_dim >= 16 && shape.key_tokens >= 45 {
            true => {
                for ((&out, &expected), &most) in out.iter().zip(&expected).zip(&most) {
                    let error = (f64::from(out) - expected).abs();
                    assert!(
                        error <= most / 256.0 + 1e-5,
                        "{name}: {out}, not {expected}: {error} > {most} / 256"
                    );
                }
            }
            false => assert!(out == attend(shape.query_chunk, false), "{name}"),
        }
        for chunk in [1, 7, 32, 1000] {
            let other = attend(chunk, true);
            let differs = out.iter().zip(&other).position(|(a, b)| a != b);
            assert!(
                differs.is_none(),
                "{name}: chunks of {chunk}: {differs:?} {:?}",
                differs.map(|at| (out[at], other[at]))
            );
        }
        out
    });
}

#[test]
fn rounded_operands_match_the_reference_from_them() {
    for (heads, head_dim, tokens) in [(2, 64, 77), (1, 128, 300), (1, 512, 130), (2, 40, 250)] {
        let scale = (head_dim as f32).powf(-0.5);
        let shape = AttentionShape { head_dim, scale, ..with_heads(heads) };
        let shape = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..shape };
        check_rounded(shape, None);
        check_rounded(AttentionShape { causal: true, ..shape }, None);
        check_rounded(AttentionShape { query_tokens: tokens - 40, batch: 2, ..shape }, None);
    }
    let grouped = AttentionShape { heads: 6, kv_heads: 2, head_dim: 20, scale: 0.25, ..SHAPE };
    check_rounded(AttentionShape { query_tokens: 70, key_tokens: 70, ..grouped }, None);
    let shape = AttentionShape { query_tokens: 33, key_tokens: 3 * KEY_BLOCK_MAX + 1, ..grouped };
    let offsets = shape.query_tokens + shape.key_tokens - 1;
    let rising: Vec<f32> = (0..6 * offsets).map(|at| (at % offsets) as f32 / 100.0).collect();
    check_rounded(shape, Some(&rising));
    // Without tiles: heads that are narrow, or keys that are few.
    check_rounded(AttentionShape { head_dim: 8, ..shape }, None);
    check_rounded(AttentionShape { key_tokens: 3, ..shape }, None);
}

fn check_with_bias(shape: AttentionShape) {
    let offsets = shape.query_tokens + shape.key_tokens - 1;
    check(shape, Some(&Random::new(1).normals(shape.heads * offsets)));
}

const SHAPE: AttentionShape = AttentionShape {
    batch: 1,
    query_tokens: 1,
    key_tokens: 1,
    heads: 1,
    kv_heads: 1,
    head_dim: 1,
    scale: 1.0,
    causal: false,
    query_chunk: 64,
    rounds: false,
};

fn with_heads(heads: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads: heads, ..SHAPE }
}

#[test]
fn heads_share_keys_and_values_in_groups() {
    for (heads, kv_heads) in [(6, 2), (4, 1), (3, 3)] {
        let shape = AttentionShape { heads, kv_heads, head_dim: 16, scale: 0.25, ..SHAPE };
        check(AttentionShape { batch: 2, query_tokens: 37, key_tokens: 51, ..shape }, None);
        let causal = AttentionShape { query_tokens: 70, key_tokens: 70, causal: true, ..shape };
        check(causal, None);
        check_with_bias(causal);
    }
}

#[test]
fn small_and_odd_shapes_match_the_reference() {
    check(SHAPE, None);
    check_with_bias(AttentionShape { query_tokens: 5, key_tokens: 9, head_dim: 3, ..SHAPE });
    let shape = AttentionShape { batch: 2, head_dim: 20, scale: 0.22, ..with_heads(3) };
    check(AttentionShape { query_tokens: 70, key_tokens: 51, ..shape }, None);
    check_with_bias(AttentionShape { query_tokens: 33, key_tokens: 100, ..shape });
}

#[test]
fn causal_queries_see_only_what_came_before() {
    let shape = AttentionShape { head_dim: 16, scale: 0.25, causal: true, ..with_heads(2) };
    check(AttentionShape { query_tokens: 77, key_tokens: 77, batch: 2, ..shape }, None);
    check_with_bias(AttentionShape { query_tokens: 130, key_tokens: 130, ..shape });
    // The second block begins within a chunk.
    let tokens = KEY_BLOCK_MAX + 45;
    let blocks = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..shape };
    check(AttentionShape { heads: 1, kv_heads: 1, ..blocks }, None);
    // It begins within a panel.
    let wide = AttentionShape { head_dim: 512, scale: 0.044, causal: true, ..with_heads(1) };
    check(AttentionShape { query_tokens: 130, key_tokens: 130, ..wide }, None);
}

#[test]
fn keys_that_are_padding_are_seen_by_no_query() {
    let tokens = KEY_BLOCK_MAX + 45;
    let shape = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..SHAPE };
    let shape = AttentionShape { head_dim: 16, scale: 0.25, heads: 4, kv_heads: 2, ..shape };
    let mut random = Random::new(3);
    let q = random.normals(tokens * shape.features());
    let k = random.normals(tokens * shape.kv_features());
    let v = random.normals(k.len());
    for known in [1, 7, 31, 32, 65, KEY_BLOCK_MAX, KEY_BLOCK_MAX + 1, tokens] {
        let seen = |values: &[f32]| values[..known * shape.kv_features()].to_vec();
        let whole = AttentionShape { key_tokens: known, ..shape };
        let everywhere = reference(&whole, &q, &seen(&k), &seen(&v), None);
        for causal in [false, true] {
            let shape = AttentionShape { causal, ..shape };
            let mut expected = everywhere.clone();
            if causal {
                let before = known * shape.features();
                expected[..before].copy_from_slice(&reference(&shape, &q, &k, &v, None)[..before]);
            }
            for_each_workers(|workers| {
                let attend = |query_chunk| {
                    let shape = AttentionShape { query_chunk, ..shape };
                    let mut out = vec![f32::NAN; q.len()];
                    let mut scratch = scratch(attention_scratch_len(&shape, workers.count()));
                    masked_attention(
                        workers,
                        &shape,
                        known,
                        &q,
                        &k,
                        &v,
                        None,
                        &mut out,
                        &mut scratch,
                    );
                    out
                };
                let out = attend(shape.query_chunk);
                assert_close(&out, &expected, 1e-5, &format!("{known} {causal}"));
                assert!([1, 32, 1000].iter().all(|&chunk| attend(chunk) == out), "by chunks");
                out
            });
        }
    }
}

#[test]
fn heads_of_common_sizes_match_the_reference() {
    for (heads, head_dim, tokens) in [(2, 64, 77), (1, 128, 300), (1, 512, 130)] {
        let scale = (head_dim as f32).powf(-0.5);
        let shape = AttentionShape { head_dim, scale, ..with_heads(heads) };
        check(AttentionShape { query_tokens: tokens, key_tokens: tokens, ..shape }, None);
    }
}

#[test]
fn one_head_is_shared_among_workers() {
    let shape = AttentionShape { query_tokens: 390, key_tokens: 410, head_dim: 40, ..SHAPE };
    check(AttentionShape { scale: 0.16, ..shape }, None);
}

#[test]
fn sums_longer_than_a_block_match_the_reference() {
    let long = AttentionShape { query_tokens: 3, key_tokens: 1500, head_dim: 8, ..SHAPE };
    check(AttentionShape { scale: 0.35, ..long }, None);
    check_with_bias(AttentionShape { batch: 2, heads: 2, kv_heads: 2, scale: 0.35, ..long });
    let wide = AttentionShape { query_tokens: 4, key_tokens: 6, head_dim: 1100, ..SHAPE };
    check(AttentionShape { scale: 0.03, ..wide }, None);
}

#[test]
fn later_blocks_may_have_the_larger_scores() {
    let (query_tokens, key_tokens) = (5, 3 * KEY_BLOCK_MAX + 1);
    let shape = AttentionShape { query_tokens, key_tokens, head_dim: 8, scale: 0.35, ..SHAPE };
    let offsets = query_tokens + key_tokens - 1;
    let rising: Vec<f32> = (0..offsets).map(|at| at as f32 / 100.0).collect();
    check(shape, Some(&rising));
    // Nothing of the first block weighs anything.
    let hidden = |at| if at < KEY_BLOCK_MAX + query_tokens { f32::NEG_INFINITY } else { 0.0 };
    check(shape, Some(&(0..offsets).map(hidden).collect::<Vec<_>>()));
}

#[test]
fn scratch_does_not_grow_with_the_tokens() {
    let scratch_len = |tokens, query_chunk| {
        let shape = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..SHAPE };
        let shape = AttentionShape { head_dim: 128, heads: 24, kv_heads: 24, query_chunk, ..shape };
        attention_scratch_len(&shape, 2)
    };
    assert_eq!(scratch_len(1536, 256), scratch_len(1_000_000, 256));
    assert!(scratch_len(1536, 64) < scratch_len(1536, 256));
    assert!(scratch_len(77, 256) < scratch_len(1536, 256));
}
