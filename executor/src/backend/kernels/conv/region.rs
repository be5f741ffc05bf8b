//! A region of a convolution's output, and the input under it as tiles read it.
//!
//! Packed, a region is `[row, channel, stride]`: a row's pixels follow each other, so that a tile's
//! pixels do for each channel. Where the convolution takes every second pixel, a row has the even
//! ones and then the odd ones.

use std::ops::Range;

use super::ConvShape;
use crate::backend::kernels::grid::aligned_len;
use crate::backend::kernels::math::silu;
use crate::backend::kernels::simd::{Isa, per_isa};
use crate::backend::kernels::transpose::transpose;

/// Output pixels along a row of a region: two tiles of 14, the largest one's rows.
const REGION_COLUMNS: usize = 28;

/// The most rows of a region: more save little of what neighbours pack twice.
const REGION_ROWS_MAX: usize = 16;

/// About how many elements a packed region has: 512 KiB, a part of a second level cache.
const REGION_ELEMENTS: usize = 1 << 17;

/// Workers share a picture: it has at least this many rows of regions.
pub(super) const REGION_ROWS_MIN: usize = 4;

/// How the output is cut. Depends on the shape alone.
pub(super) struct Regions {
    rows: usize,
    columns: usize,
}

/// Some neighbouring pixels of the result, which one task computes.
pub(super) struct OutputRegion {
    pub(super) image: usize,
    /// Rows of the output.
    pub(super) rows: Range<usize>,
    /// Columns of the output.
    pub(super) columns: Range<usize>,
    /// The distance of channels in it.
    pub(super) stride: usize,
}

impl Regions {
    pub(super) fn of(shape: &ConvShape) -> Regions {
        let columns = shape.output_width().min(REGION_COLUMNS);
        let row_len = shape.in_channels * packed_stride(shape, columns);
        let fitting =
            (REGION_ELEMENTS / row_len).saturating_sub(shape.kernel_height) / shape.stride + 1;
        let rows = shape.output_height().div_ceil(REGION_ROWS_MIN);
        Regions { rows: fitting.min(rows).min(REGION_ROWS_MAX), columns }
    }

    /// How many there are.
    pub(super) fn count(&self, shape: &ConvShape) -> usize {
        let rows = shape.output_height().div_ceil(self.rows);
        shape.batch * rows * shape.output_width().div_ceil(self.columns)
    }

    /// One of them.
    pub(super) fn region(&self, shape: &ConvShape, index: usize) -> OutputRegion {
        let (height, width) = (shape.output_height(), shape.output_width());
        let (rows, columns) = (height.div_ceil(self.rows), width.div_ceil(self.columns));
        let (row, column) = (index / columns % rows * self.rows, index % columns * self.columns);
        OutputRegion {
            image: index / columns / rows,
            rows: row..height.min(row + self.rows),
            columns: column..width.min(column + self.columns),
            stride: packed_stride(shape, self.columns),
        }
    }

    /// Elements of a worker's scratch: a packed region, and a row of it on its way there.
    pub(super) fn scratch_len(&self, shape: &ConvShape) -> usize {
        let row = shape.in_channels * packed_stride(shape, self.columns);
        aligned_len(input_rows(shape, self.rows) * row) + aligned_len(row)
    }
}

/// Rows of the input, enlarged and with zeros around, under so many of the output.
pub(super) fn input_rows(shape: &ConvShape, rows: usize) -> usize {
    (rows - 1) * shape.stride + shape.kernel_height
}

/// Elements of one channel of a packed row: whole vectors.
fn packed_stride(shape: &ConvShape, columns: usize) -> usize {
    let columns = (columns - 1) * shape.stride + shape.kernel_width;
    (columns.div_ceil(shape.stride) * shape.stride).next_multiple_of(16)
}

impl OutputRegion {
    /// Elements of the packed region.
    pub(super) fn packed_len(&self, shape: &ConvShape) -> usize {
        input_rows(shape, self.rows.len()) * shape.in_channels * self.stride
    }

    /// Where a packed row begins.
    pub(super) fn row_begin(&self, shape: &ConvShape, row: usize) -> usize {
        row * shape.in_channels * self.stride
    }

    /// Where a column of the enlarged input with its zeros, counted from the region's first, lies
    /// in a packed row.
    pub(super) fn column(&self, shape: &ConvShape, column: usize) -> usize {
        column % shape.stride * (self.stride / shape.stride) + column / shape.stride
    }
}

/// A convolution's input, whose rows are packed.
pub(super) struct InputRows<'a> {
    pub(super) isa: Isa,
    pub(super) shape: &'a ConvShape,
    /// `[batch, height, width, in_channels]`.
    pub(super) values: &'a [f32],
    /// Factors and summands of the normalisation, `[batch, in_channels]`.
    pub(super) norm: Option<(&'a [f32], &'a [f32])>,
}

