//! The byte vectors of x86-64.
//!
//! Each function compiles to its instructions only when inlined into code for which they are
//! enabled, which `per_byte_isa!` sees to.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_castpd_ps, _mm_load_sd, _mm_loadu_ps, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_broadcast_ss, _mm256_castps128_ps256, _mm256_cvtepi32_ps,
    _mm256_dpbusd_avx_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_permutevar8x32_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_sign_epi8, _mm256_xor_si256, _mm512_abs_epi8, _mm512_add_epi16,
    _mm512_add_epi32, _mm512_castps128_ps512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_mask_sub_epi8,
    _mm512_movepi8_mask, _mm512_permutexvar_ps, _mm512_set1_epi8, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_setr_epi32, _mm512_setzero_si512, _mm512_xor_si512,
};

use super::byte_lanes::ByteLanes;
use super::simd::{Avx2, Avx512, Lanes};

/// AVX-512 with VNNI: 12 sums and 12 accumulators leave 8 registers for operands.
pub(super) struct ZmmVnni;

/// AVX-512 without VNNI.
pub(super) struct Zmm;

/// AVX2 with AVX-VNNI: 6 sums and 6 accumulators leave 4 registers for operands.
pub(super) struct YmmVnni;

/// AVX2 without AVX-VNNI.
pub(super) struct Ymm;

/// What vectors of one width share, whatever multiplies their bytes.
macro_rules! width {
    ($float:ty, $words:ty, $rows:literal, $splat:ident, $load:ident, $to_float:ident, $spread:ident) => {
        type Float = $float;
        type Words = $words;
        const TILE_ROWS: usize = $rows;

        #[inline(always)]
        unsafe fn splat(word: u32) -> $words {
            // SAFETY: the caller's promise.
            unsafe { $splat(word as i32) }
        }

        #[inline(always)]
        unsafe fn load(from: *const u32) -> $words {
            // SAFETY: the caller's promise.
            unsafe { $load(from.cast()) }
        }

        #[inline(always)]
        unsafe fn spread<const SCALES: usize>(from: *const f32) -> <$float as Lanes>::Vector {
            // SAFETY: the caller's promise.
            unsafe { $spread::<SCALES>(from) }
        }

        #[inline(always)]
        unsafe fn to_float(words: $words) -> <$float as Lanes>::Vector {
            // SAFETY: the caller's promise.
            unsafe { $to_float(words) }
        }
    };
}

macro_rules! zmm {
    () => {
        width!(
            Avx512,
            __m512i,
            6,
            _mm512_set1_epi32,
            _mm512_loadu_si512,
            _mm512_cvtepi32_ps,
            spread_512
        );
    };
}

macro_rules! ymm {
    () => {
        width!(
            Avx2,
            __m256i,
            3,
            _mm256_set1_epi32,
            _mm256_loadu_si256,
            _mm256_cvtepi32_ps,
            spread_256
        );
    };
}

/// Products with the instruction that adds four products of bytes to a word.
macro_rules! vnni {
    ($words:ty, $dot:ident) => {
        const SIGNED: bool = false;

        #[inline(always)]
        fn steps(_bits: u32) -> usize {
            1
        }

        #[inline(always)]
        unsafe fn dot<const BITS: u32>(sums: $words, numbers: $words, bytes: $words) -> $words {
            // SAFETY: the caller's promise.
            unsafe { $dot(sums, numbers, bytes) }
        }

        #[inline(always)]
        unsafe fn dots<const BITS: u32>(
            sums: $words,
            numbers: *const u32,
            _stride: usize,
            bytes: *const u32,
        ) -> $words {
            // SAFETY: the caller's promise.
            unsafe { Self::dot::<BITS>(sums, Self::load(numbers), Self::splat(*bytes)) }
        }
    };
}

