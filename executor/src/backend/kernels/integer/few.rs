//! Products of few activation rows with quantised weights: dot products along the depth, without a
//! panel.
//!
//! Some weight rows at a time are unpacked as they lie, into a buffer that stays in the first level
//! cache. Vectors hold consecutive numbers of one weight row, and so the activations are
//! [spread](spread_row): a scale in each lane.
//!
//! Invariant: an element is summed in an order that only the depth and the vectors' width tell,
//! whatever other rows and columns are computed with it.

use std::ops::Range;

use super::{Form, in_features};
use crate::backend::kernels::bytes::{ByteLanes, per_byte_isa};
use crate::backend::kernels::grid::{Grid, Target, aligned, aligned_len};
use crate::backend::kernels::matmul::{FEW_ROWS, INPUTS_MAX, LinearOperands, LinearShape};
use crate::backend::kernels::quantise::{BLOCK, LaneBlocks, spread_row};
use crate::backend::kernels::simd::{Isa, Lanes};
use crate::backend::kernels::unpack::unpack;
use crate::backend::kernels::workers::{Disjoint, Workers};
use crate::weights::view::scale;

/// Weight rows that are unpacked and multiplied at a time.
const COLUMNS: usize = 4;

/// Weight rows of a task.
const TASK_COLUMNS: usize = 48;

/// Features that are unpacked at a time: four rows of them, with their scales, are 14 KiB. A
/// multiple of all blocks' sizes.
const DEPTH_MAX: usize = 3072;

/// Numbers of the widest vector, to whose multiples rows are filled up with zeros.
const VECTOR_NUMBERS: usize = 64;

/// Lanes of the widest vector, likewise for scales.
const VECTOR_LANES: usize = 16;

/// How many elements of scratch so many workers need.
pub(super) fn scratch_len(shape: &LinearShape<'_>, form: Form, workers: usize) -> usize {
    let depth = in_features(shape);
    aligned_len(shape.rows * RowLayout::new(depth, form).spread_len())
        + workers * worker_scratch_len(depth, form)
}

fn worker_scratch_len(depth: usize, form: Form) -> usize {
    aligned_len(COLUMNS * RowLayout::new(depth.min(DEPTH_MAX), form).unpacked_len())
}

/// Where things lie in rows of some depth.
#[derive(Clone, Copy)]
struct RowLayout {
    /// Words of four numbers.
    words: usize,
    /// Scales, and minima where there are any.
    groups: usize,
    has_minimum: bool,
}

impl RowLayout {
    fn new(depth: usize, form: Form) -> RowLayout {
        let words = depth.next_multiple_of(VECTOR_NUMBERS) / 4;
        let groups = (depth / BLOCK * form.scales).next_multiple_of(VECTOR_LANES);
        RowLayout { words, groups, has_minimum: form.has_minimum }
    }

    /// Elements of a spread activation row: its bytes, their scales, and their terms.
    fn spread_len(self) -> usize {
        2 * self.words + if self.has_minimum { self.groups } else { self.words }
    }

    /// Elements of an unpacked weight row: numbers, scales, minima.
    fn unpacked_len(self) -> usize {
        self.words + self.groups * (1 + usize::from(self.has_minimum))
    }
}

/// The products of all rows, which are few, with all weight rows, through bias and activation.
pub(super) fn multiply(
    workers: &Workers,
    operands: &LinearOperands<'_>,
    form: Form,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let isa = workers.isa();
    let (rows, depth) = (operands.rows, operands.in_features);
    let layout = RowLayout::new(depth, form);
    let (spread, scratch) = scratch.split_at_mut(aligned_len(rows * layout.spread_len()));
    let spread = &mut aligned(spread)[..rows * layout.spread_len()];
    for (row, values) in spread.chunks_exact_mut(layout.spread_len()).enumerate() {
        let mut parts: [&[f32]; INPUTS_MAX] = [&[]; _];
        let parts = &mut parts[..operands.inputs.len()];
        parts.iter_mut().enumerate().for_each(|(at, part)| *part = operands.part(at, row));
        let (bytes, values) = values.split_at_mut(layout.words);
        let (scales, terms) = values.split_at_mut(layout.words);
        let bytes = bytemuck::cast_slice_mut(bytes);
        spread_row(isa, parts, form, LaneBlocks { bytes, scales, terms });
    }
    let call = FewRowsCall { operands, isa, form, spread, layout, out: &Disjoint::new(out) };
    let grid = Grid::new(rows, operands.weight.shape[0], TASK_COLUMNS, FEW_ROWS, workers.count());
    let len = worker_scratch_len(depth, form);
    workers.for_each_with(grid.tasks(), operands.operations(), scratch, len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        assert_eq!(rows, 0..operands.rows, "few rows are one chunk");
        call.multiply(columns, aligned(scratch));
    });
}