impl InputRows<'_> {
    /// Packs the input under a region. `row_scratch`: a row's elements.
    pub(super) fn pack(&self, region: &OutputRegion, packed: &mut [f32], row_scratch: &mut [f32]) {
        let shape = self.shape;
        let row_len = shape.in_channels * region.stride;
        let first = region.rows.start * shape.stride;
        let mut before = None;
        for row in 0..input_rows(shape, region.rows.len()) {
            let (done, rest) = packed.split_at_mut(row * row_len);
            let target = &mut rest[..row_len];
            let inside = |y: &usize| *y < shape.height * shape.upsample;
            let y = (first + row).checked_sub(shape.pad_top).filter(inside);
            let Some(y) = y.map(|y| y / shape.upsample) else {
                target.fill(0.0);
                continue;
            };
            if before == Some(y) {
                target.copy_from_slice(&done[done.len() - row_len..]);
                continue;
            }
            before = Some(y);
            self.pack_row(region, y, target, row_scratch);
        }
    }

    /// Packs row `y` of the input.
    fn pack_row(&self, region: &OutputRegion, y: usize, target: &mut [f32], scratch: &mut [f32]) {
        let shape = self.shape;
        let (channels, stride) = (shape.in_channels, region.stride);
        // Columns of the enlarged input with zeros on its left, and which of them are inside.
        let columns = region.columns.start * shape.stride
            ..(region.columns.end - 1) * shape.stride + shape.kernel_width;
        let inside = columns.start.max(shape.pad_left)
            ..columns.end.min(shape.pad_left + shape.width * shape.upsample);
        if inside.is_empty() {
            target.fill(0.0);
            return;
        }
        let pixels = (inside.start - shape.pad_left) / shape.upsample
            ..(inside.end - 1 - shape.pad_left) / shape.upsample + 1;
        let at = ((region.image * shape.height + y) * shape.width + pixels.start) * channels;
        let from = &self.values[at..at + pixels.len() * channels];
        let left = inside.start - columns.start;
        if shape.stride == 1 && shape.upsample == 1 {
            if inside.len() < stride {
                target.fill(0.0);
            }
            transpose(
                self.isa,
                from,
                channels,
                pixels.len(),
                channels,
                &mut target[left..],
                stride,
            );
            self.normalise(region.image, target, stride);
            if self.norm.is_some() && inside.len() < columns.len() {
                let right = left + inside.len();
                for row in target.chunks_exact_mut(stride) {
                    row[..left].fill(0.0);
                    row[right..].fill(0.0);
                }
            }
            return;
        }
        let source = &mut scratch[..channels * stride];
        source.fill(0.0);
        transpose(self.isa, from, channels, pixels.len(), channels, source, stride);
        self.normalise(region.image, source, stride);
        for (row, source) in target.chunks_exact_mut(stride).zip(source.chunks_exact(stride)) {
            row.fill(0.0);
            for column in inside.clone() {
                let pixel = (column - shape.pad_left) / shape.upsample - pixels.start;
                row[region.column(shape, column - columns.start)] = source[pixel];
            }
        }
    }

    /// Normalises a packed row, `[channel, stride]`.
    fn normalise(&self, image: usize, row: &mut [f32], stride: usize) {
        let Some((factors, summands)) = self.norm else { return };
        let channels = image * self.shape.in_channels..(image + 1) * self.shape.in_channels;
        let (factors, summands) = (&factors[channels.clone()], &summands[channels]);
        if self.shape.norm.is_some_and(|norm| norm.silu) {
            scale_shift_silu(self.isa, row, stride, factors, summands);
        } else {
            scale_shift(self.isa, row, stride, factors, summands);
        }
    }
}

per_isa! {
    fn scale_shift<L>(rows: &mut [f32], stride: usize, factors: &[f32], summands: &[f32]) {
        for ((row, &factor), &summand) in rows.chunks_exact_mut(stride).zip(factors).zip(summands) {
            for part in row.as_chunks_mut::<16>().0 {
                part.iter_mut().for_each(|x| *x = L::mul_add(*x, factor, summand));
            }
        }
    }
}

per_isa! {
    fn scale_shift_silu<L>(rows: &mut [f32], stride: usize, factors: &[f32], summands: &[f32]) {
        for ((row, &factor), &summand) in rows.chunks_exact_mut(stride).zip(factors).zip(summands) {
            for part in row.as_chunks_mut::<16>().0 {
                part.iter_mut().for_each(|x| *x = silu::<L>(L::mul_add(*x, factor, summand)));
            }
        }
    }
}
