//! Convolutions against sums in f64.

use protocol::StorageType;

use super::*;
use crate::backend::kernels::testing::{
    Random, Stored, assert_close, for_each_workers, normalised, scratch,
};

fn reference(shape: &ConvShape, input: &[f32], weight: &Stored, bias: Option<&Stored>) -> Vec<f64> {
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

/// `input` normalised as the shape says, with a scale and a shift for each channel.
fn normalised_input(shape: &ConvShape, input: &[f32], scale: &Stored, shift: &Stored) -> Vec<f32> {
    let Some(norm) = shape.norm else { return input.to_vec() };
    let (channels, pixels) = (shape.in_channels, shape.height * shape.width);
    let size = channels / norm.groups;
    let mut out = vec![0.0; input.len()];
    for (image, group) in (0..shape.batch).flat_map(|i| (0..norm.groups).map(move |g| (i, g))) {
        let at = |i: usize| (image * pixels + i / size) * channels + group * size + i % size;
        let values: Vec<f32> = (0..pixels * size).map(|i| input[at(i)]).collect();
        for (i, value) in normalised(&values, norm.eps).into_iter().enumerate() {
            let channel = at(i) % channels;
            let value = value * f64::from(scale.values[channel]) + f64::from(shift.values[channel]);
            let value = if norm.silu { value / (1.0 + (-value).exp()) } else { value };
            out[at(i)] = value as f32;
        }
    }
    out
}

/// A case's values; what the result is added to, where it is; and what is expected in f64.
struct Case {
    shape: ConvShape,
    input: Vec<f32>,
    weight: Stored,
    bias: Option<Stored>,
    scale_and_shift: [Stored; 2],
    before: Vec<f32>,
}

impl Case {
    fn new(shape: ConvShape, storage: StorageType, with_bias: bool) -> Case {
        let mut random = Random::new((shape.height * 7 + shape.in_channels) as u64);
        let input = random.normals(shape.batch * shape.height * shape.width * shape.in_channels);
        let kernel = [shape.kernel_height, shape.kernel_width];
        let dimensions = [shape.out_channels, shape.in_channels, kernel[0], kernel[1]];
        let weight = Stored::random(&mut random, storage, &dimensions);
        let bias = with_bias.then(|| Stored::random(&mut random, storage, &[shape.out_channels]));
        let scale_and_shift =
            [0; 2].map(|_| Stored::random(&mut random, storage, &[shape.in_channels]));
        let before = random.normals(shape.output_pixels() * shape.out_channels);
        Case { shape, input, weight, bias, scale_and_shift, before }
    }

    fn run(&self, workers: &Workers, rounds: bool) -> Vec<f32> {
        let shape = &self.shape;
        let norm = shape.norm.map(|_| self.scale_and_shift.each_ref().map(Stored::view));
        let mut out = match shape.accumulate {
            true => self.before.clone(),
            false => vec![f32::NAN; self.before.len()],
        };
        let mut scratch = scratch(conv2d_scratch_len(shape, workers.count()));
        let (weight, bias) = (self.weight.view(), self.bias.as_ref().map(Stored::view));
        let kernel = if rounds { bf16_conv2d } else { conv2d };
        kernel(workers, shape, &self.input, norm, weight, bias, &mut out, &mut scratch);
        out
    }

    /// What is expected of inputs that are `rounded` when they are normalised.
    fn expected(&self, rounded: impl Fn(f32) -> f32) -> Vec<f64> {
        let [scale, shift] = &self.scale_and_shift;
        let convolved = normalised_input(&self.shape, &self.input, scale, shift);
        let convolved: Vec<f32> = convolved.into_iter().map(rounded).collect();
        let mut expected = reference(&self.shape, &convolved, &self.weight, self.bias.as_ref());
        if self.shape.accumulate {
            let before = self.before.iter();
            expected.iter_mut().zip(before).for_each(|(sum, &before)| *sum += f64::from(before));
        }
        expected
    }
}

fn check(shape: ConvShape, storage: StorageType, with_bias: bool) {
    let case = Case::new(shape, storage, with_bias);
    let expected = case.expected(|x| x);
    for_each_workers(|workers| {
        let out = case.run(workers, false);
        assert_close(&out, &expected, 1e-5, &format!("{shape:?} {storage} {}", workers.isa()));
        out
    });
}

/// As [`check`], of filters in bf16 and inputs rounded to it where there are tiles.
fn check_in_bf16(shape: ConvShape) {
    let case = Case::new(shape, StorageType::BF16, true);
    let expected = case.expected(|x| half::bf16::from_f32(x).to_f32());
    // A value between two of bf16 may be normalised to either side of the middle.
    let tolerance = if shape.norm.is_some() { 1e-3 } else { 1e-5 };
    for_each_workers(|workers| {
        let out = case.run(workers, true);
        let name = format!("{shape:?} {}", workers.isa());
        match workers.isa().has_bf16_products() && shape.in_channels >= 16 {
            true => assert_close(&out, &expected, tolerance, &name),
            false => assert!(out == case.run(workers, false), "{name}"),
        }
        out
    });
}

#[test]
fn filters_that_lie_apart_give_the_same_bits() {
    let (mut random, taps, stride) = (Random::new(5), 9, 27);
    for out_channels in [4, 40] {
        let shape = ConvShape { in_channels: 70, out_channels, ..SHAPE };
        let input = random.normals(shape.height * shape.width * shape.in_channels);
        let filters = shape.out_channels * shape.in_channels;
        let dimensions = [shape.out_channels, shape.in_channels, 3, 3];
        for storage in [StorageType::F32, StorageType::BF16, StorageType::F16] {
            let weight = Stored::random(&mut random, storage, &dimensions);
            let size = storage.element_bytes();
            // Each channel's taps with others' behind them, but for the last one's.
            let mut bytes = vec![0x5a; ((filters - 1) * stride + taps) * size];
            for (filter, own) in weight.view().bytes.chunks(taps * size).enumerate() {
                bytes[filter * stride * size..][..own.len()].copy_from_slice(own);
            }
            let apart = WeightView { bytes: &bytes, ..weight.view() };
            for_each_workers(|workers| {
                let run = |filters: Filters<'_>| {
                    let mut out = vec![f32::NAN; shape.output_pixels() * shape.out_channels];
                    let mut scratch = scratch(conv2d_scratch_len(&shape, workers.count()));
                    let rounds = storage == StorageType::BF16 && workers.isa().has_bf16_products();
                    convolve(
                        workers,
                        &shape,
                        &input,
                        None,
                        filters,
                        None,
                        &mut out,
                        &mut scratch,
                        rounds,
                    );
                    out
                };
                let together = run(weight.view().into());
                assert_eq!(run(Filters { weight: apart, stride }), together, "{storage}");
                together
            });
        }
    }
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
    norm: None,
    accumulate: false,
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
    check(ConvShape { in_channels: 1, out_channels: 1, height: 1, width: 1, ..SHAPE }, bf16, true);
}

