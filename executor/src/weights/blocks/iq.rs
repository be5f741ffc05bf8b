//! Blocks whose numbers are looked up: groups of four or eight from a table, with their signs
//! apart, or each number from a table of sixteen.

mod grids;

use super::{f16_at, u16_at, u32_at};
use grids::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

/// The sixteen steps of the four-bit types (`kvalues_iq4nl`).
const STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What shifts the ternary groups of [`iq1_s`], up or down.
const IQ1_SHIFT: f32 = 0.125;

/// `factor, indices[32], u16[8]`: for each 32 numbers the upper three bits of four indices, a
/// factor of three bits and the direction of the shift.
#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 34 + group / 4 * 2);
        let scale = factor * f32::from(2 * (word >> 12 & 7) + 1);
        let shift = if word & 0x8000 == 0 { IQ1_SHIFT } else { -IQ1_SHIFT };
        let high = usize::from(word >> (3 * (group % 4)) & 7);
        let numbers = &IQ1_S[usize::from(block[2 + group]) | high << 8];
        for (value, &number) in values.iter_mut().zip(numbers) {
            *value = scale * (f32::from(number) + shift);
        }
    }
}

/// `factor, (indices[4], u32)[8]`: the second is four indices of signs and a factor of four bits.
#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (part, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let at = 2 + 8 * part;
        let word = u32_at(block, at + 4);
        let scale = factor * (0.5 + (word >> 28) as f32) * 0.25;
        for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let numbers = &IQ2_XXS[usize::from(block[at + group])];
            signed(values, numbers, scale, even_signs(word >> (7 * group)));
        }
    }
}

/// `factor, u16[32], factors[8]`: an index of nine bits and an index of signs; factors of four bits
/// for each 16.
#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 2 + 2 * group);
        let scale = factor * (0.5 + nibble(&block[66..], group / 2)) * 0.25;
        signed(values, &IQ2_XS[usize::from(word & 511)], scale, even_signs(u32::from(word >> 9)));
    }
}

/// `factor, indices[32], signs[32], upper index bits[8], factors[8]`
#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = factor * (0.5 + nibble(&block[74..], group / 2)) * 0.25;
        let high = usize::from(block[66 + group / 4] >> (2 * (group % 4)) & 3);
        let numbers = &IQ2_S[usize::from(block[2 + group]) | high << 8];
        signed(values, numbers, scale, block[34 + group]);
    }
}

/// `factor, indices[64], u32[8]`: for each 32 numbers four indices of signs and a factor of four
/// bits.
#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u32_at(block, 66 + group / 4 * 4);
        let scale = factor * (0.5 + (word >> 28) as f32) * 0.5;
        let halves = [0, 1].map(|half| &IQ3_XXS[usize::from(block[2 + 2 * group + half])]);
        signed(values, &joined(halves), scale, even_signs(word >> (7 * (group % 4))));
    }
}

/// `factor, indices[64], ninth index bits[8], signs[32], factors[4]`
#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    for (group, values) in values.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = factor * (1.0 + 2.0 * nibble(&block[106..], group / 4));
        let halves = [0, 1].map(|half| {
            let ninth = usize::from(block[66 + group / 4] >> (group % 4 * 2 + half) & 1);
            &IQ3_S[usize::from(block[2 + 2 * group + half]) | ninth << 8]
        });
        signed(values, &joined(halves), scale, block[74 + group]);
    }
}

/// `factor, nibbles[16]`
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    steps(f16_at(block, 0), &block[2..], values);
}

/// `factor, u16, low factor nibbles[4], nibbles[128]`: a factor of six bits, less 32, for each 32
/// numbers; the upper two are in the `u16`.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let factor = f16_at(block, 0);
    let high = u16_at(block, 2);
    for (part, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = nibble(&block[4..], part) + 16.0 * f32::from(high >> (2 * part) & 3) - 32.0;
        steps(factor * scale, &block[8 + 16 * part..], values);
    }
}

/// Numbers of sixteen uneven steps, the lower nibbles first.
#[inline(always)]
fn steps(scale: f32, nibbles: &[u8], values: &mut [f32; 32]) {
    let (low, high) = values.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(nibbles) {
        *low = scale * f32::from(STEPS[usize::from(pair & 15)]);
        *high = scale * f32::from(STEPS[usize::from(pair >> 4)]);
    }
}

/// Numbers times a factor, negative where their bit is set.
#[inline(always)]
fn signed(values: &mut [f32; 8], numbers: &[i8; 8], scale: f32, signs: u8) {
    for (index, (value, &number)) in values.iter_mut().zip(numbers).enumerate() {
        let sign = u32::from(signs >> index & 1) << 31;
        *value = scale * f32::from_bits(f32::from(number).to_bits() ^ sign);
    }
}

/// Eight signs of which an even number is negative, from the first seven in the lowest bits.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

#[inline(always)]
fn joined(halves: [&[i8; 4]; 2]) -> [i8; 8] {
    let [[a, b, c, d], [e, f, g, h]] = halves.map(|half| *half);
    [a, b, c, d, e, f, g, h]
}

/// The nibble `index` of some bytes, the lower of each byte first.
#[inline(always)]
fn nibble(bytes: &[u8], index: usize) -> f32 {
    f32::from(bytes[index / 2] >> (index % 2 * 4) & 15)
}
