//! Convolutions of bf16 in [tiles](crate::backend::kernels::tiles).
//!
//! A packed region is `[row, column, channel]`: each pixel's channels, normalised and rounded, 32
//! of which are a row of a tile. So the pixels of a tile are the same rows for each tap, further on
//! in memory, and nothing is packed for each tap. Filters are packed as the other operand, `[panel,
//! block of channels, tap, step of 32 channels]`, each two tiles of 16 outputs.
//!
//! Invariant: an output is summed in f32 by blocks of channels, in each by taps, then by steps of
//! channels, whatever region it is in.

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_store_si512,
};
use std::mem::transmute;
use std::ops::Range;

use super::region::{OutputRegion, REGION_ROWS_MIN, Regions, input_rows};
use super::weights::{Filters, PackedWeights};
use super::{ConvShape, TAPS_MAX, add_or_store};
use crate::backend::kernels::grid::{aligned_len, piece};
use crate::backend::kernels::lanes::Lanes;
use crate::backend::kernels::math::silu;
use crate::backend::kernels::outer::PANEL;
use crate::backend::kernels::simd::{Avx512, Isa};
use crate::backend::kernels::tiles::{
    DepthRun, SquareSums, StridedRows, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, Tiles,
};
use crate::backend::kernels::widen::widen;
use crate::backend::kernels::workers::{Disjoint, Workers};
use crate::weights::view::WeightView;

/// Channels of a tile's row.
const STEP: usize = TILE_ROW_BYTES / 2;

/// Steps of a block of channels: two tiles' pixels for all of them stay in the first level cache
/// from one tap to the next of a row.
const BLOCK_STEPS: usize = 4;

/// Blocks of the most channels that an input may have: more than any network's.
const BLOCKS_MAX: usize = 32;

/// Output pixels along a row of a region: two tiles.
const REGION_COLUMNS: usize = 2 * TILE_ROWS;

/// The most rows of a region.
const REGION_ROWS_MAX: usize = 16;

/// Bytes of a step's filters for a panel: two tiles.
const STEP_BYTES: usize = 2 * TILE_BYTES;

/// How a convolution is cut. Depends on the shape alone.
pub(super) struct FilterTiling {
    /// Of a region's output.
    rows: usize,
    /// Of a region's output.
    columns: usize,
    /// Steps of all channels.
    steps: usize,
    /// From one pixel of a packed region to the next: an odd number of lines, as neighbours share
    /// sets of the first level cache else.
    pixel_bytes: usize,
    /// From one row of a packed region to the next.
    row_bytes: usize,
}

impl FilterTiling {
    /// Largest regions in the scratch that the same convolution takes in f32; `None` for one that
    /// does not fit there: of few channels.
    pub(super) fn of(shape: &ConvShape) -> Option<FilterTiling> {
        let steps = shape.in_channels.div_ceil(STEP);
        let columns = shape.output_width().min(REGION_COLUMNS);
        let pixel_bytes = (steps | 1) * TILE_ROW_BYTES;
        let packed = (columns.next_multiple_of(TILE_ROWS) - 1) * shape.stride + shape.kernel_width;
        let row_bytes = packed * pixel_bytes;
        let words = Regions::of(shape).scratch_len(shape).saturating_sub(aligned_len(0));
        let fitting = (4 * words / row_bytes).checked_sub(shape.kernel_height)? / shape.stride + 1;
        let rows = shape.output_height().div_ceil(REGION_ROWS_MIN).min(REGION_ROWS_MAX);
        let tiling =
            FilterTiling { rows: fitting.min(rows), columns, steps, pixel_bytes, row_bytes };
        let fits = tiling.filter_words(shape) <= PackedWeights::len(shape)
            && tiling.block_count() <= BLOCKS_MAX;
        fits.then_some(tiling)
    }

    /// How many blocks of channels there are.
    fn block_count(&self) -> usize {
        self.steps.div_ceil(BLOCK_STEPS)
    }

    /// Steps of a block of channels.
    fn block(&self, index: usize) -> Range<usize> {
        let from = index * BLOCK_STEPS;
        from..self.steps.min(from + BLOCK_STEPS)
    }

    /// Bytes of a panel's filters.
    fn panel_bytes(&self, shape: &ConvShape) -> usize {
        shape.taps() * self.steps * STEP_BYTES
    }

