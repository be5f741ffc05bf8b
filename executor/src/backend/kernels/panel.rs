//! The micro-kernel under products: rows times a packed panel, in tiles of registers.
//!
//! A panel holds the second operand by slivers of [`SLIVER_COLUMNS`] or half as many columns: of a
//! sliver, all columns of depth 0, then of depth 1, and so on. A tile broadcasts single elements of
//! the first operand and multiplies them with the vectors of a sliver, so nothing is summed across
//! lanes.
//!
//! Invariant: an element's sum is formed along the depth in order, whatever tile it falls into, so
//! cutting rows and columns differently never changes a bit.

use super::grid::{Rows, Target};
use super::lines_ahead::LinesAhead;
use super::simd::{Lanes, per_isa};

/// The longest block of the summed dimension that is packed: a tile of 14 rows (28 KiB) stays in a
/// 48 KiB first level cache while slivers go by. Of 256, 384, 512 and 768, this ran fastest at 512
/// x 3072 x 3072.
pub(super) const PANEL_DEPTH_MAX: usize = 512;

/// Columns of the widest sliver: two vectors of 16.
pub(super) const SLIVER_COLUMNS: usize = 32;

/// The most rows of a tile.
const TILE_ROWS_MAX: usize = 14;

/// The distance of a tile's rows. Constant, so that addresses are immediates; not a power of two,
/// so that rows do not share the sets of a cache.
const TILE_STRIDE: usize = PANEL_DEPTH_MAX + 16;

/// Vectors of a sliver's row.
pub(super) const SLIVER_VECTORS: usize = 2;

/// Depth that goes by until more of what is read later is asked for.
const CHUNK_DEPTH: usize = 64;

/// Elements of scratch in which [`multiply_panel`] keeps a tile of its rows.
pub(super) const TILE_LEN: usize = TILE_ROWS_MAX * TILE_STRIDE;

/// Room for a panel of so many columns and so deep, whatever the instruction set.
pub(super) const fn panel_len(columns: usize, depth: usize) -> usize {
    columns.next_multiple_of(SLIVER_COLUMNS) * depth
}

/// How the summed dimension is cut: equal blocks, the last one shorter. Depends on nothing else.
pub(super) fn panel_depths(depth: usize) -> impl Iterator<Item = (usize, usize)> {
    let block = panel_depth_max(depth);
    (0..depth).step_by(block).map(move |from| (from, block.min(depth - from)))
}

/// The length of the blocks that [`panel_depths`] gives.
pub(super) fn panel_depth_max(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(PANEL_DEPTH_MAX).max(1)).next_multiple_of(16).min(depth)
}

/// Columns that are packed for products.
#[derive(Clone, Copy)]
pub(super) struct PackedPanel<'a> {
    /// By slivers.
    pub(super) values: &'a [f32],
    /// How many are wanted.
    pub(super) columns: usize,
    /// Elements of each.
    pub(super) depth: usize,
}

per_isa! {
    /// `out[i, j] (+)= sum over k of a[i, k] * b[k, j]`. `tile`: [`TILE_LEN`] elements of scratch.
    /// `ahead` is asked for [`calls`] times.
    pub(super) fn multiply_panel<L>(
        a: Rows<'_>,
        b: PackedPanel<'_>,
        tile: &mut [f32],
        out: Target<'_>,
        ahead: &mut LinesAhead,
    ) {
        let width = SLIVER_VECTORS * L::WIDTH;
        let PackedPanel { values, columns, depth } = b;
        assert!(depth <= PANEL_DEPTH_MAX && tile.len() >= TILE_LEN, "depth or scratch of a tile");
        assert!(columns.next_multiple_of(width) * depth <= values.len(), "panel");
        assert!(a.count == 0 || (a.count - 1) * a.stride + depth <= a.values.len(), "rows outside");
        let mut row = 0;
        while row < a.count {
            let left = a.count - row;
            // SAFETY: `per_isa!` has the instructions; operands were checked above, and `strip` is
            // given no more rows than are left and fit the tile.
            row += unsafe {
                match left {
                    14.. if L::TILE_ROWS >= 14 => strip::<L, 14>(a, row, b, tile, out, ahead),
                    8.. if L::TILE_ROWS >= 8 => strip::<L, 8>(a, row, b, tile, out, ahead),
                    6.. if L::TILE_ROWS < 8 => strip::<L, 6>(a, row, b, tile, out, ahead),
                    4.. => strip::<L, 4>(a, row, b, tile, out, ahead),
                    2.. => strip::<L, 2>(a, row, b, tile, out, ahead),
                    _ => strip::<L, 1>(a, row, b, tile, out, ahead),
                }
            };
        }
    }
}

