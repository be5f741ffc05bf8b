//! A weight as the kernels see it: bytes in their storage type, wherever they lie.

use protocol::StorageType;

/// A borrowed weight. The bytes may lie in a file mapping or in a device's region, and are **not
/// necessarily aligned** for their type: safetensors packs tensors without gaps.
#[derive(Debug, Clone, Copy)]
pub struct WeightView<'a> {
    /// How each element is stored.
    pub storage: StorageType,
    /// Dimensions as in the checkpoint, outermost first.
    pub shape: &'a [usize],
    /// Row-major, little-endian elements; as many as the shape says.
    pub bytes: &'a [u8],
}

impl WeightView<'_> {
    /// All elements as f32. For small tensors that are inputs rather than weights; kernels widen what
    /// they need, a panel at a time.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.storage {
            StorageType::F32 => {
                let element =
                    |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                self.bytes.chunks_exact(4).map(element).collect()
            }
            StorageType::F16 => self.halves(|bits| half::f16::from_bits(bits).to_f32()),
            StorageType::BF16 => self.halves(|bits| half::bf16::from_bits(bits).to_f32()),
        }
    }

    fn halves(&self, widen: impl Fn(u16) -> f32) -> Vec<f32> {
        self.bytes
            .chunks_exact(2)
            .map(|bytes| widen(u16::from_le_bytes([bytes[0], bytes[1]])))
            .collect()
    }
}
