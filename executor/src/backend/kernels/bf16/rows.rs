//! Products of rows rounded to bf16 with a panel, by vectors that multiply pairs of bf16
//! (`vdpbf16ps`).
//!
//! A strip is [`ROWS`] activation rows, rounded, one behind the other: it stays in a first level
//! cache of 32 KiB while the panel goes by, once for each strip.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};
use std::mem::transmute;

use super::edge::EdgeSums;
use super::panel::{Panel, SLIVER_COLUMNS, STEP};
use super::rounding::rounded;
use crate::backend::kernels::grid::{Rows, Target};
use crate::backend::kernels::lines_ahead::LinesAhead;
use crate::backend::kernels::tiles::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS};

/// Rows of a strip. Their sums with 32 columns take 28 of the 32 registers.
pub(super) const ROWS: usize = 14;

/// The deepest strip. Of 352 to 1024, and panels of 1056 to 352 columns, this ran fastest in steps
/// of 3072 features over 512 and 1280 tokens, by 2 and 4 % of all, before strips were rows (Zen 5);
/// since then 768 x 320 and 512 x 512 are as fast (Zen 4).
pub(super) const DEPTH_MAX: usize = 768;

/// From one row of a strip to the next. Constant, so that addresses are immediates; a line more
/// than a row has, so that rows do not share the sets of a cache.
const ROW_BYTES: usize = 2 * DEPTH_MAX + TILE_ROW_BYTES;

/// Words of a strip, however deep.
pub(super) const STRIP_WORDS: usize = ROWS * ROW_BYTES / 4;

/// Rounds a panel's depth of at most [`ROWS`] rows into `strip`, and multiplies them with all
/// columns. `ahead` is asked for [`calls`] times.
///
/// # Safety
/// The machine has AVX-512 with its products of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn multiply(
    rows: Rows<'_>,
    strip: &mut [f32],
    panel: Panel<'_>,
    out: Target<'_>,
    mut ahead: [&mut LinesAhead; 2],
) {
    let depth = panel.depth;
    let steps = depth.div_ceil(STEP);
    assert!((1..=ROWS).contains(&rows.count), "rows of a strip");
    assert!((rows.count - 1) * rows.stride + depth <= rows.values.len(), "rows outside");
    assert!(depth <= DEPTH_MAX && STRIP_WORDS <= strip.len(), "strip");
    let strip: *mut u8 = strip.as_mut_ptr().cast();
    // Column by column: a column of rows is so many streams for the processor, which asks for what
    // follows in each.
    for step in 0..steps {
        for row in 0..rows.count {
            // SAFETY: the row has what is left of its depth, and the strip has this row's line.
            unsafe {
                let from = rows.values.as_ptr().add(row * rows.stride + step * STEP);
                let rounded = rounded(from, STEP.min(depth - step * STEP));
                let to = strip.add(row * ROW_BYTES + step * TILE_ROW_BYTES);
                std::ptr::write_unaligned(to.cast(), rounded);
            }
        }
    }
    let mut edge = EdgeSums::new();
    for (b, column, count) in panel.slivers() {
        // Where the next sums lie: of the next sliver, and after the last one of the next strip.
        let (down, next) = match column + count {
            next if next < panel.columns => (0, next),
            _ => (ROWS, 0),
        };
        (0..rows.count).for_each(|row| out.prefetch(down + row, next, SLIVER_COLUMNS));
        let (to, stride) = edge.begin(out, rows.count, rows.count, column, count);
        let mut row = 0;
        while row < rows.count {
            // SAFETY: the strip has the rows, the panel the sliver, and the sums are the edge's or
            // this task's own.
            row += unsafe {
                let a = strip.add(row * ROW_BYTES);
                let accumulate = out.accumulates();
                let sums = RowSums { start: to.add(row * stride), stride, accumulate };
                match rows.count - row {
                    14.. => products::<14>(a, b, steps, sums, &mut ahead),
                    8.. => products::<8>(a, b, steps, sums, &mut ahead),
                    4.. => products::<4>(a, b, steps, sums, &mut ahead),
                    2.. => products::<2>(a, b, steps, sums, &mut ahead),
                    _ => products::<1>(a, b, steps, sums, &mut ahead),
                }
            };
        }
        edge.end(out, rows.count, rows.count, column, count);
    }
}

/// How often [`multiply`] asks for what is ahead, at least.
pub(super) fn calls(columns: usize, depth: usize) -> usize {
    columns.div_ceil(SLIVER_COLUMNS) * depth.div_ceil(STEP)
}

/// Rows of sums of 32 columns, and whether products are added to what is there.
struct RowSums {
    start: *mut f32,
    stride: usize,
    accumulate: bool,
}

/// Products of `M` rows with a sliver, in order of the depth. Returns `M`.
///
/// # Safety
/// The machine has the instructions; the rows and the sliver are there for `steps` of 32 of the
/// depth, and the sums for writing.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn products<const M: usize>(
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: RowSums,
    ahead: &mut [&mut LinesAhead; 2],
) -> usize {
    // SAFETY: the caller's promise; vectors of bf16 and of integers are the same bits.
    unsafe {
        let mut block: [[__m512; 2]; M] = [[_mm512_setzero_ps(); 2]; M];
        if sums.accumulate {
            for (row, block) in block.iter_mut().enumerate() {
                let from = sums.start.add(row * sums.stride);
                *block = [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(TILE_ROWS))];
            }
        }
        for step in 0..steps {
            ahead.iter_mut().for_each(|lines| lines.ask());
            let (rows, b) = (a.add(step * TILE_ROW_BYTES), b.add(step * 2 * TILE_BYTES));
            for pair in 0..TILE_ROWS {
                let columns = b.add(pair * TILE_ROW_BYTES);
                let columns = [columns, columns.add(TILE_BYTES)]
                    .map(|at| transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())));
                for (row, block) in block.iter_mut().enumerate() {
                    let both = rows.add(row * ROW_BYTES).cast::<i32>().add(pair);
                    let both = _mm512_set1_epi32(both.read_unaligned());
                    let both = transmute::<__m512i, __m512bh>(both);
                    for (sum, columns) in block.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, both, columns);
                    }
                }
            }
        }
        for (row, [first, second]) in block.iter().enumerate() {
            let to = sums.start.add(row * sums.stride);
            _mm512_storeu_ps(to, *first);
            _mm512_storeu_ps(to.add(TILE_ROWS), *second);
        }
    }
    M
}
