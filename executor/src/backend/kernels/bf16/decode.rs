//! Quantised weights as bf16: each is its decoded value in f32, rounded once.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm_loadu_si128, _mm512_add_ps, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi32, _mm512_cvtne2ps_pbh, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_storeu_si512, _mm512_sub_epi32,
};
use std::mem::transmute;

use crate::backend::kernels::matmul::LinearOperands;
use crate::backend::kernels::simd::Isa;
use crate::backend::kernels::unpack::{Form, unpack};
use crate::weights::view::scale;

/// The most features of a row that are decoded at a time: a multiple of all blocks' sizes.
pub(super) const DECODED_DEPTH: usize = 256;

/// Numbers of a vector.
const NUMBERS: usize = 16;

/// Decodes the features of a weight row from feature `from` on. They are decoded by whole blocks,
/// so that a value does not depend on what is asked for with it.
///
/// # Panics
/// If the set has no conversion to bf16, or the weight's type no [`Form`].
pub(super) fn decode(
    isa: Isa,
    operands: &LinearOperands<'_>,
    row: usize,
    from: usize,
    out: &mut [u16],
) {
    assert!(isa.has_bf16_products(), "no conversion to bf16");
    let (weight, in_features) = (operands.weight, operands.in_features);
    let form = Form::of(weight.storage).expect("a type of integers");
    let at = |element: usize| weight.storage.bytes(element as u64).as_usize();
    let (mut numbers, mut decoded) = ([0; DECODED_DEPTH], [0; DECODED_DEPTH]);
    let (mut scales, mut minima) = ([0.0; DECODED_DEPTH / 16], [0.0; DECODED_DEPTH / 16]);
    let mut done = 0;
    while done < out.len() {
        let begin = (from + done) / DECODED_DEPTH * DECODED_DEPTH;
        let len = DECODED_DEPTH.min(in_features - begin);
        let first = row * in_features + begin;
        let groups = len / 32 * form.scales;
        let (scales, minima) = (&mut scales[..groups], &mut minima[..groups]);
        let bytes = &weight.bytes[at(first)..at(first + len)];
        unpack(isa, weight.storage, bytes, &mut numbers[..len], scales, minima);
        scale(scales, weight.scale);
        scale(minima, weight.scale);
        // SAFETY: the set has the instructions, as asserted above.
        unsafe { round(form, &numbers[..len], scales, minima, &mut decoded[..len]) };
        let decoded = &decoded[from + done - begin..len];
        let count = decoded.len().min(out.len() - done);
        out[done..done + count].copy_from_slice(&decoded[..count]);
        done += count;
    }
}

/// The values that numbers stand for, rounded.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round(form: Form, numbers: &[u8], scales: &[f32], minima: &[f32], out: &mut [u16]) {
    let offset = _mm512_set1_epi32(form.offset.into());
    // The number of this group of 16 numbers tells its scale.
    let values = |numbers: &[u8; NUMBERS], group: usize| -> __m512 {
        let group = group * form.scales / 2;
        // SAFETY: there are 16 numbers.
        let numbers = unsafe { _mm_loadu_si128(numbers.as_ptr().cast()) };
        let numbers = _mm512_sub_epi32(_mm512_cvtepu8_epi32(numbers), offset);
        let minimum = if form.has_minimum { minima[group] } else { 0.0 };
        let (scale, minimum) = (_mm512_set1_ps(scales[group]), _mm512_set1_ps(minimum));
        // Not fused, as the decoded values are not.
        _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(numbers), scale), minimum)
    };
    let pairs = numbers.as_chunks::<NUMBERS>().0.as_chunks::<2>().0;
    for (pair, ([low, high], out)) in
        pairs.iter().zip(out.as_chunks_mut::<{ 2 * NUMBERS }>().0).enumerate()
    {
        let rounded = _mm512_cvtne2ps_pbh(values(high, 2 * pair + 1), values(low, 2 * pair));
        // SAFETY: 32 numbers of 16 bits are one vector, in which both types are the same bits.
        unsafe {
            let rounded = transmute::<__m512bh, __m512i>(rounded);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), rounded);
        }
    }
}
