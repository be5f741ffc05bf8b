//! Rows rounded to bf16, and strips of tiles of them.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_maskz_loadu_ps,
    _mm512_setzero_si512, _mm512_store_si512,
};
use std::mem::transmute;

use super::panel::STEP;
use crate::backend::kernels::tiles::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS};

/// Rows of a strip: two tiles.
pub(super) const STRIP_ROWS: usize = 2 * TILE_ROWS;

/// Words of a strip of some depth, a multiple of [`STEP`].
pub(super) const fn strip_words(depth: usize) -> usize {
    STRIP_ROWS * depth / 2
}

/// Rounds `depth` values of each of `count` rows to bf16, to the nearest and of two to the even
/// one, into a strip; rows begin `stride` apart.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(in crate::backend::kernels) unsafe fn round_rows(
    values: &[f32],
    stride: usize,
    count: usize,
    depth: usize,
    strip: &mut [f32],
) {
    let steps = depth.div_ceil(STEP);
    assert!((1..=STRIP_ROWS).contains(&count), "rows of a strip");
    assert!((count - 1) * stride + depth <= values.len(), "rows outside");
    assert!(strip_words(steps * STEP) <= strip.len(), "strip");
    let strip: *mut u8 = strip.as_mut_ptr().cast();
    assert!(strip.addr().is_multiple_of(TILE_ROW_BYTES), "tiles begin with a cache line");
    for row in 0..count.next_multiple_of(TILE_ROWS) {
        let to = strip
            .wrapping_add(row / TILE_ROWS * steps * TILE_BYTES + row % TILE_ROWS * TILE_ROW_BYTES);
        for step in 0..steps {
            // SAFETY: this function's; the row has what is left of its depth; the strip has this
            // row of the tile of this step.
            unsafe {
                let rounded = if row < count {
                    let from = values.as_ptr().add(row * stride + step * STEP);
                    rounded(from, STEP.min(depth - step * STEP))
                } else {
                    _mm512_setzero_si512()
                };
                _mm512_store_si512(to.add(step * TILE_BYTES).cast(), rounded);
            }
        }
    }
}

/// The first `count` values in bf16, then zeros.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16. `count` values are valid for reading; it is
/// at most 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn rounded(from: *const f32, count: usize) -> __m512i {
    // SAFETY: the caller's promise; masked lanes are not read. The two types are the same bits.
    unsafe {
        let halves = if count == STEP {
            [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(STEP / 2))]
        } else {
            let mask = (1u32 << count) - 1;
            [
                _mm512_maskz_loadu_ps(mask as u16, from),
                _mm512_maskz_loadu_ps((mask >> 16) as u16, from.wrapping_add(STEP / 2)),
            ]
        };
        transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(halves[1], halves[0]))
    }
}