    fn filter_words(&self, shape: &ConvShape) -> usize {
        shape.panels() * self.panel_bytes(shape) / 4
    }

    fn regions(&self, shape: &ConvShape) -> [usize; 3] {
        let rows = shape.output_height().div_ceil(self.rows);
        [shape.batch, rows, shape.output_width().div_ceil(self.columns)]
    }

    fn region(&self, shape: &ConvShape, index: usize) -> OutputRegion {
        let [_, rows, columns] = self.regions(shape);
        let (row, column) = (index / columns % rows * self.rows, index % columns * self.columns);
        OutputRegion {
            image: index / columns / rows,
            rows: row..shape.output_height().min(row + self.rows),
            columns: column..shape.output_width().min(column + self.columns),
            stride: self.pixel_bytes,
        }
    }

    /// Packs filters in bf16, `scratch` being as long as those in f32.
    pub(super) fn pack<'s>(
        &self,
        workers: &Workers,
        shape: &ConvShape,
        filters: Filters<'_>,
        scratch: &'s mut [f32],
    ) -> &'s [u8] {
        let packed = &mut scratch[..self.filter_words(shape)];
        let (taps, operations) = (shape.taps(), 8 * packed.len());
        {
            let packed = Disjoint::new(packed);
            let words = STEP_BYTES / 4;
            let blocks = self.block_count();
            workers.for_each(shape.panels() * blocks, operations, |_, task| {
                let (panel, steps) = (task / blocks, self.block(task % blocks));
                let first = (panel * self.steps + steps.start) * taps * words;
                // SAFETY: each task has a block of a panel of its own.
                let to = unsafe { packed.range(first..first + steps.len() * taps * words) };
                pack_block(shape, filters, panel, steps, bytemuck::cast_slice_mut(to));
            });
        }
        bytemuck::cast_slice(packed)
    }
}

/// Packs a block of channels of a panel's filters: `[tap, step, half of the panel, pair of
/// channels, output, channel]`.
fn pack_block(
    shape: &ConvShape,
    filters: Filters<'_>,
    panel: usize,
    steps: Range<usize>,
    to: &mut [u16],
) {
    to.fill(0);
    let channels = steps.start * STEP..shape.in_channels.min(steps.end * STEP);
    let outputs = panel * PANEL..shape.out_channels.min((panel + 1) * PANEL);
    let (halves, _) = filters.weight.bytes.as_chunks::<2>();
    for (lane, output) in outputs.enumerate() {
        for (depth, channel) in channels.clone().enumerate() {
            let at = (output * shape.in_channels + channel) * filters.stride;
            let within = depth / STEP * (STEP_BYTES / 2)
                + lane / TILE_ROWS * (TILE_BYTES / 2)
                + depth % STEP / 2 * STEP
                + lane % TILE_ROWS * 2
                + depth % 2;
            let taps = &halves[at..at + shape.taps()];
            let to = to[within..].iter_mut().step_by(steps.len() * STEP_BYTES / 2);
            to.zip(taps).for_each(|(to, &tap)| *to = u16::from_le_bytes(tap));
        }
    }
}

/// What all tasks of one call share.
pub(super) struct TiledCall<'a> {
    pub(super) isa: Isa,
    pub(super) shape: &'a ConvShape,
    pub(super) tiling: FilterTiling,
    pub(super) input: &'a [f32],
    /// Factors and summands of the normalisation, `[batch, in_channels]`.
    pub(super) norm: Option<(&'a [f32], &'a [f32])>,
    /// As [`FilterTiling::pack`] packs them.
    pub(super) filters: &'a [u8],
    pub(super) bias: Option<WeightView<'a>>,
    pub(super) out: &'a Disjoint<'a>,
}

