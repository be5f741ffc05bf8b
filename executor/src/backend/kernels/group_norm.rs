//! Group normalisation of `[batch, pixels, channels]` images, in place.
//!
//! The channels of a group are neighbours, so the image is read in the order it lies in: pixels in
//! chunks, each with sums of its own for every channel, which are joined in order.

use std::ops::Range;

use super::math::silu;
use super::simd::per_isa;
use super::widen::widen;
use super::workers::{Disjoint, Workers};
use crate::weights::view::WeightView;

/// Channels that are summed at a time, on the stack.
const TILE: usize = 256;

/// About how many scalar operations a normalised element takes.
const OPERATIONS: usize = 8;

/// How many parts of an image are summed on their own, at most. The sums are joined in order, so
/// this must not depend on the workers.
const GROUP_NORM_CHUNKS: usize = 64;

/// Elements of scratch for a sum: its `f32` value, and what that leaves of the `f64`.
const SUM_LEN: usize = 2;

/// The sizes of a group normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNormShape {
    /// How many images.
    pub batch: usize,
    /// Height times width.
    pub pixels: usize,
    /// Features of a pixel.
    pub channels: usize,
    /// Into how many groups the channels are cut.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl GroupNormShape {
    /// Pixels that are summed on their own.
    fn chunk_pixels(&self) -> usize {
        self.pixels.div_ceil(GROUP_NORM_CHUNKS).max(1)
    }

    fn chunks(&self) -> usize {
        self.pixels.div_ceil(self.chunk_pixels())
    }

    /// Scratch of a chunk: sum and sum of squares of each channel.
    fn chunk_sums_len(&self) -> usize {
        2 * SUM_LEN * self.channels
    }

    fn sums_len(&self) -> usize {
        self.batch * self.chunks() * self.chunk_sums_len()
    }
}

/// How many elements of scratch [`group_norm`] needs, with any number of workers.
pub fn group_norm_scratch_len(shape: &GroupNormShape) -> usize {
    // Beside the sums, a factor and a summand for each channel of each image.
    shape.sums_len() + 2 * shape.batch * shape.channels
}

/// Each group of channels of each image of `x`, `[batch, pixels, channels]`, to mean 0 and variance
/// 1 over its pixels, then times `weight` plus `bias`, both `[channels]`, then through SiLU if
/// `silu_after`. `scratch`: [`group_norm_scratch_len`].
///
/// One pass sums values and squares: in `f64` the difference loses nothing that `f32` values have.
pub fn group_norm(
    workers: &Workers,
    x: &mut [f32],
    shape: &GroupNormShape,
    weight: WeightView<'_>,
    bias: WeightView<'_>,
    silu_after: bool,
    scratch: &mut [f32],
) {
    let (channels, isa) = (shape.channels, workers.isa());
    let (factors, summands) = group_norm_factors(workers, x, shape, weight, bias, scratch);
    workers.for_each_chunk(x, channels, OPERATIONS, |first, rows| {
        for (row, pixel) in rows.chunks_exact_mut(channels).zip(first..) {
            let image = pixel / shape.pixels * channels;
            let (factors, summands) =
                (&factors[image..][..channels], &summands[image..][..channels]);
            if silu_after {
                scale_shift_silu(isa, row, factors, summands);
            } else {
                scale_shift(isa, row, factors, summands);
            }
        }
    });
}

/// A factor and a summand for each channel of each image of `x`, both `[batch, channels]`: what
/// [`group_norm`] multiplies a value with and then adds. They lie in `scratch`,
/// [`group_norm_scratch_len`].
pub(super) fn group_norm_factors<'a>(
    workers: &Workers,
    x: &[f32],
    shape: &GroupNormShape,
    weight: WeightView<'_>,
    bias: WeightView<'_>,
    scratch: &'a mut [f32],
) -> (&'a [f32], &'a [f32]) {
    let channels = shape.channels;
    assert_eq!(x.len(), shape.batch * shape.pixels * channels, "x");
    assert!(channels.is_multiple_of(shape.groups), "channels are not whole groups");
    assert!(weight.shape == [channels] && bias.shape == [channels], "weight or bias");
    assert!(scratch.len() >= group_norm_scratch_len(shape), "scratch");
    let isa = workers.isa();
    let (sums, factors) = scratch.split_at_mut(shape.sums_len());
    sum_chunks(workers, x, shape, sums);

    let (chunks, chunk_len) = (shape.chunks(), shape.chunk_sums_len());
    let (factors, summands) = factors.split_at_mut(shape.batch * channels);
    for image in 0..shape.batch {
        let sums = &sums[image * chunks * chunk_len..(image + 1) * chunks * chunk_len];
        let factors = &mut factors[image * channels..(image + 1) * channels];
        let summands = &mut summands[image * channels..(image + 1) * channels];
        widen(isa, weight, 0, factors);
        widen(isa, bias, 0, summands);
        let size = channels / shape.groups;
        for group in 0..shape.groups {
            let part = group * size..(group + 1) * size;
            let (mean, scale) = group_moments(shape, sums, part.clone());
            for (factor, summand) in factors[part.clone()].iter_mut().zip(&mut summands[part]) {
                let product = f64::from(*factor) * scale;
                *factor = product as f32;
                *summand = (f64::from(*summand) - mean * product) as f32;
            }
        }
    }
    (factors, &summands[..shape.batch * channels])
}

