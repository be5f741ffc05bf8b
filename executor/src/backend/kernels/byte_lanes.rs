//! Vectors of bytes: what each instruction set gives an inner loop over quantised numbers, which is
//! written once over [`ByteLanes`] ([`bytes`](super::bytes)).

use super::lanes::Lanes;

/// One instruction set's vectors of 32-bit words, each of four bytes or one integer. As many as its
/// [`Lanes`].
///
/// The functions are `unsafe` because calling them needs the instructions: that holds inside
/// [`per_byte_isa!`](super::bytes::per_byte_isa).
pub(super) trait ByteLanes {
    /// Its vectors of `f32`.
    type Float: Lanes;
    /// The vector of words.
    type Words: Copy;
    /// Rows of a tile of two vectors, whose accumulators the registers hold twice: 6 or 3.
    const TILE_ROWS: usize;
    /// Whether numbers of 8 bits are multiplied less 128, as signed ones.
    const SIGNED: bool;

    /// How many vectors of words [`dots`](ByteLanes::dots) takes: a divisor of 4.
    fn steps(bits: u32) -> usize;

    /// One word in all lanes.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn splat(word: u32) -> Self::Words;

    /// As many words as there are lanes, at any alignment.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading the words.
    unsafe fn load(from: *const u32) -> Self::Words;

    /// Adds to each lane the products of its four numbers of so many bits with its four signed
    /// bytes, which are not -128.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn dot<const BITS: u32>(
        sums: Self::Words,
        numbers: Self::Words,
        bytes: Self::Words,
    ) -> Self::Words;

    /// As [`dot`](ByteLanes::dot), for [`steps`](ByteLanes::steps) vectors of numbers, `stride`
    /// words apart, each with the next word of `bytes` in all lanes.
    ///
    /// # Safety
    /// The machine has the instructions; all those vectors and words are valid for reading.
    unsafe fn dots<const BITS: u32>(
        sums: Self::Words,
        numbers: *const u32,
        stride: usize,
        bytes: *const u32,
    ) -> Self::Words;

    /// In each lane the scale of its four numbers, of `SCALES` for each 32.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading the scales of a vector of
    /// numbers.
    unsafe fn spread<const SCALES: usize>(from: *const f32) -> <Self::Float as Lanes>::Vector;

    /// Signed integers as the nearest floats.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn to_float(words: Self::Words) -> <Self::Float as Lanes>::Vector;
}
