//! Exponential and activation functions, written so that loops over them become vector code.

use super::simd::{Isa, Lanes, per_isa};
use crate::graph::Activation;

/// Applies `activation` to each value.
pub(super) fn apply(isa: Isa, activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Silu => apply_silu(isa, values),
        Activation::GeluTanh => apply_gelu_tanh(isa, values),
        Activation::GeluErf => apply_gelu_erf(isa, values),
        Activation::QuickGelu => apply_quick_gelu(isa, values),
    }
}

per_isa! {
    fn apply_silu<L>(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x = silu::<L>(*x));
    }
}

per_isa! {
    fn apply_gelu_tanh<L>(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x = gelu_tanh::<L>(*x));
    }
}

per_isa! {
    fn apply_gelu_erf<L>(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x = gelu_erf::<L>(*x));
    }
}

per_isa! {
    fn apply_quick_gelu<L>(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x /= 1.0 + exp::<L>(-1.702 * *x));
    }
}

/// x · sigmoid(x).
#[inline(always)]
pub(super) fn silu<L: Lanes>(x: f32) -> f32 {
    x / (1.0 + exp::<L>(-x))
}

/// By 1 + tanh(u) = 2 sigmoid(2u), which does not cancel where tanh is near -1.
#[inline(always)]
fn gelu_tanh<L: Lanes>(x: f32) -> f32 {
    /// -2 √(2/π)
    const MINUS_TWO_ROOT: f32 = -1.595_769_2;
    let cubic = L::mul_add(0.044715 * x * x, x, x);
    x / (1.0 + exp::<L>(MINUS_TWO_ROOT * cubic))
}

/// By the complementary error function of |x|/√2, which keeps its relative precision in the tail.
#[inline(always)]
fn gelu_erf<L: Lanes>(x: f32) -> f32 {
    /// 0.4 / √2
    const SLOPE: f32 = 0.282_842_7;
    /// `exp(z²) erfc(z) / t` in powers of `t = 1 / (1 + 0.4 z)` for z in 0..9.5: interpolated in
    /// its Chebyshev nodes, relative error 9e-8.
    const TAIL: [f32; 9] = [
        0.225_611_53,
        0.226_841_09,
        0.198_966_05,
        0.205_131_16,
        0.051_478_724,
        0.129_888_4,
        0.046_533_91,
        -0.121_834_66,
        0.037_383_834,
    ];
    let t = 1.0 / L::mul_add(SLOPE, x.abs(), 1.0);
    let mut sum = TAIL[8];
    for power in (0..8).rev() {
        sum = L::mul_add(sum, t, TAIL[power]);
    }
    // Half of erfc(|x|/√2): the standard normal distribution at -|x|.
    let tail = 0.5 * t * sum * exp::<L>(-0.5 * x * x);
    x * if x > 0.0 { 1.0 - tail } else { tail }
}

