//! Two-dimensional convolution of `[batch, height, width, channels]` images, as sums of outer
//! products.
//!
//! First the weights are packed, `[panel, block of channels, tap, channel, PANEL]`, in scratch that
//! all workers share. A task then takes a region of the output with all its channels: it packs the
//! input under the region, `[row, channel, column]`, so that the pixels of a tile follow each other
//! for any tap; enlarging, zeros around the picture and a normalisation before are done there.
//! Nothing of the size of the picture exists beside input and output.
//!
//! Filters in bf16 are multiplied in tiles where the processor has them ([`tiled`]). Else 3 by 3
//! kernels take less than half of the products, where there are channels enough ([`winograd`]).
//!
//! Invariant of the others: an output is summed by blocks of channels, in each by taps, then by
//! channels, whatever region it is in.

use std::ops::Range;

use super::bf16::bf16_linear;
use super::grid::{aligned_len, piece};
use super::group_norm::{GroupNormShape, group_norm_factors, group_norm_scratch_len};
use super::matmul::{Columns, LinearShape, linear, linear_scratch_len};
use super::outer::{PANEL, tile, with_rows};
use super::simd::{Lanes, per_isa};
use super::widen::widen;
use super::workers::{Disjoint, Workers};
use crate::graph::Activation;
use crate::weights::view::WeightView;

mod region;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod weights;
mod winograd;

use region::{InputRows, OutputRegion, Regions};
pub use weights::Filters;

use weights::PackedWeights;
use winograd::{Patches, WinogradCall};

/// Input channels that are summed before the sums are added to the output: of a 3 by 3 kernel,
/// their weights for a panel of outputs take 72 KiB, and a row of inputs under a tile 8 KiB.
const CHANNEL_BLOCK: usize = 64;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvShape {
    /// How many images.
    pub batch: usize,
    /// Of the input.
    pub height: usize,
    /// Of the input.
    pub width: usize,
    /// Of the input.
    pub in_channels: usize,
    /// Of the output.
    pub out_channels: usize,
    /// Rows of the kernel.
    pub kernel_height: usize,
    /// Columns of the kernel.
    pub kernel_width: usize,
    /// From one output pixel to the next, in both directions.
    pub stride: usize,
    /// Rows of zeros above.
    pub pad_top: usize,
    /// Columns of zeros to the left.
    pub pad_left: usize,
    /// Rows of zeros below.
    pub pad_bottom: usize,
    /// Columns of zeros to the right.
    pub pad_right: usize,
    /// 1, or 2 to convolve the input as if each pixel were two by two.
    pub upsample: usize,
    /// What is done to the input before.
    pub norm: Option<InputNorm>,
    /// Whether the result is added to what `out` holds.
    pub accumulate: bool,
}

/// A group normalisation of a convolution's input, whose result never exists as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InputNorm {
    /// Into how many groups the channels are cut.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether x · sigmoid(x) follows.
    pub silu: bool,
}

impl ConvShape {
    /// Rows of the output.
    pub fn output_height(&self) -> usize {
        let padded = self.height * self.upsample + self.pad_top + self.pad_bottom;
        (padded - self.kernel_height) / self.stride + 1
    }

    /// Columns of the output.
    pub fn output_width(&self) -> usize {
        let padded = self.width * self.upsample + self.pad_left + self.pad_right;
        (padded - self.kernel_width) / self.stride + 1
    }

    fn output_pixels(&self) -> usize {
        self.batch * self.output_height() * self.output_width()
    }

    fn input_pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    fn taps(&self) -> usize {
        self.kernel_height * self.kernel_width
    }

    /// Panels of output channels.
    fn panels(&self) -> usize {
        self.out_channels.div_ceil(PANEL)
    }

    /// The blocks of input channels.
    fn channel_blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let channels = self.in_channels;
        let block = move |from| from..channels.min(from + CHANNEL_BLOCK);
        (0..channels).step_by(CHANNEL_BLOCK).map(block)
    }

    /// Whether output pixels are functions of the input pixels in the same places.
    pub(in crate::backend) fn is_of_pixels(&self) -> bool {
        let pads = [self.pad_top, self.pad_left, self.pad_bottom, self.pad_right];
        let ones = [self.kernel_height, self.kernel_width, self.stride, self.upsample];
        pads == [0; 4] && ones == [1; 4]
    }

    /// Whether they are linear functions of them, and nothing else.
    fn is_linear(&self) -> bool {
        self.is_of_pixels() && self.norm.is_none() && !self.accumulate
    }

    /// The normalisation of the input, if there is one.
    pub(in crate::backend) fn group_norm(&self) -> Option<GroupNormShape> {
        let InputNorm { groups, eps, .. } = self.norm?;
        let (batch, channels) = (self.batch, self.in_channels);
        Some(GroupNormShape { batch, pixels: self.height * self.width, channels, groups, eps })
    }

    fn norm_len(&self) -> usize {
        self.group_norm().map_or(0, |shape| group_norm_scratch_len(&shape))
    }
}

