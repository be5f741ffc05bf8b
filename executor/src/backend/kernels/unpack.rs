//! Weights as unsigned bytes with scales: the common form of all types that are multiplied as
//! integers.
//!
//! A weight is `scale · (q - offset)` or `scale · q - minimum`, with `q` an unsigned byte and one
//! scale for each 16 or 32 of a row. Layouts are those of `ggml-common.h` and `ggml-quants.c`.
//!
//! Floats of eight bits are rounded to it ([`round_floats`]), all others are as they were.

use protocol::StorageType;

use super::simd::{Isa, Lanes, per_isa};
use crate::weights::float::{f32_of_e4m3, f32_of_e5m2, f32_of_f16};

/// How a type's numbers stand for weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// Bits of the largest number, or more: 5 also of types of 2 and 4, 6 also of those of 3.
    pub(super) bits: u32,
    /// Subtracted from each number.
    pub(super) offset: u8,
    /// Scales for each 32 numbers: 1 or 2.
    pub(super) scales: usize,
    /// Whether each scale comes with a minimum that is subtracted.
    pub(super) has_minimum: bool,
}

impl Form {
    /// The form of a type, if its products are formed with integers.
    pub(super) fn of(storage: StorageType) -> Option<Form> {
        let form =
            |bits, offset, scales, has_minimum| Some(Form { bits, offset, scales, has_minimum });
        match storage {
            StorageType::Q8_0 | StorageType::F8E4M3 | StorageType::F8E5M2 => form(8, 128, 1, false),
            StorageType::Q4_0 => form(5, 8, 1, false),
            StorageType::Q5_0 => form(5, 16, 1, false),
            StorageType::Q4_1 | StorageType::Q5_1 | StorageType::Q4K | StorageType::Q5K => {
                form(5, 0, 1, true)
            }
            StorageType::Q2K => form(5, 0, 2, true),
            StorageType::Q3K => form(6, 4, 2, false),
            StorageType::Q6K => form(6, 32, 2, false),
            _ => None,
        }
    }
}

/// Takes whole blocks apart: `numbers` one for each element, `scales` and `minima` for each 16 or
/// 32, as the type's [`Form`] says. Minima are negated.
///
/// # Panics
/// If the type has no form, or the lengths do not fit.
pub(super) fn unpack(
    isa: Isa,
    storage: StorageType,
    bytes: &[u8],
    numbers: &mut [u8],
    scales: &mut [f32],
    minima: &mut [f32],
) {
    let form = Form::of(storage).expect("a type of integers");
    assert_eq!(bytes.len() as u64, storage.bytes(numbers.len() as u64).0);
    assert_eq!(scales.len(), numbers.len() / 32 * form.scales, "scales");
    assert!(!form.has_minimum || minima.len() == scales.len(), "minima");
    match storage {
        StorageType::Q8_0 => q8_0(isa, bytes, numbers, scales),
        StorageType::Q4_0 => q4_0(isa, bytes, numbers, scales),
        StorageType::Q4_1 => q4_1(isa, bytes, numbers, scales, minima),
        StorageType::Q5_0 => q5_0(isa, bytes, numbers, scales),
        StorageType::Q5_1 => q5_1(isa, bytes, numbers, scales, minima),
        StorageType::Q2K => q2_k(isa, bytes, numbers, scales, minima),
        StorageType::Q3K => q3_k(isa, bytes, numbers, scales),
        StorageType::Q4K => q4_k(isa, bytes, numbers, scales, minima),
        StorageType::Q5K => q5_k(isa, bytes, numbers, scales, minima),
        StorageType::F8E4M3 => f8_e4m3(isa, bytes, numbers, scales),
        StorageType::F8E5M2 => f8_e5m2(isa, bytes, numbers, scales),
        _ => q6_k(isa, bytes, numbers, scales),
    }
}

