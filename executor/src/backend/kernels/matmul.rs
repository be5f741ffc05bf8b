//! Linear layers: activations times stored weights, plus bias, through an activation function.
//!
//! A task takes a panel of weight rows, widens and packs one block of the summed dimension of it at
//! a time into its worker's scratch, and multiplies all its activation rows with that. Weights in
//! blocks are decoded so too; [`integer`](super::integer) multiplies some without.

use std::ops::Range;

use protocol::StorageType;

use super::dot::{depth_block_max, depth_blocks, multiply_rows, row_stride};
use super::grid::{Grid, Rows, Target, aligned, aligned_len};
use super::lines_ahead::LinesAhead;
use super::math::apply;
use super::pack::{Format, PACKED_ROWS, StoredRows, pack_rows};
use super::panel::{
    PackedPanel, SLIVER_COLUMNS, TILE_LEN, calls, multiply_panel, panel_depth_max, panel_depths,
    panel_len,
};
use super::simd::{Isa, LINE_BYTES, prefetch};
use super::widen::{as_f32, widen};
use super::workers::{Disjoint, Workers};
use crate::graph::Activation;
use crate::weights::view::WeightView;

/// The most weight rows of a panel: 768 KiB when packed, which a second level cache of 1 MiB holds,
/// as processors with AVX-512 have. Others work at half of it.
pub(super) const PANEL_COLUMNS: usize = 384;

/// Up to so many activation rows the weights are read no faster than memory gives them, and packing
/// them would take longer: products are then formed of rows as they lie.
pub(super) const FEW_ROWS: usize = protocol::limits::FEW_ROWS as usize;

/// Weight rows that are read at a time for few activation rows: 24 KiB where they are widened.
const FEW_ROWS_COLUMNS: usize = 6;

/// Weight rows of a task for few activation rows.
const FEW_ROWS_TASK_COLUMNS: usize = 48;

/// Fewer activation rows than this are not worth packing a panel for a second time.
const TASK_ROWS_MIN: usize = 112;

/// Activation rows that are finished at a time: whole tiles of 14 and of 6.
const CHUNK_ROWS: usize = 84;

/// The most inputs that a linear layer takes.
pub(super) const INPUTS_MAX: usize = 4;

/// The sizes of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape<'a> {
    /// All leading dimensions of the input together.
    pub rows: usize,
    /// The features of each input; the weight has their sum.
    pub in_features: &'a [usize],
    /// The features of the output.
    pub out_features: usize,
}

/// How many elements of scratch [`linear`] needs with so many workers.
pub fn linear_scratch_len(shape: &LinearShape<'_>, workers: usize) -> usize {
    workers * worker_scratch_len(shape)
}

fn worker_scratch_len(shape: &LinearShape<'_>) -> usize {
    if shape.rows <= FEW_ROWS {
        let parts = shape.in_features.iter();
        let depth = parts.map(|&part| depth_block_max(part)).max().unwrap_or(0);
        return aligned_len(FEW_ROWS_COLUMNS * row_stride(depth));
    }
    let depth = shape.in_features.iter().map(|&part| panel_depth_max(part)).max().unwrap_or(0);
    aligned_len(panel_len(panel_columns(shape, PANEL_COLUMNS), depth)) + desk_len(depth)
}

/// Elements in which weight rows lie widened until they are packed, and then a tile's activations.
fn desk_len(depth: usize) -> usize {
    TILE_LEN.max(PACKED_ROWS * depth)
}

/// Columns of the widest panel, at most so many.
fn panel_columns(shape: &LinearShape<'_>, most: usize) -> usize {
    let panels = shape.out_features.div_ceil(most);
    shape.out_features.div_ceil(panels).next_multiple_of(SLIVER_COLUMNS)
}

/// Which columns of its output a linear layer writes: as many as its weight has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Elements from one row of the output to the next.
    pub stride: usize,
    /// The first column that is written.
    pub from: usize,
}

