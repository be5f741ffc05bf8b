//! Linear layers over quantised weights, or floats of eight bits, as products of bytes.
//!
//! First each activation row is quantised ([`quantise`](super::quantise)). Then a task takes a
//! panel of weight rows, unpacks one block of the summed dimension of it at a time into slivers of
//! bytes with their scales, and multiplies all its rows with that. Few rows are multiplied [without
//! a panel](few). A processor with AMX takes [tiles of bf16](super::bf16) for more than few.
//!
//! A sliver holds, for each 32 of the depth: eight rows of words, each word four bytes of a column;
//! then a row of scales, or two; then, where the type has them, as many rows of minima.
//!
//! Invariants: an element is the sum, along the depth in order, of one term for each scale of its
//! weight row, the integers in it exact; how rows and columns are cut changes nothing. A row's
//! arithmetic depends on no other row.

mod few;

use std::ops::Range;

use protocol::StorageType;

use super::bf16::{TILES_LEN_MIN, multiply_in_tiles};
use super::bytes::{ByteLanes, per_byte_isa};
use super::grid::{Grid, Target, aligned, aligned_len};
use super::matmul::{Columns, FEW_ROWS, LinearOperands, LinearShape};
use super::panel::SLIVER_COLUMNS;
use super::quantise::{BLOCK, SCALE_WORD, block_words, quantise_row};
use super::simd::{Isa, LINE_BYTES, Lanes, per_isa, prefetch};
use super::unpack::{Form, unpack};
use super::workers::{Disjoint, Workers};
use crate::graph::Activation;
use crate::weights::view::{WeightView, scale};

/// Weight rows of a panel.
const PANEL_COLUMNS: usize = 128;

/// Features of a panel: a sliver of 32 columns (at most 36 KiB) stays in a 48 KiB first level cache
/// while rows go by. A multiple of all blocks' sizes.
const PANEL_DEPTH: usize = 768;

/// Activation rows that go by a panel's slivers at a time: whole tiles of 6 and of 3, 79 KiB.
const CHUNK_ROWS: usize = 84;

/// Fewer activation rows than this are not worth unpacking a panel for a second time.
const TASK_ROWS_MIN: usize = 84;

/// Weight rows that are unpacked at a time.
const UNPACKED_ROWS: usize = 8;

/// Whether a layer's products can be formed of integers: its weights are of a type that has them,
/// and each row of `in_features` is whole blocks of activations.
pub fn has_integer_products(storage: StorageType, in_features: usize) -> bool {
    storage.has_integer_products() && in_features.is_multiple_of(BLOCK)
}

/// How many elements of scratch [`integer_linear`] needs with so many workers.
pub fn integer_linear_scratch_len(
    shape: &LinearShape<'_>,
    storage: StorageType,
    workers: usize,
) -> usize {
    let form = Form::of(storage).expect("a type of integers");
    if shape.rows <= FEW_ROWS {
        return few::scratch_len(shape, form, workers);
    }
    quantised_len(shape, form) + workers * worker_scratch_len(shape, form)
}

/// Words of all quantised rows.
fn quantised_len(shape: &LinearShape<'_>, form: Form) -> usize {
    shape.rows * in_features(shape) / BLOCK * block_words(form)
}

fn in_features(shape: &LinearShape<'_>) -> usize {
    shape.in_features.iter().sum()
}

fn worker_scratch_len(shape: &LinearShape<'_>, form: Form) -> usize {
    let depth = in_features(shape).min(PANEL_DEPTH);
    let columns = shape.out_features.next_multiple_of(SLIVER_COLUMNS).min(PANEL_COLUMNS);
    let len = aligned_len(depth / BLOCK * sliver_rows(form) * columns) + unpacked_len(depth);
    len.max(TILES_LEN_MIN)
}

/// Rows of a sliver for each block.
const fn sliver_rows(form: Form) -> usize {
    SCALE_WORD + form.scales * (1 + form.has_minimum as usize)
}

/// Room for numbers, scales and minima of unpacked rows.
const fn unpacked_len(depth: usize) -> usize {
    UNPACKED_ROWS * (depth / 4) + 2 * (depth / 16)
}

