//! The micro-kernel under linear layers, attention and convolution: dot products of rows.
//!
//! Both operands have the summed dimension last, as activations and PyTorch's weights do, so
//! neither is transposed. Accumulators are vectors over that dimension, summed at the end of a
//! block of it.
//!
//! Invariant: an element's sum is formed in the same order whatever tile it falls into, so cutting
//! rows and columns differently never changes a bit.

use std::ops::Range;

use super::simd::{Lanes, per_isa};
use super::workers::Disjoint;

/// The longest block of the summed dimension: eight rows of it (32 KiB) and three of the panel stay
/// in a 48 KiB first level cache.
const DEPTH_MAX: usize = 1024;

/// How many columns the registers hold accumulators for, in each instruction set.
const TILE_COLUMNS: usize = 3;

/// Added to a panel's row length: rows a power of two apart would share the sets of a cache.
const ROW_PADDING: usize = 16;

/// The most elements by which a slice can miss a 64-byte border.
const ALIGNMENT_SLACK: usize = 15;

/// How the summed dimension is cut: equal blocks, the last one shorter. Depends on nothing else.
pub(super) fn depth_blocks(depth: usize) -> impl Iterator<Item = (usize, usize)> {
    let block = depth_block_max(depth);
    (0..depth).step_by(block).map(move |from| (from, block.min(depth - from)))
}

/// The length of the blocks that [`depth_blocks`] gives.
pub(super) fn depth_block_max(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(DEPTH_MAX).max(1)).next_multiple_of(16)
}

/// The distance of the rows of a panel that is `depth` wide.
pub(super) fn panel_stride(depth: usize) -> usize {
    depth.next_multiple_of(16) + ROW_PADDING
}

/// Room for a panel of `rows` rows that begins at a 64-byte border.
pub(super) fn panel_len(rows: usize, depth: usize) -> usize {
    rows * panel_stride(depth) + ALIGNMENT_SLACK
}

/// The part of `scratch` that begins at a 64-byte border, so that vectors do not cross lines.
pub(super) fn aligned(scratch: &mut [f32]) -> &mut [f32] {
    let skip = scratch.as_ptr().align_offset(64).min(ALIGNMENT_SLACK);
    &mut scratch[skip..]
}

/// How a matrix of results is cut into tasks: panels of columns, and chunks of rows where the panels
/// alone are too few for the workers.
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    task_rows: usize,
    task_columns: usize,
}

impl Grid {
    /// Panels of at most `columns_max` columns, and no chunk of fewer than about `rows_min` rows.
    pub(super) fn new(
        rows: usize,
        columns: usize,
        columns_max: usize,
        rows_min: usize,
        workers: usize,
    ) -> Grid {
        assert!(rows > 0 && columns > 0, "nothing to compute");
        /// So many tasks for each worker make the wait for the last one short.
        const TASKS_PER_WORKER: usize = 4;
        let task_columns = task_columns(columns, columns_max);
        let wanted = if workers == 1 { 1 } else { workers * TASKS_PER_WORKER };
        let chunks = wanted.div_ceil(columns.div_ceil(task_columns));
        let chunks = chunks.clamp(1, rows.div_ceil(rows_min));
        Grid { rows, columns, task_rows: rows.div_ceil(chunks).next_multiple_of(8), task_columns }
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.task_rows) * self.columns.div_ceil(self.task_columns)
    }

    /// The rows and the columns of a task.
    pub(super) fn task(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let panels = self.columns.div_ceil(self.task_columns);
        let (row, column) = (index / panels * self.task_rows, index % panels * self.task_columns);
        (
            row..self.rows.min(row + self.task_rows),
            column..self.columns.min(column + self.task_columns),
        )
    }
}

/// The widest panel when `columns` are cut evenly into panels of at most `columns_max`, which is a
/// multiple of [`TILE_COLUMNS`].
pub(super) fn task_columns(columns: usize, columns_max: usize) -> usize {
    columns.div_ceil(columns.div_ceil(columns_max)).next_multiple_of(TILE_COLUMNS).min(columns)
}

/// Rows in memory: row `i` begins at `i * stride`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Begins with row 0.
    pub(super) values: &'a [f32],
    /// The distance between rows, in elements.
    pub(super) stride: usize,
    /// How many there are.
    pub(super) count: usize,
}

/// Where the products of rows go: element `(i, j)` is at `from + i * stride + j`.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    values: &'a Disjoint<'a>,
    from: usize,
    stride: usize,
    accumulate: bool,
}

impl<'a> Target<'a> {
    /// Products go to `values` from element `from` on, in rows `stride` apart; `accumulate` adds
    /// them to what is there.
    ///
    /// # Safety
    /// While the target is used, the elements that it is used for belong to the caller alone.
    pub(super) unsafe fn new(
        values: &'a Disjoint<'a>,
        from: usize,
        stride: usize,
        accumulate: bool,
    ) -> Target<'a> {
        Target { values, from, stride, accumulate }
    }
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
        let from = out.from + (row + i) * out.stride + column;
        // SAFETY: who made the target promised that these elements are this task's.
        let target = unsafe { out.values.range(from..from + N) };
        for (value, totals) in target.iter_mut().zip(&totals) {
            *value = if out.accumulate { *value + totals[i] } else { totals[i] };
        }
    }
    N
}
