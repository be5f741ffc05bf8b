//! Reading stored weights as `f32`: any element, any alignment, exactly.

use protocol::StorageType;

use super::simd::{Isa, per_isa};
use crate::weights::view::WeightView;

/// Widens the elements of `weight` from element `from` on into `out`.
pub(super) fn widen(isa: Isa, weight: WeightView<'_>, from: usize, out: &mut [f32]) {
    let size = weight.storage.element_bytes();
    let bytes = &weight.bytes[from * size..(from + out.len()) * size];
    match weight.storage {
        StorageType::F32 => widen_f32(isa, bytes, out),
        StorageType::F16 => widen_f16(isa, bytes, out),
        StorageType::BF16 => widen_bf16(isa, bytes, out),
        StorageType::Q8_0 => unreachable!("no file that is opened has it"),
    }
}

/// Widens every `step`-th element of `weight`, beginning with element `from`, into `out`.
pub(super) fn widen_strided(weight: WeightView<'_>, from: usize, step: usize, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let size = weight.storage.element_bytes();
    let last = from + (out.len() - 1) * step;
    let bytes = &weight.bytes[from * size..(last + 1) * size];
    match weight.storage {
        StorageType::F32 => {
            for (value, stored) in out.iter_mut().zip(bytes.chunks(4 * step)) {
                *value = f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
            }
        }
        StorageType::F16 => {
            for (value, stored) in out.iter_mut().zip(bytes.chunks(2 * step)) {
                *value = f32_of_f16(u16::from_le_bytes([stored[0], stored[1]]));
            }
        }
        StorageType::BF16 => {
            for (value, stored) in out.iter_mut().zip(bytes.chunks(2 * step)) {
                *value = f32_of_bf16(u16::from_le_bytes([stored[0], stored[1]]));
            }
        }
        StorageType::Q8_0 => unreachable!("no file that is opened has it"),
    }
}

per_isa! {
    fn widen_f32<L>(bytes: &[u8], out: &mut [f32]) {
        for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*stored);
        }
    }
}

per_isa! {
    fn widen_f16<L>(bytes: &[u8], out: &mut [f32]) {
        for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = f32_of_f16(u16::from_le_bytes(*stored));
        }
    }
}

per_isa! {
    fn widen_bf16<L>(bytes: &[u8], out: &mut [f32]) {
        for (value, stored) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = f32_of_bf16(u16::from_le_bytes(*stored));
        }
    }
}

#[inline(always)]
fn f32_of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Without branches or subnormal operands, so that it becomes a few vector instructions.
#[inline(always)]
fn f32_of_f16(bits: u16) -> f32 {
    /// What takes binary16's exponent bias of 15 to binary32's of 127, in place.
    const BIAS: u32 = (127 - 15) << 23;
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + BIAS;
    // A subnormal's fraction, given the exponent of its unit and that unit subtracted again.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(BIAS + (1 << 23));
    let value = if bits & 0x7c00 == 0 {
        subnormal.to_bits()
    } else if bits & 0x7c00 == 0x7c00 {
        normal + BIAS
    } else {
        normal
    };
    f32::from_bits(value | sign)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_is_widened_exactly_by_every_instruction_set() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        // One byte in front makes the elements unaligned.
        let bytes: Vec<u8> =
            [0].into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
        for isa in Isa::available() {
            for storage in [StorageType::F16, StorageType::BF16] {
                let weight = WeightView { storage, shape: &[1 << 16], bytes: &bytes[1..] };
                let mut values = vec![0.0; bits.len()];
                widen(isa, weight, 0, &mut values);
                for (&bits, &value) in bits.iter().zip(&values) {
                    let expected = match storage {
                        StorageType::F16 => f16::from_bits(bits).to_f32(),
                        _ => bf16::from_bits(bits).to_f32(),
                    };
                    let same = value.to_bits() == expected.to_bits();
                    assert!(
                        same || value.is_nan() && expected.is_nan(),
                        "{isa} {storage} {bits:#x}"
                    );
                }
                let mut strided = vec![0.0; 20];
                widen_strided(weight, 11, 9, &mut strided);
                assert!((0..20).all(|i| strided[i] == values[11 + 9 * i]));
            }
        }
    }

    #[test]
    fn unaligned_f32_is_copied() {
        let values = [1.5f32, -2.0, f32::MIN_POSITIVE / 4.0, 1e30, 7.0];
        let bytes: Vec<u8> =
            [9].into_iter().chain(values.iter().flat_map(|v| v.to_le_bytes())).collect();
        let weight = WeightView { storage: StorageType::F32, shape: &[5], bytes: &bytes[1..] };
        for isa in Isa::available() {
            let mut out = [0.0; 3];
            widen(isa, weight, 1, &mut out);
            assert_eq!(out, values[1..4]);
        }
        let mut out = [0.0; 2];
        widen_strided(weight, 0, 3, &mut out);
        assert_eq!(out, [values[0], values[3]]);
    }
}
