//! The element types that GGUF numbers, beyond those that safetensors has too.

use std::fmt;

use protocol::StorageType;

/// A type of ggml, by its number (`enum ggml_type` of `ggml.h`). The number may be of no known
/// type: what it stands for is asked only of tensors that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GgmlType(u32);

/// The types that are computed with: number, name, and what they are here.
const COMPUTED: [(u32, &str, StorageType); 18] = [
    (2, "Q4_0", StorageType::Q4_0),
    (3, "Q4_1", StorageType::Q4_1),
    (6, "Q5_0", StorageType::Q5_0),
    (7, "Q5_1", StorageType::Q5_1),
    (8, "Q8_0", StorageType::Q8_0),
    (10, "Q2_K", StorageType::Q2K),
    (11, "Q3_K", StorageType::Q3K),
    (12, "Q4_K", StorageType::Q4K),
    (13, "Q5_K", StorageType::Q5K),
    (14, "Q6_K", StorageType::Q6K),
    (16, "IQ2_XXS", StorageType::IQ2XXS),
    (17, "IQ2_XS", StorageType::IQ2XS),
    (18, "IQ3_XXS", StorageType::IQ3XXS),
    (19, "IQ1_S", StorageType::IQ1S),
    (20, "IQ4_NL", StorageType::IQ4NL),
    (21, "IQ3_S", StorageType::IQ3S),
    (22, "IQ2_S", StorageType::IQ2S),
    (23, "IQ4_XS", StorageType::IQ4XS),
];

/// Types that are only known: number, name, the elements of a block and its bytes
/// (`GGML_QUANT_SIZES` of the package `gguf`).
const KNOWN: [(u32, &str, u64, u64); 8] = [
    (9, "Q8_1", 32, 40),
    (15, "Q8_K", 256, 292),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

impl GgmlType {
    /// The type of this number.
    pub const fn from_number(number: u32) -> GgmlType {
        GgmlType(number)
    }

    /// The type of ggml whose blocks are `storage`.
    ///
    /// # Panics
    /// If it has no blocks.
    pub const fn of_storage(storage: StorageType) -> GgmlType {
        let mut at = 0;
        while COMPUTED[at].2 as usize != storage as usize {
            at += 1;
        }
        GgmlType(COMPUTED[at].0)
    }

    /// What stands for it in files.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Its name, if it is known.
    pub fn name(self) -> Option<&'static str> {
        let computed = COMPUTED.iter().find(|row| row.0 == self.0).map(|row| row.1);
        computed.or_else(|| KNOWN.iter().find(|row| row.0 == self.0).map(|row| row.1))
    }

    /// The storage type to compute with, if the executor can.
    pub fn storage(self) -> Option<StorageType> {
        COMPUTED.iter().find(|row| row.0 == self.0).map(|row| row.2)
    }

    /// Elements and bytes of a block, if the type is known.
    pub fn block(self) -> Option<(u64, u64)> {
        let computed = self.storage().map(|s| (s.block_elements(), s.block_bytes()));
        computed.or_else(|| KNOWN.iter().find(|row| row.0 == self.0).map(|row| (row.2, row.3)))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) if self.storage().is_some() => f.pad(name),
            Some(name) => write!(f, "{name} (ggml type {})", self.0),
            None => write!(f, "ggml type {}, which is not known", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_blocks_has_its_number_and_name() {
        let blocks: Vec<_> = StorageType::ALL.into_iter().filter(|s| s.is_blocks()).collect();
        assert_eq!(blocks.len(), COMPUTED.len());
        for storage in blocks {
            let of = GgmlType::of_storage(storage);
            assert_eq!(of.storage(), Some(storage));
            assert_eq!(of.to_string(), storage.name().to_uppercase());
            assert_eq!(of.block(), Some((storage.block_elements(), storage.block_bytes())));
        }
    }

    #[test]
    fn other_types_say_their_number() {
        assert_eq!(GgmlType::from_number(29).to_string(), "IQ1_M (ggml type 29)");
        assert_eq!(GgmlType::from_number(77).to_string(), "ggml type 77, which is not known");
        assert_eq!(GgmlType::from_number(77).block(), None);
        let numbers = COMPUTED.iter().map(|row| row.0).chain(KNOWN.iter().map(|row| row.0));
        let distinct: std::collections::BTreeSet<u32> = numbers.clone().collect();
        assert_eq!(distinct.len(), numbers.count());
    }
}
