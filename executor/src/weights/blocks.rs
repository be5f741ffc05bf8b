//! The blocks of ggml's types as f32, exactly the values that `ggml-quants.c` gives them.
//!
//! Not here: products of blocks, and reading from the middle of one (that is `view`).

mod iq;
mod k;
mod simple;

use protocol::StorageType;

use super::float::f32_of_f16;

/// Decodes whole blocks of `storage`, as many as `values` takes. Compiled into its caller, and so
/// for the instructions that the caller has.
///
/// # Panics
/// If `values` is no whole number of blocks, `bytes` has another length than they take, or the type
/// has none.
#[inline(always)]
pub fn decode(storage: StorageType, bytes: &[u8], values: &mut [f32]) {
    assert_eq!(bytes.len() as u64, storage.bytes(values.len() as u64).0);
    match storage {
        StorageType::Q8_0 => each(bytes, values, simple::q8_0),
        StorageType::Q4_0 => each(bytes, values, simple::q4_0),
        StorageType::Q4_1 => each(bytes, values, simple::q4_1),
        StorageType::Q5_0 => each(bytes, values, simple::q5_0),
        StorageType::Q5_1 => each(bytes, values, simple::q5_1),
        StorageType::Q2K => each(bytes, values, k::q2),
        StorageType::Q3K => each(bytes, values, k::q3),
        StorageType::Q4K => each(bytes, values, k::q4),
        StorageType::Q5K => each(bytes, values, k::q5),
        StorageType::Q6K => each(bytes, values, k::q6),
        StorageType::IQ1S => each(bytes, values, iq::iq1_s),
        StorageType::IQ2XXS => each(bytes, values, iq::iq2_xxs),
        StorageType::IQ2XS => each(bytes, values, iq::iq2_xs),
        StorageType::IQ2S => each(bytes, values, iq::iq2_s),
        StorageType::IQ3XXS => each(bytes, values, iq::iq3_xxs),
        StorageType::IQ3S => each(bytes, values, iq::iq3_s),
        StorageType::IQ4NL => each(bytes, values, iq::iq4_nl),
        StorageType::IQ4XS => each(bytes, values, iq::iq4_xs),
        StorageType::F32
        | StorageType::F16
        | StorageType::BF16
        | StorageType::F8E4M3
        | StorageType::F8E5M2 => panic!("{storage} has no blocks"),
    }
}

/// Decodes blocks of `BYTES` bytes into `ELEMENTS` numbers each.
#[inline(always)]
fn each<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    values: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let blocks = bytes.as_chunks().0.iter();
    blocks.zip(values.as_chunks_mut().0).for_each(|(block, values)| decode(block, values));
}

/// The f16 at byte `at`: the factors of a block are such.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f32_of_f16(u16_at(block, at))
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[cfg(test)]
mod tests;