/// What all tasks of one call share.
struct FewRowsCall<'a> {
    operands: &'a LinearOperands<'a>,
    isa: Isa,
    form: Form,
    /// `[rows, layout.spread_len()]`.
    spread: &'a [f32],
    layout: RowLayout,
    out: &'a Disjoint<'a>,
}

impl FewRowsCall<'_> {
    /// The products with some weight rows.
    fn multiply(&self, columns: Range<usize>, unpacked: &mut [f32]) {
        let operands = self.operands;
        for begin in columns.clone().step_by(COLUMNS) {
            let count = COLUMNS.min(columns.end - begin);
            for from in (0..operands.in_features).step_by(DEPTH_MAX) {
                let depth = DEPTH_MAX.min(operands.in_features - from);
                let layout = RowLayout::new(depth, self.form);
                let rows = unpacked.chunks_exact_mut(layout.unpacked_len()).take(count);
                for (row, unpacked) in (begin..).zip(rows) {
                    self.unpack(row, from, depth, layout, unpacked);
                }
                let a = FewRowsActivations {
                    values: self.spread,
                    stride: self.layout.spread_len(),
                    bytes: from / 4,
                    scales: self.layout.words + from / 4,
                    terms: 2 * self.layout.words
                        + match self.form.has_minimum {
                            true => from / BLOCK * self.form.scales,
                            false => from / 4,
                        },
                    count: operands.rows,
                };
                let b = FewRowsWeights { values: unpacked, layout, count };
                // SAFETY: no other task has these columns.
                let target = unsafe { operands.target(self.out, 0, begin, from > 0) };
                match (self.form.scales, self.form.has_minimum, self.form.bits) {
                    (1, false, 8) => multiply_rows::<1, false, 8>(self.isa, a, b, target),
                    (1, false, 5) => multiply_rows::<1, false, 5>(self.isa, a, b, target),
                    (1, true, 5) => multiply_rows::<1, true, 5>(self.isa, a, b, target),
                    (2, true, 5) => multiply_rows::<2, true, 5>(self.isa, a, b, target),
                    (2, false, 6) => multiply_rows::<2, false, 6>(self.isa, a, b, target),
                    _ => unreachable!("no type has the form {:?}", self.form),
                }
            }
        }
        operands.finish(self.isa, 0..operands.rows, columns, self.out);
    }

    /// Unpacks the features `from..from + depth` of a weight row, and fills up with zeros what is
    /// multiplied beyond them.
    fn unpack(
        &self,
        row: usize,
        from: usize,
        depth: usize,
        layout: RowLayout,
        unpacked: &mut [f32],
    ) {
        let weight = self.operands.weight;
        let at = |elements: usize| weight.storage.bytes(elements as u64).as_usize();
        let first = row * self.operands.in_features + from;
        let bytes = &weight.bytes[at(first)..at(first + depth)];
        let (words, rest) = unpacked.split_at_mut(layout.words);
        let (scales, minima) = rest.split_at_mut(layout.groups);
        let groups = depth / BLOCK * self.form.scales;
        scales[groups..].fill(0.0);
        let scales = &mut scales[..groups];
        let minima = if self.form.has_minimum {
            minima[groups..].fill(0.0);
            &mut minima[..groups]
        } else {
            minima
        };
        let numbers = &mut bytemuck::cast_slice_mut(words)[..depth];
        unpack(self.isa, weight.storage, bytes, numbers, scales, minima);
        scale(scales, weight.scale);
        scale(minima, weight.scale);
    }
}

/// Spread activation rows, and where in each what belongs to some features begins.
#[derive(Clone, Copy)]
struct FewRowsActivations<'a> {
    values: &'a [f32],
    stride: usize,
    bytes: usize,
    scales: usize,
    terms: usize,
    count: usize,
}

/// Rows of a weight as numbers, with their scales.
#[derive(Clone, Copy)]
struct FewRowsWeights<'a> {
    values: &'a [f32],
    layout: RowLayout,
    count: usize,
}

