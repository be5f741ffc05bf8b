//! Activations as signed bytes, for products with quantised weights.
//!
//! Each 32 features of a row share a scale, their largest magnitude over 127, so that a value is
//! off by at most that magnitude over 254. A row depends on nothing else.
//!
//! A block is [`block_words`] words: eight of four bytes each, the scale, and for each of the
//! weight's scales among these 32 what its offset or minimum is multiplied with.

use super::simd::{Lanes, per_isa};
use super::unpack::Form;

/// Features that share a scale.
pub(super) const BLOCK: usize = 32;

/// Where in a block its scale is.
pub(super) const SCALE_WORD: usize = BLOCK / 4;

/// Below this magnitude all of a block are taken as zero: the reciprocal of its scale would
/// overflow.
const MAGNITUDE_MIN: f32 = 1e-35;

/// Words of a block for weights of a form.
pub(super) const fn block_words(form: Form) -> usize {
    SCALE_WORD + 1 + form.scales
}

per_isa! {
    /// Quantises one row, the concatenation of `parts`, into as many blocks as it fills.
    ///
    /// The last words of a block are, for each group that shares a scale of the weight: the sum of
    /// its bytes times minus the form's offset, as an integer; or, with minima, the sum of its
    /// quantised values as a float.
    pub(super) fn quantise_row<L>(parts: &[&[f32]], form: Form, row: &mut [u32]) {
        let mut values = Concatenated { parts, part: 0, at: 0 };
        for block in row.chunks_exact_mut(block_words(form)) {
            quantise_block::<L>(values.next(&mut [0.0; BLOCK]), form, block);
        }
    }
}

/// A row's blocks apart: what stands once for a block in [`quantise_row`]'s is here in each lane of
/// a vector.
pub(super) struct LaneBlocks<'a> {
    /// The bytes, in words of four.
    pub(super) bytes: &'a mut [u32],
    /// For each word the scale of its block.
    pub(super) scales: &'a mut [f32],
    /// For each word the sum of its bytes times minus the form's offset, an integer's bits; or,
    /// with minima, the sums of a block's quantised values as in [`quantise_row`]'s.
    pub(super) terms: &'a mut [f32],
}

per_isa! {
    /// Quantises one row, the concatenation of `parts`, and fills up what is longer than it with
    /// zeros.
    pub(super) fn spread_row<L>(parts: &[&[f32]], form: Form, spread: LaneBlocks<'_>) {
        let blocks = parts.iter().map(|part| part.len()).sum::<usize>() / BLOCK;
        let (bytes, rest) = spread.bytes.split_at_mut(blocks * SCALE_WORD);
        rest.fill(0);
        let (scales, rest) = spread.scales.split_at_mut(blocks * SCALE_WORD);
        rest.fill(0.0);
        let each = if form.has_minimum { form.scales } else { SCALE_WORD };
        let (terms, rest) = spread.terms.split_at_mut(blocks * each);
        rest.fill(0.0);
        let mut values = Concatenated { parts, part: 0, at: 0 };
        let spread = bytes.as_chunks_mut::<SCALE_WORD>().0.iter_mut();
        let spread = spread.zip(scales.as_chunks_mut::<SCALE_WORD>().0);
        for ((words, scales), terms) in spread.zip(terms.chunks_exact_mut(each)) {
            let (bytes, scale) = rounded::<L>(values.next(&mut [0.0; BLOCK]));
            *words = packed(&bytes);
            *scales = [scale; SCALE_WORD];
            if form.has_minimum {
                for (term, group) in terms.iter_mut().zip(bytes.chunks_exact(BLOCK / each)) {
                    *term = scale * group.iter().map(|&byte| i32::from(byte)).sum::<i32>() as f32;
                }
            } else {
                for (term, four) in terms.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    let sum: i32 = four.iter().map(|&byte| i32::from(byte)).sum();
                    *term = f32::from_bits((-i32::from(form.offset) * sum) as u32);
                }
            }
        }
    }
}

/// Values that lie in several slices, one after the other.
struct Concatenated<'a> {
    parts: &'a [&'a [f32]],
    part: usize,
    at: usize,
}

impl Concatenated<'_> {
    /// The next block: where it lies, or, where it lies in several of them, in `buffer`.
    #[inline(always)]
    fn next<'b>(&mut self, buffer: &'b mut [f32; BLOCK]) -> &'b [f32; BLOCK]
    where
        Self: 'b,
    {
        let part: &'b [f32] = self.parts[self.part];
        if let Some(block) = part[self.at..].first_chunk() {
            self.skip(BLOCK);
            return block;
        }
        self.gather(buffer);
        buffer
    }

    #[inline(never)]
    fn gather(&mut self, block: &mut [f32; BLOCK]) {
        let mut buffer = &mut block[..];
        while !buffer.is_empty() {
            let rest = &self.parts[self.part][self.at..];
            let count = rest.len().min(buffer.len());
            let (now, later) = buffer.split_at_mut(count);
            now.copy_from_slice(&rest[..count]);
            self.skip(count);
            buffer = later;
        }
    }

    #[inline(always)]
    fn skip(&mut self, count: usize) {
        self.at += count;
        if self.at == self.parts[self.part].len() {
            (self.part, self.at) = (self.part + 1, 0);
        }
    }
}

#[inline(always)]
fn quantise_block<L: Lanes>(values: &[f32; BLOCK], form: Form, block: &mut [u32]) {
    let (bytes, scale) = rounded::<L>(values);
    let (words, rest) = block.split_first_chunk_mut().expect("a block has words");
    *words = packed(&bytes);
    rest[0] = scale.to_bits();
    let (halves, _) = bytes.as_chunks();
    // SAFETY: who calls has the instructions.
    let sums = unsafe { [L::sum_bytes(&halves[0]), L::sum_bytes(&halves[1])] };
    let term = |sum: i32| match form.has_minimum {
        true => (scale * sum as f32).to_bits(),
        false => (-i32::from(form.offset) * sum) as u32,
    };
    if let [_, first, second] = rest {
        (*first, *second) = (term(sums[0]), term(sums[1]));
    } else {
        rest[1] = term(sums[0] + sums[1]);
    }
}

/// A block's bytes as words of four.
#[inline(always)]
fn packed(bytes: &[i8; BLOCK]) -> [u32; SCALE_WORD] {
    let (fours, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|word| u32::from_le_bytes(fours[word].map(|byte| byte as u8)))
}

/// The bytes of a block, none of them -128, and their scale.
#[inline(always)]
fn rounded<L: Lanes>(values: &[f32; BLOCK]) -> ([i8; BLOCK], f32) {
    /// Adding this rounds to the nearest whole number, which is then in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    // Magnitudes compare as their bits do, and what is not finite is above all others.
    let largest = values.iter().fold(0, |largest, value| largest.max(value.abs().to_bits()));
    let largest = f32::from_bits(largest);
    let (scale, inverse) = if largest < MAGNITUDE_MIN {
        (0.0, 0.0)
    } else if largest.is_finite() {
        (largest / 127.0, 127.0 / largest)
    } else {
        (f32::NAN, 0.0)
    };
    let mut bytes = [0i8; BLOCK];
    for at in (0..BLOCK).step_by(L::WIDTH) {
        // SAFETY: who calls has the instructions; a block is whole vectors.
        unsafe {
            let value = L::load(values.as_ptr().add(at));
            let rounded = L::add(L::multiply(value, L::splat(inverse)), L::splat(ROUNDING));
            L::store_low_bytes(bytes.as_mut_ptr().add(at), rounded);
        }
    }
    (bytes, scale)
}