impl Columns {
    /// All columns of an output of so many.
    pub fn all(features: usize) -> Columns {
        Columns { stride: features, from: 0 }
    }
}

/// What [`linear`] is, and the kernels that form its products in other numbers.
pub type LinearKernel = fn(
    &Workers,
    &[&[f32]],
    WeightView<'_>,
    Option<WeightView<'_>>,
    Activation,
    &mut [f32],
    Columns,
    &mut [f32],
);

/// `out[columns] = activation(cat(inputs) · weightᵀ + bias)`.
///
/// `inputs`: one to four `[rows, in]`, thought concatenated along the features. `weight`:
/// `[out, sum of in]`, or a 1 x 1 convolution's `[out, in, 1, 1]`. `bias`: `[out]`. `out`:
/// `[rows, stride]`, of which `out` columns are written. `scratch`: [`linear_scratch_len`].
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn linear(
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
    let few = shape.rows <= FEW_ROWS;
    let task_columns = match (few, workers.isa().is_wide()) {
        (true, _) => FEW_ROWS_TASK_COLUMNS,
        (false, true) => panel_columns(&shape, PANEL_COLUMNS),
        (false, false) => panel_columns(&shape, PANEL_COLUMNS / 2),
    };
    let (rows, columns) = (shape.rows, shape.out_features);
    let grid = Grid::new(rows, columns, task_columns, TASK_ROWS_MIN, workers.count());
    let out = Disjoint::new(out);
    let len = worker_scratch_len(&shape);
    workers.for_each_with(grid.tasks(), operands.operations(), scratch, len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        if few {
            operands.multiply_few(workers.isa(), columns, &out, scratch);
        } else {
            let following = grid.following(task, workers.count());
            operands.multiply(workers.isa(), rows, columns, following, &out, scratch);
        }
    });
}

/// What all tasks of one call share.
pub(super) struct LinearOperands<'a> {
    pub(super) inputs: &'a [&'a [f32]],
    /// The features of each input.
    parts: [usize; INPUTS_MAX],
    pub(super) rows: usize,
    pub(super) in_features: usize,
    pub(super) weight: WeightView<'a>,
    bias: Option<WeightView<'a>>,
    activation: Activation,
    out: Columns,
}

