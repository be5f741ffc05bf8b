//! The element types that weight files have, and which of them Berth computes with.
//!
//! A file may hold tensors of any of these; only a component that asks for a tensor whose type has
//! no [`StorageType`] is refused.

mod ggml;

use std::fmt;

use protocol::StorageType;

pub use ggml::GgmlType;

/// An element type: one of the safetensors format, version 0.8, or one that only GGUF has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// A truth value in a byte.
    Bool,
    /// Four-bit float of the OCP microscaling formats.
    F4,
    /// Six-bit float, two exponent bits.
    F6E2M3,
    /// Six-bit float, three exponent bits.
    F6E3M2,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Eight-bit float, five exponent bits.
    F8E5M2,
    /// Eight-bit float, four exponent bits.
    F8E4M3,
    /// Eight-bit power of two, the scale of the microscaling formats.
    F8E8M0,
    /// [`Dtype::F8E4M3`] without infinities and negative zero.
    F8E4M3Fnuz,
    /// [`Dtype::F8E5M2`] without infinities and negative zero.
    F8E5M2Fnuz,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 16 bits.
    U16,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// IEEE 754 binary32.
    F32,
    /// Complex, two binary32.
    C64,
    /// IEEE 754 binary64.
    F64,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// A type of ggml; those that safetensors has too stand above.
    Ggml(GgmlType),
}

/// Every type of safetensors with its name in headers and the size of one element in bits.
const DTYPES: [(Dtype, &str, u64); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6E2M3, "F6_E2M3", 6),
    (Dtype::F6E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8E5M2, "F8_E5M2", 8),
    (Dtype::F8E4M3, "F8_E4M3", 8),
    (Dtype::F8E8M0, "F8_E8M0", 8),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// The types that have a [`StorageType`].
    pub const SUPPORTED: &'static [Dtype] = &{
        let mut all = [Dtype::F32; StorageType::ALL.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = Dtype::of_storage(StorageType::ALL[at]);
            at += 1;
        }
        all
    };

    /// The supported types whose elements are stored one by one: those of the factors of a LoRA.
    pub const SUPPORTED_ELEMENTS: &'static [Dtype] =
        &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E4M3, Dtype::F8E5M2];

    /// The type that safetensors headers call `name`; names are in capitals.
    pub fn from_name(name: &str) -> Option<Dtype> {
        DTYPES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The type that GGUF numbers so.
    pub fn from_ggml(number: u32) -> Dtype {
        match number {
            0 => Dtype::F32,
            1 => Dtype::F16,
            24 => Dtype::I8,
            25 => Dtype::I16,
            26 => Dtype::I32,
            27 => Dtype::I64,
            28 => Dtype::F64,
            30 => Dtype::BF16,
            other => Dtype::Ggml(GgmlType::from_number(other)),
        }
    }

    /// What headers call this type; an unknown one of GGUF has a number only, which
    /// [`fmt::Display`] shows.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Ggml(of) => of.name().unwrap_or("unknown"),
            other => other.row().1,
        }
    }

    /// The size of one element of safetensors in bits; below 8 for the packed types.
    ///
    /// # Panics
    /// For a type that only GGUF has.
    pub fn element_bits(self) -> u64 {
        self.row().2
    }

    /// Elements and bytes of what is stored together, if the type is known.
    pub fn block(self) -> Option<(u64, u64)> {
        match self {
            Dtype::Ggml(of) => of.block(),
            other => {
                let bits = other.element_bits();
                let elements = 8 >> bits.trailing_zeros().min(3);
                Some((elements, bits * elements / 8))
            }
        }
    }

    /// The storage type to compute with, if the executor can.
    pub fn storage(self) -> Option<StorageType> {
        match self {
            Dtype::F32 => Some(StorageType::F32),
            Dtype::F16 => Some(StorageType::F16),
            Dtype::BF16 => Some(StorageType::BF16),
            Dtype::F8E4M3 => Some(StorageType::F8E4M3),
            Dtype::F8E5M2 => Some(StorageType::F8E5M2),
            Dtype::Ggml(of) => of.storage(),
            _ => None,
        }
    }

    /// The type of tensors that are computed with as `storage`.
    pub const fn of_storage(storage: StorageType) -> Dtype {
        match storage {
            StorageType::F32 => Dtype::F32,
            StorageType::F16 => Dtype::F16,
            StorageType::BF16 => Dtype::BF16,
            StorageType::F8E4M3 => Dtype::F8E4M3,
            StorageType::F8E5M2 => Dtype::F8E5M2,
            blocks => Dtype::Ggml(GgmlType::of_storage(blocks)),
        }
    }

    fn row(self) -> &'static (Dtype, &'static str, u64) {
        DTYPES.iter().find(|row| row.0 == self).expect("a type that safetensors has")
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dtype::Ggml(of) => of.fmt(f),
            other => f.pad(other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_safetensors_is_found_by_its_name() {
        for (dtype, name, bits) in DTYPES {
            assert_eq!(Dtype::from_name(name), Some(dtype));
            assert_eq!((dtype.name(), dtype.element_bits()), (name, bits));
        }
        assert_eq!(Dtype::from_name("f32"), None);
        assert_eq!(Dtype::from_name("Q8_0"), None);
    }

    #[test]
    fn the_supported_types_are_those_with_a_storage_type_of_equal_size() {
        let numbered = (0..64).map(Dtype::from_ggml);
        for dtype in DTYPES.into_iter().map(|row| row.0).chain(numbered) {
            assert_eq!(dtype.storage().is_some(), Dtype::SUPPORTED.contains(&dtype), "{dtype}");
            if let Some(storage) = dtype.storage() {
                let block = (storage.block_elements(), storage.block_bytes());
                assert_eq!((dtype.block(), Dtype::of_storage(storage)), (Some(block), dtype));
                let single = Dtype::SUPPORTED_ELEMENTS.contains(&dtype);
                assert_eq!(single, !storage.is_blocks(), "{dtype}");
            }
        }
    }
}
