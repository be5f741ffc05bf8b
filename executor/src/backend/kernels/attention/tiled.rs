//! The operands of attention as tiles of bf16, and their products: scores are keys times
//! queries, results values times weights, so that queries are the columns of both and lie in lanes
//! between them, as they do in f32.
//!
//! Packed, a panel of queries is two tiles of 16 columns for each 32 features. Keys are strips of
//! 32 rows, in each two rows of tiles along the features. Values are turned: features are rows, 16
//! a row of tiles, along the keys. Weights are two tiles of 16 columns for each 32 keys. What is
//! beyond the features or the keys is zero.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_maskz_loadu_ps,
    _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    _mm512_storeu_si512,
};
use std::mem::transmute;

use super::AttentionShape;
use crate::backend::kernels::bf16::round_rows;
use crate::backend::kernels::lanes::{Lanes, SQUARE_MAX};
use crate::backend::kernels::outer::PANEL;
use crate::backend::kernels::simd::Avx512;
use crate::backend::kernels::tiles::{TILE_BYTES, TILE_ROWS, TileRows, TileSums, Tiles};

/// Depth of a tile: features of a score, keys of a result.
const STEP: usize = 32;

/// Numbers of a vector of f32.
const VECTOR: usize = 16;

/// Whether the scratch of an attention in f32 has room for one in tiles. Depends neither on the
/// chunk nor on the workers.
pub(super) fn fits(shape: &AttentionShape) -> bool {
    let (dim, keys) = (shape.head_dim, shape.block_keys());
    let depth = keys.next_multiple_of(STEP);
    let strips = 2 * keys.next_multiple_of(TILE_ROWS) * dim.next_multiple_of(STEP);
    let values = 2 * dim.next_multiple_of(TILE_ROWS) * depth;
    let weights = 2 * PANEL * depth;
    dim >= TILE_ROWS
        && strips <= 4 * dim * shape.key_stride()
        && values + weights <= 4 * keys * shape.value_stride()
}

/// Packs `count` queries times `scale` as a panel; rows begin `stride` apart.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn pack_queries(
    q: &[f32],
    stride: usize,
    count: usize,
    dim: usize,
    scale: f32,
    panel: &mut [f32],
) {
    assert!((1..=PANEL).contains(&count) && (count - 1) * stride + dim <= q.len(), "queries");
    let panel: &mut [u8] = bytemuck::cast_slice_mut(panel);
    assert!(dim.div_ceil(STEP) * 2 * TILE_BYTES <= panel.len(), "a panel's room");
    let scales = _mm512_set1_ps(scale);
    for (step, tiles) in panel.chunks_exact_mut(2 * TILE_BYTES).take(dim.div_ceil(STEP)).enumerate()
    {
        let features = STEP.min(dim - step * STEP);
        for (half, tile) in tiles.chunks_exact_mut(TILE_BYTES).enumerate() {
            let mut rows = [[0u8; 2 * STEP]; SQUARE_MAX];
            let present = count.saturating_sub(half * TILE_ROWS).min(TILE_ROWS);
            for (row, rounded) in rows.iter_mut().take(present).enumerate() {
                let from = &q[(half * TILE_ROWS + row) * stride + step * STEP..][..features];
                // SAFETY: the instructions are there, and a row has 64 bytes.
                unsafe {
                    let [low, high] = load(from);
                    let low = _mm512_mul_ps(low, scales);
                    let high = _mm512_mul_ps(high, scales);
                    store(rounded.as_mut_ptr(), round(low, high));
                }
            }
            // SAFETY: each row has the 64 bytes of a vector, and a tile 16 of them.
            unsafe {
                let columns = Avx512::transposed(&rows.each_ref().map(|row| row.as_ptr()), 0);
                for (row, &column) in tile.chunks_exact_mut(2 * STEP).zip(&columns) {
                    Avx512::store(row.as_mut_ptr().cast(), column);
                }
            }
        }
    }
}

/// Packs `count` keys; rows begin `stride` apart.
///
/// # Safety
/// As of [`pack_queries`].
pub(super) unsafe fn pack_keys(
    k: &[f32],
    stride: usize,
    count: usize,
    dim: usize,
    keys: &mut [f32],
) {
    let words = strip_words(dim);
    for first in (0..count).step_by(PANEL) {
        let rows = PANEL.min(count - first);
        let strip = &mut keys[first / PANEL * words..];
        // SAFETY: the caller's promise.
        unsafe { round_rows(&k[first * stride..], stride, rows, dim, strip) };
    }
}

/// Elements of a strip of 32 keys.
const fn strip_words(dim: usize) -> usize {
    PANEL * dim.next_multiple_of(STEP) / 2
}

