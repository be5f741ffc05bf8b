//! Scaled dot-product attention over blocks of keys: the softmax is formed while the keys go by.
//!
//! A task is a chunk of queries of one head. It goes through the keys block by block, and through
//! its queries in panels, which lie in the lanes: a panel's scores of a block are `[keys, PANEL]`,
//! stay in the first level cache, and become weights relative to the largest score so far; what was
//! summed before is scaled down where a block has a larger one. So scratch grows with the chunk,
//! the block and `head_dim`, and never with the number of tokens.
//!
//! Where the processor multiplies tiles of bf16 and rounding is allowed, queries, keys, values and
//! weights are rounded to it, each once, and both products formed in [tiles](tiled); softmax and
//! sums are in f32 in any case.
//!
//! Invariant: a query's arithmetic depends on the blocks only, and goes through each in the order
//! of the keys. Neither the chunk nor the lane that it falls into, nor the worker that takes it,
//! changes a bit.

// Nothing multiplies in tiles elsewhere.
#[cfg(not(target_arch = "x86_64"))]
use std::convert::Infallible as Tiles;
use std::ops::Range;

use super::grid::{Rows, piece};
use super::outer::{PANEL, multiply_panel};
use super::simd::Isa;
use super::simd::per_isa;
#[cfg(target_arch = "x86_64")]
use super::tiles::Tiles;
use super::transpose::transpose;
use super::workers::{Disjoint, Workers};

mod shape;
#[cfg(target_arch = "x86_64")]
mod tiled;

pub use shape::AttentionShape;

/// Features of a score that are summed on their own: longer sums lose more to rounding.
const SCORE_DEPTH: usize = 128;

/// How many elements of scratch [`attention`] needs with so many workers.
pub fn attention_scratch_len(shape: &AttentionShape, workers: usize) -> usize {
    workers * shape.worker_scratch_len()
}

/// `out = softmax(scale · q · kᵀ + bias) · v`, head by head.
///
/// `q`, `out`: `[batch, query_tokens, heads · head_dim]`. `k`, `v`: `[batch, key_tokens, kv_heads ·
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
    masked_attention(workers, shape, shape.key_tokens, q, k, v, bias, out, scratch);
}

/// The same over the first `known` keys alone, of each batch item: those behind them are padding,
/// and weigh nothing.
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn masked_attention(
    workers: &Workers,
    shape: &AttentionShape,
    known: usize,
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
    assert!(shape.heads.is_multiple_of(shape.kv_heads), "heads share keys in equal groups");
    assert_eq!(k.len(), shape.batch * shape.key_tokens * shape.kv_features(), "k");
    assert_eq!(v.len(), k.len(), "v");
    assert_eq!(out.len(), q.len(), "out");
    assert!(bias.is_none_or(|bias| bias.len() == shape.heads * offsets), "bias");
    assert!(!shape.causal || shape.query_tokens == shape.key_tokens, "causal needs equal tokens");
    assert!(shape.query_chunk > 0, "a chunk has queries");
    assert!((1..=shape.key_tokens).contains(&known), "a query has keys to see");
    assert!(scratch.len() >= attention_scratch_len(shape, workers.count()), "scratch");

    let out = Disjoint::new(out);
    #[cfg(target_arch = "x86_64")]
    let in_tiles = shape.rounds && workers.isa().has_bf16_products() && tiled::fits(shape);
    #[cfg(not(target_arch = "x86_64"))]
    let in_tiles = false;
    let isa = workers.isa();
    let call = AttentionCall { isa, in_tiles, shape, known, q, k, v, bias, out: &out };
    let chunks = shape.chunks();
    let tasks = shape.batch * shape.heads * chunks;
    let len = shape.worker_scratch_len();
    workers.for_each_with(tasks, shape.operations(), scratch, len, |scratch, task| {
        let first = task % chunks * shape.query_chunk;
        let queries = first..shape.query_tokens.min(first + shape.query_chunk);
        call.attend(task / chunks, queries, &mut Scratch::new(shape, scratch));
    });
}

