//! The header of a safetensors file: a length field, then a JSON object that says where each tensor
//! lies.
//!
//! This reader is stricter than the format's own: a name that stands twice is refused, where others
//! silently take the last. It holds for every header it returns: each tensor lies within the file
//! and is as long as its shape and type need, no two tensors share a byte, and no byte of the data
//! is left over. Nothing is allocated that a limit below does not bound.

mod entries;
mod error;

use std::collections::BTreeMap;
use std::io::{self, Read};

pub use error::HeaderError;

use super::Dtype;
use super::dimensions::Dimensions;

/// Size of the field that starts the file, the header's length as a little-endian `u64`.
pub const LENGTH_FIELD_BYTES: u64 = 8;
/// The longest header: the limit that the `safetensors` library has too. Real ones stay below 1 MB.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The most tensors in one file or index. The largest diffusion models have a few thousand.
pub const TENSORS_MAX: usize = 100_000;
/// The longest tensor name. Real ones stay below 150 bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The file's notes about itself, by name; all together no longer than the header.
    pub notes: BTreeMap<String, String>,
}

/// Where a tensor lies in its file, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorEntry {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions as in the file, outermost first.
    pub shape: Dimensions,
    /// First byte, from the start of the **file**.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
}

impl Header {
    /// Parses the header that stands at the start of a file of `file_bytes` bytes. `start` is the
    /// file's beginning, at least length field and header; where it is shorter the file counts as
    /// truncated.
    ///
    /// # Errors
    /// Everything in [`HeaderError`].
    pub fn parse(start: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
        let data_start = promised_bytes(start, file_bytes)?;
        let text = usize::try_from(data_start)
            .ok()
            .and_then(|end| start.get(LENGTH_FIELD_BYTES as usize..end))
            .ok_or(HeaderError::TruncatedHeader {
                promised_bytes: data_start,
                file_bytes: start.len() as u64,
            })?;
        let text = std::str::from_utf8(text)
            .map_err(|fault| HeaderError::NotUtf8 { at_byte: fault.valid_up_to() })?;
        let (mut tensors, notes) = entries::parse(text)?;
        check_layout(&tensors, data_start, file_bytes)?;
        for entry in tensors.values_mut() {
            entry.offset_bytes += data_start;
        }
        Ok(Header { tensors, notes })
    }

    /// Reads and parses the header of an open file whose cursor stands at its start. Reading
    /// instead of mapping, as a mapped page of a file that shrinks meanwhile would be a signal and
    /// not an error.
    ///
    /// # Errors
    /// The outer one if the file cannot be read, the inner one if its header is refused.
    pub fn read(file: impl Read, file_bytes: u64) -> io::Result<Result<Header, HeaderError>> {
        let mut file = file;
        let mut start = Vec::new();
        file.by_ref().take(LENGTH_FIELD_BYTES).read_to_end(&mut start)?;
        let promised = match promised_bytes(&start, file_bytes) {
            Ok(promised) => promised,
            Err(fault) => return Ok(Err(fault)),
        };
        file.take(promised - LENGTH_FIELD_BYTES).read_to_end(&mut start)?;
        Ok(Header::parse(&start, file_bytes))
    }
}

/// The length of length field and header, within the limit and within the file.
fn promised_bytes(start: &[u8], file_bytes: u64) -> Result<u64, HeaderError> {
    let field = start.first_chunk().ok_or(HeaderError::TooShort { file_bytes })?;
    let header_bytes = u64::from_le_bytes(*field);
    if header_bytes > HEADER_BYTES_MAX {
        return Err(HeaderError::TooLong { header_bytes });
    }
    let promised_bytes = LENGTH_FIELD_BYTES + header_bytes;
    if promised_bytes > file_bytes {
        return Err(HeaderError::TruncatedHeader { promised_bytes, file_bytes });
    }
    Ok(promised_bytes)
}

/// Checks that the tensors, whose offsets still count from the start of the data, cover it exactly.
fn check_layout(
    tensors: &BTreeMap<String, TensorEntry>,
    data_start: u64,
    file_bytes: u64,
) -> Result<(), HeaderError> {
    let data_bytes = file_bytes - data_start;
    let mut ranges: Vec<(u64, u64, &str)> = tensors
        .iter()
        .map(|(name, entry)| (entry.offset_bytes, entry.offset_bytes + entry.size_bytes, &name[..]))
        .collect();
    ranges.sort_unstable();

    let (mut covered, mut previous) = (0, "");
    for (begin, end, name) in ranges {
        if begin < covered {
            return Err(HeaderError::Overlap {
                tensor: previous.to_owned(),
                other: name.to_owned(),
                at_byte: begin,
            });
        }
        if begin > covered {
            let tensor = name.to_owned();
            return Err(if end > data_bytes {
                HeaderError::OutOfRange { tensor, begin, end, data_bytes }
            } else {
                HeaderError::Hole { tensor, begin: covered, end: begin }
            });
        }
        (covered, previous) = (end, name);
    }
    // Without holes, tensors beyond the file mean that its end is missing.
    if covered > data_bytes {
        return Err(HeaderError::TruncatedData {
            promised_bytes: data_start.saturating_add(covered),
            file_bytes,
        });
    }
    if covered < data_bytes {
        return Err(HeaderError::TrailingBytes { extra_bytes: data_bytes - covered });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
