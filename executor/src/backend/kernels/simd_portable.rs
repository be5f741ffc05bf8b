//! Vectors for machines whose instructions are not named here: arrays, of which the compiler makes
//! what the target has.

use super::exp2::{LOWEST, exp2_of_remainder};
use super::lanes::{Lanes, SQUARE_MAX};
use crate::weights::float::{f32_of_bf16, f32_of_f16};

/// Eight lanes as an array.
pub(super) struct Portable;

impl Lanes for Portable {
    type Vector = [f32; 8];
    const WIDTH: usize = 8;
    const ROWS: usize = 4;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        // Where fusing is no instruction, `mul_add` is a call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 8] {
        // SAFETY: the caller's promise; arrays of f32 need no more alignment than f32.
        unsafe { from.cast::<[f32; 8]>().read() }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> [f32; 8] {
        let mut vector = [0.0; 8];
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts(from, count) };
        vector[..count].copy_from_slice(values);
        vector
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, vector: [f32; 8]) {
        // SAFETY: the caller's promise; arrays of f32 need no more alignment than f32.
        unsafe { to.cast::<[f32; 8]>().write(vector) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(to: *mut i8, vector: [f32; 8]) {
        // SAFETY: the caller's promise; arrays of bytes need no alignment.
        unsafe { to.cast::<[i8; 8]>().write(vector.map(|lane| lane.to_bits() as i8)) }
    }

    #[inline(always)]
    unsafe fn sum_bytes(bytes: &[i8; 16]) -> i32 {
        bytes.iter().map(|&byte| i32::from(byte)).sum()
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> [f32; 8] {
        // SAFETY: the caller's promise; arrays of bytes need no alignment.
        let halves = unsafe { from.cast::<[[u8; 2]; 8]>().read() };
        halves.map(|half| f32_of_f16(u16::from_le_bytes(half)))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> [f32; 8] {
        // SAFETY: the caller's promise; arrays of bytes need no alignment.
        let halves = unsafe { from.cast::<[[u8; 2]; 8]>().read() };
        halves.map(|half| f32_of_bf16(u16::from_le_bytes(half)))
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn subtract(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    unsafe fn even_and_odd(a: [f32; 8], b: [f32; 8]) -> [[f32; 8]; 2] {
        let at = |place: usize| if place < 8 { a[place] } else { b[place - 8] };
        [0, 1].map(|first| std::array::from_fn(|lane| at(2 * lane + first)))
    }

    #[inline(always)]
    unsafe fn larger(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    unsafe fn exp2(x: [f32; 8]) -> [f32; 8] {
        /// Adding this rounds to a whole number, which is then in the low bits.
        const ROUNDING: f32 = 12_582_912.0;
        let x = x.map(|x| if x < LOWEST { LOWEST } else { x });
        let rounded = x.map(|x| x + ROUNDING);
        let remainders = std::array::from_fn(|lane| x[lane] - (rounded[lane] - ROUNDING));
        // SAFETY: the caller's promise.
        let values = unsafe { exp2_of_remainder::<Portable>(remainders) };
        std::array::from_fn(|lane| {
            let exponent = rounded[lane].to_bits().wrapping_sub(ROUNDING.to_bits());
            values[lane] * f32::from_bits(exponent.wrapping_add(127) << 23)
        })
    }

    #[inline(always)]
    unsafe fn multiply(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    unsafe fn multiply_add(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut sum = c;
        for lane in 0..8 {
            sum[lane] = Self::mul_add(a[lane], b[lane], c[lane]);
        }
        sum
    }

    #[inline(always)]
    unsafe fn sums(vectors: &[[f32; 8]; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        for (sum, v) in sums.iter_mut().zip(vectors) {
            *sum = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
        }
        sums
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller's promise.
                unsafe {
                    *to.add(column * to_stride + row) = *from.add(row * from_stride + column)
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn transposed(rows: &[*const u8; SQUARE_MAX], at: usize) -> [[f32; 8]; SQUARE_MAX] {
        let mut columns = [[0.0; 8]; SQUARE_MAX];
        for (lane, row) in rows.iter().take(8).enumerate() {
            // SAFETY: the caller's promise; arrays of bytes need no alignment.
            let words = unsafe { row.add(at).cast::<[[u8; 4]; 8]>().read() };
            for (column, word) in columns.iter_mut().zip(words) {
                column[lane] = f32::from_ne_bytes(word);
            }
        }
        columns
    }

    #[inline(always)]
    unsafe fn f16_pairs(words: [f32; 8]) -> [[f32; 8]; 2] {
        let low = words.map(|word| f32_of_f16(word.to_bits() as u16));
        [low, words.map(|word| f32_of_f16((word.to_bits() >> 16) as u16))]
    }

    #[inline(always)]
    unsafe fn bf16_pairs(words: [f32; 8]) -> [[f32; 8]; 2] {
        let low = words.map(|word| f32_of_bf16(word.to_bits() as u16));
        [low, words.map(|word| f32_of_bf16((word.to_bits() >> 16) as u16))]
    }
}
