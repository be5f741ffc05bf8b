//! Convolutions by 3 by 3 kernels in f32, with 16 products for each input channel of two by two
//! outputs, not 36: Winograd's minimal filtering F(2×2, 3×3), as Lavin and Gray have it ("Fast
//! Algorithms for Convolutional Neural Networks", 2015).
//!
//! `Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A` for filters `g`, the four by four inputs `d` under a patch of
//! two by two outputs, and
//!
//! ```text
//!      │ 1  0 −1  0 │      │ 1  0  0 │      │ 1  1  1  0 │
//! Bᵀ = │ 0  1  1  0 │  G = │ ½  ½  ½ │  Aᵀ =│ 0  1 −1 −1 │
//!      │ 0 −1  1  0 │      │ ½ −½  ½ │
//!      │ 0  1  0 −1 │      │ 0  0  1 │
//! ```
//!
//! Summed over the input channels before `A`, that is 16 products of matrices, `[patch, channel]`
//! by `[channel, output]`.
//!
//! Invariant: an output is summed in the same order whatever region it is in, as patches begin at
//! even rows and columns of the picture.

mod transforms;

use super::region::{InputRows, OutputRegion, REGION_ROWS_MIN};
use super::{ConvShape, Filters};
use crate::backend::kernels::grid::{Rows, aligned_len, piece};
use crate::backend::kernels::outer::{PANEL, multiply_panel};
use crate::backend::kernels::widen::widen;
use crate::backend::kernels::workers::{Disjoint, Workers};
use crate::weights::view::WeightView;
use transforms::{PanelOutputs, transform_filters, transform_inputs, transform_outputs};

/// Products for a patch and a pair of channels.
const POINTS: usize = 16;

/// Rows and columns of a patch's outputs.
const SIDE: usize = 2;

/// Patches side by side in a region: the rows of the largest tile.
const PATCHES: usize = 14;

/// Elements of one channel of a packed row: the columns under [`PATCHES`] in whole vectors.
const ROW: usize = 32;

/// Elements that are read behind a row, for patches that there are none of.
const BEYOND_ROW: usize = 2;

/// From one channel's transformed inputs to the next one's: a cache line.
const LINE: usize = 16;

/// The most rows of patches of a region.
const PATCH_ROWS_MAX: usize = 4;

/// About how many elements a region's transformed inputs have: 1 MiB. With half of it a decode with
/// 512 channels took 3 % longer on cores with 1 MiB of second level cache each, as filters are read
/// for fewer patches at a time.
const TRANSFORMED_ELEMENTS: usize = 1 << 18;

/// Channels of filters that a task transforms at a time.
const CHANNEL_BLOCK: usize = 64;

/// With this many input channels the transforms of a patch take about half of the time that its
/// products save.
const IN_CHANNELS_MIN: usize = 16;

/// How the output is cut. Depends on the shape alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patches {
    /// Rows of patches of a region.
    rows: usize,
    /// Patches side by side in a region.
    columns: usize,
}

impl Patches {
    /// `None` for a convolution that is not done so.
    pub(super) fn of(shape: &ConvShape) -> Option<Patches> {
        let is_wide = shape.in_channels >= IN_CHANNELS_MIN && shape.out_channels >= PANEL;
        let kernel = [shape.kernel_height, shape.kernel_width];
        if kernel != [3, 3] || shape.stride != 1 || !is_wide {
            return None;
        }
        let fitting = TRANSFORMED_ELEMENTS / (POINTS * LINE * shape.in_channels);
        let rows = shape.output_height().div_ceil(SIDE).div_ceil(REGION_ROWS_MIN);
        let columns = shape.output_width().div_ceil(SIDE).min(PATCHES);
        Some(Patches { rows: rows.min(fitting.clamp(1, PATCH_ROWS_MAX)), columns })
    }

    /// Elements of the transformed filters, `[panel, point, channel, PANEL]`.
    pub(super) fn filters_len(shape: &ConvShape) -> usize {
        shape.panels() * POINTS * shape.in_channels * PANEL
    }

    /// Elements of a worker's scratch: a packed region, a row of it on its way there, its
    /// transformed inputs, and the sums of a panel.
    pub(super) fn scratch_len(&self, shape: &ConvShape) -> usize {
        let row = shape.in_channels * ROW;
        let lens = [self.packed_len(shape), row, self.inputs_len(shape), self.sums_len()];
        lens.into_iter().map(aligned_len).sum()
    }

    fn packed_len(&self, shape: &ConvShape) -> usize {
        (SIDE * self.rows + 2) * shape.in_channels * ROW + BEYOND_ROW
    }

    fn inputs_len(&self, shape: &ConvShape) -> usize {
        self.rows * POINTS * shape.in_channels * LINE
    }

    fn sums_len(&self) -> usize {
        self.rows * POINTS * self.columns * PANEL
    }

    fn regions(&self, shape: &ConvShape) -> [usize; 3] {
        let rows = shape.output_height().div_ceil(SIDE * self.rows);
        [shape.batch, rows, shape.output_width().div_ceil(SIDE * self.columns)]
    }

    /// Whole patches, which may reach beyond the output.
    fn region(&self, shape: &ConvShape, index: usize) -> OutputRegion {
        let [_, rows, columns] = self.regions(shape);
        let whole = |from: usize, most: usize, end: usize| {
            from..(from + SIDE * most).min(end.next_multiple_of(SIDE))
        };
        let row = index / columns % rows * SIDE * self.rows;
        let column = index % columns * SIDE * self.columns;
        OutputRegion {
            image: index / columns / rows,
            rows: whole(row, self.rows, shape.output_height()),
            columns: whole(column, self.columns, shape.output_width()),
            stride: ROW,
        }
    }
}

