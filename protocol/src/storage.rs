//! The types that weights are stored in.
//!
//! Those of blocks are ggml's (`ggml-common.h`): a block holds its numbers and their scales
//! together, and a row of a matrix is a whole number of blocks.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The type that a weight has in its file, and keeps in memory. What is computed with it is f32, or
/// integers where a backend multiplies blocks without expanding them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StorageType {
    /// IEEE 754 binary32.
    #[serde(rename = "f32")]
    F32,
    /// IEEE 754 binary16.
    #[serde(rename = "f16")]
    F16,
    /// The upper half of a binary32.
    #[serde(rename = "bf16")]
    BF16,
    /// Eight-bit float of four exponent bits, without infinities (OCP 8-bit floating point,
    /// `E4M3`).
    #[serde(rename = "f8_e4m3")]
    F8E4M3,
    /// Eight-bit float of five exponent bits, the upper half of a binary16.
    #[serde(rename = "f8_e5m2")]
    F8E5M2,
    /// 32 signed bytes and an f16 scale.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 32 numbers of four bits less 8, and an f16 scale.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// 32 numbers of four bits, an f16 scale and an f16 minimum.
    #[serde(rename = "q4_1")]
    Q4_1,
    /// 32 numbers of five bits less 16, and an f16 scale.
    #[serde(rename = "q5_0")]
    Q5_0,
    /// 32 numbers of five bits, an f16 scale and an f16 minimum.
    #[serde(rename = "q5_1")]
    Q5_1,
    /// 256 numbers of two bits; a scale and a minimum of four bits for each 16, scaled by two f16.
    #[serde(rename = "q2_k")]
    Q2K,
    /// 256 numbers of three bits less 4; a scale of six bits for each 16, scaled by an f16.
    #[serde(rename = "q3_k")]
    Q3K,
    /// 256 numbers of four bits; a scale and a minimum of six bits for each 32, scaled by two f16.
    #[serde(rename = "q4_k")]
    Q4K,
    /// 256 numbers of five bits; a scale and a minimum of six bits for each 32, scaled by two f16.
    #[serde(rename = "q5_k")]
    Q5K,
    /// 256 numbers of six bits less 32; a signed byte of scale for each 16, scaled by an f16.
    #[serde(rename = "q6_k")]
    Q6K,
    /// 256 numbers from a table of ternary groups of eight.
    #[serde(rename = "iq1_s")]
    IQ1S,
    /// 256 numbers from a table of 256 groups of eight.
    #[serde(rename = "iq2_xxs")]
    IQ2XXS,
    /// 256 numbers from a table of 512 groups of eight.
    #[serde(rename = "iq2_xs")]
    IQ2XS,
    /// 256 numbers from a table of 1,024 groups of eight.
    #[serde(rename = "iq2_s")]
    IQ2S,
    /// 256 numbers from a table of 256 groups of four.
    #[serde(rename = "iq3_xxs")]
    IQ3XXS,
    /// 256 numbers from a table of 512 groups of four.
    #[serde(rename = "iq3_s")]
    IQ3S,
    /// 32 numbers of four bits that stand for uneven steps, and an f16 scale.
    #[serde(rename = "iq4_nl")]
    IQ4NL,
    /// 256 numbers as in [`StorageType::IQ4NL`]; a scale of six bits for each 32, scaled by an f16.
    #[serde(rename = "iq4_xs")]
    IQ4XS,
}

/// Every type with its name, the elements of a block and its size in bytes, in the order of the
/// enum.
const ROWS: [(StorageType, &str, u64, u64); 23] = [
    (StorageType::F32, "f32", 1, 4),
    (StorageType::F16, "f16", 1, 2),
    (StorageType::BF16, "bf16", 1, 2),
    (StorageType::F8E4M3, "f8_e4m3", 1, 1),
    (StorageType::F8E5M2, "f8_e5m2", 1, 1),
    (StorageType::Q8_0, "q8_0", 32, 34),
    (StorageType::Q4_0, "q4_0", 32, 18),
    (StorageType::Q4_1, "q4_1", 32, 20),
    (StorageType::Q5_0, "q5_0", 32, 22),
    (StorageType::Q5_1, "q5_1", 32, 24),
    (StorageType::Q2K, "q2_k", 256, 84),
    (StorageType::Q3K, "q3_k", 256, 110),
    (StorageType::Q4K, "q4_k", 256, 144),
    (StorageType::Q5K, "q5_k", 256, 176),
    (StorageType::Q6K, "q6_k", 256, 210),
    (StorageType::IQ1S, "iq1_s", 256, 50),
    (StorageType::IQ2XXS, "iq2_xxs", 256, 66),
    (StorageType::IQ2XS, "iq2_xs", 256, 74),
    (StorageType::IQ2S, "iq2_s", 256, 82),
    (StorageType::IQ3XXS, "iq3_xxs", 256, 98),
    (StorageType::IQ3S, "iq3_s", 256, 110),
    (StorageType::IQ4NL, "iq4_nl", 32, 18),
    (StorageType::IQ4XS, "iq4_xs", 256, 136),
];

