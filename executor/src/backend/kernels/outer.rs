//! The micro-kernel under attention and convolution: sums of outer products, in tiles that the
//! registers hold.
//!
//! Both operands have the summed dimension first: `out[i, j] = sum over k of a[k, i] · b[k, j]`.
//! `b` is a panel of [`PANEL`] columns, which lie in the lanes, so every lane sums in the order of
//! `k`.
//!
//! Invariant: an element's sum is formed in the same order whatever tile, panel or lane it falls
//! into.

use super::grid::Rows;
use super::simd::{Lanes, per_isa};

/// Columns of a panel, in every instruction set: two vectors of the widest.
pub(super) const PANEL: usize = 32;

/// The sums of a tile of rows and `N` vectors of columns, over several runs of `depth` steps: run
/// `r` begins with `a[offsets[r]]` and continues the panel.
///
/// # Safety
/// The machine has the instructions. `a` is valid for reading `M` elements at each offset plus each
/// multiple of `stride` below `depth`; `b` for `N` vectors at each multiple of `PANEL` below
/// `offsets.len() · depth`.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, const M: usize, const N: usize>(
    a: *const f32,
    stride: usize,
    offsets: &[usize],
    b: *const f32,
    depth: usize,
) -> [[L::Vector; N]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::zero(); N]; M];
        let mut b = b;
        for &offset in offsets {
            let mut a = a.add(offset);
            for _ in 0..depth {
                let mut columns = [L::zero(); N];
                for (n, column) in columns.iter_mut().enumerate() {
                    *column = L::load(b.add(n * L::WIDTH));
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    let value = L::splat(*a.add(m));
                    for (sum, &column) in sums.iter_mut().zip(&columns) {
                        *sum = L::multiply_add(value, column, *sum);
                    }
                }
                a = a.wrapping_add(stride);
                b = b.wrapping_add(PANEL);
            }
        }
        sums
    }
}

/// Calls `$name::<L, M, $n>` with `M` as many rows as the registers hold of those that are left,
/// and gives `M`.
macro_rules! with_rows {
    ($lanes:ident, $left:expr, $name:ident::<$n:literal>($($arg:expr),* $(,)?)) => {{
        let left: usize = $left;
        if $lanes::TILE_ROWS >= 14 && left >= 14 {
            $name::<$lanes, 14, $n>($($arg),*);
            14
        } else if $lanes::TILE_ROWS >= 8 && left >= 8 {
            $name::<$lanes, 8, $n>($($arg),*);
            8
        } else if $lanes::TILE_ROWS == 6 && left >= 6 {
            $name::<$lanes, 6, $n>($($arg),*);
            6
        } else if left >= 4 {
            $name::<$lanes, 4, $n>($($arg),*);
            4
        } else if left >= 2 {
            $name::<$lanes, 2, $n>($($arg),*);
            2
        } else {
            $name::<$lanes, 1, $n>($($arg),*);
            1
        }
    }};
}
pub(super) use with_rows;

per_isa! {
    /// `out[i, j] = factors[j] · out[i, j] + sum over k < depth of a[k, i] · b[k, j]` for a panel
    /// of columns; without factors, what `out` holds does not count. `a`: `[depth, stride]`, of
    /// each row the first `count` elements. `b`: `[depth, PANEL]`. `out`: `[count, PANEL]`.
    pub(super) fn multiply_panel<L>(
        a: Rows<'_>,
        b: &[f32],
        depth: usize,
        factors: Option<&[f32; PANEL]>,
        out: &mut [f32],
    ) {
        let Rows { values: a, stride, count: rows } = a;
        assert!(depth > 0 && rows <= stride && (depth - 1) * stride + rows <= a.len(), "rows outside");
        assert!(depth * PANEL <= b.len() && rows * PANEL <= out.len(), "a panel is too short");
        let mut row = 0;
        while row < rows {
            for column in (0..PANEL).step_by(2 * L::WIDTH) {
                // SAFETY: the operands' lengths were checked above; `with_rows!` takes no more than
                // are left.
                unsafe {
                    let a = a.as_ptr().add(row);
                    let b = b.as_ptr().add(column);
                    let out = out.as_mut_ptr().add(row * PANEL + column);
                    let factors = factors.map(|factors| factors.as_ptr().add(column));
                    let taken = with_rows!(L, rows - row, part::<2>(a, stride, b, depth, factors, out));
                    if column + 2 * L::WIDTH >= PANEL {
                        row += taken;
                    }
                }
            }
        }
    }
}

/// A tile of [`multiply_panel`].
///
/// # Safety
/// As of [`tile`]; `factors` is valid for reading a tile's columns, and `out` for reading and
/// writing it.
#[inline(always)]
unsafe fn part<L: Lanes, const M: usize, const N: usize>(
    a: *const f32,
    stride: usize,
    b: *const f32,
    depth: usize,
    factors: Option<*const f32>,
    out: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let sums = tile::<L, M, N>(a, stride, &[0], b, depth);
        for (m, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                let at = out.add(m * PANEL + n * L::WIDTH);
                let value = match factors {
                    None => sum,
                    Some(factors) => {
                        L::multiply_add(L::load(factors.add(n * L::WIDTH)), L::load(at), sum)
                    }
                };
                L::store(at, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::kernels::simd::Isa;
    use crate::backend::kernels::testing::{Random, assert_close};

    #[test]
    fn panels_of_any_height_match_the_reference() {
        let mut random = Random::new(3);
        for isa in Isa::available() {
            for (rows, depth) in [(1, 1), (3, 7), (13, 40), (14, 3), (29, 65)] {
                let stride = rows + 5;
                let (a, b) = (random.normals(depth * stride), random.normals(depth * PANEL));
                let before = random.normals(rows * PANEL);
                let factors: [f32; PANEL] = std::array::from_fn(|_| random.normal());
                let expected = |scaled: bool| {
                    let value = |at: usize| {
                        let (row, column) = (at / PANEL, at % PANEL);
                        let term = |k: usize| {
                            f64::from(a[k * stride + row]) * f64::from(b[k * PANEL + column])
                        };
                        let old = f64::from(before[at]) * f64::from(factors[column]);
                        (0..depth).map(term).sum::<f64>() + if scaled { old } else { 0.0 }
                    };
                    (0..rows * PANEL).map(value).collect::<Vec<f64>>()
                };
                for (factors, scaled) in [(None, false), (Some(&factors), true)] {
                    let mut out = before.clone();
                    let a = Rows { values: &a, stride, count: rows };
                    multiply_panel(isa, a, &b, depth, factors, &mut out);
                    assert_close(&out, &expected(scaled), 1e-5, &format!("{isa} {rows} x {depth}"));
                }
            }
        }
    }
}
