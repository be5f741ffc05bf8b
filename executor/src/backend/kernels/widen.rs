//! Reading stored weights as `f32`: any element, any alignment, exactly.

use protocol::StorageType;

use super::simd::{Isa, per_isa};
use crate::weights::float::{f32_of_bf16, f32_of_e4m3, f32_of_e5m2, f32_of_f16};
use crate::weights::view::{WeightView, read_blocks, scale};

/// The elements of a weight that is stored in f32 at an aligned address, as they lie.
pub(super) fn as_f32(weight: WeightView<'_>) -> Option<&[f32]> {
    let as_is = weight.storage == StorageType::F32 && weight.scale == 1.0;
    if as_is && cfg!(target_endian = "little") {
        bytemuck::try_cast_slice(weight.bytes).ok()
    } else {
        None
    }
}

/// Widens the elements of `weight` from element `from` on into `out`, its scale included. Whole
/// blocks are faster than parts of such.
pub(super) fn widen(isa: Isa, weight: WeightView<'_>, from: usize, out: &mut [f32]) {
    if weight.storage.is_blocks() {
        widen_blocks(isa, weight, from, out);
        return;
    }
    let size = weight.storage.element_bytes();
    let bytes = &weight.bytes[from * size..(from + out.len()) * size];
    match weight.storage {
        StorageType::F32 => widen_f32(isa, bytes, out),
        StorageType::F16 => widen_f16(isa, bytes, out),
        StorageType::BF16 => widen_bf16(isa, bytes, out),
        StorageType::F8E4M3 => widen_e4m3(isa, bytes, out),
        StorageType::F8E5M2 => widen_e5m2(isa, bytes, out),
        blocks => unreachable!("{blocks} has blocks"),
    }
    scale(out, weight.scale);
}

/// Widens every `step`-th element of `weight`, beginning with element `from`, into `out`, its scale
/// included.
pub(super) fn widen_strided(weight: WeightView<'_>, from: usize, step: usize, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    if weight.storage.is_blocks() {
        // A read decodes the block anew: the few convolutions in blocks are not worth more.
        for (value, at) in out.iter_mut().zip((from..).step_by(step)) {
            weight.read(at, std::slice::from_mut(value));
        }
        return;
    }
    let size = weight.storage.element_bytes();
    let last = from + (out.len() - 1) * step;
    let stored = weight.bytes[from * size..(last + 1) * size].chunks(size * step);
    let pairs = out.iter_mut().zip(stored);
    match weight.storage {
        StorageType::F32 => {
            for (value, stored) in pairs {
                *value = f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
            }
        }
        StorageType::F16 => {
            pairs.for_each(|(value, stored)| *value = f32_of_f16(half_bits(stored)));
        }
        StorageType::BF16 => {
            pairs.for_each(|(value, stored)| *value = f32_of_bf16(half_bits(stored)));
        }
        StorageType::F8E4M3 => pairs.for_each(|(value, stored)| *value = f32_of_e4m3(stored[0])),
        StorageType::F8E5M2 => pairs.for_each(|(value, stored)| *value = f32_of_e5m2(stored[0])),
        blocks => unreachable!("{blocks} has blocks"),
    }
    scale(out, weight.scale);
}

#[inline(always)]
fn half_bits(stored: &[u8]) -> u16 {
    u16::from_le_bytes([stored[0], stored[1]])
}

per_isa! {
    fn widen_blocks<L>(weight: WeightView<'_>, from: usize, out: &mut [f32]) {
        read_blocks(weight.storage, weight.bytes, from, out);
        scale(out, weight.scale);
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
        let whole = out.len() / L::WIDTH * L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            let (stored, values) = (&bytes[2 * at..2 * (at + L::WIDTH)], &mut out[at..at + L::WIDTH]);
            // SAFETY: `per_isa!` has the instructions, and both slices are one vector.
            unsafe { L::store(values.as_mut_ptr(), L::load_f16(stored.as_ptr())) };
        }
        for (value, stored) in out[whole..].iter_mut().zip(bytes[2 * whole..].as_chunks::<2>().0) {
            *value = f32_of_f16(u16::from_le_bytes(*stored));
        }
    }
}

