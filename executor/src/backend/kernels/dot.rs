//! The micro-kernel under products of few rows: dot products, of both operands as they lie.
//!
//! Both operands have the summed dimension last, as activations and PyTorch's weights do, so
//! neither is packed. Accumulators are vectors over that dimension, summed at the end of a block of
//! it.
//!
//! Invariant: an element's sum is formed in the same order whatever tile it falls into, so cutting
//! rows and columns differently never changes a bit.

use super::grid::{Rows, Target};
use super::simd::{Lanes, per_isa};

/// The longest block of the summed dimension: eight rows of it (32 KiB) and three of the other
/// operand stay in a 48 KiB first level cache.
const DEPTH_MAX: usize = 1024;

/// Added to the length of widened rows: rows a power of two apart would share the sets of a cache.
const ROW_PADDING: usize = 16;

/// How the summed dimension is cut: equal blocks, the last one shorter. Depends on nothing else.
pub(super) fn depth_blocks(depth: usize) -> impl Iterator<Item = (usize, usize)> {
    let block = depth_block_max(depth);
    (0..depth).step_by(block).map(move |from| (from, block.min(depth - from)))
}

/// The length of the blocks that [`depth_blocks`] gives.
pub(super) fn depth_block_max(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(DEPTH_MAX).max(1)).next_multiple_of(16)
}

/// The distance of widened rows that are `depth` long.
pub(super) fn row_stride(depth: usize) -> usize {
    depth.next_multiple_of(16) + ROW_PADDING
}

per_isa! {
    /// `out[i, j] (+)= sum over k < depth of a[i, k] * b[j, k]`.
    pub(super) fn multiply_rows<L>(a: Rows<'_>, b: Rows<'_>, depth: usize, out: Target<'_>) {
        for rows in [a, b] {
            let last = (rows.count.max(1) - 1) * rows.stride;
            assert!(rows.count == 0 || last + depth <= rows.values.len(), "rows outside the operand");
        }
        let mut row = 0;
        while row < a.count {
            let left = a.count - row;
            // SAFETY: `per_isa!` has the instructions; the rows were checked above, and
            // `strip` is given no more than are left.
            row += unsafe {
                match left {
                    8.. if L::ROWS >= 8 => strip::<L, 8>(a, row, b, depth, out),
                    4.. => strip::<L, 4>(a, row, b, depth, out),
                    2.. => strip::<L, 2>(a, row, b, depth, out),
                    _ => strip::<L, 1>(a, row, b, depth, out),
                }
            };
        }
    }
}

/// The products of `M` rows of `a` with all of `b`. Returns `M`.
///
/// # Safety
/// The machine has `L`'s instructions; `row + M <= a.count`; `depth` elements of each row exist.
#[inline(always)]
unsafe fn strip<L: Lanes, const M: usize>(
    a: Rows<'_>,
    row: usize,
    b: Rows<'_>,
    depth: usize,
    out: Target<'_>,
) -> usize {
    let mut column = 0;
    while column < b.count {
        // SAFETY: the caller's promise; each tile has no more columns than are left.
        column += unsafe {
            match b.count - column {
                3.. => tile::<L, M, 3>(a, row, b, column, depth, out),
                2 => tile::<L, M, 2>(a, row, b, column, depth, out),
                _ => tile::<L, M, 1>(a, row, b, column, depth, out),
            }
        };
    }
    M
}

/// The products of `M` rows of `a` and `N` rows of `b`. Returns `N`.
///
/// # Safety
/// As [`strip`]; and `column + N <= b.count`.
#[inline(always)]
unsafe fn tile<L: Lanes, const M: usize, const N: usize>(
    a: Rows<'_>,
    row: usize,
    b: Rows<'_>,
    column: usize,
    depth: usize,
    out: Target<'_>,
) -> usize {
    // SAFETY: the caller's promise: all loads lie in the `depth` elements of rows that exist.
    let totals = unsafe {
        let a_rows = a.values.as_ptr().add(row * a.stride);
        let b_rows = b.values.as_ptr().add(column * b.stride);
        let mut sums = [[L::zero(); N]; M];
        let mut at = 0;
        while at + L::WIDTH <= depth {
            let mut b_vectors = [L::zero(); N];
            for (j, vector) in b_vectors.iter_mut().enumerate() {
                *vector = L::load(b_rows.add(j * b.stride + at));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let a_vector = L::load(a_rows.add(i * a.stride + at));
                for (sum, b_vector) in sums.iter_mut().zip(b_vectors) {
                    *sum = L::multiply_add(a_vector, b_vector, *sum);
                }
            }
            at += L::WIDTH;
        }
        if at < depth {
            let mut b_vectors = [L::zero(); N];
            for (j, vector) in b_vectors.iter_mut().enumerate() {
                *vector = L::load_first(b_rows.add(j * b.stride + at), depth - at);
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let a_vector = L::load_first(a_rows.add(i * a.stride + at), depth - at);
                for (sum, b_vector) in sums.iter_mut().zip(b_vectors) {
                    *sum = L::multiply_add(a_vector, b_vector, *sum);
                }
            }
        }
        let mut totals = [[0.0; 8]; N];
        for (j, totals) in totals.iter_mut().enumerate() {
            let mut vectors = [L::zero(); 8];
            vectors.iter_mut().zip(&sums).for_each(|(vector, sums)| *vector = sums[j]);
            *totals = L::sums(&vectors);
        }
        totals
    };
    for i in 0..M {
        // SAFETY: who made the target promised that these elements are this task's.
        let target = unsafe { out.row(row + i, column, N) };
        for (value, totals) in target.iter_mut().zip(&totals) {
            *value = if out.accumulates() { *value + totals[i] } else { totals[i] };
        }
    }
    N
}