/// As [`linear`](super::matmul::linear), for weights that [have integer
/// products](has_integer_products), with activations quantised: their rows' blocks of 32 are each
/// off by at most 1/254 of the block's largest magnitude. Weights in floats of eight bits that are
/// below an eighth of their block's largest are off by up to 1/128 of it. `scratch`:
/// [`integer_linear_scratch_len`].
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn integer_linear(
    workers: &Workers,
    inputs: &[&[f32]],
    weight: WeightView<'_>,
    bias: Option<WeightView<'_>>,
    activation: Activation,
    out: &mut [f32],
    columns: Columns,
    scratch: &mut [f32],
) {
    let operands = LinearOperands::new(inputs, weight, bias, activation, out.len(), columns);
    let shape = operands.shape();
    let form = Form::of(weight.storage).expect("a type of integers");
    if shape.rows <= FEW_ROWS {
        few::multiply(workers, &operands, form, out, scratch);
        return;
    }
    // Without AMX, vectors multiply more bytes in a second than pairs of bf16.
    if workers.isa().has_tiles() && multiply_in_tiles(workers, &operands, out, scratch) {
        return;
    }
    let (quantised, scratch) = scratch.split_at_mut(quantised_len(&shape, form));
    quantise(workers, &operands, form, quantised);
    let quantised: &[u32] = bytemuck::cast_slice(quantised);
    let grid = Grid::new(
        shape.rows,
        shape.out_features,
        PANEL_COLUMNS.min(shape.out_features),
        TASK_ROWS_MIN,
        workers.count(),
    );
    let out = Disjoint::new(out);
    let len = worker_scratch_len(&shape, form);
    let call = IntegerCall { operands: &operands, isa: workers.isa(), form, quantised, out: &out };
    workers.for_each_with(grid.tasks(), operands.operations(), scratch, len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        call.multiply(rows, columns, scratch);
    });
}

/// Gives all activation rows their blocks of 8-bit numbers.
fn quantise(workers: &Workers, operands: &LinearOperands<'_>, form: Form, quantised: &mut [f32]) {
    /// Scalar operations for each element, about.
    const OPERATIONS: usize = 8;
    let isa = workers.isa();
    let row_words = quantised.len() / operands.rows;
    workers.for_each_chunk(quantised, row_words, OPERATIONS, |first, rows| {
        for (row, words) in (first..).zip(rows.chunks_exact_mut(row_words)) {
            let mut parts: [&[f32]; super::matmul::INPUTS_MAX] = [&[]; _];
            let parts = &mut parts[..operands.inputs.len()];
            parts.iter_mut().enumerate().for_each(|(at, part)| *part = operands.part(at, row));
            quantise_row(isa, parts, form, bytemuck::cast_slice_mut(words));
        }
    });
}

/// What all tasks of one call share.
struct IntegerCall<'a> {
    operands: &'a LinearOperands<'a>,
    isa: Isa,
    form: Form,
    quantised: &'a [u32],
    out: &'a Disjoint<'a>,
}