impl StorageType {
    /// All types.
    pub const ALL: [StorageType; ROWS.len()] = {
        let mut all = [StorageType::F32; ROWS.len()];
        let mut at = 0;
        while at < ROWS.len() {
            all[at] = ROWS[at].0;
            at += 1;
        }
        all
    };

    const fn row(self) -> &'static (StorageType, &'static str, u64, u64) {
        &ROWS[self as usize]
    }

    /// The type's name as in documents and on the command line.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements that are stored together. A row of a matrix is a whole number of such blocks.
    pub const fn block_elements(self) -> u64 {
        self.row().2
    }

    /// The size of one block in bytes.
    pub const fn block_bytes(self) -> u64 {
        self.row().3
    }

    /// Whether several elements are stored together.
    pub const fn is_blocks(self) -> bool {
        self.block_elements() > 1
    }

    /// Whether changed weights can be stored again, each number rounded by itself to the nearest.
    pub const fn can_change(self) -> bool {
        matches!(self, StorageType::F32 | StorageType::F16 | StorageType::BF16)
    }

    /// Whether products with weights of this type are formed of integers, unless exact ones are
    /// asked for: by the host's kernels, and by GPUs that multiply bytes faster than halves.
    pub const fn has_integer_products(self) -> bool {
        use StorageType::{F8E4M3, F8E5M2, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        matches!(
            self,
            F8E4M3 | F8E5M2 | Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q2K | Q3K | Q4K | Q5K | Q6K
        )
    }

    /// Whether the host's kernels may round activations for products with weights of this type,
    /// unless they are asked for exact ones: to bytes, or, on a processor that multiplies bf16, to
    /// that.
    pub const fn has_rounded_products(self) -> bool {
        self.has_integer_products() || matches!(self, StorageType::BF16)
    }

    /// The size of so many elements.
    ///
    /// # Panics
    /// If they are no whole number of blocks.
    pub fn bytes(self, elements: u64) -> Bytes {
        let block = self.block_elements();
        assert!(elements.is_multiple_of(block), "{elements} elements in blocks of {block}");
        Bytes((elements / block).checked_mul(self.block_bytes()).expect("size overflows"))
    }

    /// The size of one element in bytes.
    ///
    /// # Panics
    /// For a type that is stored in blocks.
    pub const fn element_bytes(self) -> usize {
        assert!(!self.is_blocks(), "an element of a block has no size of its own");
        self.block_bytes() as usize
    }
}

impl fmt::Display for StorageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_enum() {
        for (at, (storage, name, elements, bytes)) in ROWS.into_iter().enumerate() {
            assert_eq!(storage as usize, at, "{name}");
            assert!(matches!(elements, 1 | 32 | 256) && bytes <= 4 * elements, "{name}");
            assert_eq!(serde_json::to_string(&storage).unwrap(), format!("{name:?}"));
        }
    }

    #[test]
    fn blocks_are_whole() {
        assert_eq!(StorageType::Q8_0.bytes(64), Bytes(68));
        assert_eq!(StorageType::Q6K.bytes(512), Bytes(420));
        assert_eq!(StorageType::BF16.bytes(7), Bytes(14));
        assert!(StorageType::ALL.iter().all(|storage| storage.bytes(0) == Bytes(0)));
        assert!(std::panic::catch_unwind(|| StorageType::Q8_0.bytes(33)).is_err());
        assert!(std::panic::catch_unwind(|| StorageType::Q8_0.element_bytes()).is_err());
    }
}