per_isa! {
    fn widen_bf16<L>(bytes: &[u8], out: &mut [f32]) {
        let whole = out.len() / L::WIDTH * L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            let (stored, values) = (&bytes[2 * at..2 * (at + L::WIDTH)], &mut out[at..at + L::WIDTH]);
            // SAFETY: `per_isa!` has the instructions, and both slices are one vector.
            unsafe { L::store(values.as_mut_ptr(), L::load_bf16(stored.as_ptr())) };
        }
        for (value, stored) in out[whole..].iter_mut().zip(bytes[2 * whole..].as_chunks::<2>().0) {
            *value = f32_of_bf16(u16::from_le_bytes(*stored));
        }
    }
}

per_isa! {
    fn widen_e4m3<L>(bytes: &[u8], out: &mut [f32]) {
        out.iter_mut().zip(bytes).for_each(|(value, &stored)| *value = f32_of_e4m3(stored));
    }
}

per_isa! {
    fn widen_e5m2<L>(bytes: &[u8], out: &mut [f32]) {
        out.iter_mut().zip(bytes).for_each(|(value, &stored)| *value = f32_of_e5m2(stored));
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::weights::support::{assert_same, quant_blocks};

    #[test]
    fn every_half_is_widened_exactly_by_every_instruction_set() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        // One byte in front makes the elements unaligned.
        let bytes: Vec<u8> =
            [0].into_iter().chain(bits.iter().flat_map(|b| b.to_le_bytes())).collect();
        for isa in Isa::available() {
            for storage in [StorageType::F16, StorageType::BF16] {
                let weight =
                    WeightView { storage, shape: &[1 << 16], bytes: &bytes[1..], scale: 1.0 };
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
        let weight =
            WeightView { storage: StorageType::F32, shape: &[5], bytes: &bytes[1..], scale: 1.0 };
        for isa in Isa::available() {
            let mut out = [0.0; 3];
            widen(isa, weight, 1, &mut out);
            assert_eq!(out, values[1..4]);
        }
        let mut out = [0.0; 2];
        widen_strided(weight, 0, 3, &mut out);
        assert_eq!(out, [values[0], values[3]]);
    }

    #[test]
    fn blocks_and_eight_bits_are_widened_exactly_by_every_instruction_set() {
        for (name, storage, bytes, expected) in quant_blocks() {
            let shape = [expected.len()];
            let weight = WeightView { storage, shape: &shape, bytes: &bytes, scale: 1.0 };
            for isa in Isa::available() {
                for from in [0, 5] {
                    let mut values = vec![f32::NAN; expected.len() - from];
                    widen(isa, weight, from, &mut values);
                    assert_same(&values, &expected[from..], &format!("{name} {isa}"));
                }
            }
            let mut strided = [f32::NAN; 9];
            widen_strided(weight, 3, 11, &mut strided);
            let picked: Vec<f32> = expected[3..].iter().step_by(11).take(9).copied().collect();
            assert_same(&strided, &picked, &name);
        }
    }

    #[test]
    fn a_scale_multiplies_what_is_widened() {
        for (name, storage, bytes, expected) in quant_blocks() {
            let shape = [expected.len()];
            let weight = WeightView { storage, shape: &shape, bytes: &bytes, scale: 0.3 };
            let scaled: Vec<f32> = expected.iter().map(|value| value * 0.3).collect();
            assert_same(&weight.to_f32(), &scaled, &name);
            let mut values = vec![f32::NAN; scaled.len()];
            widen(Isa::best(), weight, 0, &mut values);
            assert_same(&values, &scaled, &name);
            let mut strided = [f32::NAN; 3];
            widen_strided(weight, 1, 7, &mut strided);
            assert_same(&strided, &[scaled[1], scaled[8], scaled[15]], &name);
        }
    }
}
