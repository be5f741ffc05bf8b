//! A GPU with a stream to run single operations on, random operands, and comparison.

use std::sync::Arc;

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::driver::{Driver, DriverError};
use executor::backend::cuda::gpu::{self, Gpu};
use executor::backend::cuda::kernels::Kernels;
use executor::backend::cuda::launch::{Address, Launcher, StoredWeight};
use executor::backend::cuda::stream::Stream;
use executor::backend::kernels::Workers;
use executor::weights::WeightView;
use protocol::StorageType;

use super::elements::f16_of;

/// The first GPU of the machine.
pub struct Bench {
    pub stream: Stream,
    kernels: Arc<Kernels>,
    library: bool,
    tall_attention: bool,
    bytes: bool,
    /// Of the host, to compare with.
    pub workers: Workers,
}

impl Bench {
    /// All is computed by kernels of our own.
    pub fn new() -> Bench {
        let driver = Driver::get().unwrap_or_else(|why| panic!("{why}"));
        let first = &gpu::list(driver).expect("the driver lists its GPUs")[0];
        let gpu = Gpu::open(driver, first).expect("the GPU can be used");
        let kernels = Arc::clone(gpu.kernels());
        let stream = Stream::new(&gpu, "compute", None).expect("a stream");
        let workers = Workers::new(1).expect("a thread");
        Bench { stream, kernels, library: false, tall_attention: false, bytes: false, workers }
    }

    /// Attention takes its largest blocks however small it is, where the GPU has room for them.
    pub fn with_tall_attention() -> Bench {
        Bench { tall_attention: true, ..Bench::new() }
    }

    /// Products are cuBLASLt's where it computes them.
    pub fn with_library() -> Bench {
        Bench { library: true, ..Bench::new() }
    }

    /// Quantised weights are multiplied as bytes whatever the GPU is.
    pub fn with_bytes() -> Bench {
        Bench { bytes: true, ..Bench::new() }
    }

