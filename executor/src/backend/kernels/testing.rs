//! What the kernels' tests share: random values, stored weights, comparison, and the rule that the
//! number of workers never changes a bit.

use half::{bf16, f16};
use protocol::StorageType;

use super::simd::Isa;
use super::workers::Workers;
use crate::weights::view::WeightView;

/// A small generator (xorshift), the same on every run.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// About normal: the sum of twelve uniform values, less six.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }

    pub(super) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// Values with a mean that a careless variance would drown in.
    pub(super) fn far_from_zero(&mut self, count: usize) -> Vec<f32> {
        self.normals(count).into_iter().map(|x| x + 10.0).collect()
    }
}

/// `row` to mean 0 and variance 1, in f64.
pub(super) fn normalised(row: &[f32], eps: f32) -> Vec<f64> {
    let count = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    row.iter().map(|&x| (f64::from(x) - mean) / (variance + f64::from(eps)).sqrt()).collect()
}

/// A weight with its bytes at an odd address, and the values that they stand for.
pub(super) struct Stored {
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
    storage: StorageType,
    bytes: Vec<u8>,
    skip: usize,
}

impl Stored {
    pub(super) fn new(storage: StorageType, shape: &[usize], values: Vec<f32>) -> Stored {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let mut bytes = vec![0; 2 + values.len() * storage.element_bytes()];
        let skip = 1 + bytes.as_ptr().addr() % 2;
        let mut stored = Vec::with_capacity(bytes.len());
        let mut rounded = Vec::with_capacity(values.len());
        for value in values {
            match storage {
                StorageType::F32 => {
                    stored.extend(value.to_le_bytes());
                    rounded.push(value);
                }
                StorageType::F16 => {
                    stored.extend(f16::from_f32(value).to_le_bytes());
                    rounded.push(f16::from_f32(value).to_f32());
                }
                StorageType::BF16 => {
                    stored.extend(bf16::from_f32(value).to_le_bytes());
                    rounded.push(bf16::from_f32(value).to_f32());
                }
                _ => unreachable!("kernels do not compute with it"),
            }
        }
        bytes[skip..skip + stored.len()].copy_from_slice(&stored);
        Stored { shape: shape.to_vec(), values: rounded, storage, bytes, skip }
    }

    /// Random numbers in blocks, with small scales, or in floats of eight bits. An element is about
    /// 1 at most.
    fn blocks(random: &mut Random, storage: StorageType, shape: &[usize]) -> Stored {
        let count: usize = shape.iter().product();
        let len = storage.bytes(count as u64).as_usize();
        let mut bytes = vec![0; 2 + len];
        let skip = 1 + bytes.as_ptr().addr() % 2;
        // Where a block's factors in f16 are, and how large they are.
        let (factors, size): (&[usize], f32) = match storage {
            StorageType::Q4_1 | StorageType::Q5_1 => (&[0, 2], 0.05),
            StorageType::Q4K | StorageType::Q5K => (&[0, 2], 0.002),
            StorageType::Q2K => (&[80, 82], 0.02),
            StorageType::Q3K => (&[108], 0.005),
            StorageType::Q6K => (&[208], 0.0005),
            StorageType::Q8_0 => (&[0], 0.01),
            StorageType::F8E4M3 | StorageType::F8E5M2 => (&[], 0.0),
            _ => (&[0], 0.05),
        };
        // Without the highest bit of the exponent they are below two.
        let kept = if storage.is_blocks() { 0xff } else { 0xbf };
        for block in bytes[skip..skip + len].chunks_exact_mut(storage.block_bytes() as usize) {
            block.iter_mut().for_each(|byte| *byte = random.next() as u8 & kept);
            for &at in factors {
                let factor = f16::from_f32(size * (0.5 + random.normal().abs()));
                block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
            }
        }
        let mut stored =
            Stored { shape: shape.to_vec(), values: vec![0.0; count], storage, bytes, skip };
        stored.values = stored.view().to_f32();
        stored
    }

    pub(super) fn random(random: &mut Random, storage: StorageType, shape: &[usize]) -> Stored {
        if storage.is_blocks() || matches!(storage, StorageType::F8E4M3 | StorageType::F8E5M2) {
            return Stored::blocks(random, storage, shape);
        }
        let values = random.normals(shape.iter().product());
        Stored::new(storage, shape, values)
    }

    /// The values that these stand for, rounded to bf16.
    pub(super) fn in_bf16(&self) -> Stored {
        Stored::new(StorageType::BF16, &self.shape, self.values.clone())
    }

    pub(super) fn view(&self) -> WeightView<'_> {
        let len = self.storage.bytes(self.values.len() as u64).as_usize();
        let bytes = &self.bytes[self.skip..self.skip + len];
        WeightView { storage: self.storage, shape: &self.shape, bytes, scale: 1.0 }
    }
}

/// Scratch as a kernel finds it: full of what must not matter.
pub(super) fn scratch(len: usize) -> Vec<f32> {
    vec![f32::NAN; len]
}

/// Runs `kernel` on every instruction set with 1, 2 and 3 workers. What it returns must be the same
/// bits for all worker counts.
pub(super) fn for_each_workers(kernel: impl Fn(&Workers) -> Vec<f32>) {
    for isa in Isa::available() {
        let results = [1, 2, 3].map(|count| kernel(&Workers::with_isa(count, isa).unwrap()));
        for result in &results[1..] {
            let same = result.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && result.len() == results[0].len(), "{isa}: workers change the result");
        }
    }
}

/// Each difference is at most `tolerance` times the root mean square of what is expected.
pub(super) fn assert_close(got: &[f32], expected: &[f64], tolerance: f64, name: &str) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let squares: f64 = expected.iter().map(|value| value * value).sum();
    let allowed = tolerance * (squares / expected.len() as f64).sqrt() + 1e-30;
    for (at, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= allowed, "{name}: [{at}] {got}, not {expected}: {error:e} > {allowed:e}");
    }
}
