//! Scaled dot-product attention over whole score rows.
//!
//! Queries go in chunks: a chunk's scores for all keys lie in its worker's scratch, are normalised
//! there, and multiply the values. Values are transposed once for each head, because the
//! micro-kernel sums along rows.
//!
//! Where there are many heads a task is a head, with transposed values of its own; where there are
//! few, heads follow each other and a task is a chunk of queries of the present one.

use std::ops::Range;

use super::math::exp;
use super::simd::{Isa, per_isa};
use super::tile::{Rows, Target, aligned, depth_blocks, multiply_rows, panel_len, panel_stride};
use super::workers::{Disjoint, Workers};

/// Queries of a task: enough to pay for packing the keys, few enough that the scores of 4608 keys
/// (1.1 MiB) stay in the second level cache.
const CHUNK_QUERIES: usize = 64;

/// Keys that are packed at a time: 24 KiB with heads of 128.
const PANEL_KEYS: usize = 48;

/// Value features that are multiplied at a time, to keep their panel in the second level cache.
const PANEL_FEATURES: usize = 96;

/// Keys of one task of a shared transposition.
const TRANSPOSE_KEYS: usize = 64;

/// The sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// How many sequences.
    pub batch: usize,
    /// Tokens that ask.
    pub query_tokens: usize,
    /// Tokens that are asked.
    pub key_tokens: usize,
    /// Heads, for queries and keys alike.
    pub heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Multiplies the dot products.
    pub scale: f32,
    /// Whether a query sees only the keys up to its own index; needs as many keys as queries.
    pub causal: bool,
}

impl AttentionShape {
    fn features(&self) -> usize {
        self.heads * self.head_dim
    }

    fn operations(&self) -> usize {
        4 * self.batch * self.query_tokens * self.key_tokens * self.features()
    }

    fn chunks(&self) -> usize {
        self.query_tokens.div_ceil(CHUNK_QUERIES)
    }

    /// Whether tasks are heads. Otherwise they are chunks of queries, which are dealt more evenly.
    fn tasks_are_heads(&self, workers: usize) -> bool {
        let heads = self.batch * self.heads;
        heads.is_multiple_of(workers) || heads >= 4 * workers || self.chunks() < 2 * workers
    }

    fn values_len(&self) -> usize {
        panel_len(self.head_dim, self.key_tokens)
    }

    fn chunk_scratch_len(&self) -> usize {
        panel_len(self.query_tokens.min(CHUNK_QUERIES), self.key_tokens)
            + panel_len(self.key_tokens.min(PANEL_KEYS), self.head_dim)
    }
}

/// How many elements of scratch [`attention`] needs with so many workers.
pub fn attention_scratch_len(shape: &AttentionShape, workers: usize) -> usize {
    if shape.tasks_are_heads(workers) {
        workers * (shape.values_len() + shape.chunk_scratch_len())
    } else {
        shape.values_len() + workers * shape.chunk_scratch_len()
    }
}