/// The products of `M` rows with all columns. Returns `M`.
///
/// # Safety
/// The machine has `L`'s instructions; `row + M <= a.count` and `depth` elements of each row exist;
/// the panel holds the columns; `tile` has [`TILE_LEN`] elements.
#[inline(always)]
unsafe fn strip<L: Lanes, const M: usize>(
    a: Rows<'_>,
    row: usize,
    b: PackedPanel<'_>,
    tile: &mut [f32],
    out: Target<'_>,
    ahead: &mut LinesAhead,
) -> usize {
    let PackedPanel { values: panel, columns, depth } = b;
    let width = SLIVER_VECTORS * L::WIDTH;
    for (i, to) in tile.chunks_exact_mut(TILE_STRIDE).take(M).enumerate() {
        let from = (row + i) * a.stride;
        to[..depth].copy_from_slice(&a.values[from..from + depth]);
    }
    let next = a.values.as_ptr().wrapping_add((row + M) * a.stride).cast();
    let calls = columns.div_ceil(width) * depth.div_ceil(CHUNK_DEPTH);
    let mut next = LinesAhead::rows(next, 4 * a.stride, 4 * depth, M, calls);
    for from in (0..columns).step_by(width) {
        let count = width.min(columns - from);
        for i in 0..M {
            out.prefetch(row + i, from, count);
        }
        // SAFETY: the caller's promise: a sliver is `depth * width` elements of the panel.
        let sums = unsafe {
            let b = panel.as_ptr().add(from * depth);
            products::<L, M>(tile.as_ptr(), b, depth, [&mut next, ahead])
        };
        for (i, sums) in sums.into_iter().enumerate() {
            // SAFETY: who made the target promised that these elements are this task's; the machine
            // has the instructions.
            unsafe { put::<L>(sums, out, row + i, from, count) };
        }
    }
    M
}

/// [`multiply_panel`] asks at least so often for what is ahead, for so many rows.
pub(super) fn calls(rows: usize, columns: usize, depth: usize) -> usize {
    rows.div_ceil(TILE_ROWS_MAX) * columns.div_ceil(SLIVER_COLUMNS) * depth.div_ceil(CHUNK_DEPTH)
}

/// The sums of a tile.
///
/// # Safety
/// The machine has `L`'s instructions; `M` rows of `depth` elements lie [`TILE_STRIDE`] apart at
/// `a`, and a sliver of that depth at `b`.
#[inline(always)]
unsafe fn products<L: Lanes, const M: usize>(
    a: *const f32,
    b: *const f32,
    depth: usize,
    ahead: [&mut LinesAhead; 2],
) -> [[L::Vector; SLIVER_VECTORS]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut ahead, mut sums) = (ahead, [[L::zero(); SLIVER_VECTORS]; M]);
        for from in (0..depth).step_by(CHUNK_DEPTH) {
            ahead.iter_mut().for_each(|lines| lines.ask());
            for k in from..depth.min(from + CHUNK_DEPTH) {
                let row = b.add(k * SLIVER_VECTORS * L::WIDTH);
                let (left, right) = (L::load(row), L::load(row.add(L::WIDTH)));
                for (i, sums) in sums.iter_mut().enumerate() {
                    let x = L::splat(*a.add(i * TILE_STRIDE + k));
                    sums[0] = L::multiply_add(x, left, sums[0]);
                    sums[1] = L::multiply_add(x, right, sums[1]);
                }
            }
        }
        sums
    }
}

/// Writes the first `count` of a tile's row of sums, or adds them.
///
/// # Safety
/// The machine has `L`'s instructions, and the elements are the caller's alone.
#[inline(always)]
pub(super) unsafe fn put<L: Lanes>(
    sums: [L::Vector; SLIVER_VECTORS],
    out: Target<'_>,
    row: usize,
    column: usize,
    count: usize,
) {
    // SAFETY: the caller's promise; a full row has room for both vectors, and so has the buffer of
    // a partial one.
    unsafe {
        let target = out.row(row, column, count);
        if count == SLIVER_VECTORS * L::WIDTH {
            let to = target.as_mut_ptr();
            for (v, sum) in sums.into_iter().enumerate() {
                let to = to.add(v * L::WIDTH);
                L::store(to, if out.accumulates() { L::add(L::load(to), sum) } else { sum });
            }
        } else {
            let mut buffer = [0.0; SLIVER_COLUMNS];
            for (v, sum) in sums.into_iter().enumerate() {
                L::store(buffer.as_mut_ptr().add(v * L::WIDTH), sum);
            }
            for (value, sum) in target.iter_mut().zip(buffer) {
                *value = if out.accumulates() { *value + sum } else { sum };
            }
        }
    }
}
