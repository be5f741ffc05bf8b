//! The byte vectors of x86-64.
//!
//! Each function compiles to its instructions only when inlined into code for which they are enabled, which
//! `per_byte_isa!` sees to.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps,
    _mm256_dpbusd_avx_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16,
    _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_slli_epi16, _mm512_srai_epi16, _mm512_srli_epi16,
};

use super::bytes::ByteLanes;
use super::simd::{Avx2, Avx512, Lanes};

/// AVX-512 with VNNI: 12 sums and 12 accumulators leave 8 registers for operands.
pub(super) struct ZmmVnni;

/// AVX-512 without VNNI.
pub(super) struct Zmm;

/// AVX2 with AVX-VNNI: 6 sums and 6 accumulators leave 4 registers for operands.
pub(super) struct YmmVnni;

/// AVX2 without AVX-VNNI.
pub(super) struct Ymm;

impl ByteLanes for ZmmVnni {
    type Float = Avx512;
    type Words = __m512i;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<const NARROW: bool>(
        sums: __m512i,
        unsigned: __m512i,
        signed: __m512i,
    ) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn to_float(words: __m512i) -> <Avx512 as Lanes>::Vector {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(words) }
    }
}

impl ByteLanes for Zmm {
    type Float = Avx512;
    type Words = __m512i;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<const NARROW: bool>(
        sums: __m512i,
        unsigned: __m512i,
        signed: __m512i,
    ) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            if NARROW {
                // Pairs fit 16 bits: 2 · 127 · 128.
                let pairs = _mm512_maddubs_epi16(unsigned, signed);
                return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
            }
            // Pairs of bytes up to 255 do not: even and odd bytes each as 16 bits.
            let even = _mm512_madd_epi16(
                _mm512_and_si512(unsigned, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(signed)),
            );
            let odd =
                _mm512_madd_epi16(_mm512_srli_epi16::<8>(unsigned), _mm512_srai_epi16::<8>(signed));
            _mm512_add_epi32(sums, _mm512_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn to_float(words: __m512i) -> <Avx512 as Lanes>::Vector {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(words) }
    }
}

impl ByteLanes for YmmVnni {
    type Float = Avx2;
    type Words = __m256i;
    const TILE_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<const NARROW: bool>(
        sums: __m256i,
        unsigned: __m256i,
        signed: __m256i,
    ) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sums, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn to_float(words: __m256i) -> <Avx2 as Lanes>::Vector {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(words) }
    }
}

impl ByteLanes for Ymm {
    type Float = Avx2;
    type Words = __m256i;
    const TILE_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn splat(word: u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<const NARROW: bool>(
        sums: __m256i,
        unsigned: __m256i,
        signed: __m256i,
    ) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            if NARROW {
                // Pairs fit 16 bits: 2 · 127 · 128.
                let pairs = _mm256_maddubs_epi16(unsigned, signed);
                return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            // Pairs of bytes up to 255 do not: even and odd bytes each as 16 bits.
            let even = _mm256_madd_epi16(
                _mm256_and_si256(unsigned, _mm256_set1_epi16(0xff)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed)),
            );
            let odd =
                _mm256_madd_epi16(_mm256_srli_epi16::<8>(unsigned), _mm256_srai_epi16::<8>(signed));
            _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn to_float(words: __m256i) -> <Avx2 as Lanes>::Vector {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(words) }
    }
}
