//! Attention, convolution and what lies between products, at sizes of FLUX.1.

use executor::backend::kernels::{
    AttentionShape, ConvShape, GroupNormShape, Modulation, Workers, activate, ada_layer_norm,
    attention, attention_scratch_len, bf16_conv2d, conv2d, conv2d_scratch_len, group_norm,
    group_norm_scratch_len, rms_norm, rope,
};
use executor::graph::Activation;
use executor::weights::view::WeightView;
use protocol::StorageType;
use protocol::StorageType::{BF16, F32};

use super::{Options, values};

/// Measures the cases that the options want.
pub fn measure(options: &Options, workers: &Workers) {
    for (name, make) in CASES.into_iter().filter(|(name, _)| options.wants(name)) {
        let (operations, mut run) = make();
        options.measure(name, operations, || run(workers));
    }
}

/// The operations of a kernel, 0 where they are not its measure, and the kernel with operands of
/// its own.
type Case = (f64, Box<dyn FnMut(&Workers)>);

/// A name, and what makes the case.
type Entry = (&'static str, fn() -> Case);

const CASES: [Entry; 18] = [
    ("attention 1536 tokens, 24 heads of 128", || attend(F32, 24, 1536, 128, false)),
    ("attention 4096 tokens, 24 heads of 128", || attend(F32, 24, 4096, 128, false)),
    ("attention 4096 tokens, 1 head of 512", || attend(F32, 1, 4096, 512, false)),
    ("attention 512 tokens, 64 heads of 64", || attend(F32, 64, 512, 64, false)),
    ("attention 77 tokens, 12 heads of 64, causal", || attend(F32, 12, 77, 64, true)),
    ("attention bf16 1536 tokens, 24 heads of 128", || attend(BF16, 24, 1536, 128, false)),
    ("attention bf16 4096 tokens, 1 head of 512", || attend(BF16, 1, 4096, 512, false)),
    ("conv 3x3 128 channels 256x256", || convolve(F32, 128, 128, 256, 3, 1)),
    ("conv 3x3 512 channels 64x64", || convolve(F32, 512, 512, 64, 3, 1)),
    ("conv 3x3 256 channels 64x64, enlarged", || convolve(F32, 256, 256, 64, 3, 2)),
    ("conv bf16 3x3 128 channels 256x256", || convolve(BF16, 128, 128, 256, 3, 1)),
    ("conv bf16 3x3 512 channels 64x64", || convolve(BF16, 512, 512, 64, 3, 1)),
    ("conv 1x1 256 to 128 channels 256x256", || convolve(F32, 256, 128, 256, 1, 1)),
    ("group norm and silu 128 channels 256x256", group),
    ("ada layer norm 1536 x 3072", || rows(Rows::Ada)),
    ("rms norm 1536 x 24 heads of 128", || rows(Rows::Rms)),
    ("rope 1536 x 24 heads of 128", || rows(Rows::Rope)),
    ("gelu 1536 x 3072", || rows(Rows::Gelu)),
];

fn stored(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The upper half of each value.
fn in_bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn attend(
    storage: StorageType,
    heads: usize,
    tokens: usize,
    head_dim: usize,
    causal: bool,
) -> Case {
    let shape = AttentionShape {
        batch: 1,
        query_tokens: tokens,
        key_tokens: tokens,
        heads,
        kv_heads: heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        causal,
        query_chunk: protocol::plan::ATTENTION_CHUNK as usize,
        rounds: storage == BF16,
    };
    let x = values(tokens * heads * head_dim);
    let (mut out, mut scratch) = (vec![0.0; x.len()], Vec::new());
    let operations = 4.0 * (heads * tokens * tokens * head_dim) as f64;
    let run = move |workers: &Workers| {
        scratch.resize(attention_scratch_len(&shape, workers.count()), 0.0);
        attention(workers, &shape, &x, &x, &x, None, &mut out, &mut scratch);
    };
    (if causal { operations / 2.0 } else { operations }, Box::new(run))
}

fn convolve(
    storage: StorageType,
    in_channels: usize,
    out_channels: usize,
    side: usize,
    kernel: usize,
    upsample: usize,
) -> Case {
    let pad = kernel / 2;
    let shape = ConvShape {
        batch: 1,
        height: side,
        width: side,
        in_channels,
        out_channels,
        kernel_height: kernel,
        kernel_width: kernel,
        stride: 1,
        pad_top: pad,
        pad_left: pad,
        pad_bottom: pad,
        pad_right: pad,
        upsample,
        norm: None,
        accumulate: false,
    };
    let weight = values(kernel * kernel * in_channels * out_channels);
    let weight = if storage == BF16 { in_bf16(&weight) } else { stored(&weight) };
    let bias = stored(&values(out_channels));
    let x = values(side * side * in_channels);
    let mut out = vec![0.0; shape.output_height() * shape.output_width() * out_channels];
    let mut scratch = Vec::new();
    let operations = 2.0 * (out.len() * kernel * kernel * in_channels) as f64;
    let run = move |workers: &Workers| {
        let kernel_in = if storage == BF16 { bf16_conv2d } else { conv2d };
        let dimensions = [out_channels, in_channels, kernel, kernel];
        let weight = WeightView { storage, shape: &dimensions, bytes: &weight, scale: 1.0 };
        let bias = WeightView { storage: F32, shape: &dimensions[..1], bytes: &bias, scale: 1.0 };
        scratch.resize(conv2d_scratch_len(&shape, workers.count()), 0.0);
        kernel_in(workers, &shape, &x, None, weight, Some(bias), &mut out, &mut scratch);
    };
    (operations, Box::new(run))
}

fn group() -> Case {
    let channels = 128;
    let shape = GroupNormShape { batch: 1, pixels: 256 * 256, channels, groups: 32, eps: 1e-6 };
    let weight = stored(&values(channels));
    let mut x = values(shape.pixels * channels);
    let mut scratch = vec![0.0; group_norm_scratch_len(&shape)];
    let run = move |workers: &Workers| {
        let weight =
            WeightView { storage: StorageType::F32, shape: &[128], bytes: &weight, scale: 1.0 };
        group_norm(workers, &mut x, &shape, weight, weight, true, &mut scratch);
    };
    (0.0, Box::new(run))
}

#[derive(Clone, Copy)]
enum Rows {
    Ada,
    Rms,
    Rope,
    Gelu,
}

fn rows(kind: Rows) -> Case {
    let (tokens, heads, head_dim) = (1536, 24, 128);
    let features = heads * head_dim;
    let mut x = values(tokens * features);
    let modulation = values(3 * features);
    let table = values(tokens * head_dim);
    let weight = stored(&values(head_dim));
    let run = move |workers: &Workers| match kind {
        Rows::Ada => {
            let modulation = Modulation { values: &modulation, batch: 1, features };
            ada_layer_norm(workers, &mut x, modulation, 0, 1, 1e-6);
        }
        Rows::Rms => {
            let weight =
                WeightView { storage: StorageType::F32, shape: &[128], bytes: &weight, scale: 1.0 };
            rms_norm(workers, &mut x, head_dim, 1e-6, weight);
        }
        Rows::Rope => rope(workers, &mut x, &table, tokens, heads, head_dim),
        Rows::Gelu => activate(workers, &mut x, Activation::GeluTanh),
    };
    (0.0, Box::new(run))
}
