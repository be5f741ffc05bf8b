//! Sums at the edge of a matrix. Kernels write whole slivers; some of their rows or columns may lie
//! outside the matrix.

use super::panel::SLIVER_COLUMNS;
use super::rounding::STRIP_ROWS;
use crate::backend::kernels::grid::Target;

/// Room for the sums of a sliver that do not all exist.
#[repr(align(64))]
pub(super) struct EdgeSums([[f32; SLIVER_COLUMNS]; STRIP_ROWS]);

impl EdgeSums {
    pub(super) fn new() -> EdgeSums {
        EdgeSums([[0.0; SLIVER_COLUMNS]; STRIP_ROWS])
    }

    /// Where `wanted` rows of a sliver's sums are written, and from one to the next: in their
    /// places if all of them exist, else here, with those that are there if they are added to.
    /// `rows` and `columns` of them exist, from `column` on.
    pub(super) fn begin(
        &mut self,
        out: Target<'_>,
        rows: usize,
        wanted: usize,
        column: usize,
        columns: usize,
    ) -> (*mut f32, usize) {
        if is_whole(rows, wanted, columns) {
            return out.rows(0..rows, column, columns);
        }
        if out.accumulates() {
            for (row, sums) in self.0.iter_mut().take(rows).enumerate() {
                // SAFETY: who made the target promised that these elements are this task's.
                sums[..columns].copy_from_slice(unsafe { out.row(row, column, columns) });
            }
        }
        (self.0.as_flattened_mut().as_mut_ptr(), SLIVER_COLUMNS)
    }

    /// Brings sums that were written here to their places.
    pub(super) fn end(
        &self,
        out: Target<'_>,
        rows: usize,
        wanted: usize,
        column: usize,
        columns: usize,
    ) {
        if is_whole(rows, wanted, columns) {
            return;
        }
        for (row, sums) in self.0.iter().take(rows).enumerate() {
            // SAFETY: as above.
            unsafe { out.row(row, column, columns) }.copy_from_slice(&sums[..columns]);
        }
    }
}

fn is_whole(rows: usize, wanted: usize, columns: usize) -> bool {
    rows == wanted && columns == SLIVER_COLUMNS
}