#[test]
fn many_blocks_and_tasks_match_the_reference() {
    let wide = ConvShape { in_channels: 130, out_channels: 131, height: 6, ..SHAPE };
    check(wide, StorageType::BF16, true);
    check(ConvShape { stride: 2, pad_top: 0, pad_left: 0, ..wide }, StorageType::F16, true);
    let large = ConvShape { height: 40, width: 31, in_channels: 6, out_channels: 9, ..SHAPE };
    check(ConvShape { batch: 2, ..large }, StorageType::F32, true);
}

#[test]
fn patches_match_the_reference_wherever_they_end() {
    let small = ConvShape { in_channels: 16, out_channels: 32, batch: 2, ..SHAPE };
    assert!(Patches::of(&small).is_some() && Patches::of(&SHAPE).is_none());
    for storage in [StorageType::F32, StorageType::F16, StorageType::BF16] {
        check(small, storage, true);
    }
    check(ConvShape { height: 1, width: 1, ..small }, StorageType::F32, true);
    check(ConvShape { pad_top: 0, pad_left: 2, pad_bottom: 2, ..small }, StorageType::F32, false);
    let norm = Some(InputNorm { groups: 10, eps: 1e-5, silu: true });
    let wide = ConvShape { in_channels: 70, out_channels: 33, norm, ..small };
    check(ConvShape { height: 35, width: 61, batch: 1, ..wide }, StorageType::F32, true);
    check(ConvShape { height: 6, width: 28, accumulate: true, ..wide }, StorageType::BF16, true);
    check(ConvShape { height: 5, width: 15, upsample: 2, ..wide }, StorageType::F16, true);
}

