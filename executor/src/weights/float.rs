//! Short floats as f32: exact, and without branches, so that a loop over them becomes vector
//! instructions.

/// The upper half of a binary32.
#[inline(always)]
pub(crate) fn f32_of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// IEEE 754 binary16.
#[inline(always)]
pub(crate) fn f32_of_f16(bits: u16) -> f32 {
    /// What takes binary16's exponent bias of 15 to binary32's of 127, in place.
    const BIAS: u32 = (127 - 15) << 23;
    let sign = u32::from(bits & 0x8000) << 16;
    let normal = (u32::from(bits & 0x7fff) << 13) + BIAS;
    let value = if bits & 0x7c00 == 0 {
        subnormal(normal, BIAS)
    } else if bits & 0x7c00 == 0x7c00 {
        normal + BIAS
    } else {
        normal
    };
    f32::from_bits(value | sign)
}

/// Four exponent bits, no infinities, all bits set is no number (OCP 8-bit floating point, `E4M3`).
#[inline(always)]
pub(crate) fn f32_of_e4m3(bits: u8) -> f32 {
    /// What takes the exponent bias of 7 to binary32's of 127, in place.
    const BIAS: u32 = (127 - 7) << 23;
    let sign = u32::from(bits & 0x80) << 24;
    let normal = (u32::from(bits & 0x7f) << 20) + BIAS;
    let value = if bits & 0x78 == 0 {
        subnormal(normal, BIAS)
    } else if bits & 0x7f == 0x7f {
        f32::NAN.to_bits()
    } else {
        normal
    };
    f32::from_bits(value | sign)
}

/// The upper half of a binary16.
#[inline(always)]
pub(crate) fn f32_of_e5m2(bits: u8) -> f32 {
    f32_of_f16(u16::from(bits) << 8)
}

/// The bits of a subnormal: its fraction, given the exponent of its unit and that unit subtracted
/// again. No operand is a subnormal of binary32, which some machines are slow at.
#[inline(always)]
fn subnormal(normal: u32, bias: u32) -> u32 {
    let unit = 1 << 23;
    (f32::from_bits(normal + unit) - f32::from_bits(bias + unit)).to_bits()
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_is_the_library_s() {
        for bits in 0..=u16::MAX {
            let pairs = [
                (f32_of_f16(bits), f16::from_bits(bits).to_f32()),
                (f32_of_bf16(bits), bf16::from_bits(bits).to_f32()),
            ];
            for (found, expected) in pairs {
                let same = found.to_bits() == expected.to_bits();
                assert!(same || found.is_nan() && expected.is_nan(), "{bits:#x}: {found}");
            }
        }
    }

    #[test]
    fn the_limits_of_eight_bits_are_the_standard_s() {
        // Table 1 of "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0.
        let e4m3 = [(0x00, 0.0), (0x7e, 448.0), (0x08, 2e0_f32.powi(-6)), (0x01, 2e0_f32.powi(-9))];
        let e5m2 = [(0x7b, 57344.0), (0x7c, f32::INFINITY), (0x01, 2e0_f32.powi(-16))];
        for (bits, expected) in e4m3 {
            assert_eq!(f32_of_e4m3(bits), expected);
            assert_eq!(f32_of_e4m3(bits | 0x80).to_bits(), (-expected).to_bits());
        }
        for (bits, expected) in e5m2 {
            assert_eq!((f32_of_e5m2(bits), f32_of_e5m2(bits | 0x80)), (expected, -expected));
        }
        let numbers =
            |widen: fn(u8) -> f32| (0..=255).filter(|&bits| !widen(bits).is_nan()).count();
        assert_eq!((numbers(f32_of_e4m3), numbers(f32_of_e5m2)), (254, 250));
    }
}