#[inline(always)]
fn half(bytes: &[u8], at: usize) -> f32 {
    f32_of_f16(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The low halves of 16 bytes, then the high ones.
#[inline(always)]
fn nibbles(packed: &[u8; 16], numbers: &mut [u8; 32]) {
    for (at, byte) in packed.iter().enumerate() {
        numbers[at] = byte & 0xf;
        numbers[at + 16] = byte >> 4;
    }
}

/// Adds the fifth bits of 32 numbers.
#[inline(always)]
fn fifth_bits(bits: &[u8], numbers: &mut [u8; 32]) {
    for (numbers, bits) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        // Of each byte one bit, which overflows into the highest unless it is zero.
        let spread = (u64::from(*bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifth = ((spread + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3;
        *numbers = (u64::from_le_bytes(*numbers) | fifth).to_le_bytes();
    }
}

/// One number in binary16 of each block.
#[inline(always)]
fn halves<L: Lanes, const BYTES: usize>(blocks: &[[u8; BYTES]], at: usize, values: &mut [f32]) {
    let (vectors, rest) = blocks.as_chunks::<16>();
    let (vector_values, rest_values) = values.as_chunks_mut::<16>();
    for (blocks, values) in vectors.iter().zip(vector_values) {
        let halves = blocks.each_ref().map(|block| [block[at], block[at + 1]]);
        for first in (0..16).step_by(L::WIDTH) {
            // SAFETY: whoever names `L` has its instructions; 16 is a multiple of its width.
            unsafe {
                let vector = L::load_f16(halves.as_ptr().add(first).cast());
                L::store(values.as_mut_ptr().add(first), vector);
            }
        }
    }
    // A panel's depth leaves eight.
    let (eights, rest) = rest.as_chunks::<8>();
    let (eight_values, rest_values) = rest_values.as_chunks_mut::<8>();
    for (blocks, values) in eights.iter().zip(eight_values) {
        let halves: [[u8; 2]; 16] = std::array::from_fn(|index| {
            let block = &blocks[index % 8];
            [block[at], block[at + 1]]
        });
        let mut wide = [0.0; 16];
        // SAFETY: as above; no vector is wider than 16.
        unsafe { L::store(wide.as_mut_ptr(), L::load_f16(halves.as_ptr().cast())) };
        values.copy_from_slice(&wide[..8]);
    }
    for (block, value) in rest.iter().zip(rest_values) {
        *value = half(block, at);
    }
}

per_isa! {
    fn q8_0<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let blocks = bytes.as_chunks::<34>().0;
        for (block, numbers) in blocks.iter().zip(numbers.as_chunks_mut::<32>().0) {
            numbers.iter_mut().zip(&block[2..]).for_each(|(number, byte)| *number = byte ^ 0x80);
        }
        halves::<L, 34>(blocks, 0, scales);
    }
}

per_isa! {
    fn q4_0<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let blocks = bytes.as_chunks::<18>().0;
        for (block, numbers) in blocks.iter().zip(numbers.as_chunks_mut::<32>().0) {
            nibbles(block.last_chunk().expect("18 bytes"), numbers);
        }
        halves::<L, 18>(blocks, 0, scales);
    }
}

per_isa! {
    fn q4_1<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        let blocks = bytes.as_chunks::<20>().0;
        for (block, numbers) in blocks.iter().zip(numbers.as_chunks_mut::<32>().0) {
            nibbles(block.last_chunk().expect("20 bytes"), numbers);
        }
        halves::<L, 20>(blocks, 0, scales);
        halves::<L, 20>(blocks, 2, minima);
    }
}

per_isa! {
    fn q5_0<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let blocks = bytes.as_chunks::<22>().0;
        for (block, numbers) in blocks.iter().zip(numbers.as_chunks_mut::<32>().0) {
            nibbles(block.last_chunk().expect("22 bytes"), numbers);
            fifth_bits(&block[2..6], numbers);
        }
        halves::<L, 22>(blocks, 0, scales);
    }
}

per_isa! {
    fn q5_1<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        let blocks = bytes.as_chunks::<24>().0;
        for (block, numbers) in blocks.iter().zip(numbers.as_chunks_mut::<32>().0) {
            nibbles(block.last_chunk().expect("24 bytes"), numbers);
            fifth_bits(&block[4..8], numbers);
        }
        halves::<L, 24>(blocks, 0, scales);
        halves::<L, 24>(blocks, 2, minima);
    }
}

/// Numbers of two bits: each 32 bytes hold 128 of them, the lowest bits the first 32.
#[inline(always)]
fn twos(packed: &[u8; 64], numbers: &mut [u8; 256]) {
    let packed = packed.as_chunks::<32>().0.iter();
    for (packed, numbers) in packed.zip(numbers.as_chunks_mut::<128>().0) {
        for (plane, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            numbers.iter_mut().zip(packed).for_each(|(n, byte)| *n = byte >> (2 * plane) & 3);
        }
    }
}

