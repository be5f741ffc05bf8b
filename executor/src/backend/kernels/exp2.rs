//! Powers of two in vectors, for the weights of a softmax: the polynomial under [`Lanes::exp2`].

use super::lanes::Lanes;

/// 2^r for r in -0.5..0.5 by its powers: weighted least squares of the relative error, repeated
/// until it is even (Lawson), with 1 at 0; 9.2e-8 at most. So the factor of what was summed before
/// is 1 where nothing larger came.
#[expect(clippy::approx_constant, reason = "a fitted factor that lies beside the logarithm of 2")]
const EXP2: [f32; 6] =
    [1.0, 0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];

/// Below this, [`Lanes::exp2`] is zero.
pub(super) const LOWEST: f32 = -127.0;

/// The polynomial of [`EXP2`].
///
/// # Safety
/// The machine has the instructions.
#[inline(always)]
pub(super) unsafe fn exp2_of_remainder<L: Lanes>(r: L::Vector) -> L::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = L::splat(EXP2[5]);
        for power in (0..5).rev() {
            sum = L::multiply_add(sum, r, L::splat(EXP2[power]));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Isa, per_isa};

    per_isa! {
        fn powers<L>(values: &mut [f32]) {
            for part in values.chunks_exact_mut(L::WIDTH) {
                // SAFETY: `per_isa!` has the instructions, and the part is as long as a vector.
                unsafe { L::store(part.as_mut_ptr(), L::exp2(L::load(part.as_ptr()))) };
            }
        }
    }

    #[test]
    fn exp2_is_good_to_two_units_in_the_last_place() {
        for isa in Isa::available() {
            let x: Vec<f32> = (0..16 * 4000).map(|i| 1.0 - 126.9 * i as f32 / 64_000.0).collect();
            let mut y = x.clone();
            powers(isa, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let expected = f64::from(x).exp2();
                let error = (f64::from(y) - expected).abs() / expected;
                assert!(error < 2.4e-7, "{isa}: exp2({x}) = {y}, off by {error:e}");
            }
        }
    }

    #[test]
    fn exp2_of_the_extremes() {
        for isa in Isa::available() {
            let mut x = [0.0; 16];
            x[..5].copy_from_slice(&[f32::NEG_INFINITY, f32::MIN, -300.0, 0.0, f32::NAN]);
            powers(isa, &mut x);
            assert_eq!(x[..3], [0.0; 3], "{isa}");
            assert!(x[3] == 1.0 && x[4].is_nan(), "{isa}: {x:?}");
        }
    }
}
