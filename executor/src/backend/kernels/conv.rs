//! Two-dimensional convolution of `[batch, height, width, channels]` images.
//!
//! An output pixel is a row: the inputs under the kernel, `[kernel_height, kernel_width,
//! in_channels]`, times the weights in the same order. Such rows exist only for a block of pixels,
//! and the reordered weights only for a panel, both in the worker's scratch.

use std::ops::Range;

use super::matmul::{Columns, LinearShape, linear, linear_scratch_len};
use super::simd::Isa;
use super::tile::{
    Grid, Rows, Target, aligned, depth_block_max, depth_blocks, multiply_rows, panel_len,
    panel_stride, task_columns,
};
use super::widen::{widen, widen_strided};
use super::workers::{Disjoint, Workers};
use crate::graph::Activation;
use crate::weights::view::WeightView;

/// Output channels of a task: wide, because the pixels are gathered again for each panel.
const PANEL_COLUMNS: usize = 129;

/// Output pixels whose inputs are gathered at a time: 128 KiB.
const BLOCK_PIXELS: usize = 32;

/// Fewer pixels than this are not worth reordering a panel of weights for a second time.
const TASK_PIXELS_MIN: usize = 512;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// Weights of one output channel.
    fn depth(&self) -> usize {
        self.kernel_height * self.kernel_width * self.in_channels
    }

    /// Whether output pixels are linear functions of the input pixels in the same places.
    fn is_linear(&self) -> bool {
        let pads = [self.pad_top, self.pad_left, self.pad_bottom, self.pad_right];
        let ones = [self.kernel_height, self.kernel_width, self.stride, self.upsample];
        pads == [0; 4] && ones == [1; 4]
    }

    fn worker_scratch_len(&self) -> usize {
        let rows = BLOCK_PIXELS + task_columns(self.out_channels, PANEL_COLUMNS);
        panel_len(rows, depth_block_max(self.depth()))
    }
}

/// How many elements of scratch [`conv2d`] needs with so many workers.
pub fn conv2d_scratch_len(shape: &ConvShape, workers: usize) -> usize {
    if shape.is_linear() {
        let in_features = &[shape.in_channels];
        let (rows, out_features) = (shape.output_pixels(), shape.out_channels);
        return linear_scratch_len(&LinearShape { rows, in_features, out_features }, workers);
    }
    workers * shape.worker_scratch_len()
}

/// `out = conv(input, weight) + bias`, with zeros outside the input.
///
/// `input`: `[batch, height, width, in_channels]`. `weight`: `[out_channels, in_channels,
/// kernel_height, kernel_width]`. `bias`: `[out_channels]`. `out`: `[batch, output_height,
/// output_width, out_channels]`. `scratch`: [`conv2d_scratch_len`].
pub fn conv2d(
    workers: &Workers,
    shape: &ConvShape,
    input: &[f32],
    weight: WeightView<'_>,
    bias: Option<WeightView<'_>>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let kernel = [shape.kernel_height, shape.kernel_width];
    let pixels = shape.output_pixels();
    assert_eq!(input.len(), shape.batch * shape.height * shape.width * shape.in_channels, "input");
    assert_eq!(weight.shape, [shape.out_channels, shape.in_channels, kernel[0], kernel[1]]);
    assert!(bias.is_none_or(|bias| bias.shape == [shape.out_channels]), "bias");
    assert_eq!(out.len(), pixels * shape.out_channels, "out");
    assert!(matches!(shape.upsample, 1 | 2), "upsample is 1 or 2");
    if shape.is_linear() {
        let columns = Columns::all(shape.out_channels);
        linear(workers, &[input], weight, bias, Activation::None, out, columns, scratch);
        return;
    }
    let count = workers.count();
    let grid = Grid::new(pixels, shape.out_channels, PANEL_COLUMNS, TASK_PIXELS_MIN, count);
    let operations = 2 * pixels * shape.out_channels * shape.depth();
    let out = Disjoint::new(out);
    let call = Call { isa: workers.isa(), shape, input, weight, bias, out: &out };
    let len = shape.worker_scratch_len();
    workers.for_each_with(grid.tasks(), operations, scratch, len, |scratch, task| {
        let (pixels, channels) = grid.task(task);
        for (from, depth) in depth_blocks(shape.depth()) {
            call.multiply(pixels.clone(), channels.clone(), from, depth, scratch);
        }
        call.add_bias(pixels, channels);
    });
}

/// What all tasks of one call share.
struct Call<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    input: &'a [f32],
    weight: WeightView<'a>,
    bias: Option<WeightView<'a>>,
    out: &'a Disjoint<'a>,
}

