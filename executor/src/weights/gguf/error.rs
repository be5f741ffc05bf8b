//! What can be wrong with the header of a GGUF file. The file's path is added by
//! [`WeightsError`](crate::weights::WeightsError).

use super::{ALIGNMENT_MAX, HEADER_BYTES_MAX, KEY_BYTES_MAX, KEYS_MAX, NESTING_MAX};
use crate::weights::Dtype;
use crate::weights::dimensions::DIMENSIONS_MAX;
use crate::weights::header::{NAME_BYTES_MAX, TENSORS_MAX};

/// Why a header is refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// Another kind of file.
    #[error("it begins with the bytes {magic:?} and not with `GGUF`")]
    WrongMagic {
        /// Its first bytes.
        magic: [u8; 4],
    },

    /// Numbers in the order of machines that nobody has.
    #[error("it is big-endian; hint: use the little-endian file of this model")]
    BigEndian,

    /// An older or newer format.
    #[error(
        "it has version {version} of the format, versions 2 and 3 are read; \
         hint: convert the model anew"
    )]
    Version {
        /// What the file says of itself.
        version: u32,
    },

    /// More tensors than any model has.
    #[error("it says that it has {tensors} tensors, the limit is {TENSORS_MAX}")]
    TooManyTensors {
        /// How many it claims.
        tensors: u64,
    },

    /// More keys than any model has.
    #[error("it says that it has {keys} keys, the limit is {KEYS_MAX}")]
    TooManyKeys {
        /// How many it claims.
        keys: u64,
    },

    /// The file ends inside the header, or something in it claims to be longer than the file.
    #[error(
        "{what:?} needs {bytes} bytes from byte {at_byte} on, but the file has only {file_bytes} bytes; \
         hint: its download did not finish, or it is damaged: download it again"
    )]
    Truncated {
        /// What was to be read then.
        what: String,
        /// Where it begins.
        at_byte: u64,
        /// What it takes.
        bytes: u64,
        /// Length of the file, or of what could be read of it.
        file_bytes: u64,
    },

    /// A header beyond any sensible size.
    #[error("its header has more than {HEADER_BYTES_MAX} bytes, the limit")]
    HeaderTooLong,

    /// A key, name or text that is none.
    #[error("{what:?} is no UTF-8, it begins {start:?}")]
    NotUtf8 {
        /// What was to be read then.
        what: String,
        /// Its first characters.
        start: String,
    },

    /// A key beyond any sensible length.
    #[error("a key has {bytes} bytes, the limit is {KEY_BYTES_MAX}")]
    KeyTooLong {
        /// Its length.
        bytes: u64,
    },

    /// A key stands twice; readers would differ in which of the two they take.
    #[error("the key {key:?} stands twice in it")]
    DuplicateKey {
        /// Which entry of the metadata it is.
        key: String,
    },

    /// A type that the format does not have.
    #[error("the key {key:?} has a value of the unknown type {number}")]
    ValueType {
        /// Which entry of the metadata it is.
        key: String,
        /// What the file has in place of a type.
        number: u32,
    },

    /// A truth value that is neither.
    #[error("the key {key:?} has the truth value {got}, which is neither 0 nor 1")]
    Bool {
        /// Which entry of the metadata it is.
        key: String,
        /// The byte.
        got: u8,
    },

    /// Arrays in arrays in arrays.
    #[error("the key {key:?} has arrays within arrays, more than {NESTING_MAX} deep")]
    Nesting {
        /// Which entry of the metadata it is.
        key: String,
    },

    /// An alignment that is none.
    #[error(
        "its alignment is {got}, which is no power of two of at most {ALIGNMENT_MAX} as an unsigned number"
    )]
    Alignment {
        /// The value.
        got: String,
    },

    /// A tensor name beyond any sensible length.
    #[error("the name of a tensor has {bytes} bytes, the limit is {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Its length.
        bytes: u64,
    },

    /// A name stands twice; readers would differ in which of the two they take.
    #[error("the name {tensor:?} stands twice in its table of tensors")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },

    /// More dimensions than the executor's shapes have.
    #[error("the tensor {tensor:?} has {dimensions} dimensions, the limit is {DIMENSIONS_MAX}")]
    TooManyDimensions {
        /// Which one, by its name in the file.
        tensor: String,
        /// How many it has.
        dimensions: u32,
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

    /// A row that ends inside a block.
    #[error(
        "the tensor {tensor:?} of type {dtype} has rows of {row} elements, \
         which are no whole blocks of {block_elements}"
    )]
    PartialBlock {
        /// Which one, by its name in the file.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its innermost dimension.
        row: u64,
        /// The elements of a block.
        block_elements: u64,
    },

    /// A tensor that does not begin where the format lets it.
    #[error(
        "the tensor {tensor:?} begins at byte {offset} of the data, which is no multiple of {alignment}"
    )]
    Misaligned {
        /// Which one, by its name in the file.
        tensor: String,
        /// Its first byte.
        offset: u64,
        /// What the file promises.
        alignment: u64,
    },

    /// The file ends before a tensor does.
    #[error(
        "the tensor {tensor:?} ends at byte {end}, but the file has only {file_bytes} bytes; \
         hint: its download did not finish, download it again"
    )]
    PastEnd {
        /// Which one, by its name in the file.
        tensor: String,
        /// The byte after its last, from the start of the file.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
    },

    /// Two tensors share bytes.
    #[error("the tensors {tensor:?} and {other:?} overlap at byte {at_byte}")]
    Overlap {
        /// The one that begins earlier.
        tensor: String,
        /// The one that begins inside it.
        other: String,
        /// Where the second begins, from the start of the file.
        at_byte: u64,
    },

    /// A key that gives a tensor a shape of another size, or none.
    #[error(
        "the key {key:?} is {got}, which is no shape for a tensor that is stored as {stored:?}"
    )]
    Shape {
        /// Which entry of the metadata it is.
        key: String,
        /// Its value.
        got: String,
        /// The tensor's shape in the table, outermost first.
        stored: Vec<usize>,
    },
}
