//! Products of rows rounded to bf16 with a panel, by registers for tiles (AMX). A strip of them is
//! two rows of tiles, each of 16 rows' 32 of the depth.

use super::edge::EdgeSums;
use super::panel::{Panel, STEP};
use super::rounding::round_rows;
use crate::backend::kernels::grid::{Rows, Target};
use crate::backend::kernels::tiles::{TILE_BYTES, TILE_ROWS, TileRows, TileSums, Tiles};

/// Rounds a panel's depth of at most [`STRIP_ROWS`](super::rounding::STRIP_ROWS) rows into `strip`,
/// and multiplies them with all columns.
pub(super) fn multiply(
    tiles: &Tiles,
    rows: Rows<'_>,
    strip: &mut [f32],
    panel: Panel<'_>,
    out: Target<'_>,
) {
    // SAFETY: where tiles are, so is the conversion.
    unsafe { round_rows(rows.values, rows.stride, rows.count, panel.depth, strip) };
    let steps = panel.depth.div_ceil(STEP);
    let row_tiles = rows.count.div_ceil(TILE_ROWS);
    assert!(row_tiles * steps * TILE_BYTES <= 4 * strip.len(), "strip");
    let mut edge = EdgeSums::new();
    let tile_rows = row_tiles * TILE_ROWS;
    for (b, column, count) in panel.slivers() {
        let (start, stride) = edge.begin(out, rows.count, tile_rows, column, count);
        let sums = TileSums { start, stride_bytes: 4 * stride, accumulate: out.accumulates() };
        let a = TileRows { start: strip.as_ptr().cast(), second_bytes: steps * TILE_BYTES };
        // SAFETY: strip and sliver have the tiles, as was checked; the sums are the edge's
        // or, by the promise of who made the target, this task's own.
        unsafe { tiles.bf16_products(row_tiles, a, b, steps, sums) };
        edge.end(out, rows.count, tile_rows, column, count);
    }
}
