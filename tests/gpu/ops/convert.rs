//! Rows as 16-bit floats.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::launch::Address;
use executor::backend::cuda::ops::convert::{Half, convert, half_row_stride};
use executor::weights::WeightView;
use protocol::StorageType;

use super::bench::{Bench, Random, floats_of};

/// What the 16-bit floats are, as the host reads them.
fn widened(storage: StorageType, bytes: &[u8]) -> Vec<f32> {
    WeightView { storage, shape: &[bytes.len() / 2], bytes, scale: 1.0 }.to_f32()
}

/// Inputs of these numbers of features, some of their rows unusual.
fn inputs(random: &mut Random, rows: usize, features: &[usize]) -> Vec<Vec<f32>> {
    let of = |&features: &usize| {
        let mut x = random.normals(rows * features);
        for (row, x) in x.chunks_exact_mut(features).enumerate() {
            match row % 7 {
                1 => x.fill(0.0),
                2 => x.iter_mut().for_each(|x| *x *= 1e37),
                3 => x.iter_mut().for_each(|x| *x *= 1e-41),
                4 => x[0] = -70_000.0,
                5 => x[features - 1] = f32::INFINITY,
                _ => {}
            }
        }
        x
    };
    features.iter().map(of).collect()
}

fn on_device(
    bench: &Bench,
    inputs: &[Vec<f32>],
    features: &[usize],
) -> (Vec<Buffer>, Vec<(Address, usize)>) {
    let buffers: Vec<Buffer> = inputs.iter().map(|x| bench.floats(x)).collect();
    let addresses = buffers.iter().map(Buffer::address).zip(features.iter().copied()).collect();
    (buffers, addresses)
}

/// The concatenation of the inputs' rows.
fn joined(inputs: &[Vec<f32>], features: &[usize], row: usize) -> Vec<f32> {
    let parts = inputs.iter().zip(features).map(|(x, &f)| &x[row * f..(row + 1) * f]);
    parts.flatten().copied().collect()
}

const SHAPES: [(usize, &[usize]); 7] = [
    (9, &[1]),
    (8, &[64]),
    (15, &[33, 4]),
    (7, &[512, 1024]),
    (8, &[3072, 8, 20]),
    (2, &[5, 7, 9, 11]),
    (7, &[17_000]),
];

#[test]
#[ignore = "needs a GPU or the simulator"]
fn binary16_with_a_factor_for_each_row() {
    let bench = Bench::new();
    let mut random = Random::new(8);
    for (rows, features) in SHAPES {
        let inputs = inputs(&mut random, rows, features);
        let (_kept, addresses) = on_device(&bench, &inputs, features);
        let width = features.iter().sum();
        let stride = half_row_stride(width);
        let (out, factors_at) = (bench.bytes(&vec![0xff; 2 * rows * stride]), bench.room(rows));
        let to = Half::F16 { factors: factors_at.address() };
        let bytes = bench.run_bytes(&out, |on| convert(on, out.address(), &addresses, rows, to));
        let factors = floats_of(&factors_at.read(&bench.stream).unwrap());
        let halves = widened(StorageType::F16, &bytes);
        for (row, found) in halves.chunks_exact(stride).enumerate() {
            let expected = joined(&inputs, features, row);
            let factor = factors[row];
            assert!(factor > 0.0 && factor.to_bits() & 0x007f_ffff == 0, "{factor} is no power");
            assert!(found[width..].iter().all(|&x| x.to_bits() == 0), "zeros behind row {row}");
            let largest = expected.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let scaled = largest / factor;
            let usual = largest.is_finite() && largest > 1e-37;
            let in_range = (8192.0..16384.0).contains(&scaled);
            assert!(!usual || in_range, "{features:?} row {row}: {largest} became {scaled}");
            for (&found, &x) in found.iter().zip(&expected) {
                // Half of a last place of binary16, which has 11 bits, and below its normal numbers
                // a unit of 2^-24.
                let target = f64::from(x) / f64::from(factor);
                let allowed = (target.abs() * 2f64.powi(-11)).max(2f64.powi(-25));
                let far = target.abs() > 65_519.0;
                let right = if far {
                    f64::from(found) == target.signum() * f64::INFINITY
                } else {
                    (f64::from(found) - target).abs() <= allowed
                };
                assert!(right, "{features:?} row {row}: {target} became {found}");
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn bfloat16() {
    let bench = Bench::new();
    let mut random = Random::new(9);
    for (rows, features) in SHAPES {
        let inputs = inputs(&mut random, rows, features);
        let (_kept, addresses) = on_device(&bench, &inputs, features);
        let width: usize = features.iter().sum();
        let stride = half_row_stride(width);
        let out = bench.bytes(&vec![0xff; 2 * rows * stride]);
        let bytes =
            bench.run_bytes(&out, |on| convert(on, out.address(), &addresses, rows, Half::BF16));
        let found = widened(StorageType::BF16, &bytes);
        for (row, found) in found.chunks_exact(stride).enumerate() {
            let mut expected = joined(&inputs, features, row);
            expected.resize(stride, 0.0);
            for (&found, &x) in found.iter().zip(&expected) {
                // To the nearest, of two the even one.
                let bits = x.to_bits();
                let rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
                assert_eq!(found.to_bits(), rounded, "{features:?} row {row}: {x} became {found}");
            }
        }
    }
}
