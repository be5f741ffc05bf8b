//! What can be wrong with a safetensors header. The file's path is added by
//! [`WeightsError::Header`](crate::weights::WeightsError::Header).

use super::{HEADER_BYTES_MAX, LENGTH_FIELD_BYTES, NAME_BYTES_MAX, TENSORS_MAX};
use crate::weights::Dtype;
use crate::weights::dimensions::DIMENSIONS_MAX;

/// Why a header is refused. Offsets of tensors count from the start of the data section, as in the
/// header itself.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// No room for the field that says how long the header is.
    #[error(
        "it has {file_bytes} bytes, the format starts with a field of {LENGTH_FIELD_BYTES}; \
         hint: download it again"
    )]
    TooShort {
        /// Length of the file.
        file_bytes: u64,
    },

    /// The length field is beyond any sensible header.
    #[error(
        "it promises a header of {header_bytes} bytes, the limit is {HEADER_BYTES_MAX}; \
         hint: it is something else under this name, perhaps a web page or a Git LFS pointer"
    )]
    TooLong {
        /// What the length field says.
        header_bytes: u64,
    },

    /// The file ends inside the header.
    #[error(
        "its header ends at byte {promised_bytes}, but the file has only {file_bytes} bytes; \
         hint: its download did not finish, download it again"
    )]
    TruncatedHeader {
        /// Length field and header.
        promised_bytes: u64,
        /// Length of the file, or of what could be read of it.
        file_bytes: u64,
    },

    /// The header is no text.
    #[error("its header is not UTF-8 at byte {at_byte} of the header")]
    NotUtf8 {
        /// Where in the header.
        at_byte: usize,
    },

    /// The header is text that does not start as the format demands.
    #[error("its header does not start with `{{`, it is no JSON object")]
    NotObject,

    /// The header is broken JSON outside of any entry.
    #[error("its header is not valid JSON: {0}")]
    NotJson(serde_json::Error),

    /// `__metadata__` is not a map of strings.
    #[error("its `__metadata__` is no map from strings to strings: {0}")]
    MalformedMetadata(serde_json::Error),

    /// A tensor's entry is not an object of `dtype`, `shape` and `data_offsets`.
    #[error("the entry of tensor {tensor:?} is malformed: {cause}")]
    MalformedEntry {
        /// Which one, by its name in the file.
        tensor: String,
        /// What is wrong, and where in the header.
        cause: serde_json::Error,
    },

    /// A name stands twice; readers would differ in which of the two they take.
    #[error("the name {tensor:?} stands twice in its header")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },

    /// More tensors than any model has.
    #[error("it has more than {TENSORS_MAX} tensors")]
    TooManyTensors,

    /// A name beyond any sensible length.
    #[error(
        "the tensor name that starts {start:?} has {bytes} bytes, the limit is {NAME_BYTES_MAX}"
    )]
    NameTooLong {
        /// Its first characters.
        start: String,
        /// Its whole length.
        bytes: usize,
    },

    /// A type that is not in the format, or newer than this reader.
    #[error("the tensor {tensor:?} has the unknown type {dtype:?}")]
    UnknownDtype {
        /// Which one, by its name in the file.
        tensor: String,
        /// The first characters of what the header calls its type.
        dtype: String,
    },

    /// More dimensions than the executor's shapes have.
    #[error("the tensor {tensor:?} has {dimensions} dimensions, the limit is {DIMENSIONS_MAX}")]
    TooManyDimensions {
        /// Which one, by its name in the file.
        tensor: String,
        /// How many it has.
        dimensions: usize,
    },

    /// The product of a shape is beyond the address space.
    #[error(
        "the tensor {tensor:?} of type {dtype} has the impossible shape {shape:?}: \
         its size overflows"
    )]
    ShapeOverflow {
        /// Which one, by its name in the file.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape, outermost first.
        shape: Vec<u64>,
    },

    /// Packed elements that do not end at a byte.
    #[error("the tensor {tensor:?} of type {dtype} and shape {shape:?} does not fill whole bytes")]
    PartialByte {
        /// Which one, by its name in the file.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape, outermost first.
        shape: Vec<u64>,
    },

    /// A range that runs backwards.
    #[error("the tensor {tensor:?} begins at byte {begin} of the data, after its end at {end}")]
    ReversedOffsets {
        /// Which one, by its name in the file.
        tensor: String,
        /// First byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
    },

    /// A range that is longer or shorter than shape and type need.
    #[error(
        "the tensor {tensor:?} of type {dtype} and shape {shape:?} needs {expected_bytes} bytes, \
         its offsets give it {got_bytes}"
    )]
    WrongLength {
        /// Which one, by its name in the file.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape, outermost first.
        shape: Vec<u64>,
        /// What shape and type need.
        expected_bytes: u64,
        /// What the offsets span.
        got_bytes: u64,
    },

    /// A range that lies outside the data, with nothing to lead there.
    #[error(
        "the tensor {tensor:?} lies at bytes {begin}..{end} of the data, \
         which has {data_bytes} bytes"
    )]
    OutOfRange {
        /// Which one, by its name in the file.
        tensor: String,
        /// First byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
        /// Length of the data section.
        data_bytes: u64,
    },

    /// Two tensors share bytes.
    #[error("the tensors {tensor:?} and {other:?} overlap at byte {at_byte} of the data")]
    Overlap {
        /// The one that begins earlier.
        tensor: String,
        /// The one that begins inside it.
        other: String,
        /// Where the second begins.
        at_byte: u64,
    },

    /// Bytes that belong to no tensor; the format does not allow them.
    #[error("bytes {begin}..{end} of the data, before the tensor {tensor:?}, belong to no tensor")]
    Hole {
        /// The tensor after the hole.
        tensor: String,
        /// First byte of the hole.
        begin: u64,
        /// Byte after it.
        end: u64,
    },

    /// The file ends inside the data.
    #[error(
        "its header promises {promised_bytes} bytes, but the file has only {file_bytes}; \
         hint: its download did not finish, download it again"
    )]
    TruncatedData {
        /// Length field, header and data.
        promised_bytes: u64,
        /// Length of the file.
        file_bytes: u64,
    },

    /// The file goes on after its last tensor.
    #[error("it is {extra_bytes} bytes longer than its header says")]
    TrailingBytes {
        /// How much longer.
        extra_bytes: u64,
    },
}
