//! Values of 16 bits: what kernels read and write, as the host rounds it.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::driver::DriverError;
use executor::backend::cuda::launch::{Address, Launcher};
use executor::backend::cuda::ops::ValueAt;
use executor::graph::ElementType;
use executor::weights::WeightView;
use protocol::StorageType;

use super::bench::Bench;

/// Bits that no result has, in f32: what [`floats`] makes of elements all of whose bits are set.
pub const UNTOUCHED: u32 = u32::MAX;

/// Numbers as 16 bits: the nearest, of two the even one; of F16 the largest in place of a larger
/// one.
pub fn words(values: &[f32], element: ElementType) -> Vec<u16> {
    let round = match element {
        ElementType::F16 => f16_of,
        ElementType::BF16 => bf16_of,
        ElementType::F32 | ElementType::I32 => panic!("{element:?} has 32 bits"),
    };
    values.iter().map(|&value| round(value)).collect()
}

/// The number that an element holds of one.
pub fn rounded(value: f32, element: ElementType) -> f32 {
    if element.bytes() == 4 {
        return value;
    }
    let [word] = words(&[value], element)[..] else { unreachable!("one number is one word") };
    floats(&word.to_le_bytes(), element)[0]
}

/// Numbers as bf16, rounded.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    words(values, ElementType::BF16).into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Elements as f32.
pub fn floats(bytes: &[u8], element: ElementType) -> Vec<f32> {
    let storage = match element {
        ElementType::F32 | ElementType::I32 => StorageType::F32,
        ElementType::F16 => StorageType::F16,
        ElementType::BF16 => StorageType::BF16,
    };
    let width = element.bytes() as usize;
    let view = WeightView { storage, shape: &[bytes.len() / width], bytes, scale: 1.0 };
    let untouched = |element: &[u8]| element.iter().all(|&byte| byte == 0xff);
    let elements = bytes.chunks_exact(width).zip(view.to_f32());
    elements.map(|(e, x)| if untouched(e) { f32::from_bits(UNTOUCHED) } else { x }).collect()
}

pub fn f16_of(value: f32) -> u16 {
    let size = f64::from(value.abs().min(65504.0));
    // Below the least normal number the distance between two neighbours stays.
    let exponent = (size.log2().floor() as i32).max(-14);
    let steps = (size / f64::from(exponent - 10).exp2()).round_ties_even() as i32;
    let bits = ((exponent + 15) << 10) + steps - 1024;
    bits as u16 | if value.is_sign_negative() { 0x8000 } else { 0 }
}

fn bf16_of(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Numbers of 16 bits in the GPU's memory.
pub fn shorts(bench: &Bench, values: &[u16]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.bytes(&bytes)
}

/// What an operation writes to so many elements of 16 bits. What lies behind them has to stay.
#[track_caller]
pub fn run_short(
    bench: &Bench,
    elements: usize,
    element: ElementType,
    operation: impl FnOnce(&Launcher<'_>, ValueAt) -> Result<(), DriverError>,
) -> Vec<u16> {
    const BEHIND: [u8; 64] = [0xff; 64];
    let room = [&vec![0xff; 2 * elements][..], &BEHIND].concat();
    let out = bench.bytes(&room);
    let bytes =
        bench.run_bytes(&out, |on| operation(on, ValueAt { address: out.address(), element }));
    let (written, behind) = bytes.split_at(2 * elements);
    assert_eq!(behind, BEHIND, "behind the result");
    written.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// Asserts that the words are what the numbers are rounded to.
#[track_caller]
pub fn assert_rounded(found: &[u16], expected: &[f32], element: ElementType, name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let words = words(expected, element);
    for (at, (found, word)) in found.iter().zip(words).enumerate() {
        let number = expected[at];
        assert!(
            *found == word,
            "{name} {element:?}: [{at}] is {found:#x}, not {word:#x}: {number}"
        );
    }
}

/// What an operation on numbers makes of `x`, as [`Bench::run_both_ways`] tells it; and of 16 bits
/// it makes the same, rounded.
#[track_caller]
pub fn run_in_all(
    bench: &Bench,
    x: &[f32],
    operation: impl Fn(&Launcher<'_>, ValueAt, Address) -> Result<(), DriverError>,
) -> Vec<f32> {
    let in_f32 = |on: &Launcher<'_>, address, x| {
        operation(on, ValueAt { address, element: ElementType::F32 }, x)
    };
    let found = bench.run_both_ways(x, in_f32);
    let input = bench.floats(x);
    for element in [ElementType::F16, ElementType::BF16] {
        let short =
            run_short(bench, x.len(), element, |on, out| operation(on, out, input.address()));
        assert_rounded(&short, &found, element, "beside f32");
    }
    found
}

#[test]
fn numbers_are_rounded_to_the_even_one() {
    let halves =
        [0.0, -1.0, 1.0 + 0.5 / 1024.0, 1.0 + 1.5 / 1024.0, 65519.0, -1e30, 2047.5, 65504.0];
    let expected = [0, 0xbc00, 0x3c00, 0x3c02, 0x7bff, 0xfbff, 0x6800, 0x7bff];
    assert_eq!(words(&halves, ElementType::F16), expected);
    // Below the least normal number, 2^-14.
    let unit = (-24f32).exp2();
    let small = [unit, -2.5 * unit, 1023.5 * unit, 0.5 * unit, 1024.0 * unit];
    assert_eq!(words(&small, ElementType::F16), [1, 0x8002, 0x400, 0, 0x400]);
    let wide = [1.0, 1.0 + 0.5 / 128.0, 1.0 + 1.5 / 128.0, -3e38];
    assert_eq!(words(&wide, ElementType::BF16), [0x3f80, 0x3f80, 0x3f82, 0xff62]);
}
