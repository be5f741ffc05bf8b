//! Products of bf16 in tiles.
//!
//! A task packs a panel of weight rows, one block of the summed dimension at a time, into its
//! worker's scratch. Then, 32 of its rows at a time, it rounds activations into a strip of tiles
//! and multiplies it with all slivers of the panel.
//!
//! A sliver is 32 columns: two tiles for each 32 of the depth, a row of which has two neighbours of
//! the depth of each of 16 columns. A strip is two rows of tiles, each of 16 rows' 32 of the depth.
//! What is beyond the depth is zero in both.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_maskz_loadu_ps,
    _mm512_setzero_si512, _mm512_store_si512,
};
use std::mem::transmute;
use std::ops::Range;

use protocol::StorageType;

use super::decode::{DECODED_DEPTH, decode};
use crate::backend::kernels::grid::{Grid, Target, aligned, aligned_len};
use crate::backend::kernels::lanes::{Lanes, SQUARE_MAX};
use crate::backend::kernels::matmul::{LinearOperands, LinearShape, PANEL_COLUMNS};
use crate::backend::kernels::simd::{Avx512, Isa, LINE_BYTES, prefetch};
use crate::backend::kernels::tiles::{
    TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, TileRows, TileSums, Tiles,
};
use crate::backend::kernels::workers::{Disjoint, Workers};

/// Depth of a tile: of bf16 in one of its rows.
const STEP: usize = TILE_ROW_BYTES / 2;

/// Rows of a strip: two tiles.
const STRIP_ROWS: usize = 2 * TILE_ROWS;

/// Columns of a sliver: two tiles.
const SLIVER_COLUMNS: usize = 2 * TILE_ROWS;

/// The largest panels. Each reads and writes all its results once more, and all activations are
/// read and rounded for each panel's columns: of depths from 256 to 3072, and as many columns as
/// scratch allows, this ran fastest at 512 x 3072 x 3072 with AMX (Sapphire Rapids).
const PANEL_MAX: PanelSize = PanelSize { columns: PANEL_COLUMNS, depth: 1024 };

/// The same of processors whose vectors multiply bf16: of 352 x 1024 to 1056 x 352 this ran fastest
/// in steps of 3072 features over 512 and 1280 tokens (Zen 5), by 2 and 4 % of all.
const PANEL_MAX_OF_VECTORS: PanelSize = PanelSize { columns: 512, depth: 768 };

/// A panel of fewer columns than this is made less deep instead.
const PANEL_COLUMNS_MIN: usize = 256;

/// Fewer activation rows than this are not worth packing a panel for a second time.
const TASK_ROWS_MIN: usize = 128;

/// The size of panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PanelSize {
    columns: usize,
    depth: usize,
}

impl PanelSize {
    /// The largest that go with a strip into so many elements of scratch, in panels of about the
    /// same size, but none larger than `max`. Results do not depend on it.
    fn within(scratch_len: usize, shape: &LinearShape<'_>, max: PanelSize) -> PanelSize {
        let deepest = shape.in_features.iter().copied().max().unwrap_or(0);
        let columns_of = |depth: usize| {
            let words = scratch_len.saturating_sub(aligned_len(strip_words(depth)));
            words * 2 / depth / SLIVER_COLUMNS * SLIVER_COLUMNS
        };
        let wanted = shape.out_features.next_multiple_of(SLIVER_COLUMNS).min(PANEL_COLUMNS_MIN);
        let mut depth = deepest.next_multiple_of(STEP).min(max.depth);
        while columns_of(depth) < wanted && depth > STEP {
            depth = (depth / 2).next_multiple_of(STEP);
        }
        let most = columns_of(depth).min(max.columns);
        assert!(most > 0, "{scratch_len} elements of scratch hold no panel");
        let panels = shape.out_features.div_ceil(most);
        let columns = shape.out_features.div_ceil(panels).next_multiple_of(SLIVER_COLUMNS);
        PanelSize { columns, depth }
    }
}

/// Words of a strip of some depth, a multiple of [`STEP`].
const fn strip_words(depth: usize) -> usize {
    STRIP_ROWS * depth / 2
}

/// The products of all rows with all weight rows, through bias and activation. `scratch` is shared
/// out among the workers.
pub(super) fn multiply(
    workers: &Workers,
    operands: &LinearOperands<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let shape = operands.shape();
    let len = scratch.len() / workers.count();
    let max = if workers.isa().has_tiles() { PANEL_MAX } else { PANEL_MAX_OF_VECTORS };
    let panel = PanelSize::within(len, &shape, max);
    let grid =
        Grid::new(shape.rows, shape.out_features, panel.columns, TASK_ROWS_MIN, workers.count());
    let call = Call { operands, isa: workers.isa(), depth: panel.depth, out: &Disjoint::new(out) };
    workers.for_each_with(grid.tasks(), operands.operations(), scratch, len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        call.multiply(&Tiles::configure(call.isa.has_tiles()), rows, columns, scratch);
    });
}

/// What all tasks of one call share.
struct Call<'a> {
    operands: &'a LinearOperands<'a>,
    isa: Isa,
    /// Of a panel.
    depth: usize,
    out: &'a Disjoint<'a>,
}

