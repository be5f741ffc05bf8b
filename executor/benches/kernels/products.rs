//! Products of activations with weights of each type, and `gemm`'s.

use std::hint::black_box;

use executor::backend::kernels::{
    Columns, LinearShape, Workers, bf16_linear, integer_linear, integer_linear_scratch_len, linear,
    linear_scratch_len,
};
use executor::graph::Activation;
use executor::weights::view::WeightView;
use gemm_common::Parallelism;
use half::{bf16, f16};
use protocol::StorageType;

use super::{Options, values};

/// Rows, features in, features out: linear layers of FLUX.1 at 256 and 512 pixels, both ways
/// through its MLP, and a modulation.
const SHAPES: [[usize; 3]; 4] =
    [[512, 3072, 3072], [1024, 3072, 12288], [1024, 12288, 3072], [1, 3072, 18432]];

/// Types that are measured; those without integer products are decoded.
const STORAGES: [StorageType; 14] = [
    StorageType::F32,
    StorageType::F16,
    StorageType::BF16,
    StorageType::F8E4M3,
    StorageType::Q8_0,
    StorageType::Q4_0,
    StorageType::Q4_1,
    StorageType::Q5_0,
    StorageType::Q5_1,
    StorageType::Q2K,
    StorageType::Q3K,
    StorageType::Q4K,
    StorageType::Q5K,
    StorageType::Q6K,
];

/// Measures what the options want: `TYPE ROWSxINxOUT`, `TYPE-exact` where activations are not to be
/// rounded, and `gemm`.
pub fn measure(options: &Options, workers: &Workers) {
    let shapes = if options.shapes.is_empty() { &SHAPES[..] } else { &options.shapes };
    for &shape @ [rows, k, n] in shapes {
        let name = |what: &str| format!("{what} {rows}x{k}x{n}");
        if options.wants(&name("gemm")) {
            measure_gemm(options, &name("gemm"), shape);
        }
        for storage in STORAGES {
            if options.wants(&name(storage.name())) {
                measure_linear(options, workers, &name(storage.name()), storage, false, shape);
            }
            let exact = name(&format!("{storage}-exact"));
            if storage.has_rounded_products() && options.wants(&exact) {
                measure_linear(options, workers, &exact, storage, true, shape);
            }
        }
    }
}

fn operations([rows, k, n]: [usize; 3]) -> f64 {
    2.0 * (rows * k * n) as f64
}

/// Stored weights. Blocks hold arbitrary numbers, with scales that keep values small.
fn bytes(storage: StorageType, elements: usize) -> Vec<u8> {
    match storage {
        StorageType::F32 => values(elements).iter().flat_map(|v| v.to_le_bytes()).collect(),
        StorageType::F16 => {
            values(elements).iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
        }
        StorageType::BF16 => {
            values(elements).iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
        }
        StorageType::F8E4M3 => {
            // Without the highest bit of the exponent: below two.
            (0..elements).map(|i| ((i * 2_654_435_761) >> 7) as u8 & 0xbf).collect()
        }
        _ => {
            let len = storage.bytes(elements as u64).as_usize();
            let mut bytes: Vec<u8> = (0..len).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
            let block = storage.block_bytes() as usize;
            let scales: &[usize] = match storage {
                StorageType::Q4_1 | StorageType::Q5_1 | StorageType::Q4K | StorageType::Q5K => {
                    &[0, 2]
                }
                StorageType::Q2K => &[80, 82],
                StorageType::Q3K => &[108],
                StorageType::Q6K => &[208],
                _ => &[0],
            };
            for block in bytes.chunks_exact_mut(block) {
                for &at in scales {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
                }
            }
            bytes
        }
    }
}

fn measure_linear(
    options: &Options,
    workers: &Workers,
    name: &str,
    storage: StorageType,
    exact: bool,
    shape @ [rows, k, n]: [usize; 3],
) {
    let weight = bytes(storage, n * k);
    let weight = WeightView { storage, shape: &[n, k], bytes: &weight, scale: 1.0 };
    let (x, mut out) = (values(rows * k), vec![0.0; rows * n]);
    let sizes = LinearShape { rows, in_features: &[k], out_features: n };
    let integer = storage.has_integer_products() && !exact;
    let len = if integer {
        integer_linear_scratch_len(&sizes, storage, workers.count())
    } else {
        linear_scratch_len(&sizes, workers.count())
    };
    let mut scratch = vec![0.0; len];
    let kernel = match storage {
        _ if integer => integer_linear,
        StorageType::BF16 if !exact => bf16_linear,
        _ => linear,
    };
    options.measure(name, operations(shape), || {
        let (all, none) = (Columns::all(n), Activation::None);
        kernel(workers, &[&x], weight, None, none, &mut out, all, &mut scratch);
        black_box(&mut out);
    });
}

fn measure_gemm(options: &Options, name: &str, shape @ [rows, k, n]: [usize; 3]) {
    let (x, weight, mut out) = (values(rows * k), values(n * k), vec![0.0f32; rows * n]);
    let parallelism =
        if options.threads > 1 { Parallelism::Rayon(options.threads) } else { Parallelism::None };
    options.measure(name, operations(shape), || {
        // SAFETY: the operands are as long as their sizes and strides say, and `out` overlaps
        // neither.
        unsafe {
            gemm_f32::gemm::f32::get_gemm_fn()(
                rows,
                n,
                k,
                out.as_mut_ptr(),
                1,
                n as isize,
                false,
                x.as_ptr(),
                1,
                k as isize,
                weight.as_ptr(),
                k as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
        black_box(&mut out);
    });
}