/// Packs the values of `count` keys; rows begin `stride` apart.
///
/// # Safety
/// As of [`pack_queries`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn pack_values(
    v: &[f32],
    stride: usize,
    count: usize,
    dim: usize,
    values: &mut [f32],
) {
    assert!(count > 0 && (count - 1) * stride + dim <= v.len(), "values");
    let steps = count.div_ceil(STEP);
    let values: &mut [u8] = bytemuck::cast_slice_mut(values);
    assert!(dim.div_ceil(TILE_ROWS) * steps * TILE_BYTES <= values.len(), "room");
    assert!(values.as_ptr().addr().is_multiple_of(64), "tiles begin with a cache line");
    for (strip, tiles) in values.chunks_exact_mut(steps * TILE_BYTES).enumerate() {
        let first = strip * VECTOR;
        if first >= dim {
            break;
        }
        let features = VECTOR.min(dim - first);
        for (step, tile) in tiles.chunks_exact_mut(TILE_BYTES).enumerate() {
            // SAFETY: the instructions are there; of the rows those are read that there are, each
            // with its features; a tile has 16 vectors.
            unsafe {
                let halves = [0, VECTOR].map(|half| {
                    let mut rows = [[0.0f32; VECTOR]; SQUARE_MAX];
                    let starts: [*const u8; SQUARE_MAX] = std::array::from_fn(|row| {
                        let key = step * STEP + half + row;
                        match (key < count, features == VECTOR) {
                            (true, true) => v.as_ptr().add(key * stride + first).cast(),
                            (true, false) => {
                                let from = &v[key * stride + first..][..features];
                                rows[row][..features].copy_from_slice(from);
                                rows[row].as_ptr().cast()
                            }
                            (false, _) => rows[row].as_ptr().cast(),
                        }
                    });
                    Avx512::transposed(&starts, 0)
                });
                for (row, tile) in tile.chunks_exact_mut(2 * STEP).enumerate() {
                    store(tile.as_mut_ptr(), round(halves[0][row], halves[1][row]));
                }
            }
        }
    }
}

/// How many elements the packed values of `keys` keys take.
pub(super) const fn values_words(keys: usize, dim: usize) -> usize {
    dim.next_multiple_of(TILE_ROWS) * keys.next_multiple_of(STEP) / 2
}

/// Writes the scores of a panel of queries and the first `count` packed keys, `[count, PANEL]`.
pub(super) fn score(
    tiles: &Tiles,
    keys: &[f32],
    queries: &[f32],
    count: usize,
    dim: usize,
    scores: &mut [f32],
) {
    let (steps, words) = (dim.div_ceil(STEP), strip_words(dim));
    assert!(count * PANEL <= scores.len(), "scores");
    assert!(2 * steps * TILE_BYTES <= 4 * queries.len(), "queries");
    for (strip, scores) in scores[..count * PANEL].chunks_mut(PANEL * PANEL).enumerate() {
        let rows = scores.len() / PANEL;
        let row_tiles = rows.div_ceil(TILE_ROWS);
        let a = &keys[strip * words..][..row_tiles * words / 2];
        let a = TileRows { start: a.as_ptr().cast(), second_bytes: steps * TILE_BYTES };
        let b = queries.as_ptr().cast();
        // SAFETY: the strip has so many row tiles, and the panel two tiles for each step.
        unsafe { through_edge(tiles, row_tiles, a, b, steps, scores, false) };
    }
}

/// Rounds weights, `[count, PANEL]`.
///
/// # Safety
/// As of [`pack_queries`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pack_weights(weights: &[f32], count: usize, packed: &mut [f32]) {
    assert!(count * PANEL <= weights.len(), "weights");
    let packed: &mut [u8] = bytemuck::cast_slice_mut(packed);
    let steps = count.div_ceil(STEP);
    assert!(steps * 2 * TILE_BYTES <= packed.len(), "room");
    assert!(packed.as_ptr().addr().is_multiple_of(64), "tiles begin with a cache line");
    // Of two rows, one behind the other, the elements in turns.
    let order: [u16; STEP] = std::array::from_fn(|at| (at / 2 + at % 2 * VECTOR) as u16);
    for pair in 0..steps * STEP / 2 {
        let to = pair / TILE_ROWS * 2 * TILE_BYTES + pair % TILE_ROWS * 2 * STEP;
        for half in 0..2 {
            let row = |key: usize| match key < count {
                // SAFETY: the row has 32 weights, as was checked above.
                true => unsafe {
                    _mm512_loadu_ps(weights.as_ptr().add(key * PANEL + half * VECTOR))
                },
                false => _mm512_setzero_ps(),
            };
            // SAFETY: the tiles have this row, as was checked above; the types are the same bits.
            unsafe {
                let order = transmute::<[u16; STEP], __m512i>(order);
                let both = round(row(2 * pair), row(2 * pair + 1));
                let turns = _mm512_permutexvar_epi16(order, both);
                store(packed.as_mut_ptr().add(to + half * TILE_BYTES), turns);
            }
        }
    }
}

