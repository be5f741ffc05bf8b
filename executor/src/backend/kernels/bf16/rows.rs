//! Products of rows rounded to bf16 with a panel, by vectors that multiply pairs of bf16
//! (`vdpbf16ps`).
//!
//! A strip is [`ROWS`] activation rows, rounded, one behind the other: it stays in a first level
//! cache of 32 KiB while the panel goes by, once for each strip.

use super::edge::EdgeSums;
use super::panel::{Panel, SLIVER_COLUMNS, STEP};
use super::rounding::rounded;
use crate::backend::kernels::grid::{Rows, Target};
use crate::backend::kernels::lines_ahead::LinesAhead;
use crate::backend::kernels::tiles::{TILE_ROW_BYTES, TileSums, dots};

/// Rows of a strip.
pub(super) const ROWS: usize = dots::ROWS_MAX;

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
                let start = to.add(row * stride);
                let sums = TileSums { start, stride_bytes: 4 * stride, accumulate };
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

/// Products of `M` rows of a strip with a sliver, in order of the depth. Returns `M`.
///
/// # Safety
/// As of [`dots::row_products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn products<const M: usize>(
    a: *const u8,
    b: *const u8,
    steps: usize,
    sums: TileSums,
    ahead: &mut [&mut LinesAhead; 2],
) -> usize {
    let each_step = || ahead.iter_mut().for_each(|lines| lines.ask());
    // SAFETY: the caller's promise.
    unsafe { dots::row_products::<M>(a, [ROW_BYTES, TILE_ROW_BYTES], b, steps, sums, each_step) };
    M
}