impl Call<'_> {
    /// Adds the products of `depth` of the summed elements, `from` on, to some pixels and channels.
    fn multiply(
        &self,
        pixels: Range<usize>,
        channels: Range<usize>,
        from: usize,
        depth: usize,
        scratch: &mut [f32],
    ) {
        let stride = panel_stride(depth);
        let (panel, block) = aligned(scratch).split_at_mut(channels.len() * stride);
        for (channel, row) in channels.clone().zip(panel.chunks_mut(stride)) {
            self.reorder(channel, from, &mut row[..depth]);
        }
        for first in pixels.clone().step_by(BLOCK_PIXELS) {
            let count = BLOCK_PIXELS.min(pixels.end - first);
            for (pixel, row) in (first..first + count).zip(block.chunks_mut(stride)) {
                self.gather(pixel, from, &mut row[..depth]);
            }
            let a = Rows { values: block, stride, count };
            let b = Rows { values: panel, stride, count: channels.len() };
            let begin = first * self.shape.out_channels + channels.start;
            // SAFETY: no other task has these pixels and channels.
            let target = unsafe { Target::new(self.out, begin, self.shape.out_channels, from > 0) };
            multiply_rows(self.isa, a, b, depth, target);
        }
    }

    /// The weights of an output channel as `[kernel_height, kernel_width, in_channels]`, element
    /// `from` on.
    fn reorder(&self, channel: usize, from: usize, row: &mut [f32]) {
        let taps = self.shape.kernel_height * self.shape.kernel_width;
        self.for_each_tap(from, row, |tap, input_channel, part| {
            let at = channel * self.shape.depth() + input_channel * taps + tap;
            widen_strided(self.weight, at, taps, part);
        });
    }

    /// The inputs under the kernel at an output pixel, as `[kernel_height, kernel_width,
    /// in_channels]`, element `from` on.
    fn gather(&self, pixel: usize, from: usize, row: &mut [f32]) {
        let shape = self.shape;
        let (line, x) = (pixel / shape.output_width(), pixel % shape.output_width());
        let (image, y) = (line / shape.output_height(), line % shape.output_height());
        self.for_each_tap(from, row, |tap, channel, part| {
            let y = y * shape.stride + tap / shape.kernel_width;
            let x = x * shape.stride + tap % shape.kernel_width;
            let y = y.checked_sub(shape.pad_top).map(|y| y / shape.upsample);
            let x = x.checked_sub(shape.pad_left).map(|x| x / shape.upsample);
            match (y, x) {
                (Some(y), Some(x)) if y < shape.height && x < shape.width => {
                    let pixel = (image * shape.height + y) * shape.width + x;
                    let at = pixel * shape.in_channels + channel;
                    part.copy_from_slice(&self.input[at..at + part.len()]);
                }
                _ => part.fill(0.0),
            }
        });
    }

    /// Cuts `row`, which begins with element `from`, where the kernel's taps end, and calls
    /// `fill(tap, first_channel, part)`.
    fn for_each_tap(&self, from: usize, row: &mut [f32], fill: impl Fn(usize, usize, &mut [f32])) {
        let channels = self.shape.in_channels;
        let mut at = from;
        let mut rest = row;
        while !rest.is_empty() {
            let channel = at % channels;
            let len = rest.len().min(channels - channel);
            let (part, after) = rest.split_at_mut(len);
            fill(at / channels, channel, part);
            at += len;
            rest = after;
        }
    }

    fn add_bias(&self, pixels: Range<usize>, channels: Range<usize>) {
        let Some(stored) = self.bias else { return };
        let mut bias = [0.0; PANEL_COLUMNS];
        let bias = &mut bias[..channels.len()];
        widen(self.isa, stored, channels.start, bias);
        for pixel in pixels {
            let from = pixel * self.shape.out_channels + channels.start;
            // SAFETY: no other task has this pixel and these channels.
            let values = unsafe { self.out.range(from..from + channels.len()) };
            values.iter_mut().zip(&*bias).for_each(|(value, bias)| *value += bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{
        Random, Stored, assert_close, for_each_workers, scratch,
    };

    fn reference(
        shape: &ConvShape,
        input: &[f32],
        weight: &Stored,
        bias: Option<&Stored>,
    ) -> Vec<f64> {
        let (kh, kw, cin) = (shape.kernel_height, shape.kernel_width, shape.in_channels);
        let mut out = Vec::new();
        for image in 0..shape.batch {
            for oy in 0..shape.output_height() {
                for ox in 0..shape.output_width() {
                    for co in 0..shape.out_channels {
                        let mut sum = bias.map_or(0.0, |bias| f64::from(bias.values[co]));
                        for ky in 0..kh {
                            for kx in 0..kw {
                                let y = (oy * shape.stride + ky) as isize - shape.pad_top as isize;
                                let x = (ox * shape.stride + kx) as isize - shape.pad_left as isize;
                                let up = shape.upsample as isize;
                                let inside = y >= 0
                                    && x >= 0
                                    && y < shape.height as isize * up
                                    && x < shape.width as isize * up;
                                if !inside {
                                    continue;
                                }
                                let (y, x) = ((y / up) as usize, (x / up) as usize);
                                for ci in 0..cin {
                                    let pixel = (image * shape.height + y) * shape.width + x;
                                    let w = weight.values[((co * cin + ci) * kh + ky) * kw + kx];
                                    sum += f64::from(input[pixel * cin + ci]) * f64::from(w);
                                }
                            }
                        }
                        out.push(sum);
                    }
                }
            }
        }
        out
    }

    fn check(shape: ConvShape, storage: StorageType, with_bias: bool) {
        let mut random = Random::new((shape.height * 7 + shape.in_channels) as u64);
        let input = random.normals(shape.batch * shape.height * shape.width * shape.in_channels);
        let kernel = [shape.kernel_height, shape.kernel_width];
        let dimensions = [shape.out_channels, shape.in_channels, kernel[0], kernel[1]];
        let weight = Stored::random(&mut random, storage, &dimensions);
        let bias = with_bias.then(|| Stored::random(&mut random, storage, &[shape.out_channels]));
        let expected = reference(&shape, &input, &weight, bias.as_ref());
        for_each_workers(|workers| {
            let mut out = vec![f32::NAN; expected.len()];
            let mut scratch = scratch(conv2d_scratch_len(&shape, workers.count()));
            let bias = bias.as_ref().map(Stored::view);
            conv2d(workers, &shape, &input, weight.view(), bias, &mut out, &mut scratch);
            assert_close(&out, &expected, 1e-5, &format!("{shape:?} {storage} {}", workers.isa()));
            out
        });
    }

    const SHAPE: ConvShape = ConvShape {
        batch: 1,
        height: 9,
        width: 7,
        in_channels: 5,
        out_channels: 4,
        kernel_height: 3,
        kernel_width: 3,
        stride: 1,
        pad_top: 1,
        pad_left: 1,
        pad_bottom: 1,
        pad_right: 1,
        upsample: 1,
    };

    #[test]
    fn sizes_of_the_output() {
        assert_eq!((SHAPE.output_height(), SHAPE.output_width()), (9, 7));
        let up = ConvShape { upsample: 2, ..SHAPE };
        assert_eq!((up.output_height(), up.output_width()), (18, 14));
        // The VAE encoder's downsampling: zeros below and to the right only.
        let down = ConvShape { height: 8, width: 8, stride: 2, pad_top: 0, pad_left: 0, ..SHAPE };
        assert_eq!((down.output_height(), down.output_width()), (4, 4));
    }

    #[test]
    fn kernels_strides_and_pads_match_the_reference() {
        let storages = [StorageType::F32, StorageType::F16, StorageType::BF16];
        for storage in storages {
            check(SHAPE, storage, true);
            check(ConvShape { batch: 2, upsample: 2, ..SHAPE }, storage, false);
        }
        let bf16 = StorageType::BF16;
        check(ConvShape { stride: 2, pad_top: 0, pad_left: 0, ..SHAPE }, bf16, true);
        let flat = ConvShape { kernel_height: 1, kernel_width: 4, pad_top: 0, ..SHAPE };
        check(ConvShape { pad_bottom: 0, pad_right: 3, ..flat }, bf16, true);
        check(
            ConvShape { in_channels: 1, out_channels: 1, height: 1, width: 1, ..SHAPE },
            bf16,
            true,
        );
    }

    #[test]
    fn many_blocks_and_tasks_match_the_reference() {
        let wide = ConvShape { in_channels: 130, out_channels: 131, height: 6, ..SHAPE };
        check(wide, StorageType::BF16, true);
        let large = ConvShape { height: 40, width: 31, in_channels: 6, out_channels: 9, ..SHAPE };
        check(ConvShape { batch: 2, ..large }, StorageType::F32, true);
    }

    #[test]
    fn a_single_tap_is_a_linear_layer() {
        let pads = ConvShape { pad_top: 0, pad_left: 0, pad_bottom: 0, pad_right: 0, ..SHAPE };
        let single = ConvShape { kernel_height: 1, kernel_width: 1, ..pads };
        assert!(single.is_linear());
        check(single, StorageType::F16, true);
        check(ConvShape { upsample: 2, ..single }, StorageType::F16, true);
        check(ConvShape { stride: 2, ..single }, StorageType::F16, false);
    }
}
