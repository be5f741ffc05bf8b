//! Blocks of 32 numbers with one factor, and in some a summand. Nibbles: the lower ones are the
//! first 16 numbers, the upper ones the others. Fifth bits: a `u32` of them, number 0's the lowest.

use super::{f16_at, u32_at};

/// `factor, bytes[32]`
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let factor = f16_at(block, 0);
    for (value, &stored) in values.iter_mut().zip(&block[2..]) {
        *value = factor * f32::from(stored as i8);
    }
}

/// `factor, nibbles[16]`
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let factor = f16_at(block, 0);
    let (low, high) = values.split_at_mut(16);
    for (value, &pair) in low.iter_mut().zip(&block[2..]) {
        *value = factor * (f32::from(pair & 15) - 8.0);
    }
    for (value, &pair) in high.iter_mut().zip(&block[2..]) {
        *value = factor * (f32::from(pair >> 4) - 8.0);
    }
}

/// `factor, summand, nibbles[16]`
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let (factor, summand) = (f16_at(block, 0), f16_at(block, 2));
    let (low, high) = values.split_at_mut(16);
    for (value, &pair) in low.iter_mut().zip(&block[4..]) {
        *value = factor * f32::from(pair & 15) + summand;
    }
    for (value, &pair) in high.iter_mut().zip(&block[4..]) {
        *value = factor * f32::from(pair >> 4) + summand;
    }
}

/// `factor, fifth bits, nibbles[16]`
#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let factor = f16_at(block, 0);
    five_bits(u32_at(block, 2), &block[6..], values, |number| factor * (number - 16.0));
}

/// `factor, summand, fifth bits, nibbles[16]`
#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let (factor, summand) = (f16_at(block, 0), f16_at(block, 2));
    five_bits(u32_at(block, 4), &block[8..], values, |number| factor * number + summand);
}

#[inline(always)]
fn five_bits(fifth: u32, pairs: &[u8], values: &mut [f32; 32], of: impl Fn(f32) -> f32) {
    let (low, high) = values.split_at_mut(16);
    for (index, ((low, high), &pair)) in low.iter_mut().zip(high).zip(pairs).enumerate() {
        let number = |nibble: u8, at: usize| u32::from(nibble) | (fifth >> at & 1) << 4;
        *low = of(number(pair & 15, index) as f32);
        *high = of(number(pair >> 4, index + 16) as f32);
    }
}
