//! Transposition of rows into a panel, for a product along a dimension that is not the last.

use super::simd::per_isa;

/// Side of the squares that [`Lanes::transpose`] turns.
const SIDE: usize = 8;

per_isa! {
    /// Writes `columns` elements of each of `rows` rows, which are `from_stride` apart, as columns
    /// of `target`, whose rows are `stride` apart: `target[column * stride + row] = from[row,
    /// column]`.
    pub(super) fn transpose<L>(
        from: &[f32],
        from_stride: usize,
        rows: usize,
        columns: usize,
        target: &mut [f32],
        stride: usize,
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!((rows - 1) * from_stride + columns <= from.len(), "rows outside");
        assert!((columns - 1) * stride + rows <= target.len(), "columns outside the target");
        assert!(rows <= stride, "columns overlap");
        let (whole_rows, whole_columns) = (rows / SIDE * SIDE, columns / SIDE * SIDE);
        for row in (0..whole_rows).step_by(SIDE) {
            for column in (0..whole_columns).step_by(SIDE) {
                // SAFETY: `per_isa!` has the instructions; the square lies in the rows and columns
                // that were checked above, and a borrow for writing overlaps no other.
                unsafe {
                    let from = from.as_ptr().add(row * from_stride + column);
                    let to = target.as_mut_ptr().add(column * stride + row);
                    L::transpose(from, from_stride, to, stride);
                }
            }
        }
        for row in 0..rows {
            let done = if row < whole_rows { whole_columns } else { 0 };
            for column in done..columns {
                target[column * stride + row] = from[row * from_stride + column];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kernels::simd::Isa;

    #[test]
    fn rows_of_any_size_become_columns() {
        for isa in Isa::available() {
            for (count, columns) in [(1, 1), (8, 8), (7, 20), (24, 16), (19, 13), (3, 0)] {
                let (from_stride, stride) = (columns + 5, count + 3);
                let values: Vec<f32> = (0..count * from_stride).map(|at| at as f32).collect();
                let mut target = vec![-1.0; columns * stride];
                transpose(isa, &values, from_stride, count, columns, &mut target, stride);
                for (at, &got) in target.iter().enumerate() {
                    let (column, row) = (at / stride, at % stride);
                    let expected =
                        if row < count { (row * from_stride + column) as f32 } else { -1.0 };
                    assert_eq!(got, expected, "{isa}: {count} x {columns} at {row}, {column}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "columns outside the target")]
    fn a_target_that_is_too_short_is_a_bug() {
        transpose(Isa::best(), &[0.0; 64], 8, 8, 8, &mut [0.0; 63], 8);
    }
}