/// What one worker writes on its way.
struct Scratch<'a> {
    /// Panels of `[head_dim, PANEL]`: the queries times the scale, and log2 e for
    /// [`Lanes::exp2`](super::simd::Lanes).
    queries: &'a mut [f32],
    /// Panels of `[head_dim, PANEL]`: the sums of weighted values so far.
    sums: &'a mut [f32],
    /// Of each query, the largest score so far, in powers of two.
    largest: &'a mut [f32],
    /// Of each query, the sum of its weights so far, each relative to the largest score.
    weights: &'a mut [f32],
    /// `[head_dim, key_stride]`: the block's keys.
    keys: &'a mut [f32],
    /// `[block_keys, value_stride]`: the block's values.
    values: &'a mut [f32],
    /// `[block_keys, PANEL]`
    scores: &'a mut [f32],
    /// `[block_keys + PANEL]`: biases of a panel and a block, the last one first.
    biases: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn new(shape: &AttentionShape, mut scratch: &'a mut [f32]) -> Scratch<'a> {
        let [queries, sums, largest, weights, keys, values, scores, biases] =
            shape.pieces().map(|len| piece(&mut scratch, len));
        Scratch { queries, sums, largest, weights, keys, values, scores, biases }
    }
}

/// Keys that some queries see.
struct Block {
    /// How many are packed.
    packed: usize,
    /// Those of them, from the first on, that any of the queries sees.
    keys: Range<usize>,
}

/// What all tasks of one call share. A head is numbered through the batch.
struct AttentionCall<'a> {
    isa: Isa,
    /// Whether products are formed in tiles of bf16.
    in_tiles: bool,
    shape: &'a AttentionShape,
    /// Keys of a batch item that are seen at all.
    known: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a Disjoint<'a>,
}