per_isa! {
    fn q2_k<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        let scales = scales.as_chunks_mut::<16>().0.iter_mut().zip(minima.as_chunks_mut::<16>().0);
        let blocks = bytes.as_chunks::<84>().0.iter().zip(numbers.as_chunks_mut::<256>().0);
        for ((block, numbers), (scales, minima)) in blocks.zip(scales) {
            let (scale, minimum) = (half(block, 80), -half(block, 82));
            for (at, byte) in block[..16].iter().enumerate() {
                scales[at] = scale * f32::from(byte & 0xf);
                minima[at] = minimum * f32::from(byte >> 4);
            }
            twos(block[16..].first_chunk().expect("84 bytes"), numbers);
        }
    }
}

per_isa! {
    fn q3_k<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let blocks = bytes.as_chunks::<110>().0.iter().zip(numbers.as_chunks_mut::<256>().0);
        for ((block, numbers), scales) in blocks.zip(scales.as_chunks_mut::<16>().0) {
            let scale = half(block, 108);
            // Six bits each, less 32: the lower four in eight bytes, the upper two in four.
            for (at, value) in scales.iter_mut().enumerate() {
                let low = block[96 + at % 8] >> (at / 8 * 4) & 0xf;
                let high = block[104 + at % 4] >> (at / 4 * 2) & 3;
                *value = scale * f32::from((low | high << 4) as i8 - 32);
            }
            twos(block[32..].first_chunk().expect("110 bytes"), numbers);
            let thirds: &[u8; 32] = block.first_chunk().expect("110 bytes");
            for (plane, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                numbers.iter_mut().zip(thirds).for_each(|(n, bits)| *n |= (bits >> plane & 1) << 2);
            }
        }
    }
}

/// Scales and negated minima of eight groups of 32, of six bits each in 12 bytes.
#[inline(always)]
fn k_scales(block: &[u8], scales: &mut [f32; 8], minima: &mut [f32; 8]) {
    let (scale, minimum) = (half(block, 0), -half(block, 2));
    let packed = &block[4..16];
    for group in 0..8 {
        let (s, m) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            (
                packed[group + 4] & 0xf | packed[group - 4] >> 6 << 4,
                packed[group + 4] >> 4 | packed[group] >> 6 << 4,
            )
        };
        (scales[group], minima[group]) = (scale * f32::from(s), minimum * f32::from(m));
    }
}

per_isa! {
    fn q4_k<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        let scales = scales.as_chunks_mut::<8>().0.iter_mut().zip(minima.as_chunks_mut::<8>().0);
        let blocks = bytes.as_chunks::<144>().0.iter().zip(numbers.as_chunks_mut::<256>().0);
        for ((block, numbers), (scales, minima)) in blocks.zip(scales) {
            k_scales(block, scales, minima);
            let packed = block[16..].as_chunks::<32>().0;
            for (packed, numbers) in packed.iter().zip(numbers.as_chunks_mut::<64>().0) {
                for (at, byte) in packed.iter().enumerate() {
                    numbers[at] = byte & 0xf;
                    numbers[at + 32] = byte >> 4;
                }
            }
        }
    }
}

per_isa! {
    fn q5_k<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        let scales = scales.as_chunks_mut::<8>().0.iter_mut().zip(minima.as_chunks_mut::<8>().0);
        let blocks = bytes.as_chunks::<176>().0.iter().zip(numbers.as_chunks_mut::<256>().0);
        for ((block, numbers), (scales, minima)) in blocks.zip(scales) {
            k_scales(block, scales, minima);
            let high: &[u8; 32] = block[16..].first_chunk().expect("176 bytes");
            let packed = block[48..].as_chunks::<32>().0;
            for (pair, (packed, numbers)) in
                packed.iter().zip(numbers.as_chunks_mut::<64>().0).enumerate()
            {
                for (at, byte) in packed.iter().enumerate() {
                    let high = high[at] >> (2 * pair);
                    numbers[at] = byte & 0xf | (high & 1) << 4;
                    numbers[at + 32] = byte >> 4 | (high >> 1 & 1) << 4;
                }
            }
        }
    }
}