impl Call<'_> {
    /// The products of some rows with a panel of weight rows, through bias and activation.
    fn multiply(
        &self,
        tiles: &Tiles,
        rows: Range<usize>,
        columns: Range<usize>,
        scratch: &mut [f32],
    ) {
        let operands = self.operands;
        let (strip, panel) = aligned(scratch).split_at_mut(strip_words(self.depth));
        let shape = operands.shape();
        let mut first = 0; // of the present input's features, among all
        for (input, &part) in operands.inputs.iter().zip(shape.in_features) {
            for from in (0..part).step_by(self.depth) {
                let depth = self.depth.min(part - from);
                self.pack(columns.clone(), first + from, depth, panel);
                for begin in rows.clone().step_by(STRIP_ROWS) {
                    let chunk = begin..rows.end.min(begin + STRIP_ROWS);
                    let values = &input[chunk.start * part + from..];
                    // SAFETY: tiles are there, and the conversion with them.
                    unsafe { round_rows(values, part, chunk.len(), depth, strip) };
                    // SAFETY: no other task has these rows and columns.
                    let target = unsafe {
                        operands.target(self.out, chunk.start, columns.start, first + from > 0)
                    };
                    let strip = Strip { words: strip, rows: chunk.len(), depth };
                    multiply_strip(tiles, &strip, panel, columns.len(), target);
                    if first + from + depth == operands.in_features {
                        for from in columns.clone().step_by(PANEL_COLUMNS) {
                            let some = from..columns.end.min(from + PANEL_COLUMNS);
                            operands.finish(self.isa, chunk.clone(), some, self.out);
                        }
                    }
                }
            }
            first += part;
        }
    }

    /// Packs the features `from..from + depth` of some weight rows.
    fn pack(&self, columns: Range<usize>, from: usize, depth: usize, panel: &mut [f32]) {
        let sliver_words = depth.next_multiple_of(STEP) / 2 * SLIVER_COLUMNS;
        for (index, first) in columns.clone().step_by(SQUARE_MAX).enumerate() {
            // Where there are fewer columns, the last one again: nobody reads it there.
            let rows = std::array::from_fn(|row| (first + row).min(columns.end - 1));
            let sliver = &mut panel[index / 2 * sliver_words..][..sliver_words];
            let to: &mut [u8] = bytemuck::cast_slice_mut(sliver);
            let to = &mut to[index % 2 * TILE_BYTES..];
            match self.operands.weight.storage {
                StorageType::BF16 => self.pack_stored(rows, from, depth, to),
                _ => self.pack_blocks(rows, from, depth, to),
            }
        }
    }

    /// Packs features of rows that are stored in bf16.
    fn pack_stored(&self, rows: [usize; SQUARE_MAX], from: usize, depth: usize, to: &mut [u8]) {
        let (bytes, in_features) = (self.operands.weight.bytes, self.operands.in_features);
        let rows = rows.map(|row| &bytes[2 * (row * in_features + from)..][..2 * depth]);
        for row in rows {
            // The same of the next rows.
            for line in (0..2 * depth).step_by(LINE_BYTES) {
                prefetch(row.as_ptr().wrapping_add(2 * SQUARE_MAX * in_features + line));
            }
        }
        // SAFETY: tiles are there, and the instructions with them.
        unsafe { pack_columns(rows, to) };
    }

    /// Packs features of rows that are stored in blocks.
    fn pack_blocks(&self, rows: [usize; SQUARE_MAX], from: usize, depth: usize, to: &mut [u8]) {
        let mut decoded = [[0; DECODED_DEPTH]; SQUARE_MAX];
        for begin in (0..depth).step_by(DECODED_DEPTH) {
            let depth = DECODED_DEPTH.min(depth - begin);
            for (decoded, row) in decoded.iter_mut().zip(rows) {
                decode(self.isa, self.operands, row, from + begin, &mut decoded[..depth]);
            }
            let rows = decoded.each_ref().map(|row| &bytemuck::cast_slice(row)[..2 * depth]);
            let to = &mut to[begin / STEP * 2 * TILE_BYTES..];
            // SAFETY: tiles are there, and the instructions with them.
            unsafe { pack_columns(rows, to) };
        }
    }
}