/// `out = softmax(scale · q · kᵀ + bias) · v`, head by head.
///
/// `q`, `out`: `[batch, query_tokens, heads · head_dim]`. `k`, `v`: `[batch, key_tokens, heads ·
/// head_dim]`. `bias`: `[heads, query_tokens + key_tokens - 1]`, at `key - query + query_tokens -
/// 1`. `scratch`: [`attention_scratch_len`].
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn attention(
    workers: &Workers,
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let features = shape.features();
    let offsets = shape.query_tokens + shape.key_tokens - 1;
    assert_eq!(q.len(), shape.batch * shape.query_tokens * features, "q");
    assert_eq!(k.len(), shape.batch * shape.key_tokens * features, "k");
    assert_eq!(v.len(), k.len(), "v");
    assert_eq!(out.len(), q.len(), "out");
    assert!(bias.is_none_or(|bias| bias.len() == shape.heads * offsets), "bias");
    assert!(!shape.causal || shape.query_tokens == shape.key_tokens, "causal needs equal tokens");
    assert!(scratch.len() >= attention_scratch_len(shape, workers.count()), "scratch");

    let out = Disjoint::new(out);
    let call = Call { isa: workers.isa(), shape, q, k, v, bias, out: &out };
    let heads = shape.batch * shape.heads;
    if shape.tasks_are_heads(workers.count()) {
        let len = shape.values_len() + shape.chunk_scratch_len();
        workers.for_each_with(heads, shape.operations(), scratch, len, |scratch, head| {
            let (values, scratch) = scratch.split_at_mut(shape.values_len());
            let values = aligned(values);
            call.transpose_values(head, 0..shape.key_tokens, &Disjoint::new(values));
            (0..shape.chunks()).for_each(|chunk| call.attend(head, chunk, values, scratch));
        });
        return;
    }
    let (values, scratch) = scratch.split_at_mut(shape.values_len());
    let values = aligned(values);
    let (chunks, len) = (shape.chunks(), shape.chunk_scratch_len());
    for head in 0..heads {
        let blocks = shape.key_tokens.div_ceil(TRANSPOSE_KEYS);
        let shared = Disjoint::new(values);
        workers.for_each(blocks, shape.operations() / heads, |_, block| {
            let from = block * TRANSPOSE_KEYS;
            let to = shape.key_tokens.min(from + TRANSPOSE_KEYS);
            call.transpose_values(head, from..to, &shared);
        });
        let operations = shape.operations() / heads;
        workers.for_each_with(chunks, operations, scratch, len, |scratch, chunk| {
            call.attend(head, chunk, values, scratch);
        });
    }
}

/// What all tasks of one call share. A head is numbered through the batch.
struct Call<'a> {
    isa: Isa,
    shape: &'a AttentionShape,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a Disjoint<'a>,
}

