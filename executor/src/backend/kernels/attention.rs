//! Scaled dot-product attention over blocks of keys: the softmax is formed while the keys go by.
//!
//! A task is a chunk of queries of one head. It goes through the keys block by block: a block's scores
//! lie in the worker's scratch and become weights relative to the largest score so far; what was
//! summed before is scaled down where a block has a larger one. So scratch grows with the chunk, the
//! block and `head_dim`, and never with the number of tokens.
//!
//! Invariant: a query's arithmetic depends on the blocks only. Neither the chunk that it falls into
//! nor the worker that takes it changes a bit.

use std::ops::Range;

use super::math::exp;
use super::simd::{Isa, per_isa};
use super::tile::{Rows, Target, aligned, depth_blocks, multiply_rows, panel_len, panel_stride};
use super::transpose::transpose;
use super::workers::{Disjoint, Workers};

/// Keys whose scores and transposed values are held at a time. In the same measurement, 128 keys run
/// at 0.78 of its rate, 256 at 0.90 and 384 at 0.96, as products sum each block on its own; 1024 run at
/// 1.02, but their scores and values leave a second level cache of 1 MiB.
const KEY_BLOCK: usize = 512;

/// Keys that are packed at a time: 24 KiB with heads of 128.
const PANEL_KEYS: usize = 48;

/// Value features that are multiplied at a time, to keep their panel in the second level cache.
const PANEL_FEATURES: usize = 96;

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
    /// Queries of a head that one task takes, at least 1; the last chunk may be shorter. More cost
    /// more scratch and pack keys and values less often. Results are the same bits for any.
    pub query_chunk: usize,
}

impl AttentionShape {
    fn features(&self) -> usize {
        self.heads * self.head_dim
    }

    fn operations(&self) -> usize {
        4 * self.batch * self.query_tokens * self.key_tokens * self.features()
    }

    /// Chunks of one head.
    fn chunks(&self) -> usize {
        self.query_tokens.div_ceil(self.query_chunk)
    }

    /// Queries of the longest chunk.
    fn chunk_queries(&self) -> usize {
        self.query_tokens.min(self.query_chunk)
    }

    /// Keys of the longest block.
    fn block_keys(&self) -> usize {
        self.key_tokens.min(KEY_BLOCK)
    }

    /// Lengths of a worker's scores, packed keys and transposed values.
    fn panels_len(&self) -> [usize; 3] {
        [
            panel_len(self.chunk_queries(), self.block_keys()),
            panel_len(self.block_keys().min(PANEL_KEYS), self.head_dim),
            panel_len(self.head_dim, self.block_keys()),
        ]
    }

    fn worker_scratch_len(&self) -> usize {
        let softmax_len = 2 * self.chunk_queries();
        self.panels_len().iter().sum::<usize>() + softmax_len
    }
}

/// How many elements of scratch [`attention`] needs with so many workers.
pub fn attention_scratch_len(shape: &AttentionShape, workers: usize) -> usize {
    workers * shape.worker_scratch_len()
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
    assert!(shape.query_chunk > 0, "a chunk has queries");
    assert!(scratch.len() >= attention_scratch_len(shape, workers.count()), "scratch");

    let out = Disjoint::new(out);
    let call = Call { isa: workers.isa(), shape, q, k, v, bias, out: &out };
    let chunks = shape.chunks();
    let tasks = shape.batch * shape.heads * chunks;
    let len = shape.worker_scratch_len();
    workers.for_each_with(tasks, shape.operations(), scratch, len, |scratch, task| {
        let first = task % chunks * shape.query_chunk;
        let queries = first..shape.query_tokens.min(first + shape.query_chunk);
        call.attend(task / chunks, queries, &mut Scratch::new(shape, scratch));
    });
}