impl AttentionCall<'_> {
    /// Where a head's features of a query begin.
    fn query_at(&self, head: usize, query: usize) -> usize {
        let (batch, head) = (head / self.shape.heads, head % self.shape.heads);
        let token = batch * self.shape.query_tokens + query;
        token * self.shape.features() + head * self.shape.head_dim
    }

    /// Where the features of a key, or of its value, begin that a head of queries sees.
    fn key_at(&self, head: usize, key: usize) -> usize {
        let (batch, head) = (head / self.shape.heads, head % self.shape.heads);
        let shared = head * self.shape.kv_heads / self.shape.heads;
        let token = batch * self.shape.key_tokens + key;
        token * self.shape.kv_features() + shared * self.shape.head_dim
    }

    /// The queries of a chunk, panel by panel.
    fn panels(chunk: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let end = chunk.end;
        let panel = move |first: usize| first..end.min(first + PANEL);
        chunk.clone().step_by(PANEL).map(panel).enumerate()
    }

    /// One chunk of queries of a head.
    fn attend(&self, head: usize, chunk: Range<usize>, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        #[cfg(target_arch = "x86_64")]
        let tiles = self.in_tiles.then(|| Tiles::configure(self.isa.has_tiles()));
        #[cfg(not(target_arch = "x86_64"))]
        let tiles = None;
        for (index, queries) in Self::panels(&chunk) {
            self.pack_queries(head, index, queries, scratch);
        }
        // Finite, so that scores of minus infinity weigh nothing even where a block has no others.
        scratch.largest.fill(f32::MIN);
        scratch.weights.fill(0.0);
        let seen = if shape.causal { chunk.end.min(self.known) } else { self.known };
        for from in (0..seen).step_by(shape.block_keys()) {
            let keys = from..seen.min(from + shape.block_keys());
            self.pack_keys(head, keys.clone(), scratch);
            for (index, queries) in Self::panels(&chunk) {
                let end = if shape.causal { keys.end.min(queries.end) } else { keys.end };
                if from < end {
                    let block = Block { packed: keys.len(), keys: from..end };
                    self.add_block(tiles.as_ref(), head, index, queries, &block, scratch);
                }
            }
        }
        for (index, queries) in Self::panels(&chunk) {
            self.finish(head, index, queries, scratch);
        }
    }

    fn pack_queries(
        &self,
        head: usize,
        index: usize,
        queries: Range<usize>,
        scratch: &mut Scratch<'_>,
    ) {
        let shape = self.shape;
        let (len, features) = (shape.head_dim * PANEL, shape.features());
        let panel = &mut scratch.queries[index * len..(index + 1) * len];
        if queries.len() < PANEL {
            panel.fill(0.0);
        }
        let q = &self.q[self.query_at(head, queries.start)..];
        #[cfg(target_arch = "x86_64")]
        if self.in_tiles {
            let scale = shape.scale * std::f32::consts::LOG2_E;
            // SAFETY: the machine multiplies bf16, and has the instructions that go with it.
            unsafe {
                tiled::pack_queries(q, features, queries.len(), shape.head_dim, scale, panel);
            }
            return;
        }
        transpose(self.isa, q, features, queries.len(), shape.head_dim, panel, PANEL);
        let scale = shape.scale * std::f32::consts::LOG2_E;
        panel.iter_mut().for_each(|value| *value *= scale);
    }

    fn pack_keys(&self, head: usize, keys: Range<usize>, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        let (dim, features) = (shape.head_dim, shape.kv_features());
        let first = self.key_at(head, keys.start);
        #[cfg(target_arch = "x86_64")]
        if self.in_tiles {
            let (k, v, count) = (&self.k[first..], &self.v[first..], keys.len());
            // SAFETY: the machine multiplies bf16, and has the instructions that go with it.
            unsafe {
                tiled::pack_keys(k, features, count, dim, scratch.keys);
                tiled::pack_values(v, features, count, dim, scratch.values);
            }
            return;
        }
        let stride = shape.key_stride();
        transpose(self.isa, &self.k[first..], features, keys.len(), dim, scratch.keys, stride);
        let packed = scratch.values.chunks_mut(shape.value_stride());
        for (row, packed) in self.v[first..].chunks(features).zip(packed).take(keys.len()) {
            packed[..dim].copy_from_slice(&row[..dim]);
        }
    }

    /// Adds the values of a block of keys, weighted, to the sums of a panel of queries.
    fn add_block(
        &self,
        tiles: Option<&Tiles>,
        head: usize,
        index: usize,
        queries: Range<usize>,
        block: &Block,
        scratch: &mut Scratch<'_>,
    ) {
        let (shape, keys) = (self.shape, block.keys.clone());
        let (dim, count) = (shape.head_dim, keys.len());
        let panel = index * dim * PANEL..(index + 1) * dim * PANEL;
        let Scratch { scores, biases, .. } = scratch;
        self.score(tiles, &scratch.queries[panel.clone()], scratch.keys, count, scores);
        let biases = self.bias.map(|bias| {
            self.turn_biases(bias, head, queries.start, &keys, biases);
            &**biases
        });
        if shape.causal {
            // Of the keys behind its first query, a panel's other queries see some.
            for key in keys.clone().skip_while(|&key| key <= queries.start) {
                let hidden = (key - queries.start).min(PANEL);
                scores[(key - keys.start) * PANEL..][..hidden].fill(f32::NEG_INFINITY);
            }
        }
        let lanes = index * PANEL..(index + 1) * PANEL;
        let mut factors = [0.0; PANEL];
        let scores = &mut scores[..count * PANEL];
        let (largest, weights) = (&mut scratch.largest[lanes.clone()], &mut scratch.weights[lanes]);
        soften(self.isa, scores, biases, largest, weights, &mut factors);
        let factors = (keys.start > 0).then_some(&factors);
        let sums = &mut scratch.sums[panel];
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = tiles {
            let (values, weights) =
                scratch.values.split_at_mut(tiled::values_words(block.packed, dim));
            // SAFETY: the machine multiplies bf16, and has the instructions that go with it.
            unsafe { tiled::pack_weights(scores, count, weights) };
            tiled::add_values(tiles, values, block.packed, weights, count, dim, factors, sums);
            return;
        }
        let values = Rows { values: scratch.values, stride: shape.value_stride(), count: dim };
        multiply_panel(self.isa, values, scores, count, factors, sums);
    }

    /// The scores of a panel of queries and the first `count` keys of the packed block.
    fn score(
        &self,
        tiles: Option<&Tiles>,
        q: &[f32],
        keys: &[f32],
        count: usize,
        scores: &mut [f32],
    ) {
        let (dim, stride) = (self.shape.head_dim, self.shape.key_stride());
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = tiles {
            tiled::score(tiles, keys, q, count, dim, scores);
            return;
        }
        for from in (0..dim).step_by(SCORE_DEPTH) {
            let (q, depth) = (&q[from * PANEL..], SCORE_DEPTH.min(dim - from));
            let packed = Rows { values: &keys[from * stride..], stride, count };
            let factors = (from > 0).then_some(&[1.0; PANEL]);
            multiply_panel(self.isa, packed, q, depth, factors, scores);
        }
    }

    /// The biases of a panel's queries, from `query` on, and some keys, so that those of a key
    /// follow each other: of `keys.start + i` and `query + j`, `out[keys.len() - 1 - i + j]`.
    fn turn_biases(
        &self,
        bias: &[f32],
        head: usize,
        query: usize,
        keys: &Range<usize>,
        out: &mut [f32],
    ) {
        let shape = self.shape;
        let offsets = shape.query_tokens + shape.key_tokens - 1;
        let bias = &bias[head % shape.heads * offsets..][..offsets];
        // Lanes without a query have no biases: those of the last ones do no harm.
        let last = keys.end - 1 + shape.query_tokens - 1 - query;
        for (at, turned) in out[..keys.len() - 1 + PANEL].iter_mut().enumerate() {
            *turned = bias[last.saturating_sub(at)] * std::f32::consts::LOG2_E;
        }
    }

    /// Writes a panel's queries: their sums over the sums of their weights.
    fn finish(&self, head: usize, index: usize, queries: Range<usize>, scratch: &mut Scratch<'_>) {
        let shape = self.shape;
        let dim = shape.head_dim;
        let sums = &mut scratch.sums[index * dim * PANEL..(index + 1) * dim * PANEL];
        let weights = &scratch.weights[index * PANEL..(index + 1) * PANEL];
        for row in sums.chunks_exact_mut(PANEL) {
            row.iter_mut().zip(weights).for_each(|(sum, weight)| *sum /= weight);
        }
        // The packed keys are done with; they have room for at least as many rows.
        let rows = &mut scratch.keys[..queries.len() * dim];
        transpose(self.isa, sums, PANEL, dim, queries.len(), rows, dim);
        for (query, row) in queries.zip(rows.chunks_exact(dim)) {
            let from = self.query_at(head, query);
            // SAFETY: no other task has this query of this head.
            unsafe { self.out.range(from..from + dim) }.copy_from_slice(row);
        }
    }
}

