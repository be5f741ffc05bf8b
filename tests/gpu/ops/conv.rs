//! Convolutions in f32 and on tensor cores.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::ops::conv::{
    ConvOperands, conv_workspace_bytes, conv2d, narrow, narrows, reads,
};
use executor::backend::cuda::ops::{Products, ValueAt};
use executor::backend::kernels::{self, ConvShape, InputNorm};
use executor::graph::ElementType::{self, BF16, F16, F32};
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_close, assert_same};
use super::elements::{assert_rounded, floats, rounded, shorts, words};

const BOTH: [Products; 2] = [Products::Exact, Products::Half];

/// Differences from the host, relative to the root mean square of the result.
///
/// In f32 both sum some hundred products in other orders. On tensor cores each operand is rounded
/// to f16, by up to 2⁻¹¹ of itself, so that a sum of independent products is off by some 2⁻¹² of
/// its size; the largest of some thousand is seen, of up to 2e-3.
fn tolerance(products: Products) -> f64 {
    match products {
        Products::Exact => 2e-5,
        Products::Half => 4e-3,
    }
}

struct Case {
    shape: ConvShape,
    input: Vec<f32>,
    norm: Option<[Stored; 2]>,
    weight: Stored,
    bias: Stored,
    /// What the result is added to.
    before: Vec<f32>,
}

impl Case {
    fn random(shape: ConvShape, storage: StorageType) -> Case {
        let mut random = Random::new((shape.height * 7 + shape.in_channels) as u64);
        let input = random.normals(shape.batch * shape.height * shape.width * shape.in_channels);
        let kernel = [shape.kernel_height, shape.kernel_width];
        let dimensions = [shape.out_channels, shape.in_channels, kernel[0], kernel[1]];
        let weight = Stored::random(&mut random, storage, &dimensions);
        let plain = if storage.is_blocks() { StorageType::F32 } else { storage };
        let mut vector = |channels| Stored::random(&mut random, plain, &[channels]);
        let bias = vector(shape.out_channels);
        let norm = shape.norm.map(|_| [0; 2].map(|_| vector(shape.in_channels)));
        let pixels = shape.batch * shape.output_height() * shape.output_width();
        let before = random.normals(pixels * shape.out_channels);
        Case { shape, input, norm, weight, bias, before }
    }

    /// Leaves numbers in the input that such elements hold.
    fn round_input(&mut self, element: ElementType) {
        self.input.iter_mut().for_each(|x| *x = rounded(*x, element));
    }

    fn on_host(&self, bench: &Bench) -> Vec<f32> {
        let mut out = self.before.clone();
        let mut scratch = vec![f32::NAN; kernels::conv2d_scratch_len(&self.shape, 1)];
        let norm = self.norm.as_ref().map(|[scale, shift]| [scale.view(), shift.view()]);
        let (weight, bias) = (self.weight.view(), Some(self.bias.view()));
        let (workers, input) = (&bench.workers, &self.input);
        kernels::conv2d(workers, &self.shape, input, norm, weight, bias, &mut out, &mut scratch);
        out
    }

    /// Computes into a place of its own, or into that of what it is added to, or, narrow, into the
    /// input's.
    fn on_gpu(&self, bench: &Bench, products: Products, to: To) -> Vec<f32> {
        let mut found = floats(&self.bytes_on_gpu(bench, products, to, [F32, F32]), F32);
        found.truncate(self.before.len());
        found
    }

    /// The same from and to such elements: the bytes from the result's first on.
    fn bytes_on_gpu(
        &self,
        bench: &Bench,
        products: Products,
        to: To,
        [read, written]: [ElementType; 2],
    ) -> Vec<u8> {
        let storage = self.weight.storage;
        let bytes = conv_workspace_bytes(&self.shape, storage, products, to == To::Input);
        let workspace = bench.bytes(&vec![0xff; bytes.as_usize()]);
        let (_weight, weight) = bench.stored(&self.weight);
        let (_bias, bias) = bench.stored(&self.bias);
        let norm = self.norm.as_ref().map(|norm| norm.each_ref().map(|each| bench.stored(each)));
        let (input, before) = (held(bench, &self.input, read), bench.floats(&self.before));
        let apart = bench.room(self.before.len());
        let out = match to {
            To::Apart => &apart,
            To::Added => &before,
            To::Input => &input,
        };
        let operands = ConvOperands {
            input: ValueAt { address: input.address(), element: read },
            norm: norm.as_ref().map(|norm| norm.each_ref().map(|(_, stored)| *stored)),
            weight,
            bias,
            added: self.shape.accumulate.then(|| before.address()),
            out: ValueAt { address: out.address(), element: written },
        };
        bench.run_bytes(out, |on| {
            let kernel = if to == To::Input { narrow } else { conv2d };
            kernel(on, &self.shape, products, &operands, workspace.address())
        })
    }

