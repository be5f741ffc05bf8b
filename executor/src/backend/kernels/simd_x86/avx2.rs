//! AVX2, with fused multiply-add and conversions of binary16.

use std::arch::x86_64::{
    __m256, _mm_add_ps, _mm_loadu_si128, _mm_packus_epi16, _mm_packus_epi32, _mm_storel_epi64,
    _mm_storeu_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_castpd_ps,
    _mm256_castps_pd, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32,
    _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_hadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_ps, _mm256_max_ps, _mm256_mul_ps,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_permute4x64_pd, _mm256_round_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_slli_epi32,
    _mm256_srli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{HIGH_HALF, four_columns, sum_bytes, transpose};
use crate::backend::kernels::exp2::{LOWEST, exp2_of_remainder};
use crate::backend::kernels::lanes::{Lanes, SQUARE_MAX};

/// Eight lanes; 12 accumulators leave 4 registers for operands.
pub(in crate::backend::kernels) struct Avx2;

/// `LANE_MASKS[8 - count..]` begins with `count` set lanes.
static LANE_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

impl Lanes for Avx2 {
    type Vector = __m256;
    const WIDTH: usize = 8;
    const ROWS: usize = 4;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> __m256 {
        let mask = &LANE_MASKS[8 - count..][..8];
        // SAFETY: the caller's promise; masked lanes are not read, and the mask has 8 lanes.
        unsafe { _mm256_maskload_ps(from, _mm256_loadu_si256(mask.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, vector: __m256) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(to: *mut i8, vector: __m256) {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_and_si256(_mm256_castps_si256(vector), _mm256_set1_epi32(0xff));
            let (first, second) = (_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            let words = _mm_packus_epi32(first, second);
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn sum_bytes(bytes: &[i8; 16]) -> i32 {
        sum_bytes(bytes)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn even_and_odd(a: __m256, b: __m256) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // Pairs of lanes: of `a`, of `b`, of `a`, of `b`.
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            [
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)),
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn larger(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn exp2(x: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm256_max_ps(_mm256_set1_ps(LOWEST), x);
            let whole = _mm256_round_ps::<0x08>(x);
            let value = exp2_of_remainder::<Avx2>(_mm256_sub_ps(x, whole));
            // The exponent's bits; of -127 they are those of zero.
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
            _mm256_mul_ps(value, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sums(v: &[__m256; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        for (half, four) in sums.chunks_exact_mut(4).zip(v.chunks_exact(4)) {
            // SAFETY: the caller's promise; the store has room for 4 elements.
            unsafe {
                let pairs = [_mm256_hadd_ps(four[0], four[1]), _mm256_hadd_ps(four[2], four[3])];
                let quads = _mm256_hadd_ps(pairs[0], pairs[1]);
                let low = _mm256_castps256_ps128(quads);
                let high = _mm256_extractf128_ps::<1>(quads);
                _mm_storeu_ps(half.as_mut_ptr(), _mm_add_ps(low, high));
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { transpose(from, from_stride, to, to_stride) }
    }

    #[inline(always)]
    unsafe fn transposed(rows: &[*const u8; SQUARE_MAX], at: usize) -> [__m256; SQUARE_MAX] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut columns = [_mm256_setzero_ps(); SQUARE_MAX];
            for (half, columns) in columns.chunks_exact_mut(4).take(2).enumerate() {
                let word = |row: usize| rows[row].add(at + 16 * half).cast();
                columns.copy_from_slice(&four_columns(word));
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn f16_pairs(words: __m256) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm256_castps_si256(words);
            let low = _mm256_and_si256(words, _mm256_set1_epi32(!HIGH_HALF));
            // Within each half of the lanes, the four low ones and then the four high ones.
            let halves = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bf16_pairs(words: __m256) -> [__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm256_castps_si256(words);
            let high = _mm256_and_si256(words, _mm256_set1_epi32(HIGH_HALF));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)), _mm256_castsi256_ps(high)]
        }
    }
}