per_isa! {
    /// Replaces each score, plus its bias, by two to the power of it less the largest of its column
    /// so far, adds these to the column's weights, and gives the factors by which what was summed
    /// before is too large. `scores`: `[keys, PANEL]`; `biases`: those of key `i` begin with
    /// element `keys - 1 - i`.
    fn soften<L>(
        scores: &mut [f32],
        biases: Option<&[f32]>,
        largest: &mut [f32],
        weights: &mut [f32],
        factors: &mut [f32; PANEL],
    ) {
        let keys = scores.len() / PANEL;
        assert!(scores.len() == keys * PANEL && largest.len() == PANEL && weights.len() == PANEL);
        assert!(biases.is_none_or(|biases| biases.len() >= keys - 1 + PANEL), "biases");
        for column in (0..PANEL).step_by(L::WIDTH) {
            // SAFETY: `per_isa!` has the instructions; rows and columns are within the lengths
            // checked above.
            unsafe {
                let scores = scores.as_mut_ptr().add(column);
                let before = L::load(largest.as_ptr().add(column));
                let mut maximum = before;
                for key in 0..keys {
                    let at = scores.add(key * PANEL);
                    let mut score = L::load(at);
                    if let Some(biases) = biases {
                        score = L::add(score, L::load(biases.as_ptr().add(keys - 1 - key + column)));
                        L::store(at, score);
                    }
                    maximum = L::larger(maximum, score);
                }
                let mut sum = L::zero();
                for key in 0..keys {
                    let at = scores.add(key * PANEL);
                    let weight = L::exp2(L::subtract(L::load(at), maximum));
                    L::store(at, weight);
                    sum = L::add(sum, weight);
                }
                let factor = L::exp2(L::subtract(before, maximum));
                let weights = weights.as_mut_ptr().add(column);
                L::store(weights, L::multiply_add(L::load(weights), factor, sum));
                L::store(factors.as_mut_ptr().add(column), factor);
                L::store(largest.as_mut_ptr().add(column), maximum);
            }
        }
    }
}

#[cfg(test)]
mod tests;