#[test]
fn a_patch_gives_the_same_bits_in_any_picture() {
    let whole = ConvShape { in_channels: 16, out_channels: 32, height: 20, width: 70, ..SHAPE };
    let case = Case::new(whole, StorageType::F32, true);
    // What is right of column 30 and below row 8, whose first row and column are others' borders.
    let (top, left) = (8, 30);
    let part = ConvShape { height: whole.height - top, width: whole.width - left, ..whole };
    let pixels = |y: usize| (y * whole.width + left) * 16..(y + 1) * whole.width * 16;
    let input: Vec<f32> =
        (top..whole.height).flat_map(|y| case.input[pixels(y)].iter().copied()).collect();
    let before = vec![0.0; part.output_pixels() * 32];
    let [weight, bias] = [&case.weight, case.bias.as_ref().expect("it has one")].map(Stored::view);
    for_each_workers(|workers| {
        let (all, mut own) = (case.run(workers, false), before.clone());
        let mut scratch = scratch(conv2d_scratch_len(&part, workers.count()));
        conv2d(workers, &part, &input, None, weight, Some(bias), &mut own, &mut scratch);
        for (y, x) in (1..part.height).flat_map(|y| (1..part.width).map(move |x| (y, x))) {
            let all = &all[((top + y) * whole.width + left + x) * 32..][..32];
            assert_eq!(&own[(y * part.width + x) * 32..][..32], all, "{y} {x}");
        }
        own
    });
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

#[test]
fn a_norm_before_leaves_the_zeros_around_the_picture() {
    let norm = Some(InputNorm { groups: 5, eps: 1e-5, silu: true });
    check(ConvShape { norm, ..SHAPE }, StorageType::F32, true);
    check(ConvShape { norm, batch: 2, accumulate: true, ..SHAPE }, StorageType::BF16, true);
    let plain = InputNorm { groups: 1, eps: 1e-5, silu: false };
    check(ConvShape { norm: Some(plain), upsample: 2, ..SHAPE }, StorageType::F32, true);
    check(ConvShape { norm: Some(plain), stride: 2, width: 70, ..SHAPE }, StorageType::F32, false);
    let wide = ConvShape { in_channels: 140, out_channels: 50, height: 5, width: 60, ..SHAPE };
    check(
        ConvShape { norm: Some(InputNorm { groups: 28, ..plain }), ..wide },
        StorageType::F16,
        true,
    );
}

#[test]
fn filters_in_bf16_match_the_reference_from_rounded_inputs() {
    let norm = Some(InputNorm { groups: 4, eps: 1e-5, silu: true });
    let plain = Some(InputNorm { groups: 4, eps: 1e-5, silu: false });
    let small = ConvShape { in_channels: 16, ..SHAPE };
    check_in_bf16(SHAPE);
    check_in_bf16(small);
    check_in_bf16(ConvShape { in_channels: 32, out_channels: 32, batch: 2, ..small });
    check_in_bf16(ConvShape { in_channels: 45, out_channels: 33, width: 40, ..small });
    // Two blocks of channels, the second with one step; more than one region each way.
    let wide = ConvShape { in_channels: 132, out_channels: 70, height: 30, width: 35, ..small };
    check_in_bf16(ConvShape { norm, ..wide });
    check_in_bf16(ConvShape { norm: plain, accumulate: true, width: 16, height: 7, ..wide });
    check_in_bf16(ConvShape { norm, upsample: 2, height: 5, width: 20, ..wide });
    let halved = ConvShape { stride: 2, pad_top: 0, pad_left: 0, height: 22, width: 38, ..wide };
    check_in_bf16(halved);
    check_in_bf16(ConvShape { norm, ..halved });
    let flat = ConvShape { kernel_height: 1, kernel_width: 4, pad_top: 0, pad_bottom: 0, ..small };
    check_in_bf16(ConvShape { pad_right: 3, width: 50, ..flat });
    let single = ConvShape { kernel_height: 1, kernel_width: 1, pad_top: 0, pad_left: 0, ..small };
    let single = ConvShape { pad_bottom: 0, pad_right: 0, ..single };
    check_in_bf16(single);
    check_in_bf16(ConvShape { norm, accumulate: true, ..single });
}

#[test]
fn results_are_added_to_what_is_there() {
    let linear = ConvShape { kernel_height: 1, kernel_width: 1, pad_top: 0, pad_left: 0, ..SHAPE };
    let linear = ConvShape { pad_bottom: 0, pad_right: 0, ..linear };
    for shape in [SHAPE, linear, ConvShape { in_channels: 300, ..linear }] {
        check(ConvShape { accumulate: true, ..shape }, StorageType::F32, true);
    }
}

#[test]
fn scratch_does_not_grow_with_the_picture() {
    let len = |side| {
        let shape = ConvShape { in_channels: 128, out_channels: 128, ..SHAPE };
        conv2d_scratch_len(&ConvShape { height: side, width: side, ..shape }, 2)
    };
    assert_eq!(len(256), len(4096));
}
