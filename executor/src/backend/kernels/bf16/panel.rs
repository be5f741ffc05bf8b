//! Weight rows of bf16 as a panel: packed by slivers of 32 columns, two tiles for each 32 of the
//! depth. A row of a tile has two neighbours of the depth of each of 16 columns. What is beyond the
//! depth is zero.

use std::ops::Range;

use protocol::StorageType;

use super::decode::{DECODED_DEPTH, decode};
use crate::backend::kernels::lanes::{Lanes, SQUARE_MAX};
use crate::backend::kernels::matmul::LinearOperands;
use crate::backend::kernels::simd::{Avx512, Isa, LINE_BYTES, prefetch};
use crate::backend::kernels::tiles::{TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS};

/// Depth of a tile: of bf16 in one of its rows.
pub(super) const STEP: usize = TILE_ROW_BYTES / 2;

/// Columns of a sliver: two tiles.
pub(super) const SLIVER_COLUMNS: usize = 2 * TILE_ROWS;

/// Words of a sliver of some depth.
pub(super) const fn sliver_words(depth: usize) -> usize {
    depth.next_multiple_of(STEP) / 2 * SLIVER_COLUMNS
}

/// Weight rows that are packed as columns, of some of the depth.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) words: &'a [f32],
    pub(super) columns: usize,
    pub(super) depth: usize,
}

impl Panel<'_> {
    /// The tiles of its slivers, the first column of each, and how many it has.
    pub(super) fn slivers(&self) -> impl Iterator<Item = (*const u8, usize, usize)> {
        let slivers = self.words.chunks_exact(sliver_words(self.depth));
        assert!(self.columns.div_ceil(SLIVER_COLUMNS) <= slivers.len(), "panel");
        (0..self.columns).step_by(SLIVER_COLUMNS).zip(slivers).map(|(column, sliver)| {
            (sliver.as_ptr().cast(), column, SLIVER_COLUMNS.min(self.columns - column))
        })
    }
}

/// A layer's weight rows, to be packed as columns.
#[derive(Clone, Copy)]
pub(super) struct StoredColumns<'a> {
    pub(super) operands: &'a LinearOperands<'a>,
    pub(super) isa: Isa,
}

impl StoredColumns<'_> {
    /// Packs the features `from..from + depth` of some weight rows.
    pub(super) fn pack(&self, columns: Range<usize>, from: usize, depth: usize, panel: &mut [f32]) {
        let sliver_words = sliver_words(depth);
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
        // SAFETY: bf16 is multiplied here, and the instructions are there with that.
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
            // SAFETY: bf16 is multiplied here, and the instructions are there with that.
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