/// Writes for each chunk of pixels `[2, SUM_LEN, channels]`: the channels' sums and sums of
/// squares, as `f32` values and their remainders.
fn sum_chunks(workers: &Workers, x: &[f32], shape: &GroupNormShape, sums: &mut [f32]) {
    let (channels, chunk_len) = (shape.channels, shape.chunk_sums_len());
    let sums = Disjoint::new(sums);
    let isa = workers.isa();
    workers.for_each(shape.batch * shape.chunks(), x.len() * OPERATIONS, |_, task| {
        // SAFETY: each task has the sums of its own chunk.
        let sums = unsafe { sums.range(task * chunk_len..(task + 1) * chunk_len) };
        let (image, chunk) = (task / shape.chunks(), task % shape.chunks());
        let from = chunk * shape.chunk_pixels();
        let to = shape.pixels.min(from + shape.chunk_pixels());
        let pixels = &x[(image * shape.pixels + from) * channels..];
        let pixels = &pixels[..(to - from) * channels];
        for first in (0..channels).step_by(TILE) {
            let count = TILE.min(channels - first);
            let (mut values, mut squares) = ([0.0; TILE], [0.0; TILE]);
            sum_channels(
                isa,
                &pixels[first..],
                channels,
                &mut values[..count],
                &mut squares[..count],
            );
            for channel in 0..count {
                let split = |sum: f64| (sum as f32, (sum - f64::from(sum as f32)) as f32);
                let (value, square) = (split(values[channel]), split(squares[channel]));
                for (row, part) in [value.0, value.1, square.0, square.1].into_iter().enumerate() {
                    sums[row * channels + first + channel] = part;
                }
            }
        }
    });
}

/// The mean of a group of channels of an image, and one over the root of its variance plus eps.
fn group_moments(shape: &GroupNormShape, sums: &[f32], channels: Range<usize>) -> (f64, f64) {
    let (mut sum, mut squares) = (0.0, 0.0);
    for chunk in sums.chunks_exact(shape.chunk_sums_len()) {
        let at = |row: usize, channel: usize| f64::from(chunk[row * shape.channels + channel]);
        for channel in channels.clone() {
            sum += at(0, channel) + at(1, channel);
            squares += at(2, channel) + at(3, channel);
        }
    }
    let count = (shape.pixels * channels.len()) as f64;
    let mean = sum / count;
    let variance = (squares / count - mean * mean).max(0.0);
    (mean, 1.0 / (variance + f64::from(shape.eps)).sqrt())
}

per_isa! {
    /// Adds up the first channels of `pixels`, which are `stride` apart, and their squares.
    fn sum_channels<L>(pixels: &[f32], stride: usize, sums: &mut [f64], squares: &mut [f64]) {
        for pixel in pixels.chunks(stride) {
            for ((&x, sum), square) in pixel.iter().zip(sums.iter_mut()).zip(squares.iter_mut()) {
                let x = f64::from(x);
                *sum += x;
                *square += x * x;
            }
        }
    }
}

per_isa! {
    fn scale_shift<L>(row: &mut [f32], factors: &[f32], summands: &[f32]) {
        for ((x, &factor), &summand) in row.iter_mut().zip(factors).zip(summands) {
            *x = L::mul_add(*x, factor, summand);
        }
    }
}

per_isa! {
    fn scale_shift_silu<L>(row: &mut [f32], factors: &[f32], summands: &[f32]) {
        for ((x, &factor), &summand) in row.iter_mut().zip(factors).zip(summands) {
            *x = silu::<L>(L::mul_add(*x, factor, summand));
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{
        Random, Stored, assert_close, for_each_workers, normalised, scratch,
    };

    const EPS: f32 = 1e-5;

    #[test]
    fn group_norm_matches_the_reference() {
        for (batch, pixels, channels, groups) in
            [(1, 1, 2, 1), (2, 77, 24, 8), (1, 300, 320, 32), (1, 40, 1100, 2), (3, 65, 6, 6)]
        {
            let shape = GroupNormShape { batch, pixels, channels, groups, eps: EPS };
            let mut random = Random::new(channels as u64);
            let x = random.far_from_zero(batch * pixels * channels);
            let weight = Stored::random(&mut random, StorageType::BF16, &[channels]);
            let bias = Stored::random(&mut random, StorageType::BF16, &[channels]);
            let size = channels / groups;
            let mut expected = vec![0.0; x.len()];
            for image in 0..batch {
                for group in 0..groups {
                    let at = |i: usize| {
                        let (pixel, channel) = (i / size, group * size + i % size);
                        (image * pixels + pixel) * channels + channel
                    };
                    let values: Vec<f32> = (0..pixels * size).map(|i| x[at(i)]).collect();
                    for (i, value) in normalised(&values, EPS).into_iter().enumerate() {
                        let channel = at(i) % channels;
                        let (w, b) = (weight.values[channel], bias.values[channel]);
                        expected[at(i)] = value * f64::from(w) + f64::from(b);
                    }
                }
            }
            let with_silu: Vec<f64> = expected.iter().map(|x| x / (1.0 + (-x).exp())).collect();
            for (silu, expected) in [(false, &expected), (true, &with_silu)] {
                for_each_workers(|workers| {
                    let mut y = x.clone();
                    let mut scratch = scratch(group_norm_scratch_len(&shape));
                    let (weight, bias) = (weight.view(), bias.view());
                    group_norm(workers, &mut y, &shape, weight, bias, silu, &mut scratch);
                    assert_close(&y, expected, 1e-5, &format!("{shape:?} {silu}"));
                    y
                });
            }
        }
    }
}
