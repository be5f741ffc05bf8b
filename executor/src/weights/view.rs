//! A weight as the kernels see it: bytes in their storage type, wherever they lie.

use half::{bf16, f16};
use protocol::StorageType;

use super::blocks::decode;
use super::float::{f32_of_bf16, f32_of_e4m3, f32_of_e5m2, f32_of_f16};

/// The most elements of a block (`QK_K` of `ggml-common.h`).
const BLOCK_ELEMENTS_MAX: usize = 256;

/// A borrowed weight. The bytes may lie in a file mapping or in a device's region, and are **not
/// necessarily aligned** for their type: safetensors packs tensors without gaps.
#[derive(Debug, Clone, Copy)]
pub struct WeightView<'a> {
    /// How the elements are stored.
    pub storage: StorageType,
    /// Dimensions as in the checkpoint, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian elements or blocks; as many as the shape says.
    pub bytes: &'a [u8],
    /// What every stored element is multiplied by: 1 unless the file has a scale beside the weight.
    pub scale: f32,
}

impl WeightView<'_> {
    /// All elements as f32. For small tensors that are inputs rather than weights; kernels widen
    /// what they need, a panel at a time.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.read(0, &mut values);
        values
    }

    /// The elements from `first` on as f32, as many as `values` takes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, first: usize, values: &mut [f32]) {
        if self.storage.is_blocks() {
            read_blocks(self.storage, self.bytes, first, values);
        } else {
            let size = self.storage.element_bytes();
            widen(self.storage, &self.bytes[first * size..][..values.len() * size], values);
        }
        scale(values, self.scale);
    }
}

/// Multiplies values by the scale of their weight.
#[inline(always)]
pub(crate) fn scale(values: &mut [f32], scale: f32) {
    if scale != 1.0 {
        values.iter_mut().for_each(|value| *value *= scale);
    }
}

/// Reads elements of a type without blocks, as many as `values` takes, as they are stored.
pub(super) fn widen(storage: StorageType, bytes: &[u8], values: &mut [f32]) {
    match storage {
        StorageType::F32 => read_each(bytes, values, f32::from_le_bytes),
        StorageType::F16 => read_each(bytes, values, |bits| f32_of_f16(u16::from_le_bytes(bits))),
        StorageType::BF16 => read_each(bytes, values, |bits| f32_of_bf16(u16::from_le_bytes(bits))),
        StorageType::F8E4M3 => read_each(bytes, values, |[bits]| f32_of_e4m3(bits)),
        StorageType::F8E5M2 => read_each(bytes, values, |[bits]| f32_of_e5m2(bits)),
        blocks => unreachable!("{blocks} has blocks"),
    }
}

/// Reads elements of a type of blocks from element `first` on, as many as `values` takes. `bytes`
/// begin with the block of element 0; first and last element may be anywhere in their blocks.
#[inline(always)]
pub(crate) fn read_blocks(storage: StorageType, bytes: &[u8], first: usize, values: &mut [f32]) {
    let elements = storage.block_elements() as usize;
    let size = storage.block_bytes() as usize;
    let (before, inside) = (first / elements, first % elements);
    let mut bytes = &bytes[before * size..];
    let mut values = values;
    if inside > 0 && !values.is_empty() {
        let (head, others) = values.split_at_mut(values.len().min(elements - inside));
        read_part(storage, &bytes[..size], inside, head);
        (bytes, values) = (&bytes[size..], others);
    }
    let (whole, tail) = values.split_at_mut(values.len() / elements * elements);
    let (whole_bytes, after) = bytes.split_at(whole.len() / elements * size);
    decode(storage, whole_bytes, whole);
    if !tail.is_empty() {
        read_part(storage, &after[..size], 0, tail);
    }
}

/// Some elements of one block.
#[inline(never)]
fn read_part(storage: StorageType, block: &[u8], first: usize, values: &mut [f32]) {
    let mut all = [0.0; BLOCK_ELEMENTS_MAX];
    let all = &mut all[..storage.block_elements() as usize];
    decode(storage, block, all);
    values.copy_from_slice(&all[first..first + values.len()]);
}