impl TiledCall<'_> {
    /// Computes all regions. `scratch`: as many elements for each worker as
    /// [`Regions::scratch_len`] says, `len`.
    pub(super) fn run(
        &self,
        workers: &Workers,
        scratch: &mut [f32],
        len: usize,
        operations: usize,
    ) {
        let tasks = self.tiling.regions(self.shape).into_iter().product();
        workers.for_each_with(tasks, operations, scratch, len, |scratch, task| {
            let region = self.tiling.region(self.shape, task);
            let rows = input_rows(self.shape, region.rows.len());
            let mut scratch = scratch;
            let packed = piece(&mut scratch, rows * self.tiling.row_bytes / 4);
            let packed: &mut [u8] = bytemuck::cast_slice_mut(packed);
            self.pack(&region, packed);
            self.convolve(&Tiles::configure(self.isa.has_tiles()), &region, packed);
        });
    }

    /// Packs the input under a region.
    fn pack(&self, region: &OutputRegion, packed: &mut [u8]) {
        let (shape, row_bytes) = (self.shape, self.tiling.row_bytes);
        let first = region.rows.start * shape.stride;
        let mut before = None;
        for row in 0..input_rows(shape, region.rows.len()) {
            let (done, rest) = packed.split_at_mut(row * row_bytes);
            let target = &mut rest[..row_bytes];
            let inside = |y: &usize| *y < shape.height * shape.upsample;
            let y = (first + row).checked_sub(shape.pad_top).filter(inside);
            let Some(y) = y.map(|y| y / shape.upsample) else {
                target.fill(0);
                continue;
            };
            if before == Some(y) {
                target.copy_from_slice(&done[done.len() - row_bytes..]);
                continue;
            }
            before = Some(y);
            self.pack_row(region, y, target);
        }
    }

    /// Packs row `y` of the input.
    fn pack_row(&self, region: &OutputRegion, y: usize, target: &mut [u8]) {
        let (shape, size) = (self.shape, self.tiling.pixel_bytes);
        let channels = shape.in_channels;
        let first = region.columns.start * shape.stride;
        let count = (region.columns.len() - 1) * shape.stride + shape.kernel_width;
        let norm = self.norm.map(|(factors, summands)| {
            let channels = region.image * channels..(region.image + 1) * channels;
            (&factors[channels.clone()], &summands[channels])
        });
        let has_silu = shape.norm.is_some_and(|norm| norm.silu);
        let mut before = None;
        for column in 0..count {
            let (done, rest) = target.split_at_mut(column * size);
            let to = &mut rest[..size];
            let inside = |x: &usize| *x < shape.width * shape.upsample;
            let x = (first + column).checked_sub(shape.pad_left).filter(inside);
            let Some(x) = x.map(|x| x / shape.upsample) else {
                to.fill(0);
                continue;
            };
            if before == Some(x) {
                to.copy_from_slice(&done[done.len() - size..]);
                continue;
            }
            before = Some(x);
            let at = ((region.image * shape.height + y) * shape.width + x) * channels;
            let values = &self.input[at..at + channels];
            // SAFETY: tiles are there, and the instructions with them.
            unsafe {
                match norm {
                    None => round_pixel::<false, false>(values, values, values, to),
                    Some((f, s)) if has_silu => round_pixel::<true, true>(values, f, s, to),
                    Some((f, s)) => round_pixel::<true, false>(values, f, s, to),
                }
            }
        }
    }

    /// Where each tap of each block begins in a packed region, and the steps there.
    fn runs(&self) -> ([DepthRun; BLOCKS_MAX * TAPS_MAX], usize) {
        let (shape, tiling) = (self.shape, &self.tiling);
        assert!(shape.taps() <= TAPS_MAX, "kernels are small");
        let mut runs = [DepthRun::default(); BLOCKS_MAX * TAPS_MAX];
        let mut count = 0;
        for steps in (0..tiling.block_count()).map(|index| tiling.block(index)) {
            for tap in 0..shape.taps() {
                let (y, x) = (tap / shape.kernel_width, tap % shape.kernel_width);
                let pixel = y * tiling.row_bytes + x * tiling.pixel_bytes;
                let offset_bytes = pixel + steps.start * TILE_ROW_BYTES;
                runs[count] = DepthRun { offset_bytes, steps: steps.len() };
                count += 1;
            }
        }
        (runs, count)
    }

    /// All channels of a region of the output.
    fn convolve(&self, tiles: &Tiles, region: &OutputRegion, packed: &[u8]) {
        let (shape, tiling) = (self.shape, &self.tiling);
        let (runs, count) = self.runs();
        let runs = &runs[..count];
        let stride_bytes = shape.stride * tiling.pixel_bytes;
        let pixels = region.columns.len();
        let row_tiles = pixels.div_ceil(TILE_ROWS);
        let mut sums = SquareSums([[0.0; PANEL]; PANEL]);
        for first in (0..shape.out_channels).step_by(PANEL) {
            let columns = PANEL.min(shape.out_channels - first);
            let mut bias = [0.0; PANEL];
            if let Some(stored) = self.bias {
                widen(self.isa, stored, first, &mut bias[..columns]);
            }
            let bytes = tiling.panel_bytes(shape);
            let b = &self.filters[first / PANEL * bytes..][..bytes];
            for (row, y) in region.rows.clone().enumerate() {
                let a = &packed[row * shape.stride * tiling.row_bytes..];
                assert!(a.len() >= shape.kernel_height * tiling.row_bytes, "rows under the region");
                let second_bytes = TILE_ROWS * stride_bytes;
                let a = StridedRows { start: a.as_ptr(), stride_bytes, second_bytes };
                // SAFETY: a packed row has the pixels under whole tiles, and the filters two tiles
                // for each step.
                unsafe { tiles.bf16_run_products(row_tiles, runs, a, b.as_ptr(), &mut sums) };
                let pixel = (region.image * shape.output_height() + y) * shape.output_width()
                    + region.columns.start;
                let channels = pixel * shape.out_channels..(pixel + pixels) * shape.out_channels;
                // SAFETY: no other task has these pixels.
                let out = unsafe { self.out.range(channels) };
                for (out, sums) in out.chunks_exact_mut(shape.out_channels).zip(&sums.0) {
                    let out = &mut out[first..first + columns];
                    store(sums, &bias, shape.accumulate, out);
                }
            }
        }
    }
}