per_isa! {
    fn q6_k<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let blocks = bytes.as_chunks::<210>().0.iter().zip(numbers.as_chunks_mut::<256>().0);
        for ((block, numbers), scales) in blocks.zip(scales.as_chunks_mut::<16>().0) {
            let scale = half(block, 208);
            for (value, &stored) in scales.iter_mut().zip(&block[192..208]) {
                *value = scale * f32::from(stored as i8);
            }
            let low = block[..128].as_chunks::<64>().0;
            let high = block[128..192].as_chunks::<32>().0;
            for ((low, high), numbers) in low.iter().zip(high).zip(numbers.as_chunks_mut::<128>().0) {
                for at in 0..32 {
                    let (first, second, high) = (low[at], low[at + 32], high[at]);
                    numbers[at] = first & 0xf | (high & 3) << 4;
                    numbers[at + 32] = second & 0xf | (high >> 2 & 3) << 4;
                    numbers[at + 64] = first >> 4 | (high >> 4 & 3) << 4;
                    numbers[at + 96] = second >> 4 | high >> 6 << 4;
                }
            }
        }
    }
}

/// Rounds floats of eight bits to numbers of which each 32 share a power of two. `half` gives a
/// float's bits in binary16, but for the factor `unit`; `value` is the float itself.
#[inline(always)]
fn round_floats<L: Lanes>(
    bytes: &[u8],
    numbers: &mut [u8],
    scales: &mut [f32],
    (half, unit): (impl Fn(u8) -> u16, f32),
    value: impl Fn(u8) -> f32,
) {
    let blocks = bytes.as_chunks::<32>().0.iter().zip(numbers.as_chunks_mut::<32>().0);
    for ((block, numbers), scale) in blocks.zip(scales) {
        let mut halves = [0; 32];
        halves.iter_mut().zip(block).for_each(|(bits, &byte)| *bits = half(byte));
        // Magnitudes compare as their bits do.
        let largest = block.iter().fold(0, |largest, byte| largest.max(byte & 0x7f));
        *scale = rounded::<L>(&halves, unit, value(largest), numbers);
    }
}

/// A block's numbers, and the power of two by which its `largest` float is between 64 and 120. The
/// floats have four bits or fewer. So those of at least an eighth of the largest become whole
/// numbers without rounding; smaller ones are rounded. A largest one that is not finite makes the
/// scale no number.
#[inline(always)]
fn rounded<L: Lanes>(halves: &[u16; 32], unit: f32, largest: f32, numbers: &mut [u8; 32]) -> f32 {
    /// Adding this rounds to the nearest whole number, which with 128 is then in the low byte.
    const ROUNDING: f32 = 12_582_912.0 + 128.0;
    /// Binary32's exponent of a number that only zeros are below.
    const EXPONENT_MIN: u32 = 64;
    let exponent = (largest.to_bits() >> 23).max(EXPONENT_MIN);
    let inverse = unit * f32::from_bits((2 * 127 + 6 - exponent) << 23);
    for at in (0..32).step_by(L::WIDTH) {
        // SAFETY: whoever names `L` has its instructions; 32 is a multiple of its width.
        unsafe {
            let values = L::load_f16(halves.as_ptr().add(at).cast());
            let rounded = L::add(L::multiply(values, L::splat(inverse)), L::splat(ROUNDING));
            L::store_low_bytes(numbers.as_mut_ptr().add(at).cast(), rounded);
        }
    }
    if exponent == 255 { f32::NAN } else { f32::from_bits((exponent - 6) << 23) }
}

per_isa! {
    fn f8_e4m3<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        // A binary16 of these bits lacks the difference of the biases, 15 - 7.
        let half = |byte| (u16::from(byte) << 8 & 0x8000) | (u16::from(byte) << 7 & 0x3f80);
        round_floats::<L>(bytes, numbers, scales, (half, 256.0), f32_of_e4m3);
    }
}

per_isa! {
    fn f8_e5m2<L>(bytes: &[u8], numbers: &mut [u8], scales: &mut [f32]) {
        let half = |byte| u16::from(byte) << 8;
        round_floats::<L>(bytes, numbers, scales, (half, 1.0), f32_of_e5m2);
    }
}
