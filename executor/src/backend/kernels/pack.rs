//! Packing: rows of stored numbers become the slivers of a [`panel`](super::panel), widened on the
//! way.
//!
//! A square of rows is turned in registers by words of 32 bits; a word is a number in f32 or two
//! neighbours of 16 bits, which are widened when they already stand in their columns. So nothing is
//! written but the panel.
//!
//! Not here: decoding of blocks, which [`widen`](super::widen) does into rows of f32 first.

use super::panel::SLIVER_VECTORS;
use super::simd::{Isa, LINE_BYTES, Lanes, SQUARE_MAX, per_isa, prefetch};
use crate::weights::float::{f32_of_bf16, f32_of_f16};

/// Rows that are packed together by the widest instruction set; slivers are whole multiples of
/// them.
pub(super) const PACKED_ROWS: usize = SQUARE_MAX;

/// How numbers lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// In f32, in the machine's order of bytes.
    F32,
    /// In binary16, little-endian, for little-endian machines.
    F16,
    /// In bfloat16, little-endian, for little-endian machines.
    Bf16,
}

/// Rows of numbers in memory, at any alignment.
#[derive(Clone, Copy)]
pub(super) struct StoredRows<'a> {
    pub(super) format: Format,
    /// Begins with row 0.
    pub(super) bytes: &'a [u8],
    /// From one row to the next.
    pub(super) stride_bytes: usize,
    /// How many there are.
    pub(super) count: usize,
}

/// Packs rows as columns: `panel[k, column] = rows[column, k]` for the columns from `first` on,
/// where `first` is a multiple of [`PACKED_ROWS`]. What is left of the last columns' slivers holds
/// anything.
pub(super) fn pack_rows(
    isa: Isa,
    rows: StoredRows<'_>,
    first: usize,
    depth: usize,
    panel: &mut [f32],
) {
    match rows.format {
        Format::F32 => pack_f32(isa, rows, first, depth, panel),
        Format::F16 => pack_f16(isa, rows, first, depth, panel),
        Format::Bf16 => pack_bf16(isa, rows, first, depth, panel),
    }
}

per_isa! {
    fn pack_f32<L>(rows: StoredRows<'_>, first: usize, depth: usize, panel: &mut [f32]) {
        pack::<L, F32>(rows, first, depth, panel);
    }
}

per_isa! {
    fn pack_f16<L>(rows: StoredRows<'_>, first: usize, depth: usize, panel: &mut [f32]) {
        pack::<L, F16>(rows, first, depth, panel);
    }
}

per_isa! {
    fn pack_bf16<L>(rows: StoredRows<'_>, first: usize, depth: usize, panel: &mut [f32]) {
        pack::<L, Bf16>(rows, first, depth, panel);
    }
}

/// A format of numbers, of which a word of 32 bits holds one or two.
trait Element {
    /// Bytes of a number.
    const BYTES: usize;
    /// Numbers in a word.
    const PER_WORD: usize = 4 / Self::BYTES;

    /// The numbers of each word, the first `PER_WORD` of the two.
    ///
    /// # Safety
    /// The machine has `L`'s instructions.
    unsafe fn widen<L: Lanes>(words: L::Vector) -> [L::Vector; 2];

    /// One number.
    fn read(bytes: &[u8]) -> f32;
}