/// Transforms filters into `to`, [`Patches::filters_len`]. `scratch`: [`Patches::scratch_len`] for
/// each worker, `len`.
pub(super) fn pack_filters<'s>(
    workers: &Workers,
    shape: &ConvShape,
    filters: Filters<'_>,
    to: &'s mut [f32],
    scratch: &mut [f32],
    len: usize,
) -> &'s [f32] {
    let channels = shape.in_channels;
    let (blocks, operations) = (channels.div_ceil(CHANNEL_BLOCK), to.len());
    {
        let to = Disjoint::new(to);
        let tasks = shape.panels() * blocks;
        workers.for_each_with(tasks, operations, scratch, len, |taps, task| {
            let (panel, from) = (task / blocks, task % blocks * CHANNEL_BLOCK);
            let block = from..channels.min(from + CHANNEL_BLOCK);
            let outputs = panel * PANEL..shape.out_channels.min((panel + 1) * PANEL);
            let taps = &mut taps[..PANEL * block.len() * 9];
            let (own, beyond) = taps.split_at_mut(outputs.len() * block.len() * 9);
            for (output, taps) in outputs.zip(own.chunks_exact_mut(block.len() * 9)) {
                let first = output * channels + block.start;
                filters.widen(workers.isa(), first..first + block.len(), 9, taps);
            }
            beyond.fill(0.0);
            let to = std::array::from_fn(|point| {
                let first = (panel * POINTS + point) * channels;
                // SAFETY: each task has a block of a panel of its own.
                unsafe { to.range((first + block.start) * PANEL..(first + block.end) * PANEL) }
            });
            transform_filters(workers.isa(), taps, to);
        });
    }
    to
}

/// What all tasks of one call share.
pub(super) struct WinogradCall<'a> {
    pub(super) input: InputRows<'a>,
    pub(super) patches: Patches,
    /// As [`pack_filters`] has them.
    pub(super) filters: &'a [f32],
    pub(super) bias: Option<WeightView<'a>>,
    pub(super) out: &'a Disjoint<'a>,
}

impl WinogradCall<'_> {
    /// Computes all regions. `scratch`: [`Patches::scratch_len`] for each worker, `len`.
    pub(super) fn run(
        &self,
        workers: &Workers,
        scratch: &mut [f32],
        len: usize,
        operations: usize,
    ) {
        let (shape, patches) = (self.input.shape, self.patches);
        let tasks = patches.regions(shape).into_iter().product();
        workers.for_each_with(tasks, operations, scratch, len, |scratch, task| {
            let region = patches.region(shape, task);
            let mut scratch = scratch;
            let packed = piece(&mut scratch, patches.packed_len(shape));
            let row_scratch = piece(&mut scratch, shape.in_channels * ROW);
            let inputs = piece(&mut scratch, patches.inputs_len(shape));
            let sums = piece(&mut scratch, patches.sums_len());
            self.input.pack(&region, &mut packed[..region.packed_len(shape)], row_scratch);
            let inputs_len = POINTS * shape.in_channels * LINE;
            let row_patches = region.rows.len() / SIDE;
            for (row, inputs) in inputs.chunks_exact_mut(inputs_len).take(row_patches).enumerate() {
                let under = std::array::from_fn(|at| {
                    let len = shape.in_channels * ROW + BEYOND_ROW;
                    &packed[region.row_begin(shape, SIDE * row + at)..][..len]
                });
                transform_inputs(self.input.isa, under, inputs);
            }
            self.convolve(&region, inputs, sums);
        });
    }

    /// All channels of a region of the output, of transformed inputs.
    fn convolve(&self, region: &OutputRegion, inputs: &[f32], sums: &mut [f32]) {
        let (isa, shape) = (self.input.isa, self.input.shape);
        let (channels, outputs) = (shape.in_channels, shape.out_channels);
        let (rows, count) = (region.rows.len() / SIDE, region.columns.len() / SIDE);
        let sums_len = count * PANEL;
        for first in (0..outputs).step_by(PANEL) {
            let columns = PANEL.min(outputs - first);
            let mut bias = [0.0; PANEL];
            if let Some(stored) = self.bias {
                widen(isa, stored, first, &mut bias[..columns]);
            }
            for point in 0..POINTS {
                let b = (first / PANEL * POINTS + point) * channels * PANEL;
                let b = &self.filters[b..][..channels * PANEL];
                for row in 0..rows {
                    let at = row * POINTS + point;
                    let a = &inputs[at * channels * LINE..][..channels * LINE];
                    let a = Rows { values: a, stride: LINE, count };
                    multiply_panel(isa, a, b, channels, None, &mut sums[at * sums_len..]);
                }
            }
            for row in 0..rows {
                let sums = &sums[row * POINTS * sums_len..][..POINTS * sums_len];
                let y = region.rows.start + SIDE * row;
                let xs = region.columns.start..shape.output_width().min(region.columns.end);
                let rows = std::array::from_fn(|row| {
                    let ends = if y + row < shape.output_height() { xs.clone() } else { 0..0 };
                    let pixel =
                        (region.image * shape.output_height() + y + row) * shape.output_width();
                    // SAFETY: no other task has these pixels.
                    unsafe {
                        self.out.range((pixel + ends.start) * outputs..(pixel + ends.end) * outputs)
                    }
                });
                let accumulate = shape.accumulate;
                let channels = first..first + columns;
                let to = PanelOutputs { rows, stride: outputs, channels, bias: &bias, accumulate };
                transform_outputs(isa, sums, to);
            }
        }
    }
}