impl IntegerCall<'_> {
    /// The products of some rows with a panel of weight rows, through bias and activation.
    fn multiply(&self, rows: Range<usize>, columns: Range<usize>, scratch: &mut [f32]) {
        let operands = self.operands;
        let in_features = operands.in_features;
        let unpacked_len = unpacked_len(in_features.min(PANEL_DEPTH));
        let (unpacked, panel) = scratch.split_at_mut(unpacked_len);
        let panel: &mut [u32] = bytemuck::cast_slice_mut(aligned(panel));
        let unpacked = bytemuck::cast_slice_mut(unpacked);
        let row_words = in_features / BLOCK * block_words(self.form);
        for from in (0..in_features).step_by(PANEL_DEPTH) {
            let blocks = PANEL_DEPTH.min(in_features - from) / BLOCK;
            self.pack(columns.clone(), from, blocks, unpacked, panel);
            for begin in rows.clone().step_by(CHUNK_ROWS) {
                let chunk = begin..rows.end.min(begin + CHUNK_ROWS);
                let first = chunk.start * row_words + from / BLOCK * block_words(self.form);
                let a = Quantised {
                    words: &self.quantised[first..],
                    stride: row_words,
                    count: chunk.len(),
                };
                let slab = Slab { panel, columns: columns.len(), blocks };
                // SAFETY: no other task has these rows and columns.
                let target =
                    unsafe { operands.target(self.out, chunk.start, columns.start, from > 0) };
                match (self.form.scales, self.form.has_minimum, self.form.bits) {
                    (1, false, 8) => multiply_slab::<1, false, 8>(self.isa, a, slab, target),
                    (1, false, 5) => multiply_slab::<1, false, 5>(self.isa, a, slab, target),
                    (1, true, 5) => multiply_slab::<1, true, 5>(self.isa, a, slab, target),
                    (2, true, 5) => multiply_slab::<2, true, 5>(self.isa, a, slab, target),
                    (2, false, 6) => multiply_slab::<2, false, 6>(self.isa, a, slab, target),
                    _ => unreachable!("no type has the form {:?}", self.form),
                }
                if from + blocks * BLOCK == in_features {
                    operands.finish(self.isa, chunk, columns.clone(), self.out);
                }
            }
        }
    }

    /// Unpacks so many blocks, from feature `from` on, of some weight rows.
    fn pack(
        &self,
        columns: Range<usize>,
        from: usize,
        blocks: usize,
        unpacked: &mut [u32],
        panel: &mut [u32],
    ) {
        let operands = self.operands;
        let weight = operands.weight;
        let (storage, depth) = (weight.storage, blocks * BLOCK);
        let at = |elements: usize| storage.bytes(elements as u64).as_usize();
        let count = blocks * self.form.scales;
        for first in columns.clone().step_by(UNPACKED_ROWS) {
            let (numbers, scales) = unpacked.split_at_mut(UNPACKED_ROWS * depth / 4);
            let (scales, minima) = scales.split_at_mut(count);
            for lane in 0..UNPACKED_ROWS {
                // The bytes of the same lane's next row.
                let next = at((first + UNPACKED_ROWS + lane) * operands.in_features + from);
                for line in (0..at(depth)).step_by(LINE_BYTES) {
                    prefetch(weight.bytes.as_ptr().wrapping_add(next + line));
                }
                let words = &mut numbers[lane * depth / 4..][..depth / 4];
                let scales: &mut [f32] = bytemuck::cast_slice_mut(&mut *scales);
                let minima: &mut [f32] = bytemuck::cast_slice_mut(&mut minima[..count]);
                if first + lane < columns.end {
                    let begin = (first + lane) * operands.in_features + from;
                    let bytes = &weight.bytes[at(begin)..at(begin + depth)];
                    unpack(
                        self.isa,
                        storage,
                        bytes,
                        bytemuck::cast_slice_mut(words),
                        scales,
                        minima,
                    );
                    scale(scales, weight.scale);
                    scale(minima, weight.scale);
                } else {
                    words.fill(0);
                    scales.fill(0.0);
                    minima.fill(0.0);
                }
                let column = first - columns.start + lane;
                put_scales(self.isa, self.form, column, scales, minima, panel);
            }
            interleave(self.isa, self.form, first - columns.start, blocks, numbers, panel);
        }
    }
}

per_isa! {
    /// Writes one column's scales and minima into its sliver.
    fn put_scales<L>(form: Form, column: usize, scales: &[f32], minima: &[f32], panel: &mut [u32]) {
        let width = 2 * L::WIDTH;
        let block_words = sliver_rows(form) * width;
        let blocks = scales.len() / form.scales;
        let sliver = &mut panel[column / width * blocks * block_words + column % width..];
        for (block, words) in sliver.chunks_mut(block_words).take(blocks).enumerate() {
            for group in 0..form.scales {
                let scale = scales[block * form.scales + group];
                words[(SCALE_WORD + group) * width] = scale.to_bits();
                if form.has_minimum {
                    let minimum = minima[block * form.scales + group];
                    words[(SCALE_WORD + form.scales + group) * width] = minimum.to_bits();
                }
            }
        }
    }
}