impl Call<'_> {
    /// Where a head's features of a token begin in a tensor of `tokens` tokens.
    fn at(&self, head: usize, tokens: usize, token: usize) -> usize {
        let (batch, head) = (head / self.shape.heads, head % self.shape.heads);
        (batch * tokens + token) * self.shape.features() + head * self.shape.head_dim
    }

    /// Writes the values of some keys as columns of `transposed`, `[head_dim, key_tokens]`. No
    /// other task may have these keys.
    fn transpose_values(&self, head: usize, keys: Range<usize>, transposed: &Disjoint<'_>) {
        /// A vector of keys at a time, so that few lines of `v` are open at once.
        const BLOCK: usize = 8;
        let stride = panel_stride(self.shape.key_tokens);
        for from in keys.clone().step_by(BLOCK) {
            let to = keys.end.min(from + BLOCK);
            let source = &self.v[self.at(head, self.shape.key_tokens, from)..];
            for feature in 0..self.shape.head_dim {
                let begin = feature * stride;
                // SAFETY: other tasks write other keys.
                let row = unsafe { transposed.range(begin + from..begin + to) };
                for (key, value) in row.iter_mut().enumerate() {
                    *value = source[key * self.shape.features() + feature];
                }
            }
        }
    }

    /// One chunk of queries of a head. `values`: `[head_dim, key_tokens]`.
    fn attend(&self, head: usize, chunk: usize, values: &[f32], scratch: &mut [f32]) {
        let shape = self.shape;
        let first = chunk * CHUNK_QUERIES;
        let queries = first..shape.query_tokens.min(first + CHUNK_QUERIES);
        // No query of the chunk sees a later key.
        let keys = if shape.causal { queries.end } else { shape.key_tokens };
        let stride = panel_stride(shape.key_tokens);
        let scores_len = panel_len(shape.query_tokens.min(CHUNK_QUERIES), shape.key_tokens);
        let (scores, panel) = scratch.split_at_mut(scores_len);
        let scores = aligned(scores);

        self.score(head, queries.clone(), keys, scores, aligned(panel));
        let mut sums = [0.0; CHUNK_QUERIES];
        for ((query, row), sum) in queries.clone().zip(scores.chunks_mut(stride)).zip(&mut sums) {
            let seen = if shape.causal { query + 1 } else { keys };
            let bias = self.bias.map(|bias| {
                let offsets = shape.query_tokens + shape.key_tokens - 1;
                let begin = head % shape.heads * offsets + shape.query_tokens - 1 - query;
                &bias[begin..begin + seen]
            });
            *sum = exponentials(self.isa, &mut row[..seen], shape.scale, bias);
            row[seen..keys].fill(0.0);
        }
        self.weigh(head, queries.clone(), keys, scores, values);
        for (query, sum) in queries.zip(sums) {
            let from = self.at(head, shape.query_tokens, query);
            // SAFETY: no other task has this query of this head.
            let row = unsafe { self.out.range(from..from + shape.head_dim) };
            row.iter_mut().for_each(|value| *value /= sum);
        }
    }

    /// `scores[query, key] = q · k`, unscaled.
    fn score(
        &self,
        head: usize,
        queries: Range<usize>,
        keys: usize,
        scores: &mut [f32],
        panel: &mut [f32],
    ) {
        let shape = self.shape;
        let stride = panel_stride(shape.head_dim);
        let scores = Disjoint::new(scores);
        for from in (0..keys).step_by(PANEL_KEYS) {
            let count = PANEL_KEYS.min(keys - from);
            for (key, row) in (from..from + count).zip(panel.chunks_mut(stride)) {
                let begin = self.at(head, shape.key_tokens, key);
                row[..shape.head_dim].copy_from_slice(&self.k[begin..begin + shape.head_dim]);
            }
            for (feature, depth) in depth_blocks(shape.head_dim) {
                let begin = self.at(head, shape.query_tokens, queries.start) + feature;
                let a = &self.q[begin..];
                let a = Rows { values: a, stride: shape.features(), count: queries.len() };
                let b = Rows { values: &panel[feature..], stride, count };
                let stride = panel_stride(shape.key_tokens);
                // SAFETY: the scores are this task's own.
                let target = unsafe { Target::new(&scores, from, stride, feature > 0) };
                multiply_rows(self.isa, a, b, depth, target);
            }
        }
    }

    /// `out[query] = sum over keys of scores[query, key] · v[key]`, not yet normalised.
    fn weigh(
        &self,
        head: usize,
        queries: Range<usize>,
        keys: usize,
        scores: &[f32],
        values: &[f32],
    ) {
        let shape = self.shape;
        let stride = panel_stride(shape.key_tokens);
        for (from, depth) in depth_blocks(keys) {
            for feature in (0..shape.head_dim).step_by(PANEL_FEATURES) {
                let count = PANEL_FEATURES.min(shape.head_dim - feature);
                let a = Rows { values: &scores[from..], stride, count: queries.len() };
                let b = Rows { values: &values[feature * stride + from..], stride, count };
                let begin = self.at(head, shape.query_tokens, queries.start) + feature;
                // SAFETY: no other task has these queries of this head.
                let target = unsafe { Target::new(self.out, begin, shape.features(), from > 0) };
                multiply_rows(self.isa, a, b, depth, target);
            }
        }
    }
}

per_isa! {
    /// Replaces each score by `exp(scale · score + bias - the largest of these)`; returns the sum.
    fn exponentials<L>(scores: &mut [f32], scale: f32, bias: Option<&[f32]>) -> f32 {
        /// Running values: enough that the compiler can keep them in vectors.
        const LANES: usize = 16;
        match bias {
            None => scores.iter_mut().for_each(|score| *score *= scale),
            Some(bias) => {
                for (score, bias) in scores.iter_mut().zip(bias) {
                    *score = L::mul_add(*score, scale, *bias);
                }
            }
        }
        let mut largest = [f32::NEG_INFINITY; LANES];
        let (blocks, rest) = scores.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                largest[lane] = if block[lane] > largest[lane] { block[lane] } else { largest[lane] };
            }
        }
        let largest = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let mut sums = [0.0; LANES];
        let (blocks, rest) = scores.as_chunks_mut::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                block[lane] = exp::<L>(block[lane] - largest);
                sums[lane] += block[lane];
            }
        }
        for (score, sum) in rest.iter_mut().zip(&mut sums) {
            *score = exp::<L>(*score - largest);
            *sum += *score;
        }
        sums.iter().sum()
    }
}

