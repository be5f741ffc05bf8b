//! AVX-512.

use std::arch::x86_64::{
    __m512, _mm_storeu_si128, _mm256_loadu_si256, _mm512_add_ps, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cvtepi32_epi8, _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_maskz_loadu_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_permutex2var_ps, _mm512_reduce_ps,
    _mm512_scalef_ps, _mm512_set_epi32, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_storeu_ps, _mm512_sub_ps, _mm512_unpackhi_ps, _mm512_unpacklo_ps,
};

use super::{HIGH_HALF, sum_bytes, transpose};
use crate::backend::kernels::exp2::{LOWEST, exp2_of_remainder};
use crate::backend::kernels::lanes::{Lanes, SQUARE_MAX};

/// Sixteen lanes; 24 accumulators leave 8 registers for operands.
pub(in crate::backend::kernels) struct Avx512;

impl Lanes for Avx512 {
    type Vector = __m512;
    const WIDTH: usize = 16;
    const ROWS: usize = 8;
    const TILE_ROWS: usize = 14;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller's promise; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, vector: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, vector) }
    }

    #[inline(always)]
    unsafe fn store_low_bytes(to: *mut i8, vector: __m512) {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(vector));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn sum_bytes(bytes: &[i8; 16]) -> i32 {
        sum_bytes(bytes)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn subtract(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn even_and_odd(a: __m512, b: __m512) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
            let odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
            [_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)]
        }
    }

    #[inline(always)]
    unsafe fn larger(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn exp2(x: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm512_max_ps(_mm512_set1_ps(2.0 * LOWEST), x);
            // What rounding to the nearest whole number leaves.
            let r = _mm512_reduce_ps::<0>(x);
            _mm512_scalef_ps(exp2_of_remainder::<Avx512>(r), _mm512_sub_ps(x, r))
        }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sums(v: &[__m512; 8]) -> [f32; 8] {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller's promise; the store has room for 16 elements.
        unsafe {
            // Each step halves the number of lanes that remain of a vector and packs two results.
            let a =
                [halves(v[0], v[1]), halves(v[2], v[3]), halves(v[4], v[5]), halves(v[6], v[7])];
            let b = [quarters(a[0], a[1]), quarters(a[2], a[3])];
            let pairs = _mm512_add_ps(
                _mm512_shuffle_ps::<0b10_00_10_00>(b[0], b[1]),
                _mm512_shuffle_ps::<0b11_01_11_01>(b[0], b[1]),
            );
            let sums = _mm512_add_ps(
                _mm512_shuffle_ps::<0b10_00_10_00>(pairs, pairs),
                _mm512_shuffle_ps::<0b11_01_11_01>(pairs, pairs),
            );
            _mm512_storeu_ps(lanes.as_mut_ptr(), sums);
        }
        // Block i of four lanes begins with the sums of vectors i and i + 4.
        [lanes[0], lanes[4], lanes[8], lanes[12], lanes[1], lanes[5], lanes[9], lanes[13]]
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: the caller's promise.
        unsafe { transpose(from, from_stride, to, to_stride) }
    }

    #[inline(always)]
    unsafe fn transposed(rows: &[*const u8; SQUARE_MAX], at: usize) -> [__m512; SQUARE_MAX] {
        // SAFETY: the caller's promise.
        unsafe {
            let row = |index: usize| _mm512_loadu_ps(rows[index].add(at).cast());
            let mut columns = [_mm512_setzero_ps(); SQUARE_MAX];
            // Of rows 4 i to 4 i + 3: in block j of four lanes, column 4 j + `part`.
            let mut fours = [[_mm512_setzero_ps(); 4]; 4];
            for (i, four) in fours.iter_mut().enumerate() {
                let [a, b, c, d] = [row(4 * i), row(4 * i + 1), row(4 * i + 2), row(4 * i + 3)];
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                *four = [
                    _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
                    _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
                    _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                    _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
                ];
            }
            for part in 0..4 {
                let [a, b, c, d] = [fours[0][part], fours[1][part], fours[2][part], fours[3][part]];
                let ab_left = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
                let ab_right = _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b);
                let cd_left = _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d);
                let cd_right = _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d);
                columns[part] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_left, cd_left);
                columns[4 + part] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_left, cd_left);
                columns[8 + part] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_right, cd_right);
                columns[12 + part] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_right, cd_right);
            }
            columns
        }
    }

    #[inline(always)]
    unsafe fn f16_pairs(words: __m512) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_castps_si512(words);
            [
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)),
                _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bf16_pairs(words: __m512) -> [__m512; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_castps_si512(words);
            let high = _mm512_and_si512(words, _mm512_set1_epi32(HIGH_HALF));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(high)]
        }
    }
}

/// Blocks of four lanes: `[x0 + x2, x1 + x3, y0 + y2, y1 + y3]`.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn halves(x: __m512, y: __m512) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y),
        )
    }
}

/// Blocks of four lanes: `[x0 + x1, x2 + x3, y0 + y1, y2 + y3]`.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn quarters(x: __m512, y: __m512) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y),
        )
    }
}