/// e to the power `x`, within 2 units in the last place from -87.3 to 88.3; zero below, and its
/// value at 88.3 above. A NaN stays one.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: f32) -> f32 {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.3;
    /// Adding this rounds to a whole number, which is then in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has so few bits that its multiples are exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > HIGHEST { HIGHEST } else { x };
    let clamped = if clamped < LOWEST { LOWEST } else { clamped };
    let rounded = L::mul_add(clamped, std::f32::consts::LOG2_E, ROUNDING);
    let whole = rounded - ROUNDING;
    let r = L::mul_add(whole, -LN2_HIGH, clamped);
    let r = L::mul_add(whole, -LN2_LOW, r);
    // The series of e^r to the seventh power: |r| <= ln 2 / 2 leaves 6e-9.
    let mut sum = 1.0 / 5040.0;
    sum = L::mul_add(sum, r, 1.0 / 720.0);
    sum = L::mul_add(sum, r, 1.0 / 120.0);
    sum = L::mul_add(sum, r, 1.0 / 24.0);
    sum = L::mul_add(sum, r, 1.0 / 6.0);
    sum = L::mul_add(sum, r, 0.5);
    sum = L::mul_add(sum, r, 1.0);
    sum = L::mul_add(sum, r, 1.0);
    let power = rounded.to_bits().wrapping_sub(ROUNDING.to_bits()).wrapping_add(127) << 23;
    let value = sum * f32::from_bits(power);
    if x < LOWEST { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    per_isa! {
        fn exps<L>(values: &mut [f32]) {
            values.iter_mut().for_each(|x| *x = exp::<L>(*x));
        }
    }

    /// erfc by its series near zero and its continued fraction further out, in f64.
    fn erfc(z: f64) -> f64 {
        if z.abs() < 2.5 {
            let mut term = z;
            let mut sum = z;
            for n in 1..80 {
                term *= -z * z / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return 1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI;
        }
        let fraction = (1..=120).rev().fold(z.abs(), |f, k| z.abs() + f64::from(k) / 2.0 / f);
        let tail = (-z * z).exp() / fraction / std::f64::consts::PI.sqrt();
        if z > 0.0 { tail } else { 2.0 - tail }
    }

    fn points(low: f32, high: f32) -> Vec<f32> {
        (0..=20_011).map(|i| low + (high - low) * i as f32 / 20_011.0).collect()
    }

    #[test]
    fn exp_is_good_to_two_units_in_the_last_place() {
        for isa in Isa::available() {
            let x = points(-87.25, 88.25);
            let mut y = x.clone();
            exps(isa, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let expected = f64::from(x).exp();
                let error = (f64::from(y) - expected).abs() / expected;
                assert!(error < 2.4e-7, "{isa}: exp({x}) = {y}, off by {error:e}");
            }
        }
    }

    #[test]
    fn exp_of_the_extremes() {
        for isa in Isa::available() {
            let mut x = [f32::NEG_INFINITY, -1e30, -88.0, 0.0, 89.0, f32::INFINITY, f32::NAN];
            exps(isa, &mut x);
            assert_eq!(x[..4], [0.0, 0.0, 0.0, 1.0], "{isa}");
            assert!(x[4] > 2e38 && x[4] == x[5] && x[6].is_nan(), "{isa}: {x:?}");
        }
    }

    #[test]
    fn activations_match_their_definitions() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let reference = |activation, x: f64| match activation {
            Activation::None => x,
            Activation::Silu => x * sigmoid(x),
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                x * sigmoid(2.0 * u)
            }
            Activation::GeluErf => x * 0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Activation::QuickGelu => x * sigmoid(1.702 * x),
        };
        use Activation::{GeluErf, GeluTanh, None, QuickGelu, Silu};
        for isa in Isa::available() {
            for activation in [None, Silu, GeluTanh, GeluErf, QuickGelu] {
                let x = points(-12.0, 12.0);
                let mut y = x.clone();
                apply(isa, activation, &mut y);
                for (&x, &y) in x.iter().zip(&y) {
                    let expected = reference(activation, f64::from(x));
                    // In the tail the argument of exp, rounded to f32, costs its own size in ulps.
                    let allowed = 1e-6 * expected.abs() + 1e-9;
                    let error = (f64::from(y) - expected).abs();
                    assert!(error <= allowed, "{isa}: {activation:?}({x}) = {y}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn activations_of_the_extremes() {
        use Activation::{GeluErf, GeluTanh, QuickGelu, Silu};
        for isa in Isa::available() {
            for activation in [Silu, GeluTanh, GeluErf, QuickGelu] {
                let mut x = [-1e4, 0.0, 1e4, f32::NAN];
                apply(isa, activation, &mut x);
                assert!(x[0].abs() < 1e-30 && x[1] == 0.0 && x[2] == 1e4, "{isa} {activation:?}");
                assert!(x[3].is_nan(), "{isa} {activation:?}");
            }
        }
    }
}