per_isa! {
    /// Writes the numbers of eight columns, the first of them `column`, into their sliver.
    fn interleave<L>(form: Form, column: usize, blocks: usize, numbers: &[u32], panel: &mut [u32]) {
        let width = 2 * L::WIDTH;
        let block_words = sliver_rows(form) * width;
        let stride = numbers.len() / UNPACKED_ROWS;
        let sliver = &mut panel[column / width * blocks * block_words..][..blocks * block_words];
        assert!(column.is_multiple_of(UNPACKED_ROWS) && stride >= blocks * SCALE_WORD, "numbers");
        for (block, words) in sliver.chunks_exact_mut(block_words).enumerate() {
            // SAFETY: `per_isa!` has the instructions; eight words of each of eight rows are there,
            // and so are eight rows of the sliver from this column on; the words are only moved.
            unsafe {
                let from = numbers.as_ptr().add(block * SCALE_WORD).cast();
                let to = words.as_mut_ptr().add(column % width).cast();
                L::transpose(from, stride, to, width);
            }
        }
    }
}

/// Quantised rows from some feature on: row `i` begins at `i * stride`.
#[derive(Clone, Copy)]
struct Quantised<'a> {
    words: &'a [u32],
    stride: usize,
    count: usize,
}

/// A panel of unpacked weights.
#[derive(Clone, Copy)]
struct Slab<'a> {
    panel: &'a [u32],
    columns: usize,
    blocks: usize,
}

per_byte_isa! {
    /// The products of rows with all slivers of a panel, of weights with `SCALES` scales for each
    /// block, with minima or not, of numbers of so many bits.
    fn multiply_slab<B, const SCALES: usize, const MINIMA: bool, const BITS: u32>(
        a: Quantised<'_>,
        slab: Slab<'_>,
        out: Target<'_>,
    ) {
        let width = 2 * B::Float::WIDTH;
        let row_words = slab.blocks * (SCALE_WORD + 1 + SCALES);
        let sliver_words = slab.blocks * (SCALE_WORD + SCALES * (1 + MINIMA as usize)) * width;
        assert!(a.count > 0 && (a.count - 1) * a.stride + row_words <= a.words.len(), "rows");
        assert!(slab.columns.div_ceil(width) * sliver_words <= slab.panel.len(), "panel");
        for (sliver, column) in (0..slab.columns).step_by(width).enumerate() {
            let words = &slab.panel[sliver * sliver_words..][..sliver_words];
            let count = width.min(slab.columns - column);
            let mut row = 0;
            while row < a.count {
                let tile = IntegerTile { a, row, words, blocks: slab.blocks, column, count, out };
                // SAFETY: `per_byte_isa!` has the instructions; the operands were checked above,
                // and no tile has more rows than are left.
                row += unsafe {
                    match a.count - row {
                        6.. if B::TILE_ROWS >= 6 => tile.multiply::<B, 6, SCALES, MINIMA, BITS>(),
                        4.. if B::TILE_ROWS >= 6 => tile.multiply::<B, 4, SCALES, MINIMA, BITS>(),
                        3.. if B::TILE_ROWS < 6 => tile.multiply::<B, 3, SCALES, MINIMA, BITS>(),
                        2.. => tile.multiply::<B, 2, SCALES, MINIMA, BITS>(),
                        _ => tile.multiply::<B, 1, SCALES, MINIMA, BITS>(),
                    }
                };
            }
        }
    }
}

/// Some rows and a sliver.
struct IntegerTile<'a> {
    a: Quantised<'a>,
    row: usize,
    words: &'a [u32],
    blocks: usize,
    column: usize,
    count: usize,
    out: Target<'a>,
}