/// Adds the weighted values of `count` keys to a panel's sums, `[dim, PANEL]`. Before that each sum
/// is multiplied with its column's factor; without factors the sums begin at zero. `values` are
/// those of `packed_keys` keys.
#[expect(clippy::too_many_arguments, reason = "each is an operand of the product")]
pub(super) fn add_values(
    tiles: &Tiles,
    values: &[f32],
    packed_keys: usize,
    weights: &[f32],
    count: usize,
    dim: usize,
    factors: Option<&[f32; PANEL]>,
    sums: &mut [f32],
) {
    let packed_steps = packed_keys.div_ceil(STEP);
    let (steps, row_words) = (count.div_ceil(STEP), packed_steps * TILE_BYTES / 4);
    assert!(count <= packed_keys && dim * PANEL <= sums.len(), "sums");
    assert!(2 * steps * TILE_BYTES <= 4 * weights.len(), "weights");
    if let Some(factors) = factors {
        // SAFETY: tiles are there, and the instructions with them.
        unsafe { scale(factors, &mut sums[..dim * PANEL]) };
    }
    for (strip, sums) in sums[..dim * PANEL].chunks_mut(PANEL * PANEL).enumerate() {
        let row_tiles = (sums.len() / PANEL).div_ceil(TILE_ROWS);
        let a = &values[2 * strip * row_words..][..row_tiles * row_words];
        let a = TileRows { start: a.as_ptr().cast(), second_bytes: packed_steps * TILE_BYTES };
        let b = weights.as_ptr().cast();
        // SAFETY: there are so many row tiles of values, and two tiles of weights for each step.
        unsafe { through_edge(tiles, row_tiles, a, b, steps, sums, factors.is_some()) };
    }
}

/// Multiplies rows of 32 with a factor for each column, unless all are 1.
///
/// # Safety
/// The machine has AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn scale(factors: &[f32; PANEL], rows: &mut [f32]) {
    if factors.iter().all(|&factor| factor == 1.0) {
        return;
    }
    for row in rows.as_chunks_mut::<PANEL>().0 {
        for half in [0, VECTOR] {
            // SAFETY: a row and the factors are two vectors.
            unsafe {
                let factor = _mm512_loadu_ps(factors.as_ptr().add(half));
                let at = row.as_mut_ptr().add(half);
                _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), factor));
            }
        }
    }
}

/// Multiplies one or two row tiles. `sums` are rows of 32; the last rows of a tile may lack them.
///
/// # Safety
/// As of [`Tiles::bf16_products`].
unsafe fn through_edge(
    tiles: &Tiles,
    row_tiles: usize,
    a: TileRows,
    b: *const u8,
    steps: usize,
    sums: &mut [f32],
    accumulate: bool,
) {
    let mut edge = [0.0; PANEL * PANEL];
    let is_whole = sums.len() == row_tiles * TILE_ROWS * PANEL;
    if !is_whole && accumulate {
        edge[..sums.len()].copy_from_slice(sums);
    }
    let start = if is_whole { sums.as_mut_ptr() } else { edge.as_mut_ptr() };
    let target = TileSums { start, stride_bytes: 4 * PANEL, accumulate };
    // SAFETY: the caller's promise; the sums are whole tiles or the edge's.
    unsafe { tiles.bf16_products(row_tiles, a, b, steps, target) };
    if !is_whole {
        sums.copy_from_slice(&edge[..sums.len()]);
    }
}

/// Up to 32 values, then zeros.
///
/// # Safety
/// The machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(values: &[f32]) -> [__m512; 2] {
    let mask = ((1u64 << values.len().min(STEP)) - 1) as u32;
    // SAFETY: masked lanes are not read.
    unsafe {
        [
            _mm512_maskz_loadu_ps(mask as u16, values.as_ptr()),
            _mm512_maskz_loadu_ps((mask >> 16) as u16, values.as_ptr().wrapping_add(VECTOR)),
        ]
    }
}

/// Both in bf16, to the nearest and of two to the even one.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round(low: __m512, high: __m512) -> __m512i {
    // SAFETY: the two types are the same bits.
    unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Writes a vector.
///
/// # Safety
/// The machine has AVX-512; 64 bytes are valid for writing.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(to: *mut u8, values: __m512i) {
    // SAFETY: the caller's promise.
    unsafe { _mm512_storeu_si512(to.cast(), values) }
}