/// Stores values in a type, each rounded once, to the nearest, ties to even. `false` if any is not
/// finite as stored; all are stored all the same.
pub(super) fn narrow(storage: StorageType, values: &[f64], bytes: &mut [u8]) -> bool {
    match storage {
        StorageType::F32 => write_each(values, bytes, |value| {
            let stored = value as f32;
            (stored.to_le_bytes(), stored)
        }),
        StorageType::F16 => write_each(values, bytes, |value| {
            let stored = f16::from_f32(to_odd_f32(value));
            (stored.to_le_bytes(), stored.to_f32())
        }),
        StorageType::BF16 => write_each(values, bytes, |value| {
            let stored = bf16::from_f32(to_odd_f32(value));
            (stored.to_le_bytes(), stored.to_f32())
        }),
        _ => unreachable!("LoRA is written only into plain types"),
    }
}

/// A value as f32, cut off, with an odd last bit if anything was lost: rounding that again to a
/// shorter type is as good as rounding the value itself (Boldo and Melquiond, "Emulation of FMA and
/// correctly rounded sums", 2008).
fn to_odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value {
        return nearest;
    }
    let too_far = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(too_far)) | 1)
}

fn read_each<const N: usize>(bytes: &[u8], values: &mut [f32], widen: impl Fn([u8; N]) -> f32) {
    assert_eq!(bytes.len(), N * values.len());
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, &from)| *to = widen(from));
}

/// `narrow` gives the bytes, and the value that they stand for.
fn write_each<const N: usize>(
    values: &[f64],
    bytes: &mut [u8],
    narrow: impl Fn(f64) -> ([u8; N], f32),
) -> bool {
    assert_eq!(bytes.len(), N * values.len());
    let mut finite = true;
    for (to, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        let (stored, kept) = narrow(value);
        *to = stored;
        finite &= kept.is_finite();
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `value` is after being stored, and whether it was finite.
    fn stored(storage: StorageType, value: f64) -> (f32, bool) {
        let mut bytes = vec![0; storage.element_bytes()];
        let finite = narrow(storage, &[value], &mut bytes);
        (WeightView { storage, shape: &[1], bytes: &bytes, scale: 1.0 }.to_f32()[0], finite)
    }

    #[test]
    fn a_value_is_rounded_once() {
        use StorageType::{BF16, F16, F32};
        // Steps above 1 are 2⁻²³, 2⁻¹⁰ and 2⁻⁷. A value a little off the middle of two, by less
        // than f32 sees, is no tie.
        let little = 2_f64.powi(-40);
        for (storage, digits) in [(F32, 23), (F16, 10), (BF16, 7)] {
            let step = 2_f64.powi(-digits);
            let at = |steps: f64| 1.0 + steps * step;
            for (value, expected) in [
                (at(0.5), at(0.0)),
                (at(1.5), at(2.0)),
                (at(0.5) + little, at(1.0)),
                (at(1.5) - little, at(1.0)),
                (at(0.5) - little, at(0.0)),
                (at(3.0), at(3.0)),
            ] {
                assert_eq!(stored(storage, value), (expected as f32, true), "{value} as {storage}");
                assert_eq!(stored(storage, -value), (-expected as f32, true), "-{value}");
            }
        }
    }

    #[test]
    fn what_a_type_cannot_hold_is_noticed() {
        use StorageType::{BF16, F16, F32};
        for (storage, largest) in [(F32, f64::from(f32::MAX)), (F16, 65504.0), (BF16, 3.3895e38)] {
            assert!(stored(storage, largest).1, "{storage}");
            assert!(!stored(storage, largest * 1.01).1, "{storage}");
            assert!(!stored(storage, f64::NAN).1 && !stored(storage, f64::INFINITY).1);
            assert_eq!(stored(storage, 1e-300), (0.0, true));
        }
    }
}
