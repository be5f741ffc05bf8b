//! Rates of the host's kernels at sizes of FLUX.1, for each instruction set of this machine, as ratios to the
//! portable form within one run.
//!
//! `cargo run --release -p executor --example kernels [WORKERS [NAME]]`: with `NAME`, the cases whose name
//! contains it.

use std::error::Error;
use std::time::Instant;

use executor::backend::kernels::{
    AttentionShape, Columns, ConvShape, Isa, LinearShape, Workers, attention,
    attention_scratch_len, conv2d, conv2d_scratch_len, linear, linear_scratch_len,
};
use executor::graph::Activation;
use executor::weights::view::WeightView;
use protocol::StorageType;

/// Runs of each case; the fastest counts, as the others were disturbed.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let workers = std::env::args().nth(1).map_or(Ok(1), |count| count.parse())?;
    let wanted = std::env::args().nth(2).unwrap_or_default();
    let isas: Vec<Isa> = Isa::available().collect();
    println!("{:34} {:>10} {:>9} {:>9}", "case", "set", "GFLOP/s", "ratio");
    for (name, case) in CASES.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let mut rates = Vec::new();
        for &isa in &isas {
            rates.push((isa, case(&Workers::with_isa(workers, isa)?)));
        }
        let slowest = rates.iter().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        for (isa, rate) in rates {
            println!("{name:34} {:>10} {rate:>9.1} {:>9.2}", isa.to_string(), rate / slowest);
        }
    }
    Ok(())
}

/// A case's name, and its rate in GFLOP/s.
type Case = (&'static str, fn(&Workers) -> f64);

const CASES: [Case; 6] = [
    ("linear 512x3072x3072, f32", |workers| linear_rate(workers, StorageType::F32)),
    ("linear 512x3072x3072, bf16", |workers| linear_rate(workers, StorageType::BF16)),
    ("attention 24 heads x 1536 x 128", |workers| attention_rate(workers, 24, 1536, 128)),
    ("attention 24 heads x 4096 x 128", |workers| attention_rate(workers, 24, 4096, 128)),
    ("attention 1 head x 4096 x 512", |workers| attention_rate(workers, 1, 4096, 512)),
    ("conv 3x3, 128 channels, 128x128", conv_rate),
];

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1999) as f32 / 1999.0 - 0.5).collect()
}

fn bytes(storage: StorageType, values: &[f32]) -> Vec<u8> {
    match storage {
        StorageType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        StorageType::F16 => {
            values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
        }
        StorageType::BF16 => {
            values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
        }
        _ => unreachable!("it is not measured"),
    }
}

fn rate(flops: f64, mut run: impl FnMut()) -> f64 {
    let seconds = (0..=RUNS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    flops / 1e9 / seconds.skip(1).fold(f64::INFINITY, f64::min)
}

fn linear_rate(workers: &Workers, storage: StorageType) -> f64 {
    let (rows, size) = (512, 3072);
    let weight = bytes(storage, &values(size * size));
    let weight = WeightView { storage, shape: &[size, size], bytes: &weight, scale: 1.0 };
    let x = values(rows * size);
    let mut out = vec![0.0; rows * size];
    let shape = LinearShape { rows, in_features: &[size], out_features: size };
    let mut scratch = vec![0.0; linear_scratch_len(&shape, workers.count())];
    rate(2.0 * (rows * size * size) as f64, || {
        let all = Columns::all(size);
        linear(workers, &[&x], weight, None, Activation::None, &mut out, all, &mut scratch);
    })
}

fn attention_rate(workers: &Workers, heads: usize, tokens: usize, head_dim: usize) -> f64 {
    let shape = AttentionShape {
        batch: 1,
        query_tokens: tokens,
        key_tokens: tokens,
        heads,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        causal: false,
        query_chunk: protocol::plan::ATTENTION_CHUNK as usize,
    };
    let x = values(tokens * heads * head_dim);
    let mut out = vec![0.0; x.len()];
    let mut scratch = vec![0.0; attention_scratch_len(&shape, workers.count())];
    rate(4.0 * (heads * tokens * tokens * head_dim) as f64, || {
        attention(workers, &shape, &x, &x, &x, None, &mut out, &mut scratch);
    })
}

fn conv_rate(workers: &Workers) -> f64 {
    let (side, channels) = (128, 128);
    let shape = ConvShape {
        batch: 1,
        height: side,
        width: side,
        in_channels: channels,
        out_channels: channels,
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
    let storage = StorageType::BF16;
    let weight = bytes(storage, &values(9 * channels * channels));
    let weight =
        WeightView { storage, shape: &[channels, channels, 3, 3], bytes: &weight, scale: 1.0 };
    let x = values(side * side * channels);
    let mut out = vec![0.0; x.len()];
    let mut scratch = vec![0.0; conv2d_scratch_len(&shape, workers.count())];
    rate(2.0 * (9 * side * side * channels * channels) as f64, || {
        conv2d(workers, &shape, &x, None, weight, None, &mut out, &mut scratch);
    })
}