/// How many elements of scratch [`conv2d`] needs with so many workers.
pub fn conv2d_scratch_len(shape: &ConvShape, workers: usize) -> usize {
    if shape.is_linear() {
        let in_features = &[shape.in_channels];
        let (rows, out_features) = (shape.output_pixels(), shape.out_channels);
        return linear_scratch_len(&LinearShape { rows, in_features, out_features }, workers);
    }
    let patches_len = Patches::of(shape).map_or(0, |patches| patches.scratch_len(shape));
    let own_len = Regions::of(shape).scratch_len(shape).max(patches_len);
    aligned_len(weights_len(shape)) + aligned_len(shape.norm_len()) + workers * own_len
}

/// Elements of all filters, packed or transformed.
fn weights_len(shape: &ConvShape) -> usize {
    let transformed = Patches::of(shape).map_or(0, |_| Patches::filters_len(shape));
    PackedWeights::len(shape).max(transformed)
}

/// `out = conv(norm(input), weight) + bias`, with zeros outside the normalised input.
///
/// `input`: `[batch, height, width, in_channels]`. `norm`: scale and shift, `[in_channels]`, if the
/// shape has a norm. `filters`: `[out_channels, in_channels, kernel_height, kernel_width]`. `bias`:
/// `[out_channels]`. `out`: `[batch, output_height, output_width, out_channels]`. `scratch`:
/// [`conv2d_scratch_len`].
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn conv2d<'w>(
    workers: &Workers,
    shape: &ConvShape,
    input: &[f32],
    norm: Option<[WeightView<'_>; 2]>,
    filters: impl Into<Filters<'w>>,
    bias: Option<WeightView<'_>>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    convolve(workers, shape, input, norm, filters.into(), bias, out, scratch, false);
}

/// As [`conv2d`], for filters in bf16. Where the processor multiplies bf16, inputs are rounded to
/// it, to 8 bits each; sums are formed in f32. `scratch` is the same.
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn bf16_conv2d<'w>(
    workers: &Workers,
    shape: &ConvShape,
    input: &[f32],
    norm: Option<[WeightView<'_>; 2]>,
    filters: impl Into<Filters<'w>>,
    bias: Option<WeightView<'_>>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let filters = filters.into();
    assert_eq!(filters.weight.storage, protocol::StorageType::BF16);
    let rounds = workers.isa().has_bf16_products() && filters.weight.scale == 1.0;
    convolve(workers, shape, input, norm, filters, bias, out, scratch, rounds);
}