struct F32;
struct F16;
struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn widen<L: Lanes>(words: L::Vector) -> [L::Vector; 2] {
        [words; 2]
    }

    fn read(bytes: &[u8]) -> f32 {
        f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn widen<L: Lanes>(words: L::Vector) -> [L::Vector; 2] {
        // SAFETY: the caller's promise.
        unsafe { L::f16_pairs(words) }
    }

    fn read(bytes: &[u8]) -> f32 {
        f32_of_f16(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn widen<L: Lanes>(words: L::Vector) -> [L::Vector; 2] {
        // SAFETY: the caller's promise.
        unsafe { L::bf16_pairs(words) }
    }

    fn read(bytes: &[u8]) -> f32 {
        f32_of_bf16(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

#[inline(always)]
fn pack<L: Lanes, E: Element>(rows: StoredRows<'_>, first: usize, depth: usize, panel: &mut [f32]) {
    let StoredRows { bytes, stride_bytes, count, .. } = rows;
    let (width, square) = (SLIVER_VECTORS * L::WIDTH, L::WIDTH * E::PER_WORD);
    assert!(first.is_multiple_of(PACKED_ROWS) && count > 0, "columns are packed by {PACKED_ROWS}");
    assert!((count - 1) * stride_bytes + depth * E::BYTES <= bytes.len(), "rows outside");
    assert!((first + count).next_multiple_of(width) * depth <= panel.len(), "columns outside");
    for row in (0..count).step_by(L::WIDTH) {
        let column = first + row;
        let to = &mut panel[column / width * width * depth + column % width..];
        // A square that the rows do not fill repeats the last one, in columns that nobody reads.
        let starts: [*const u8; SQUARE_MAX] = std::array::from_fn(|lane| {
            bytes.as_ptr().wrapping_add((row + lane).min(count - 1) * stride_bytes)
        });
        if depth < square {
            for (lane, row) in (row..count.min(row + L::WIDTH)).enumerate() {
                let stored = bytes[row * stride_bytes..].chunks_exact(E::BYTES).take(depth);
                for (k, stored) in stored.enumerate() {
                    to[k * width + lane] = E::read(stored);
                }
            }
            continue;
        }
        for k in (0..depth).step_by(square) {
            // The last square overlaps the one before, and writes the same there.
            let k = k.min(depth - square);
            if (k * E::BYTES).is_multiple_of(LINE_BYTES) {
                // The next rows, which lie elsewhere.
                for start in starts.iter().take(L::WIDTH) {
                    prefetch(start.wrapping_add(L::WIDTH * stride_bytes + k * E::BYTES));
                }
            }
            // SAFETY: `per_isa!` has the instructions; each row has `depth` elements from its start
            // on, of which a square's begin at `k`; the sliver's rows up to `depth` lie in the
            // panel, which was checked above.
            unsafe {
                let words = L::transposed(&starts, k * E::BYTES);
                for (word, &words) in words.iter().take(L::WIDTH).enumerate() {
                    let numbers = E::widen::<L>(words);
                    for (n, &numbers) in numbers.iter().take(E::PER_WORD).enumerate() {
                        let k = k + word * E::PER_WORD + n;
                        L::store(to.as_mut_ptr().add(k * width), numbers);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of arbitrary bits `stride` elements apart, from an odd address on.
    fn bytes(count: usize, stride: usize, size: usize) -> (Vec<u8>, usize) {
        let len = count * stride * size;
        let bytes: Vec<u8> = (0..len + 2).map(|i| ((i * 2_654_435_761) >> 9) as u8).collect();
        let skip = 1 + bytes.as_ptr().addr() % 2;
        (bytes, skip)
    }

    fn check(isa: Isa, format: Format, count: usize, depth: usize, first: usize) {
        type Read = fn(&[u8]) -> f32;
        let (size, read): (usize, Read) = match format {
            Format::F32 => (4, F32::read),
            Format::F16 => (2, F16::read),
            Format::Bf16 => (2, Bf16::read),
        };
        let stride = depth + 3;
        let (bytes, skip) = bytes(count, stride, size);
        // What follows the last row's `depth` elements is not the rows'.
        let bytes = &bytes[skip..][..((count - 1) * stride + depth) * size];
        let rows = StoredRows { format, bytes, stride_bytes: stride * size, count };
        let width = if isa.is_wide() { 32 } else { 16 };
        let mut panel = vec![0.0f32; (first + count).next_multiple_of(width) * depth];
        pack_rows(isa, rows, first, depth, &mut panel);
        for row in 0..count {
            let column = first + row;
            let sliver = &panel[column / width * width * depth..];
            for k in 0..depth {
                let expected = read(&bytes[(row * stride + k) * size..]);
                let got = sliver[k * width + column % width];
                let same = got.to_bits() == expected.to_bits();
                assert!(
                    same || got.is_nan() && expected.is_nan(),
                    "{isa} {format:?} {count} x {depth} from {first}: [{row}, {k}] {got}, not {expected}"
                );
            }
        }
        let before = first / width * width * depth;
        assert!(panel[..before].iter().all(|&value| value == 0.0), "{isa}: other slivers");
    }

    #[test]
    fn rows_of_every_format_and_size_become_columns() {
        for isa in Isa::available() {
            for format in [Format::F32, Format::F16, Format::Bf16] {
                for (count, depth) in [(1, 1), (16, 16), (16, 32), (7, 15), (15, 33), (17, 31)] {
                    check(isa, format, count, depth, 0);
                }
                check(isa, format, 40, 80, 32);
                check(isa, format, 33, 47, 16);
                check(isa, format, 70, 130, 0);
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows outside")]
    fn rows_beyond_the_bytes_are_a_bug() {
        let rows = StoredRows { format: Format::F16, bytes: &[0; 63], stride_bytes: 4, count: 16 };
        pack_rows(Isa::best(), rows, 0, 2, &mut [0.0; 64]);
    }
}