/// Turns 16 rows of bf16 into the columns of every second tile of `to`, from the first on.
///
/// # Safety
/// The machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn pack_columns(rows: [&[u8]; SQUARE_MAX], to: &mut [u8]) {
    let bytes = rows[0].len();
    let tiles = bytes.div_ceil(TILE_ROW_BYTES);
    assert!(rows.iter().all(|row| row.len() == bytes), "rows of one length");
    assert!((2 * tiles - 1) * TILE_BYTES <= to.len(), "tiles");
    let starts = rows.map(<[u8]>::as_ptr);
    for tile in 0..tiles {
        let at = tile * TILE_ROW_BYTES;
        let columns = if bytes - at >= TILE_ROW_BYTES {
            // SAFETY: this function's; a tile's bytes of each row are there.
            unsafe { Avx512::transposed(&starts, at) }
        } else {
            let mut rest = [[0u8; TILE_ROW_BYTES]; SQUARE_MAX];
            let rows = rest.iter_mut().zip(&rows);
            rows.for_each(|(rest, row)| rest[..bytes - at].copy_from_slice(&row[at..]));
            // SAFETY: as above.
            unsafe { Avx512::transposed(&rest.each_ref().map(|row| row.as_ptr()), 0) }
        };
        let (rows, _) = to[2 * tile * TILE_BYTES..].as_chunks_mut::<TILE_ROW_BYTES>();
        for (row, &column) in rows.iter_mut().zip(&columns) {
            // SAFETY: as above; the row of a tile is one vector.
            unsafe { Avx512::store(row.as_mut_ptr().cast(), column) };
        }
    }
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
/// The machine has AVX-512 with its conversion to bf16; so many values are valid for reading, at
/// most 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rounded(from: *const f32, count: usize) -> __m512i {
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

/// Rounded activations.
struct Strip<'a> {
    words: &'a [f32],
    rows: usize,
    depth: usize,
}

/// The products of a strip with all columns of a panel.
fn multiply_strip(
    tiles: &Tiles,
    strip: &Strip<'_>,
    panel: &[f32],
    columns: usize,
    out: Target<'_>,
) {
    let Strip { words, rows, depth } = *strip;
    let steps = depth.div_ceil(STEP);
    let sliver_words = steps * STEP / 2 * SLIVER_COLUMNS;
    let row_tiles = rows.div_ceil(TILE_ROWS);
    assert!(row_tiles * steps * TILE_BYTES <= 4 * words.len(), "strip");
    assert!(columns.div_ceil(SLIVER_COLUMNS) * sliver_words <= panel.len(), "panel");
    let whole_rows = rows == row_tiles * TILE_ROWS;
    let mut edge = Edge([[0.0; SLIVER_COLUMNS]; STRIP_ROWS]);
    for (index, column) in (0..columns).step_by(SLIVER_COLUMNS).enumerate() {
        let count = SLIVER_COLUMNS.min(columns - column);
        let whole = whole_rows && count == SLIVER_COLUMNS;
        let accumulate = out.accumulates();
        let (start, stride) = if whole {
            out.rows(0..rows, column, count)
        } else {
            if accumulate {
                edge.load(out, rows, column, count);
            }
            (edge.0.as_flattened_mut().as_mut_ptr(), SLIVER_COLUMNS)
        };
        let sums = TileSums { start, stride_bytes: 4 * stride, accumulate };
        let a = TileRows { start: words.as_ptr().cast(), second_bytes: steps * TILE_BYTES };
        let b = panel[index * sliver_words..].as_ptr().cast();
        // SAFETY: strip and sliver have the tiles, as was checked above; the sums are the edge's
        // or, by the promise of who made the target, this task's own.
        unsafe { tiles.bf16_products(row_tiles, a, b, steps, sums) };
        if !whole {
            edge.store(out, rows, column, count);
        }
    }
}

/// The sums of tiles that reach beyond the rows or columns that there are.
#[repr(align(64))]
struct Edge([[f32; SLIVER_COLUMNS]; STRIP_ROWS]);

impl Edge {
    fn load(&mut self, out: Target<'_>, rows: usize, column: usize, count: usize) {
        for (row, sums) in self.0.iter_mut().take(rows).enumerate() {
            // SAFETY: who made the target promised that these elements are this task's.
            sums[..count].copy_from_slice(unsafe { out.row(row, column, count) });
        }
    }

    fn store(&self, out: Target<'_>, rows: usize, column: usize, count: usize) {
        for (row, sums) in self.0.iter().take(rows).enumerate() {
            // SAFETY: as above.
            unsafe { out.row(row, column, count) }.copy_from_slice(&sums[..count]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_fit_into_whatever_scratch_products_in_f32_take() {
        use crate::backend::kernels::matmul::linear_scratch_len;
        let sizes = [1, 2, 15, 31, 32, 33, 100, 500, 511, 512, 513, 1025, 3072, 12288];
        for part in sizes {
            for out_features in sizes {
                let in_features = [part, 1];
                let shape = LinearShape { rows: 9, in_features: &in_features, out_features };
                let len = linear_scratch_len(&shape, 1);
                for max in [PANEL_MAX, PANEL_MAX_OF_VECTORS] {
                    let PanelSize { columns, depth } = PanelSize::within(len, &shape, max);
                    let words = aligned_len(strip_words(depth)) + columns * depth / 2;
                    assert!(words <= len, "{part} x {out_features}: {columns} x {depth}");
                }
            }
        }
        let shape = LinearShape { rows: 512, in_features: &[3072], out_features: 3072 };
        let size = |max| PanelSize::within(linear_scratch_len(&shape, 1), &shape, max);
        assert_eq!(size(PANEL_MAX), PanelSize { columns: 352, depth: 1024 });
        assert_eq!(size(PANEL_MAX_OF_VECTORS), PanelSize { columns: 448, depth: 768 });
    }
}
