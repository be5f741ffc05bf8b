//! Convolutions of single pixels that leave at most half of the channels, in the place of their
//! input.
//!
//! The first pixels go through scratch. Then the results of some pixels only overwrite inputs of
//! pixels before them, which are done with: each pass takes as many pixels as fit there, so twice
//! as many as all before it or more.
//!
//! Invariant: a pixel's result is that of [`linear`], or of [`bf16_linear`], the same bits as in a
//! place of its own.

use std::ops::Range;

use super::bf16::bf16_linear;
use super::conv::ConvShape;
use super::matmul::{Columns, FEW_ROWS, LinearShape, linear, linear_scratch_len};
use super::workers::Workers;
use crate::graph::Activation;
use crate::weights::view::WeightView;

/// Pixels whose results go through scratch.
const FIRST_PIXELS: usize = 256;

/// How many elements of scratch [`narrow`] needs with so many workers.
pub fn narrow_scratch_len(shape: &ConvShape, workers: usize) -> usize {
    let in_features = &[shape.in_channels];
    let out_features = shape.out_channels;
    let scratch_len = |pixels: Range<usize>| {
        linear_scratch_len(&LinearShape { rows: pixels.len(), in_features, out_features }, workers)
    };
    passes(shape).map(scratch_len).max().unwrap_or(0) + FIRST_PIXELS * out_features
}

/// The pixels of each pass.
fn passes(shape: &ConvShape) -> impl Iterator<Item = Range<usize>> + use<> {
    let pixels = shape.batch * shape.height * shape.width;
    let (inner, outer) = (shape.in_channels, shape.out_channels);
    // Of few pixels a product has another order, so that none may be left over.
    let end = move |most: usize| match pixels.saturating_sub(most) {
        0 => pixels,
        1..=FEW_ROWS => pixels - FEW_ROWS - 1,
        _ => most,
    };
    let next = move |last: &Range<usize>| {
        // Results up to pixel `end · inner / outer` lie before the input of pixel `end`.
        (last.end < pixels).then(|| last.end..end(last.end * inner / outer))
    };
    std::iter::successors(Some(0..end(FIRST_PIXELS)), next)
}

/// As [`conv2d`](super::conv2d) of `x`, `[batch, height, width, in_channels]`, with the result at
/// its beginning; the rest is left in no particular state. Kernel, stride and enlargement are 1 and
/// the output has at most half of the input's channels. `rounds`: as
/// [`bf16_conv2d`](super::bf16_conv2d), of a weight in bf16. `scratch`: [`narrow_scratch_len`].
pub fn narrow(
    workers: &Workers,
    shape: &ConvShape,
    x: &mut [f32],
    weight: WeightView<'_>,
    bias: Option<WeightView<'_>>,
    rounds: bool,
    scratch: &mut [f32],
) {
    let kernel = if rounds { bf16_linear } else { linear };
    let (inner, outer) = (shape.in_channels, shape.out_channels);
    assert!(2 * outer <= inner, "the result does not fit before the input");
    assert_eq!(x.len(), shape.batch * shape.height * shape.width * inner, "x");
    assert_eq!(weight.shape, [outer, inner, 1, 1], "weight");
    let (first, scratch) = scratch.split_at_mut(FIRST_PIXELS * outer);
    let columns = Columns::all(outer);
    let none = Activation::None;
    for pixels in passes(shape) {
        if pixels.start == 0 {
            let out = &mut first[..pixels.len() * outer];
            kernel(workers, &[&x[..pixels.end * inner]], weight, bias, none, out, columns, scratch);
            x[..out.len()].copy_from_slice(out);
        } else {
            let (done, rest) = x.split_at_mut(pixels.start * inner);
            let out = &mut done[pixels.start * outer..pixels.end * outer];
            let input = &rest[..pixels.len() * inner];
            kernel(workers, &[input], weight, bias, none, out, columns, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{Random, Stored, for_each_workers, scratch};
    use crate::backend::kernels::{bf16_conv2d, conv2d, conv2d_scratch_len};

    #[test]
    fn the_result_is_the_same_as_in_a_place_of_its_own() {
        for (side, inner, outer) in [(3, 4, 2), (16, 9, 4), (40, 30, 15), (61, 24, 7), (23, 32, 16)]
        {
            let shape = ConvShape {
                batch: 1,
                height: side,
                width: side,
                in_channels: inner,
                out_channels: outer,
                kernel_height: 1,
                kernel_width: 1,
                stride: 1,
                pad_top: 0,
                pad_left: 0,
                pad_bottom: 0,
                pad_right: 0,
                upsample: 1,
                norm: None,
                accumulate: false,
            };
            let mut random = Random::new(side as u64);
            let x = random.normals(side * side * inner);
            let weight = Stored::random(&mut random, StorageType::BF16, &[outer, inner, 1, 1]);
            let bias = Stored::random(&mut random, StorageType::F32, &[outer]);
            for_each_workers(|workers| {
                let count = workers.count();
                let (weight, bias) = (weight.view(), Some(bias.view()));
                let both = [false, true].map(|rounds| {
                    let mut apart = vec![f32::NAN; side * side * outer];
                    let mut space = scratch(conv2d_scratch_len(&shape, count));
                    let kernel = if rounds { bf16_conv2d } else { conv2d };
                    kernel(workers, &shape, &x, None, weight, bias, &mut apart, &mut space);
                    let mut y = x.clone();
                    let mut space = scratch(narrow_scratch_len(&shape, count));
                    narrow(workers, &shape, &mut y, weight, bias, rounds, &mut space);
                    assert_eq!(y[..apart.len()], apart, "{shape:?}");
                    apart
                });
                both.concat()
            });
        }
    }
}