    pub fn launcher(&self) -> Launcher<'_> {
        let launcher = Launcher::new(&self.stream, &self.kernels);
        let launcher = if self.library { launcher } else { launcher.with_own_kernels() };
        let launcher = if self.bytes { launcher.with_bytes() } else { launcher };
        if self.tall_attention { launcher.with_tall_attention() } else { launcher }
    }

    pub fn bytes(&self, bytes: &[u8]) -> Buffer {
        Buffer::of(&self.stream, bytes).expect("memory for an operand")
    }

    pub fn floats(&self, values: &[f32]) -> Buffer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    /// Room for so many f32, full of what must not stay.
    pub fn room(&self, elements: usize) -> Buffer {
        self.bytes(&vec![0xff; 4 * elements])
    }

    pub fn stored(&self, weight: &Stored) -> (Buffer, StoredWeight) {
        let buffer = self.bytes(&weight.bytes);
        let address = buffer.address();
        (buffer, StoredWeight { address, storage: weight.storage, scale: weight.scale })
    }

    /// Hands out an operation, and reads a buffer when it is done.
    pub fn run(
        &self,
        result: &Buffer,
        operation: impl FnOnce(&Launcher<'_>) -> Result<(), DriverError>,
    ) -> Vec<f32> {
        floats_of(&self.run_bytes(result, operation))
    }

    /// As [`Bench::run`], for results that are no f32.
    pub fn run_bytes(
        &self,
        result: &Buffer,
        operation: impl FnOnce(&Launcher<'_>) -> Result<(), DriverError>,
    ) -> Vec<u8> {
        operation(&self.launcher()).expect("a launch");
        result.read(&self.stream).expect("the kernels run")
    }

    /// What an operation makes of `x`: `operation(launcher, out, x)` writes as many elements beside
    /// it, then once more in its place. Both must be the same bits.
    pub fn run_both_ways(
        &self,
        x: &[f32],
        operation: impl Fn(&Launcher<'_>, Address, Address) -> Result<(), DriverError>,
    ) -> Vec<f32> {
        let (input, out) = (self.floats(x), self.room(x.len()));
        let beside = self.run(&out, |on| operation(on, out.address(), input.address()));
        let in_place = self.run(&input, |on| operation(on, input.address(), input.address()));
        assert_same(&in_place, &beside, "in place");
        beside
    }
}

pub fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// A small generator (xorshift), the same on every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// About normal: the sum of twelve uniform values, less six.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }

    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// Values with a mean that a careless variance would drown in.
    pub fn far_from_zero(&mut self, count: usize) -> Vec<f32> {
        self.normals(count).into_iter().map(|x| x + 10.0).collect()
    }
}

/// A weight in bytes, of numbers that are not large.
pub struct Stored {
    pub storage: StorageType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
    pub scale: f32,
}

impl Stored {
    pub fn random(random: &mut Random, storage: StorageType, shape: &[usize]) -> Stored {
        let elements: usize = shape.iter().product();
        let mut bytes: Vec<u8> = match storage {
            StorageType::F32 => {
                random.normals(elements).iter().flat_map(|x| x.to_le_bytes()).collect()
            }
            StorageType::BF16 => {
                let upper = |x: &f32| (x.to_bits() >> 16) as u16;
                random.normals(elements).iter().flat_map(|x| upper(x).to_le_bytes()).collect()
            }
            _ => {
                let length = storage.bytes(elements as u64).as_usize();
                (0..length).map(|_| random.next() as u8).collect()
            }
        };
        // Exponents near that of 1, in what is otherwise random.
        match storage {
            StorageType::F16 => set_f16(random, &mut bytes, 2, &[0], 14),
            // Without the exponent's highest bit they are below two.
            StorageType::F8E4M3 | StorageType::F8E5M2 => {
                bytes.iter_mut().for_each(|byte| *byte &= 0xbf);
            }
            _ if storage.is_blocks() => {
                let factors: &[usize] = match storage {
                    StorageType::Q4_1 | StorageType::Q5_1 | StorageType::Q4K | StorageType::Q5K => {
                        &[0, 2]
                    }
                    StorageType::Q2K => &[80, 82],
                    StorageType::Q3K => &[108],
                    StorageType::Q6K => &[208],
                    _ => &[0],
                };
                set_f16(random, &mut bytes, storage.block_bytes() as usize, factors, 6);
            }
            _ => {}
        }
        let scale = if storage.is_blocks() { 1.0 } else { 0.75 };
        Stored { storage, shape: shape.to_vec(), bytes, scale }
    }

    /// The same as the bytes that are multiplied in its place: itself, or, where its numbers are
    /// not whole ones times a factor for each 32, rounded ones, as `decode_bytes.cu` says.
    pub fn as_bytes(&self) -> Stored {
        /// Brings factors into f16's range: they are told times this, and the whole over it.
        const UNIT: f32 = 1024.0;
        /// Of an f32's mantissa, all but the 11 bits of an f16's.
        const LOWER_BITS: u32 = (1 << 13) - 1;
        let kept = [StorageType::Q8_0, StorageType::Q4_0, StorageType::Q5_0];
        if !self.storage.is_blocks() || kept.contains(&self.storage) {
            return self.copy();
        }
        let mut bytes = Vec::new();
        for block in self.view().to_f32().as_chunks::<32>().0 {
            let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let above = (largest / 127.0).to_bits() + LOWER_BITS;
            let factor = f32::from_bits(above & !LOWER_BITS);
            bytes.extend(f16_of(factor * UNIT).to_le_bytes());
            let inverse = if factor > 0.0 { 1.0 / factor } else { 0.0 };
            bytes.extend(block.map(|x| (x * inverse).round_ties_even() as i8 as u8));
        }
        Stored { storage: StorageType::Q8_0, shape: self.shape.clone(), bytes, scale: 1.0 / UNIT }
    }

    pub fn copy(&self) -> Stored {
        let Stored { storage, shape, bytes, scale } = self;
        Stored { storage: *storage, shape: shape.clone(), bytes: bytes.clone(), scale: *scale }
    }

    pub fn view(&self) -> WeightView<'_> {
        let Stored { storage, shape, bytes, scale } = self;
        WeightView { storage: *storage, shape, bytes, scale: *scale }
    }
}

/// Gives the f16 at these places of each block a biased exponent of `exponent` or one more.
fn set_f16(random: &mut Random, bytes: &mut [u8], block: usize, places: &[usize], exponent: u16) {
    for block in bytes.chunks_exact_mut(block) {
        for &at in places {
            let bits = random.next() as u16 & 0x83ff | (exponent + random.next() as u16 % 2) << 10;
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    }
}

/// Asserts equality to the bit; one that is no number is as good as another.
#[track_caller]
pub fn assert_same(found: &[f32], expected: &[f32], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{name}: element {at} is {found}, not {expected}");
    }
}

/// Each difference is at most `tolerance` times the root mean square of what is expected.
#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32], tolerance: f64, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let squares: f64 = expected.iter().map(|&value| f64::from(value).powi(2)).sum();
    let allowed = tolerance * (squares / expected.len() as f64).sqrt() + 1e-30;
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(
            error <= allowed,
            "{name}: [{at}] is {found}, not {expected}: {error:e} > {allowed:e}"
        );
    }
}
