//! GGUF: a header of counts, keys with values, a table of tensors, then their data, aligned
//! (`docs/gguf.md` of ggml). Versions 2 and 3, little-endian.
//!
//! Invariants of what is read: no name and no key stands twice, each known tensor is as long as its
//! shape and type need, each lies within the file, no two share a byte. Nothing is allocated that a
//! limit below does not bound: arrays, as those of tokenizers, are passed over, and read when they
//! are asked for.
//!
//! Not here: what the keys mean, but for the alignment and the shapes of tensors; what is done with
//! a type that is not known.

mod keys;
mod reader;
mod tensors;

mod error;

use std::collections::BTreeMap;
use std::io::{self, Read};

pub use error::GgufError;
pub use keys::{Array, GgufValue, Keys, ValueType};

use super::header::TensorEntry;
use reader::{GgufReader, GgufStop};

/// How a file begins.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that are read. Version 1 had shorter counts, and was replaced within weeks in 2023.
pub const VERSIONS: [u32; 2] = [2, 3];
/// The longest header. Those with the tokenizers of large language models have 20 MB.
pub const HEADER_BYTES_MAX: u64 = 128 << 20;
/// The most keys. A file with shapes of its own for each tensor has a few thousand.
pub const KEYS_MAX: u64 = 100_000;
/// The longest key. One that gives a tensor's shape is longer than the tensor's name.
pub const KEY_BYTES_MAX: u64 = 1024;
/// The longest text that is kept; longer ones are passed over as arrays are.
pub const TEXT_BYTES_MAX: u64 = 4096;
/// How deep arrays may stand in arrays. Nothing that is known has any.
pub const NESTING_MAX: u32 = 4;
/// The largest alignment of tensors. Files have 32.
pub const ALIGNMENT_MAX: u64 = 1 << 20;

/// The alignment of a file that does not say it (`GGUF_DEFAULT_ALIGNMENT` of `gguf.h`).
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// What a file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The file's notes about itself and its model.
    pub keys: Keys,
}

impl Gguf {
    /// Reads the header of a file of `file_bytes` bytes, whose cursor stands at its start. Reading
    /// instead of mapping, as a mapped page of a file that shrinks meanwhile would be a signal and
    /// not an error.
    ///
    /// # Errors
    /// The outer one if the file cannot be read, the inner one if its header is refused.
    pub fn read(file: impl Read, file_bytes: u64) -> io::Result<Result<Gguf, GgufError>> {
        match Gguf::parse(&mut GgufReader::new(file, file_bytes), file_bytes) {
            Ok(read) => Ok(Ok(read)),
            Err(GgufStop::Fault(fault)) => Ok(Err(fault)),
            Err(GgufStop::Io(cause)) => Err(cause),
        }
    }

    fn parse(reader: &mut GgufReader<impl Read>, file_bytes: u64) -> Result<Gguf, GgufStop> {
        let (tensor_count, key_count) = counts(reader)?;
        let keys = Keys::parse(reader, key_count)?;
        let alignment = alignment(&keys)?;
        let mut tensors = tensors::parse(reader, tensor_count)?;
        let data_start = reader.at().next_multiple_of(alignment);
        tensors::place(&mut tensors, data_start, alignment, file_bytes)?;
        tensors::reshape(&mut tensors, &keys)?;
        Ok(Gguf { tensors, keys })
    }
}

/// How many tensors and keys there are.
fn counts(reader: &mut GgufReader<impl Read>) -> Result<(u64, u64), GgufStop> {
    let magic = reader.bytes("its magic")?;
    if magic != MAGIC {
        return Err(GgufError::WrongMagic { magic }.into());
    }
    let version = reader.u32("its version")?;
    if VERSIONS.contains(&version.swap_bytes()) {
        return Err(GgufError::BigEndian.into());
    }
    if !VERSIONS.contains(&version) {
        return Err(GgufError::Version { version }.into());
    }
    let tensors = reader.u64("the number of its tensors")?;
    if tensors > super::header::TENSORS_MAX as u64 {
        return Err(GgufError::TooManyTensors { tensors }.into());
    }
    let keys = reader.u64("the number of its keys")?;
    if keys > KEYS_MAX {
        return Err(GgufError::TooManyKeys { keys }.into());
    }
    Ok((tensors, keys))
}

fn alignment(keys: &Keys) -> Result<u64, GgufError> {
    match keys.value(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&GgufValue::Unsigned(alignment))
            if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX =>
        {
            Ok(alignment)
        }
        Some(other) => Err(GgufError::Alignment { got: other.to_string() }),
    }
}

#[cfg(test)]
mod tests;