impl<'a> LinearOperands<'a> {
    /// The operands of a layer whose output has so many elements.
    pub(super) fn new(
        inputs: &'a [&'a [f32]],
        weight: WeightView<'a>,
        bias: Option<WeightView<'a>>,
        activation: Activation,
        out_len: usize,
        columns: Columns,
    ) -> LinearOperands<'a> {
        let out_features = weight.shape[0];
        let stride = columns.stride;
        let rows = out_len / stride;
        assert!((1..=INPUTS_MAX).contains(&inputs.len()), "1 to 4 inputs");
        assert!(rows > 0 && out_len == rows * stride, "out is not [rows, {stride}]");
        assert!(columns.from + out_features <= stride, "{out_features} columns beyond {stride}");
        let mut parts = [0; INPUTS_MAX];
        for (part, input) in parts.iter_mut().zip(inputs) {
            *part = input.len() / rows;
            assert!(*part > 0 && input.len() == rows * *part, "an input is not [{rows}, features]");
        }
        let in_features = parts.iter().sum();
        assert_eq!(weight.shape.iter().product::<usize>(), out_features * in_features, "weight");
        assert!(
            bias.is_none_or(|bias| bias.shape == [out_features]),
            "bias is not [{out_features}]"
        );
        LinearOperands { inputs, parts, rows, in_features, weight, bias, activation, out: columns }
    }

    /// The sizes of the layer.
    pub(super) fn shape(&self) -> LinearShape<'_> {
        let out_features = self.weight.shape[0];
        let in_features = &self.parts[..self.inputs.len()];
        LinearShape { rows: self.rows, in_features, out_features }
    }

    /// Scalar operations of the layer.
    pub(super) fn operations(&self) -> usize {
        2 * self.rows * self.in_features * self.weight.shape[0]
    }

    /// One input's part of a row.
    pub(super) fn part(&self, input: usize, row: usize) -> &'a [f32] {
        &self.inputs[input][row * self.parts[input]..][..self.parts[input]]
    }

    /// Where the products of rows from `row` on with weight rows from `column` on go.
    ///
    /// # Safety
    /// As for [`Target::new`].
    pub(super) unsafe fn target<'b>(
        &self,
        out: &'b Disjoint<'b>,
        row: usize,
        column: usize,
        accumulate: bool,
    ) -> Target<'b> {
        let Columns { stride, from } = self.out;
        // SAFETY: the caller's promise.
        unsafe { Target::new(out, row * stride + from + column, stride, accumulate) }
    }

    /// The products of all rows, which are few, with some weight rows, through bias and activation.
    /// Each is a dot product of its own, by blocks, whichever others are formed.
    fn multiply_few(
        &self,
        isa: Isa,
        columns: Range<usize>,
        out: &Disjoint<'_>,
        scratch: &mut [f32],
    ) {
        let panel = aligned(scratch);
        let stored = as_f32(self.weight);
        for begin in columns.clone().step_by(FEW_ROWS_COLUMNS) {
            let count = FEW_ROWS_COLUMNS.min(columns.end - begin);
            let mut first = 0; // of the present input's features, among all
            for (input, &part) in self.inputs.iter().zip(&self.parts) {
                for (from, depth) in depth_blocks(part) {
                    let at = |row: usize| row * self.in_features + first + from;
                    let stride = row_stride(depth);
                    let b = if let Some(values) = stored {
                        Rows { values: &values[at(begin)..], stride: self.in_features, count }
                    } else {
                        for (row, widened) in (begin..begin + count).zip(panel.chunks_mut(stride)) {
                            self.prefetch(at(row + FEW_ROWS_COLUMNS), depth);
                            widen(isa, self.weight, at(row), &mut widened[..depth]);
                        }
                        Rows { values: panel, stride, count }
                    };
                    let a = Rows { values: &input[from..], stride: part, count: self.rows };
                    // SAFETY: no other task has these columns.
                    let target = unsafe { self.target(out, 0, begin, first + from > 0) };
                    multiply_rows(isa, a, b, depth, target);
                }
                first += part;
            }
        }
        self.finish(isa, 0..self.rows, columns, out);
    }

    /// Asks for the cache lines of some weights from one on, which may be beyond the last.
    fn prefetch(&self, from: usize, count: usize) {
        for byte in (self.byte_of(from)..self.byte_of(from + count)).step_by(LINE_BYTES) {
            prefetch(self.weight.bytes.as_ptr().wrapping_add(byte));
        }
    }

    /// The products of some rows with a panel of weight rows, through bias and activation. The
    /// worker will probably pack the weight rows `following` next.
    fn multiply(
        &self,
        isa: Isa,
        rows: Range<usize>,
        columns: Range<usize>,
        following: Range<usize>,
        out: &Disjoint<'_>,
        scratch: &mut [f32],
    ) {
        let shape = self.shape();
        let depth = shape.in_features.iter().map(|&part| panel_depth_max(part)).max().unwrap_or(0);
        let (desk, panel) = scratch.split_at_mut(desk_len(depth));
        let panel = aligned(panel);
        let mut first = 0; // of the present input's features, among all
        for (input, &part) in self.inputs.iter().zip(shape.in_features) {
            for (from, depth) in panel_depths(part) {
                self.pack(isa, columns.clone(), first + from, depth, desk, panel);
                let end = first + from + depth;
                let is_last = end == self.in_features;
                let (next, next_from) = if is_last { (&following, 0) } else { (&columns, end) };
                let calls = calls(rows.len(), columns.len(), depth);
                let b = PackedPanel { values: panel, columns: columns.len(), depth };
                let mut ahead = self.ahead(next.clone(), next_from, depth, calls);
                for begin in rows.clone().step_by(CHUNK_ROWS) {
                    let chunk = begin..rows.end.min(begin + CHUNK_ROWS);
                    let values = &input[chunk.start * part + from..];
                    let a = Rows { values, stride: part, count: chunk.len() };
                    // SAFETY: no other task has these rows and columns.
                    let target =
                        unsafe { self.target(out, chunk.start, columns.start, first + from > 0) };
                    multiply_panel(isa, a, b, desk, target, &mut ahead);
                    if is_last {
                        self.finish(isa, chunk, columns.clone(), out);
                    }
                }
            }
            first += part;
        }
    }

    /// Features of some weight rows that are packed later: at most `depth` from one on.
    pub(super) fn ahead(
        &self,
        columns: Range<usize>,
        from: usize,
        depth: usize,
        calls: usize,
    ) -> LinesAhead {
        let (in_features, depth) = (self.in_features, depth.min(self.in_features - from));
        let first = self.byte_of(columns.start * in_features + from);
        let start = self.weight.bytes.as_ptr().wrapping_add(first);
        let [stride_bytes, row_bytes] = [in_features, depth].map(|count| self.byte_of(count));
        LinesAhead::rows(start, stride_bytes, row_bytes, columns.len(), calls)
    }

    /// Where the block with an element of the weight begins.
    fn byte_of(&self, element: usize) -> usize {
        let storage = self.weight.storage;
        (element as u64 / storage.block_elements() * storage.block_bytes()) as usize
    }

    /// Packs the features `from..from + depth` of some weight rows.
    fn pack(
        &self,
        isa: Isa,
        columns: Range<usize>,
        from: usize,
        depth: usize,
        widened: &mut [f32],
        panel: &mut [f32],
    ) {
        if let Some(format) = self.packed_format() {
            let size = self.weight.storage.element_bytes();
            let bytes = &self.weight.bytes[(columns.start * self.in_features + from) * size..];
            let stride_bytes = self.in_features * size;
            let rows = StoredRows { format, bytes, stride_bytes, count: columns.len() };
            pack_rows(isa, rows, 0, depth, panel);
            return;
        }
        for first in columns.clone().step_by(PACKED_ROWS) {
            let count = PACKED_ROWS.min(columns.end - first);
            for (row, widened) in (first..first + count).zip(widened.chunks_exact_mut(depth)) {
                widen(isa, self.weight, row * self.in_features + from, widened);
            }
            let (format, bytes) = (Format::F32, bytemuck::cast_slice(widened));
            let rows = StoredRows { format, bytes, stride_bytes: 4 * depth, count };
            pack_rows(isa, rows, first - columns.start, depth, panel);
        }
    }

    /// How the weight is packed from where it lies, if it can be.
    fn packed_format(&self) -> Option<Format> {
        if self.weight.scale != 1.0 || cfg!(not(target_endian = "little")) {
            return None;
        }
        match self.weight.storage {
            StorageType::F32 => Some(Format::F32),
            StorageType::F16 => Some(Format::F16),
            StorageType::BF16 => Some(Format::Bf16),
            _ => None,
        }
    }

    /// Bias and activation of elements whose products are complete.
    pub(super) fn finish(
        &self,
        isa: Isa,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &Disjoint<'_>,
    ) {
        if self.bias.is_none() && self.activation == Activation::None {
            return;
        }
        let mut bias = [0.0; PANEL_COLUMNS];
        let bias = &mut bias[..columns.len()];
        if let Some(stored) = self.bias {
            widen(isa, stored, columns.start, bias);
        }
        for row in rows {
            let from = row * self.out.stride + self.out.from + columns.start;
            // SAFETY: no other task has this row and these columns.
            let values = unsafe { out.range(from..from + columns.len()) };
            values.iter_mut().zip(&*bias).for_each(|(value, bias)| *value += bias);
            apply(isa, self.activation, values);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