/// As [`conv2d`]; `rounds`: whether as [`bf16_conv2d`] where the processor multiplies bf16.
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
fn convolve(
    workers: &Workers,
    shape: &ConvShape,
    input: &[f32],
    norm: Option<[WeightView<'_>; 2]>,
    filters: Filters<'_>,
    bias: Option<WeightView<'_>>,
    out: &mut [f32],
    scratch: &mut [f32],
    rounds: bool,
) {
    let Filters { weight, stride } = filters;
    let kernel = [shape.kernel_height, shape.kernel_width];
    let pixels = shape.output_pixels();
    assert_eq!(input.len(), shape.input_pixels() * shape.in_channels, "input");
    assert_eq!(weight.shape, [shape.out_channels, shape.in_channels, kernel[0], kernel[1]]);
    assert!(bias.is_none_or(|bias| bias.shape == [shape.out_channels]), "bias");
    assert_eq!(out.len(), pixels * shape.out_channels, "out");
    assert!(matches!(shape.upsample, 1 | 2), "upsample is 1 or 2");
    assert_eq!(norm.is_some(), shape.norm.is_some(), "norm");
    if shape.is_linear() {
        assert_eq!(stride, 1, "a matrix in one piece");
        let columns = Columns::all(shape.out_channels);
        let kernel = if rounds { bf16_linear } else { linear };
        kernel(workers, &[input], weight, bias, Activation::None, out, columns, scratch);
        return;
    }
    let mut rest = scratch;
    let packed = piece(&mut rest, weights_len(shape));
    let norm_scratch = piece(&mut rest, shape.norm_len());
    let norm = norm.zip(shape.group_norm()).map(|([scale, shift], shape)| {
        group_norm_factors(workers, input, &shape, scale, shift, norm_scratch)
    });
    let regions = Regions::of(shape);
    let len = regions.scratch_len(shape);
    let operations = 2 * pixels * shape.out_channels * shape.taps() * shape.in_channels;
    #[cfg(target_arch = "x86_64")]
    if rounds && let Some(tiling) = tiled::FilterTiling::of(shape) {
        let filters = tiling.pack(workers, shape, filters, packed);
        let (isa, out) = (workers.isa(), &Disjoint::new(out));
        let call = tiled::TiledCall { isa, shape, tiling, input, norm, filters, bias, out };
        call.run(workers, rest, len, operations);
        return;
    }
    let (isa, out) = (workers.isa(), &Disjoint::new(out));
    let input = InputRows { isa, shape, values: input, norm };
    if let Some(patches) = Patches::of(shape) {
        let len = patches.scratch_len(shape);
        let filters = winograd::pack_filters(workers, shape, filters, packed, rest, len);
        WinogradCall { input, patches, filters, bias, out }.run(workers, rest, len, operations);
        return;
    }
    let weights = PackedWeights::pack(workers, shape, filters, packed, rest, len);
    let call = ConvCall { input, weights, bias, out };
    workers.for_each_with(regions.count(shape), operations, rest, len, |scratch, task| {
        call.convolve(&regions.region(shape, task), scratch);
    });
}

/// What all tasks of one call share.
struct ConvCall<'a> {
    input: InputRows<'a>,
    weights: PackedWeights<'a>,
    bias: Option<WeightView<'a>>,
    out: &'a Disjoint<'a>,
}

impl ConvCall<'_> {
    /// All channels of a region of the output.
    fn convolve(&self, region: &OutputRegion, scratch: &mut [f32]) {
        let (isa, shape) = (self.input.isa, self.input.shape);
        let channels = shape.out_channels;
        let mut scratch = scratch;
        let packed = piece(&mut scratch, region.packed_len(shape));
        let offsets = tap_offsets(shape, region);
        let offsets = &offsets[..shape.taps()];
        self.input.pack(region, packed, scratch);
        for first in (0..channels).step_by(PANEL) {
            let columns = PANEL.min(channels - first);
            let mut bias = [0.0; PANEL];
            if let Some(stored) = self.bias {
                widen(isa, stored, first, &mut bias[..columns]);
            }
            for block in shape.channel_blocks() {
                let (depth, begin) = (block.len(), block.start == 0);
                let b = self.weights.block(shape, first / PANEL, block.clone());
                for (row, y) in region.rows.clone().enumerate() {
                    let a = &packed[region.row_begin(shape, row * shape.stride)
                        + block.start * region.stride..];
                    let pixel = (region.image * shape.output_height() + y) * shape.output_width();
                    let pixels = pixel + region.columns.start..pixel + region.columns.end;
                    // SAFETY: no other task has these pixels.
                    let out =
                        unsafe { self.out.range(pixels.start * channels..pixels.end * channels) };
                    let bias = begin.then_some(&bias);
                    let accumulate = shape.accumulate || !begin;
                    let a = Taps { values: a, stride: region.stride, offsets, depth };
                    let mut target = SumsTarget {
                        values: out,
                        stride: channels,
                        first,
                        columns,
                        bias,
                        accumulate,
                    };
                    convolve_row(isa, a, b, pixels.len(), &mut target);
                }
            }
        }
    }
}

/// Writes the first values of a panel, or adds them to what is there.
#[inline(always)]
fn add_or_store(to: &mut [f32], values: &[f32; PANEL], accumulate: bool) {
    match (accumulate, <&mut [f32; PANEL]>::try_from(&mut *to)) {
        (false, Ok(to)) => *to = *values,
        (false, Err(_)) => to.copy_from_slice(&values[..to.len()]),
        (true, Ok(to)) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
        (true, Err(_)) => to.iter_mut().zip(values).for_each(|(to, value)| *to += value),
    }
}