/// A worker's scratch.
struct Scratch<'a> {
    /// `[queries, block keys]`
    scores: &'a mut [f32],
    /// `[panel keys, head_dim]`
    keys: &'a mut [f32],
    /// `[head_dim, block keys]`
    values: &'a mut [f32],
    /// Of each query, the largest score so far.
    largest: &'a mut [f32],
    /// Of each query, the sum of its weights so far, each relative to the largest score.
    sums: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn new(shape: &AttentionShape, scratch: &'a mut [f32]) -> Scratch<'a> {
        let [scores_len, keys_len, values_len] = shape.panels_len();
        let (scores, rest) = scratch.split_at_mut(scores_len);
        let (keys, rest) = rest.split_at_mut(keys_len);
        let (values, rest) = rest.split_at_mut(values_len);
        let (largest, sums) = rest.split_at_mut(shape.chunk_queries());
        Scratch {
            scores: aligned(scores),
            keys: aligned(keys),
            values: aligned(values),
            largest,
            sums,
        }
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

/// One block of keys for those queries of a task that see some of it.
struct Block {
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Call<'_> {
    /// Where a head's features of a token begin in a tensor of `tokens` tokens.
    fn at(&self, head: usize, tokens: usize, token: usize) -> usize {
        let (batch, head) = (head / self.shape.heads, head % self.shape.heads);
        (batch * tokens + token) * self.shape.features() + head * self.shape.head_dim
    }

    /// One chunk of queries of a head.
    fn attend(&self, head: usize, chunk: Range<usize>, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        // Finite, so that scores of minus infinity weigh nothing even where a block has no others.
        scratch.largest.fill(f32::MIN);
        scratch.sums.fill(0.0);
        let seen = if shape.causal { chunk.end } else { shape.key_tokens };
        for from in (0..seen).step_by(KEY_BLOCK) {
            let first = if shape.causal { chunk.start.max(from) } else { chunk.start };
            // Whole blocks, even where the chunk sees less: how sums are formed may not depend on it.
            let keys = from..shape.key_tokens.min(from + KEY_BLOCK);
            let block = Block { head, queries: first..chunk.end, keys };
            self.score(&block, scratch);
            self.soften(&block, first - chunk.start, scratch);
            self.accumulate(&block, scratch);
        }
        for (query, sum) in chunk.zip(&*scratch.sums) {
            let from = self.at(head, shape.query_tokens, query);
            // SAFETY: no other task has this query of this head.
            let row = unsafe { self.out.range(from..from + shape.head_dim) };
            row.iter_mut().for_each(|value| *value /= sum);
        }
    }

    /// `scores[query, key] = q · k`, unscaled.
    fn score(&self, block: &Block, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        let stride = panel_stride(shape.head_dim);
        let scores = Disjoint::new(scratch.scores);
        for from in block.keys.clone().step_by(PANEL_KEYS) {
            let count = PANEL_KEYS.min(block.keys.end - from);
            for (key, row) in (from..from + count).zip(scratch.keys.chunks_mut(stride)) {
                let begin = self.at(block.head, shape.key_tokens, key);
                row[..shape.head_dim].copy_from_slice(&self.k[begin..begin + shape.head_dim]);
            }
            for (feature, depth) in depth_blocks(shape.head_dim) {
                let a = self.at(block.head, shape.query_tokens, block.queries.start) + feature;
                let (a, count_a) = (&self.q[a..], block.queries.len());
                let a = Rows { values: a, stride: shape.features(), count: count_a };
                let b = Rows { values: &scratch.keys[feature..], stride, count };
                let (begin, stride) = (from - block.keys.start, panel_stride(shape.block_keys()));
                // SAFETY: the scores are this task's own.
                let target = unsafe { Target::new(&scores, begin, stride, feature > 0) };
                multiply_rows(self.isa, a, b, depth, target);
            }
        }
    }

    /// Turns scores into weights that are relative to the largest score so far, and makes what was
    /// summed before relative to it too. The block's first query is number `first` of its chunk.
    fn soften(&self, block: &Block, first: usize, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        let rows = scratch.scores.chunks_mut(panel_stride(shape.block_keys()));
        let softmax = scratch.largest[first..].iter_mut().zip(&mut scratch.sums[first..]);
        for ((query, row), (largest, sum)) in block.queries.clone().zip(rows).zip(softmax) {
            let end = if shape.causal { block.keys.end.min(query + 1) } else { block.keys.end };
            let seen = end - block.keys.start;
            let bias = self.bias.map(|bias| {
                let offsets = shape.query_tokens + shape.key_tokens - 1;
                let begin = block.head % shape.heads * offsets + shape.query_tokens - 1 - query;
                &bias[begin + block.keys.start..begin + end]
            });
            let factor = exponentials(self.isa, &mut row[..seen], shape.scale, bias, largest, sum);
            row[seen..block.keys.len()].fill(0.0);
            if block.keys.start > 0 && factor != 1.0 {
                let from = self.at(block.head, shape.query_tokens, query);
                // SAFETY: no other task has this query of this head.
                let row = unsafe { self.out.range(from..from + shape.head_dim) };
                row.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }

    /// Adds `sum over the block's keys of weights[query, key] · v[key]` to `out[query]`, which the
    /// first block begins.
    fn accumulate(&self, block: &Block, scratch: &mut Scratch<'_>) {
        let (shape, keys) = (self.shape, block.keys.len());
        let stride = panel_stride(shape.block_keys());
        let v = &self.v[self.at(block.head, shape.key_tokens, block.keys.start)..];
        let v = Rows { values: v, stride: shape.features(), count: keys };
        transpose(self.isa, v, shape.head_dim, scratch.values, stride);
        for feature in (0..shape.head_dim).step_by(PANEL_FEATURES) {
            let count = PANEL_FEATURES.min(shape.head_dim - feature);
            let a = Rows { values: scratch.scores, stride, count: block.queries.len() };
            let b = Rows { values: &scratch.values[feature * stride..], stride, count };
            let begin = self.at(block.head, shape.query_tokens, block.queries.start) + feature;
            let accumulate = block.keys.start > 0;
            // SAFETY: no other task has these queries of this head.
            let target = unsafe { Target::new(self.out, begin, shape.features(), accumulate) };
            multiply_rows(self.isa, a, b, keys, target);
        }
    }
}

per_isa! {
    /// Replaces each score by `exp(scale · score + bias - largest)` with the largest of these and of
    /// those before; adds them to `sum`. Returns the factor by which weights before are too large.
    fn exponentials<L>(
        scores: &mut [f32],
        scale: f32,
        bias: Option<&[f32]>,
        largest: &mut f32,
        sum: &mut f32,
    ) -> f32 {
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
        let before = *largest;
        let mut maxima = [before; LANES];
        let (blocks, rest) = scores.as_chunks::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                maxima[lane] = if block[lane] > maxima[lane] { block[lane] } else { maxima[lane] };
            }
        }
        let maximum = maxima.iter().chain(rest).fold(before, |a, &b| a.max(b));
        let mut sums = [0.0; LANES];
        let (blocks, rest) = scores.as_chunks_mut::<LANES>();
        for block in blocks {
            for lane in 0..LANES {
                block[lane] = exp::<L>(block[lane] - maximum);
                sums[lane] += block[lane];
            }
        }
        for (score, sum) in rest.iter_mut().zip(&mut sums) {
            *score = exp::<L>(*score - maximum);
            *sum += *score;
        }
        let factor = exp::<L>(before - maximum);
        *sum = *sum * factor + sums.iter().sum::<f32>();
        *largest = maximum;
        factor
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

    /// Compares every instruction set and some chunks with the reference; chunks to the bit.
    fn check(shape: AttentionShape, bias: Option<&[f32]>) {
        let features = shape.heads * shape.head_dim;
        let mut random = Random::new(shape.key_tokens as u64);
        let q = random.normals(shape.batch * shape.query_tokens * features);
        let k = random.normals(shape.batch * shape.key_tokens * features);
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

    fn check_with_bias(shape: AttentionShape) {
        let offsets = shape.query_tokens + shape.key_tokens - 1;
        check(shape, Some(&Random::new(1).normals(shape.heads * offsets)));
    }

    const SHAPE: AttentionShape = AttentionShape {
        batch: 1,
        query_tokens: 1,
        key_tokens: 1,
        heads: 1,
        head_dim: 1,
        scale: 1.0,
        causal: false,
        query_chunk: 64,
    };

    #[test]
    fn small_and_odd_shapes_match_the_reference() {
        check(SHAPE, None);
        check_with_bias(AttentionShape { query_tokens: 5, key_tokens: 9, head_dim: 3, ..SHAPE });
        let shape = AttentionShape { batch: 2, heads: 3, head_dim: 20, scale: 0.22, ..SHAPE };
        check(AttentionShape { query_tokens: 70, key_tokens: 51, ..shape }, None);
        check_with_bias(AttentionShape { query_tokens: 33, key_tokens: 100, ..shape });
    }

    #[test]
    fn causal_queries_see_only_what_came_before() {
        let shape = AttentionShape { heads: 2, head_dim: 16, scale: 0.25, causal: true, ..SHAPE };
        check(AttentionShape { query_tokens: 77, key_tokens: 77, batch: 2, ..shape }, None);
        check_with_bias(AttentionShape { query_tokens: 130, key_tokens: 130, ..shape });
        // The second block begins within a chunk.
        let tokens = KEY_BLOCK + 45;
        let blocks = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..shape };
        check(AttentionShape { heads: 1, ..blocks }, None);
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
        check_with_bias(AttentionShape { batch: 2, heads: 2, scale: 0.35, ..long });
        let wide = AttentionShape { query_tokens: 4, key_tokens: 6, head_dim: 1100, ..SHAPE };
        check(AttentionShape { scale: 0.03, ..wide }, None);
    }

    #[test]
    fn later_blocks_may_have_the_larger_scores() {
        let (query_tokens, key_tokens) = (5, 3 * KEY_BLOCK + 1);
        let shape = AttentionShape { query_tokens, key_tokens, head_dim: 8, scale: 0.35, ..SHAPE };
        let offsets = query_tokens + key_tokens - 1;
        let rising: Vec<f32> = (0..offsets).map(|at| at as f32 / 100.0).collect();
        check(shape, Some(&rising));
        // Nothing of the first block weighs anything.
        let hidden = |at| if at < KEY_BLOCK + query_tokens { f32::NEG_INFINITY } else { 0.0 };
        check(shape, Some(&(0..offsets).map(hidden).collect::<Vec<_>>()));
    }

    #[test]
    fn scratch_does_not_grow_with_the_tokens() {
        let scratch_len = |tokens, query_chunk| {
            let shape = AttentionShape { query_tokens: tokens, key_tokens: tokens, ..SHAPE };
            let shape = AttentionShape { head_dim: 128, heads: 24, query_chunk, ..shape };
            attention_scratch_len(&shape, 2)
        };
        assert_eq!(scratch_len(1536, 256), scratch_len(1_000_000, 256));
        assert!(scratch_len(1536, 64) < scratch_len(1536, 256));
        assert!(scratch_len(77, 256) < scratch_len(1536, 256));
    }
}