/// Writes sums plus bias, or adds them to what is there.
#[inline]
fn store(sums: &[f32; PANEL], bias: &[f32; PANEL], accumulate: bool, out: &mut [f32]) {
    let values: [f32; PANEL] = std::array::from_fn(|column| sums[column] + bias[column]);
    add_or_store(out, &values, accumulate);
}

/// Rounds a pixel's channels, normalised if so said, to bf16; behind the last channel of a step are
/// zeros.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn round_pixel<const NORM: bool, const SILU: bool>(
    values: &[f32],
    factors: &[f32],
    summands: &[f32],
    to: &mut [u8],
) {
    assert!(factors.len() == values.len() && summands.len() == values.len(), "channels");
    assert!(values.len().next_multiple_of(STEP) * 2 <= to.len(), "a pixel's room");
    assert!(to.as_ptr().addr().is_multiple_of(TILE_ROW_BYTES), "pixels begin with a cache line");
    let each = |value: f32, factor: f32, summand: f32| {
        let value = if NORM { Avx512::mul_add(value, factor, summand) } else { value };
        if SILU { silu::<Avx512>(value) } else { value }
    };
    let to = to.as_chunks_mut::<TILE_ROW_BYTES>().0;
    let (whole, rest) = values.as_chunks::<STEP>();
    for (step, values) in whole.iter().enumerate() {
        let (factors, summands) =
            (&factors[step * STEP..][..STEP], &summands[step * STEP..][..STEP]);
        let mut done = [0.0; STEP];
        for (at, done) in done.iter_mut().enumerate() {
            *done = each(values[at], factors[at], summands[at]);
        }
        // SAFETY: this function's.
        unsafe { round_step(&done, &mut to[step]) };
    }
    if !rest.is_empty() {
        let from = whole.len() * STEP;
        let mut done = [0.0; STEP];
        for (at, done) in done.iter_mut().take(rest.len()).enumerate() {
            *done = each(rest[at], factors[from + at], summands[from + at]);
        }
        // SAFETY: this function's.
        unsafe { round_step(&done, &mut to[whole.len()]) };
    }
}

/// Rounds values to bf16, to the nearest and of two to the even one.
///
/// # Safety
/// The machine has AVX-512 with its conversion to bf16; `to` begins with a cache line.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_step(values: &[f32; STEP], to: &mut [u8; TILE_ROW_BYTES]) {
    // SAFETY: both halves are there; the two types are the same bits.
    unsafe {
        let halves = [0, STEP / 2].map(|at| _mm512_loadu_ps(values.as_ptr().add(at)));
        let rounded = _mm512_cvtne2ps_pbh(halves[1], halves[0]);
        _mm512_store_si512(to.as_mut_ptr().cast(), transmute::<__m512bh, __m512i>(rounded));
    }
}