/// The most taps of a kernel.
const TAPS_MAX: usize = 16;

/// Where each tap begins in a packed region.
fn tap_offsets(shape: &ConvShape, region: &OutputRegion) -> [usize; TAPS_MAX] {
    assert!(shape.taps() <= TAPS_MAX, "kernels are small");
    let mut offsets = [0; TAPS_MAX];
    for (tap, offset) in offsets[..shape.taps()].iter_mut().enumerate() {
        let (y, x) = (tap / shape.kernel_width, tap % shape.kernel_width);
        *offset = region.row_begin(shape, y) + region.column(shape, x);
    }
    offsets
}

/// The inputs of a row of output pixels: of channel `c` under tap `t` of pixel `i`,
/// `values[offsets[t] + c * stride + i]`.
#[derive(Clone, Copy)]
struct Taps<'a> {
    values: &'a [f32],
    stride: usize,
    offsets: &'a [usize],
    depth: usize,
}

/// Where the sums of a panel go: of pixel `i`, `columns` elements from `values[i * stride + first]`
/// on.
struct SumsTarget<'a> {
    values: &'a mut [f32],
    stride: usize,
    first: usize,
    columns: usize,
    /// Added to the sums.
    bias: Option<&'a [f32; PANEL]>,
    /// Whether to add to what is there.
    accumulate: bool,
}

per_isa! {
    /// A row of `pixels` output pixels for a panel of channels and a block of summed ones.
    fn convolve_row<L>(a: Taps<'_>, b: &[f32], pixels: usize, out: &mut SumsTarget<'_>) {
        let last = a.offsets.iter().copied().max().unwrap_or(0) + (a.depth - 1) * a.stride + pixels;
        assert!(last <= a.values.len(), "taps outside the region");
        assert!(b.len() >= a.offsets.len() * a.depth * PANEL, "weights");
        assert!(out.values.len() >= (pixels - 1) * out.stride + out.first + out.columns, "out");
        assert!(out.columns <= PANEL);
        let mut pixel = 0;
        while pixel < pixels {
            let mut taken = 0;
            for column in (0..out.columns).step_by(2 * L::WIDTH) {
                // SAFETY: `per_isa!` has the instructions; the operands' lengths were checked
                // above, and `with_rows!` takes no more pixels than are left.
                taken = unsafe {
                    let b = b.as_ptr().add(column);
                    let to = out.values.as_mut_ptr().add(pixel * out.stride + out.first);
                    if out.columns - column > L::WIDTH {
                        with_rows!(L, pixels - pixel, pixels_of::<2>(a, pixel, b, column, out, to))
                    } else {
                        with_rows!(L, pixels - pixel, pixels_of::<1>(a, pixel, b, column, out, to))
                    }
                };
            }
            pixel += taken;
        }
    }
}

/// `M` pixels, from `pixel` on, and `N` vectors of channels of [`convolve_row`]; the first pixel's
/// panel begins at `to`.
///
/// # Safety
/// As of [`tile`]; the pixels are of the target, which nobody else writes.
#[inline(always)]
unsafe fn pixels_of<L: Lanes, const M: usize, const N: usize>(
    a: Taps<'_>,
    pixel: usize,
    b: *const f32,
    column: usize,
    out: &SumsTarget<'_>,
    to: *mut f32,
) {
    // SAFETY: the caller's promise. What of a vector is beyond the panel's columns goes through
    // `edge`.
    unsafe {
        let sums = tile::<L, M, N>(a.values.as_ptr().add(pixel), a.stride, a.offsets, b, a.depth);
        for (n, column) in (column..).step_by(L::WIDTH).take(N).enumerate() {
            let bias = out.bias.map_or(L::zero(), |bias| L::load(bias.as_ptr().add(column)));
            let count = out.columns - column;
            for (m, sums) in sums.iter().enumerate() {
                let to = to.add(m * out.stride + column);
                let mut edge = [0.0; PANEL];
                let whole = count >= L::WIDTH;
                let at = if whole { to } else { edge.as_mut_ptr() };
                if !whole && out.accumulate {
                    at.copy_from_nonoverlapping(to, count);
                }
                let before = if out.accumulate { L::load(at) } else { L::zero() };
                L::store(at, L::add(before, L::add(sums[n], bias)));
                if !whole {
                    to.copy_from_nonoverlapping(at, count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