impl IntegerTile<'_> {
    /// The products of `M` rows. Returns `M`.
    ///
    /// # Safety
    /// The machine has `B`'s instructions; `row + M <= a.count` and all blocks of each row and of
    /// the sliver exist.
    #[inline(always)]
    unsafe fn multiply<
        B: ByteLanes,
        const M: usize,
        const SCALES: usize,
        const MINIMA: bool,
        const BITS: u32,
    >(
        &self,
    ) -> usize {
        let vector = B::Float::WIDTH;
        let width = 2 * vector;
        let a_words = SCALE_WORD + 1 + SCALES;
        let b_words = (SCALE_WORD + SCALES * (1 + MINIMA as usize)) * width;
        let group_words = SCALE_WORD / SCALES;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[B::Float::zero(); 2]; M];
            if self.out.accumulates() {
                self.load::<B::Float, M>(&mut sums);
            }
            for i in 0..M {
                self.out.prefetch(self.row + M + i, self.column, self.count);
            }
            let a = self.a.words.as_ptr().add(self.row * self.a.stride);
            for block in 0..self.blocks {
                let a = a.add(block * a_words);
                let b = self.words.as_ptr().add(block * b_words);
                for i in 0..M {
                    // The rows of the next tile.
                    prefetch(a.wrapping_add((M + i) * self.a.stride));
                }
                for group in 0..SCALES {
                    let mut dots = [[B::splat(0); 2]; M];
                    if !(MINIMA || B::SIGNED && BITS == 8) {
                        for (i, dots) in dots.iter_mut().enumerate() {
                            let offset = *a.add(i * self.a.stride + SCALE_WORD + 1 + group);
                            *dots = [B::splat(offset); 2];
                        }
                    }
                    let words = group * group_words..(group + 1) * group_words;
                    for word in words.step_by(B::steps(BITS)) {
                        let row = b.add(word * width);
                        for (i, dots) in dots.iter_mut().enumerate() {
                            let x = a.add(i * self.a.stride + word);
                            dots[0] = B::dots::<BITS>(dots[0], row, width, x);
                            dots[1] = B::dots::<BITS>(dots[1], row.add(vector), width, x);
                        }
                    }
                    let row = b.add((SCALE_WORD + group) * width).cast::<f32>();
                    let scales = [B::Float::load(row), B::Float::load(row.add(vector))];
                    let row = row.add(SCALES * width);
                    for (i, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
                        let a = a.add(i * self.a.stride + SCALE_WORD).cast::<f32>();
                        let scale = B::Float::splat(*a);
                        for v in 0..2 {
                            let factor = B::Float::multiply(scales[v], scale);
                            sums[v] = B::Float::multiply_add(B::to_float(dots[v]), factor, sums[v]);
                            if MINIMA {
                                let minimum = B::Float::load(row.add(v * vector));
                                let sum = B::Float::splat(*a.add(1 + group));
                                sums[v] = B::Float::multiply_add(minimum, sum, sums[v]);
                            }
                        }
                    }
                }
            }
            self.store::<B::Float, M>(&sums);
        }
        M
    }

    /// The sums so far.
    ///
    /// # Safety
    /// The machine has `L`'s instructions, and the tile's elements are the caller's alone.
    #[inline(always)]
    unsafe fn load<L: Lanes, const M: usize>(&self, sums: &mut [[L::Vector; 2]; M]) {
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise; a row of the buffer is two vectors.
            unsafe {
                let row = self.out.row(self.row + i, self.column, self.count);
                let mut buffer = [0.0; SLIVER_COLUMNS];
                let from = if self.count == 2 * L::WIDTH {
                    row.as_ptr()
                } else {
                    buffer[..self.count].copy_from_slice(row);
                    buffer.as_ptr()
                };
                *sums = [L::load(from), L::load(from.add(L::WIDTH))];
            }
        }
    }

    /// Writes the sums.
    ///
    /// # Safety
    /// The machine has `L`'s instructions, and the tile's elements are the caller's alone.
    #[inline(always)]
    unsafe fn store<L: Lanes, const M: usize>(&self, sums: &[[L::Vector; 2]; M]) {
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: the caller's promise; a row of the buffer is two vectors.
            unsafe {
                let row = self.out.row(self.row + i, self.column, self.count);
                if self.count == 2 * L::WIDTH {
                    L::store(row.as_mut_ptr(), sums[0]);
                    L::store(row.as_mut_ptr().add(L::WIDTH), sums[1]);
                } else {
                    let mut buffer = [0.0; SLIVER_COLUMNS];
                    L::store(buffer.as_mut_ptr(), sums[0]);
                    L::store(buffer.as_mut_ptr().add(L::WIDTH), sums[1]);
                    row.copy_from_slice(&buffer[..self.count]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