    fn check(&self, bench: &Bench) {
        let expected = self.on_host(bench);
        for products in BOTH {
            let name = format!("{:?} {} {products:?}", self.shape, self.weight.storage);
            let found = self.on_gpu(bench, products, To::Apart);
            assert_close(&found, &expected, tolerance(products), &name);
            if self.shape.accumulate {
                assert_same(&self.on_gpu(bench, products, To::Added), &found, &name);
            }
        }
    }
}

/// Numbers in the GPU's memory as such elements.
fn held(bench: &Bench, values: &[f32], element: ElementType) -> Buffer {
    match element {
        F32 => bench.floats(values),
        _ => shorts(bench, &words(values, element)),
    }
}

/// Where the result goes.
#[derive(Clone, Copy, PartialEq)]
enum To {
    Apart,
    Added,
    Input,
}

const SHAPE: ConvShape = ConvShape {
    batch: 1,
    height: 9,
    width: 19,
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

/// Single pixels.
const PIXELS: ConvShape = ConvShape {
    kernel_height: 1,
    kernel_width: 1,
    pad_top: 0,
    pad_left: 0,
    pad_bottom: 0,
    pad_right: 0,
    ..SHAPE
};

/// Half as many pixels along a side, with zeros below and to the right only.
const DOWN: ConvShape = ConvShape { stride: 2, pad_top: 0, pad_left: 0, ..SHAPE };

fn channels(shape: ConvShape, in_channels: usize, out_channels: usize) -> ConvShape {
    ConvShape { in_channels, out_channels, ..shape }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn kernels_strides_and_storages() {
    let bench = Bench::new();
    let storages = [
        StorageType::F32,
        StorageType::F16,
        StorageType::BF16,
        StorageType::F8E4M3,
        StorageType::F8E5M2,
    ];
    for storage in storages {
        for shape in [SHAPE, PIXELS, DOWN] {
            Case::random(shape, storage).check(&bench);
        }
    }
    // Blocks of 32 that reach over rows, as a file may have them.
    Case::random(channels(SHAPE, 32, 7), StorageType::Q8_0).check(&bench);
    Case::random(ConvShape { height: 1, width: 1, ..channels(SHAPE, 1, 1) }, StorageType::F32)
        .check(&bench);
    Case::random(ConvShape { batch: 2, upsample: 2, ..SHAPE }, StorageType::BF16).check(&bench);
    Case::random(ConvShape { stride: 2, ..channels(PIXELS, 33, 12) }, StorageType::F32)
        .check(&bench);
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn all_tiles_of_channels() {
    let bench = Bench::new();
    // Each kernel, with chunks and tiles that are full and such that are not.
    for (inner, outer) in [(3, 8), (32, 3), (40, 32), (64, 33), (16, 128), (70, 130)] {
        for shape in [SHAPE, PIXELS, DOWN] {
            Case::random(channels(shape, inner, outer), StorageType::BF16).check(&bench);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn pictures_of_many_tiles() {
    let bench = Bench::new();
    for (height, width) in [(8, 16), (17, 33), (5, 50)] {
        let shape = ConvShape { batch: 2, height, width, ..channels(SHAPE, 34, 12) };
        for shape in [shape, ConvShape { upsample: 2, ..shape }] {
            Case::random(shape, StorageType::F16).check(&bench);
        }
        let down = ConvShape { batch: 2, height, width, ..channels(DOWN, 20, 12) };
        Case::random(down, StorageType::F16).check(&bench);
        let pixels = ConvShape { batch: 2, height, width, ..channels(PIXELS, 34, 12) };
        Case::random(pixels, StorageType::F16).check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn norms_before_and_values_to_be_added_to() {
    let bench = Bench::new();
    for (groups, silu) in [(4, true), (8, false), (1, true)] {
        let norm = Some(InputNorm { groups, eps: 1e-6, silu });
        for (shape, inner, outer) in
            [(SHAPE, 40, 24), (PIXELS, 24, 40), (DOWN, 24, 8), (SHAPE, 16, 130)]
        {
            let shape = ConvShape { norm, batch: 2, ..channels(shape, inner, outer) };
            Case::random(shape, StorageType::BF16).check(&bench);
            Case::random(ConvShape { accumulate: true, ..shape }, StorageType::F32).check(&bench);
        }
        let up = ConvShape { norm, upsample: 2, accumulate: true, ..channels(SHAPE, 24, 5) };
        Case::random(up, StorageType::F32).check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn narrow_convolutions_take_their_inputs_place() {
    let bench = Bench::new();
    // One pass, some, and one with a pixel left.
    for (height, width, inner, outer) in
        [(3, 5, 4, 2), (70, 71, 24, 12), (1, 4097, 30, 7), (96, 90, 9, 4)]
    {
        let case = Case::random(
            ConvShape { height, width, ..channels(PIXELS, inner, outer) },
            StorageType::BF16,
        );
        for products in BOTH {
            let apart = case.on_gpu(&bench, products, To::Apart);
            let found = case.on_gpu(&bench, products, To::Input);
            assert_same(&found, &apart, &format!("{:?} {products:?}", case.shape));
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn results_do_not_depend_on_the_place_in_the_picture() {
    let bench = Bench::new();
    let (inner, outer, width) = (40, 36, 37);
    let whole = Case::random(
        ConvShape { height: 30, width, ..channels(SHAPE, inner, outer) },
        StorageType::BF16,
    );
    for products in BOTH {
        let all = whole.on_gpu(&bench, products, To::Apart);
        // Rows cut out of the picture: all but those at the cuts are the same bits.
        for rows in [0..13, 3..30, 11..19] {
            let shape = ConvShape { height: rows.len(), ..whole.shape };
            let pixels = rows.start * width..rows.end * width;
            let mut part = Case::random(shape, StorageType::BF16);
            part.input = whole.input[pixels.start * inner..pixels.end * inner].to_vec();
            part.weight.bytes.clone_from(&whole.weight.bytes);
            part.bias.bytes.clone_from(&whole.bias.bytes);
            let found = part.on_gpu(&bench, products, To::Apart);
            let row = width * outer;
            let expected = &all[(rows.start + 1) * row..(rows.end - 1) * row];
            assert_same(
                &found[row..(rows.len() - 1) * row],
                expected,
                &format!("{rows:?} {products:?}"),
            );
        }
    }
}

/// A convolution of 16 bits is that of the numbers they are, and what it writes as 16 bits is what
/// it writes as f32, rounded.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn values_of_16_bits() {
    let bench = Bench::new();
    let norm = Some(InputNorm { groups: 2, eps: 1e-6, silu: true });
    let up = ConvShape { upsample: 2, ..SHAPE };
    // Channels that four, two and nothing divides, before and behind; groups of fours and of odd
    // numbers.
    for (shape, inner, outer) in
        [(SHAPE, 40, 24), (SHAPE, 70, 7), (up, 6, 130), (PIXELS, 24, 40), (DOWN, 14, 9)]
    {
        let plain = ConvShape { batch: 2, ..channels(shape, inner, outer) };
        let normed = ConvShape { norm, ..plain };
        for shape in [plain, normed, ConvShape { accumulate: true, ..normed }] {
            for element in [BF16, F16] {
                check_short(&bench, Case::random(shape, StorageType::BF16), element);
            }
        }
    }
}

fn check_short(bench: &Bench, mut case: Case, element: ElementType) {
    let name = format!("{:?} {element:?}", case.shape);
    case.round_input(element);
    let expected = case.on_gpu(bench, Products::Half, To::Apart);
    let read = case.bytes_on_gpu(bench, Products::Half, To::Apart, [element, F32]);
    assert_same(&floats(&read, F32), &expected, &name);
    let written = case.bytes_on_gpu(bench, Products::Half, To::Apart, [F32, element]);
    let (written, behind) = written.split_at(2 * expected.len());
    assert_rounded(&words_of(written), &expected, element, &name);
    assert!(behind.iter().all(|&byte| byte == 0xff), "{name}: behind the result");
}

fn words_of(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn narrow_convolutions_take_the_place_of_16_bits() {
    let bench = Bench::new();
    // As many bytes as the input has, by each kind of block, and half as many.
    for (height, width, inner, outer) in [(70, 71, 24, 12), (5, 50, 256, 128), (97, 90, 16, 4)] {
        let mut case = Case::random(
            ConvShape { height, width, ..channels(PIXELS, inner, outer) },
            StorageType::BF16,
        );
        case.round_input(BF16);
        assert!(narrows(&case.shape, Products::Half, BF16));
        let apart = case.on_gpu(&bench, Products::Half, To::Apart);
        let found = case.bytes_on_gpu(&bench, Products::Half, To::Input, [BF16, F32]);
        let found = floats(&found[..4 * apart.len()], F32);
        assert_same(&found, &apart, &format!("{:?}", case.shape));
    }
    // Two blocks would share a pixel, or the result does not fit.
    for (inner, outer) in [(512, 256), (16, 12)] {
        assert!(!narrows(&channels(PIXELS, inner, outer), Products::Half, BF16));
    }
    assert!(narrows(&channels(PIXELS, 512, 256), Products::Half, F32));
}

#[test]
fn what_is_added_stays_in_f32() {
    let sum = ConvShape { accumulate: true, ..SHAPE };
    assert_eq!([0, 1].map(|index| reads(&sum, Products::Half, index)), [F32, BF16]);
    assert_eq!(reads(&SHAPE, Products::Half, 0), BF16);
    assert_eq!(reads(&SHAPE, Products::Exact, 0), F32);
}
