//! The vectors of x86-64: AVX-512, and AVX2 with fused multiply-add.
//!
//! Each function compiles to its instructions only when inlined into code for which they are
//! enabled, which `per_isa!` sees to.

use std::arch::x86_64::{
    __m256, _mm_cvtsi128_si32, _mm_loadu_ps, _mm_loadu_si128, _mm_sad_epu8, _mm_set1_epi8,
    _mm_setzero_si128, _mm_unpackhi_epi64, _mm_xor_si128, _mm256_castps128_ps256,
    _mm256_insertf128_ps, _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps,
    _mm256_unpacklo_ps,
};

mod avx2;
mod avx512;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;

/// The high half of a word.
const HIGH_HALF: i32 = !0xffff;

/// [`Lanes::transpose`], with instructions that both sets have.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        for column in [0, 4] {
            let columns = four_columns(|row: usize| from.add(row * from_stride + column));
            for (index, values) in columns.into_iter().enumerate() {
                _mm256_storeu_ps(to.add((column + index) * to_stride), values);
            }
        }
    }
}

/// The first four columns of eight rows, which begin where `row` says.
///
/// # Safety
/// The machine has AVX2, and of each row four elements are valid for reading.
#[inline(always)]
unsafe fn four_columns(row: impl Fn(usize) -> *const f32) -> [__m256; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        // Row i in the low half and row i + 4 in the high one.
        let pair = |index: usize| {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(row(index)));
            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(row(index + 4)))
        };
        let [a, b, c, d] = [pair(0), pair(1), pair(2), pair(3)];
        let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
            _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
        ]
    }
}

/// The sum of signed bytes, by the instruction that adds unsigned ones.
#[inline(always)]
fn sum_bytes(bytes: &[i8; 16]) -> i32 {
    const BIAS: i8 = -128;
    // SAFETY: every x86-64 has the instructions, and the bytes are there.
    unsafe {
        let biased = _mm_xor_si128(_mm_loadu_si128(bytes.as_ptr().cast()), _mm_set1_epi8(BIAS));
        let sums = _mm_sad_epu8(biased, _mm_setzero_si128());
        let [low, high] = [sums, _mm_unpackhi_epi64(sums, sums)].map(|sum| _mm_cvtsi128_si32(sum));
        low + high + 16 * i32::from(BIAS)
    }
}