/// Products with the instruction that adds two products of bytes into 16 bits, and saturates there.
///
/// With bytes of at most 127 a pair of numbers of `BITS` bits adds up to 2 · (2^BITS - 1) · 127:
/// 7874 with 5 bits, of which 4 fit 16 bits, and 16002 with 6, of which 2 do. Numbers of 8 bits are
/// taken as signed ones, and their signs go to the other factors: 2 · 128 · 127 is 32512.
macro_rules! pairs {
    ($words:ty, $pairs:ident, $signed_pairs:ident, $add_16:ident, $add_32:ident, $widen:ident, $ones:ident) => {
        const SIGNED: bool = true;

        #[inline(always)]
        fn steps(bits: u32) -> usize {
            match bits {
                0..=5 => 4,
                6 => 2,
                _ => 1,
            }
        }

        #[inline(always)]
        unsafe fn dot<const BITS: u32>(sums: $words, numbers: $words, bytes: $words) -> $words {
            // SAFETY: the caller's promise.
            unsafe {
                let pairs = match BITS {
                    0..=6 => $pairs(numbers, bytes),
                    _ => $signed_pairs(numbers, bytes),
                };
                $add_32(sums, $widen(pairs, $ones(1)))
            }
        }

        #[inline(always)]
        unsafe fn dots<const BITS: u32>(
            sums: $words,
            numbers: *const u32,
            stride: usize,
            bytes: *const u32,
        ) -> $words {
            // SAFETY: the caller's promise.
            unsafe {
                if BITS > 6 {
                    return Self::dot::<BITS>(sums, Self::load(numbers), Self::splat(*bytes));
                }
                let mut pairs = $pairs(Self::load(numbers), Self::splat(*bytes));
                for step in 1..Self::steps(BITS) {
                    let numbers = Self::load(numbers.add(step * stride));
                    pairs = $add_16(pairs, $pairs(numbers, Self::splat(*bytes.add(step))));
                }
                $add_32(sums, $widen(pairs, $ones(1)))
            }
        }
    };
}

impl ByteLanes for ZmmVnni {
    zmm!();
    vnni!(__m512i, _mm512_dpbusd_epi32);
}

impl ByteLanes for Zmm {
    zmm!();
    pairs!(
        __m512i,
        _mm512_maddubs_epi16,
        signed_pairs_512,
        _mm512_add_epi16,
        _mm512_add_epi32,
        _mm512_madd_epi16,
        _mm512_set1_epi16
    );
}

impl ByteLanes for YmmVnni {
    ymm!();
    vnni!(__m256i, _mm256_dpbusd_avx_epi32);
}

impl ByteLanes for Ymm {
    ymm!();
    pairs!(
        __m256i,
        _mm256_maddubs_epi16,
        signed_pairs_256,
        _mm256_add_epi16,
        _mm256_add_epi32,
        _mm256_madd_epi16,
        _mm256_set1_epi16
    );
}

/// Sums of two products of numbers less 128 with bytes.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn signed_pairs_512(numbers: __m512i, bytes: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let signed = _mm512_xor_si512(numbers, _mm512_set1_epi8(-128));
        let negative = _mm512_movepi8_mask(signed);
        let bytes = _mm512_mask_sub_epi8(bytes, negative, _mm512_setzero_si512(), bytes);
        _mm512_maddubs_epi16(_mm512_abs_epi8(signed), bytes)
    }
}

/// Sums of two products of numbers less 128 with bytes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn signed_pairs_256(numbers: __m256i, bytes: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let signed = _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(bytes, signed))
    }
}

/// [`ByteLanes::spread`] of 64 numbers.
///
/// # Safety
/// The machine has AVX-512; `2 * SCALES` scales are there.
#[inline(always)]
unsafe fn spread_512<const SCALES: usize>(from: *const f32) -> <Avx512 as Lanes>::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        let (scales, lanes) = if SCALES == 1 {
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
            (_mm_castpd_ps(_mm_load_sd(from.cast())), lanes)
        } else {
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            (_mm_loadu_ps(from), lanes)
        };
        _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(scales))
    }
}

/// [`ByteLanes::spread`] of 32 numbers.
///
/// # Safety
/// The machine has AVX2; `SCALES` scales are there.
#[inline(always)]
unsafe fn spread_256<const SCALES: usize>(from: *const f32) -> <Avx2 as Lanes>::Vector {
    // SAFETY: the caller's promise.
    unsafe {
        if SCALES == 1 {
            return _mm256_broadcast_ss(&*from);
        }
        let scales = _mm256_castps128_ps256(_mm_castpd_ps(_mm_load_sd(from.cast())));
        _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
    }
}