per_byte_isa! {
    /// The products of all rows with some weight rows, as [`multiply_slab`](super::multiply_slab)'s
    /// constants say.
    fn multiply_rows<B, const SCALES: usize, const MINIMA: bool, const BITS: u32>(
        a: FewRowsActivations<'_>,
        b: FewRowsWeights<'_>,
        out: Target<'_>,
    ) {
        let RowLayout { words, groups, has_minimum } = b.layout;
        assert!(a.count > 0 && a.count * a.stride <= a.values.len(), "rows");
        assert!(a.bytes + words <= a.stride && a.scales + words <= a.stride, "features");
        assert!(a.terms + if MINIMA { groups } else { words } <= a.stride, "terms");
        assert!(b.count * b.layout.unpacked_len() <= b.values.len() && has_minimum == MINIMA, "weights");
        assert!(words % VECTOR_LANES == 0 && groups >= words * SCALES / 8, "layout");
        let mut column = 0;
        while column < b.count {
            let mut row = 0;
            let columns = if b.count - column >= COLUMNS { COLUMNS } else { 1 };
            while row < a.count {
                let tile = FewRowsTile { a, row, b, column, out };
                // SAFETY: `per_byte_isa!` has the instructions; the operands were checked above,
                // and no tile has more rows and columns than are left.
                row += unsafe {
                    match (a.count - row, columns) {
                        (2.., COLUMNS) => tile.multiply::<B, 2, COLUMNS, SCALES, MINIMA, BITS>(),
                        (_, COLUMNS) => tile.multiply::<B, 1, COLUMNS, SCALES, MINIMA, BITS>(),
                        (2.., _) => tile.multiply::<B, 2, 1, SCALES, MINIMA, BITS>(),
                        _ => tile.multiply::<B, 1, 1, SCALES, MINIMA, BITS>(),
                    }
                };
            }
            column += columns;
        }
    }
}

/// Some activation rows and some weight rows.
struct FewRowsTile<'a> {
    a: FewRowsActivations<'a>,
    row: usize,
    b: FewRowsWeights<'a>,
    column: usize,
    out: Target<'a>,
}

impl FewRowsTile<'_> {
    /// The products of `M` rows with `N` weight rows. Returns `M`.
    ///
    /// # Safety
    /// The machine has `B`'s instructions; `row + M <= a.count`, `column + N <= b.count`, and all
    /// that the operands say is there.
    #[inline(always)]
    unsafe fn multiply<
        B: ByteLanes,
        const M: usize,
        const N: usize,
        const SCALES: usize,
        const MINIMA: bool,
        const BITS: u32,
    >(
        &self,
    ) -> usize {
        let width = B::Float::WIDTH;
        let RowLayout { words, groups, .. } = self.b.layout;
        let stride = self.b.layout.unpacked_len();
        // SAFETY: the caller's promise.
        let totals = unsafe {
            let a = self.a.values.as_ptr().add(self.row * self.a.stride);
            let b = self.b.values.as_ptr().add(self.column * stride);
            let mut sums = [[B::Float::zero(); N]; M];
            for at in (0..words).step_by(width) {
                let mut numbers = [B::splat(0); N];
                let mut scales = [B::Float::zero(); N];
                for j in 0..N {
                    let row = b.add(j * stride);
                    numbers[j] = B::load(row.add(at).cast());
                    scales[j] = B::spread::<SCALES>(row.add(words + at * SCALES / 8));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let a = a.add(i * self.a.stride + at);
                    let bytes = B::load(a.add(self.a.bytes).cast());
                    let factor = B::Float::load(a.add(self.a.scales));
                    let begin = if MINIMA || B::SIGNED && BITS == 8 {
                        B::splat(0)
                    } else {
                        B::load(a.add(self.a.terms).cast())
                    };
                    for j in 0..N {
                        let dot = B::to_float(B::dot::<BITS>(begin, numbers[j], bytes));
                        let factor = B::Float::multiply(scales[j], factor);
                        sums[j] = B::Float::multiply_add(dot, factor, sums[j]);
                    }
                }
            }
            if MINIMA {
                for at in (0..groups).step_by(width) {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let terms = B::Float::load(a.add(i * self.a.stride + self.a.terms + at));
                        for (j, sum) in sums.iter_mut().enumerate() {
                            let minima = B::Float::load(b.add(j * stride + words + groups + at));
                            *sum = B::Float::multiply_add(minima, terms, *sum);
                        }
                    }
                }
            }
            let mut vectors = [B::Float::zero(); 8];
            for (vectors, sums) in vectors.chunks_exact_mut(N).zip(&sums) {
                vectors.copy_from_slice(sums);
            }
            B::Float::sums(&vectors)
        };
        for (i, totals) in totals.chunks_exact(N).take(M).enumerate() {
            // SAFETY: who made the target promised that these elements are this task's.
            let target = unsafe { self.out.row(self.row + i, self.column, N) };
            for (value, total) in target.iter_mut().zip(totals) {
                *value = if self.out.accumulates() { *value + total } else { *total };
            }
        }
        M
    }
}