#[cfg(test)]
mod tests {
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
        let mut out = vec![0.0; q.len()];
        for batch in 0..shape.batch {
            for head in 0..shape.heads {
                for query in 0..shape.query_tokens {
                    let keys = if shape.causal { query + 1 } else { shape.key_tokens };
                    let at_q = (batch * shape.query_tokens + query) * features + head * dim;
                    let at_k = |key| (batch * shape.key_tokens + key) * features + head * dim;
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

    fn check(shape: AttentionShape, with_bias: bool) {
        let features = shape.heads * shape.head_dim;
        let mut random = Random::new(shape.key_tokens as u64);
        let q = random.normals(shape.batch * shape.query_tokens * features);
        let k = random.normals(shape.batch * shape.key_tokens * features);
        let v = random.normals(k.len());
        let offsets = shape.query_tokens + shape.key_tokens - 1;
        let bias = with_bias.then(|| random.normals(shape.heads * offsets));
        let bias = bias.as_deref();
        let expected = reference(&shape, &q, &k, &v, bias);
        for_each_workers(|workers| {
            let mut out = vec![f32::NAN; q.len()];
            let mut scratch = scratch(attention_scratch_len(&shape, workers.count()));
            attention(workers, &shape, &q, &k, &v, bias, &mut out, &mut scratch);
            assert_close(&out, &expected, 1e-5, &format!("{shape:?} {}", workers.isa()));
            out
        });
    }

    const SHAPE: AttentionShape = AttentionShape {
        batch: 1,
        query_tokens: 1,
        key_tokens: 1,
        heads: 1,
        head_dim: 1,
        scale: 1.0,
        causal: false,
    };

    #[test]
    fn small_and_odd_shapes_match_the_reference() {
        check(SHAPE, false);
        check(AttentionShape { query_tokens: 5, key_tokens: 9, head_dim: 3, ..SHAPE }, true);
        let shape = AttentionShape { batch: 2, heads: 3, head_dim: 20, scale: 0.22, ..SHAPE };
        check(AttentionShape { query_tokens: 70, key_tokens: 51, ..shape }, false);
        check(AttentionShape { query_tokens: 33, key_tokens: 100, ..shape }, true);
    }

    #[test]
    fn causal_queries_see_only_what_came_before() {
        let shape = AttentionShape { heads: 2, head_dim: 16, scale: 0.25, causal: true, ..SHAPE };
        check(AttentionShape { query_tokens: 77, key_tokens: 77, batch: 2, ..shape }, false);
        check(AttentionShape { query_tokens: 130, key_tokens: 130, ..shape }, true);
    }

    #[test]
    fn one_head_is_shared_among_workers() {
        let shape = AttentionShape { query_tokens: 390, key_tokens: 410, head_dim: 40, ..SHAPE };
        assert!(!shape.tasks_are_heads(2) && !shape.tasks_are_heads(3));
        check(AttentionShape { scale: 0.16, ..shape }, false);
    }

    #[test]
    fn sums_longer_than_a_block_match_the_reference() {
        let long = AttentionShape { query_tokens: 3, key_tokens: 1500, head_dim: 8, ..SHAPE };
        check(AttentionShape { scale: 0.35, ..long }, false);
        let wide = AttentionShape { query_tokens: 4, key_tokens: 6, head_dim: 1100, ..SHAPE };
        check(AttentionShape { scale: 0.03, ..wide }, false);
    }
}
