//! What a GGUF file says about its model beside the tensors: keys, and arrays that are read when
//! they are wanted.

use std::os::unix::fs::FileExt;

use super::WeightFiles;
use crate::weights::WeightsError;
use crate::weights::gguf::{Array, Keys, ValueType};
use crate::weights::mapping::MappedFile;

/// The most elements of an array that is read. The largest tokenizers have 300,000 tokens and
/// 600,000 merges.
pub const ELEMENTS_MAX: u64 = 4_000_000;
/// The most bytes of an array that is read. Merges of the largest tokenizers have 12 MB.
pub const ARRAY_BYTES_MAX: u64 = 64 << 20;

/// The keys of a GGUF file, with the file to read arrays from.
#[derive(Debug, Clone, Copy)]
pub struct GgufKeys<'a> {
    keys: &'a Keys,
    file: &'a MappedFile,
}

impl WeightFiles {
    /// The keys of the GGUF file that this was opened from; `None` for other files.
    pub fn gguf_keys(&self) -> Option<GgufKeys<'_>> {
        let keys = self.keys.as_deref()?;
        Some(GgufKeys { keys, file: &self.files[0] })
    }
}

impl<'a> GgufKeys<'a> {
    /// The keys themselves, with all values that are neither arrays nor long texts.
    pub fn keys(&self) -> &'a Keys {
        self.keys
    }

    /// The texts of an array; `None` if there is none under this key.
    ///
    /// # Errors
    /// [`WeightsError::Array`] if it holds something else or more than the limits,
    /// [`WeightsError::Read`].
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, WeightsError> {
        let Some((array, bytes)) = self.bytes(key)? else { return Ok(None) };
        if array.element != ValueType::Text {
            return Err(self.refused(key, "it is no array of texts"));
        }
        let mut texts = Vec::new();
        let mut rest = &bytes[..];
        for _ in 0..array.count {
            let text = rest.split_first_chunk().and_then(|(length, after)| {
                let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
                let text = after.get(..length)?;
                rest = &after[length..];
                Some(text)
            });
            // The header was checked, so a text that ends elsewhere was changed since.
            let text = text.ok_or_else(|| self.refused(key, "the file changed while in use"))?;
            let text = std::str::from_utf8(text);
            texts.push(
                text.map_err(|_| self.refused(key, "one of its texts is no UTF-8"))?.to_owned(),
            );
        }
        Ok(Some(texts))
    }

    /// The numbers of an array of integers, or of 32-bit floats; `None` if there is none under this
    /// key.
    ///
    /// # Errors
    /// As [`GgufKeys::texts`].
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, WeightsError> {
        let Some((array, bytes)) = self.bytes(key)? else { return Ok(None) };
        let each = |size: usize, of: fn(&[u8]) -> f64| bytes.chunks_exact(size).map(of).collect();
        Ok(Some(match array.element {
            ValueType::Unsigned(size @ 1..=4) => each(size.into(), |b| unsigned(b) as f64),
            ValueType::Signed(1) => each(1, |b| f64::from(b[0] as i8)),
            ValueType::Signed(2) => each(2, |b| f64::from(unsigned(b) as i16)),
            ValueType::Signed(4) => each(4, |b| f64::from(unsigned(b) as i32)),
            ValueType::Float(4) => each(4, |b| f32::from_bits(unsigned(b) as u32).into()),
            _ => return Err(self.refused(key, "it is no array of numbers of up to 32 bits")),
        }))
    }

    /// An array with its bytes.
    fn bytes(&self, key: &str) -> Result<Option<(&'a Array, Vec<u8>)>, WeightsError> {
        let Some(array) = self.keys.array(key) else { return Ok(None) };
        if array.count > ELEMENTS_MAX || array.size_bytes > ARRAY_BYTES_MAX {
            return Err(self.refused(key, "it is longer than any that is known"));
        }
        let mut bytes = vec![0; array.size_bytes as usize];
        let read = self.file.file().read_exact_at(&mut bytes, array.offset_bytes);
        read.map_err(|cause| WeightsError::Read { path: self.file.path().to_owned(), cause })?;
        Ok(Some((array, bytes)))
    }

    fn refused(&self, key: &str, fault: &'static str) -> WeightsError {
        let path = self.file.path().to_owned();
        WeightsError::Array { path, key: key.to_owned(), fault }
    }
}

/// A little-endian number of up to eight bytes.
fn unsigned(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}
