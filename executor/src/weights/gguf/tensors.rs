//! The table of tensors: names, shapes and types, and where they lie.

use std::collections::BTreeMap;
use std::io::Read;

use super::GgufError;
use super::keys::Keys;
use super::reader::{GgufReader, GgufStop};
use crate::weights::Dtype;
use crate::weights::dimensions::{DIMENSIONS_MAX, Dimensions};
use crate::weights::header::{NAME_BYTES_MAX, TensorEntry};

/// The key before a tensor's name whose value is the shape that it has in its model, outermost
/// dimension first: ComfyUI-GGUF's converter stores some as matrices instead (`convert.py`).
const SHAPE_KEY: &str = "comfy.gguf.orig_shape.";

/// Reads so many entries. Their offsets still count from the start of the data, and the sizes of
/// tensors of unknown types are zero.
pub(super) fn parse(
    reader: &mut GgufReader<impl Read>,
    count: u64,
) -> Result<BTreeMap<String, TensorEntry>, GgufStop> {
    let mut tensors = BTreeMap::new();
    for _ in 0..count {
        let length = reader.u64("the length of a tensor's name")?;
        if length > NAME_BYTES_MAX as u64 {
            return Err(GgufError::NameTooLong { bytes: length }.into());
        }
        let name = reader.text(length, "the name of a tensor")?;
        if tensors.contains_key(&name) {
            return Err(GgufError::DuplicateTensor { tensor: name }.into());
        }
        let entry = entry(reader, &name)?;
        tensors.insert(name, entry);
    }
    Ok(tensors)
}

fn entry(reader: &mut GgufReader<impl Read>, name: &str) -> Result<TensorEntry, GgufStop> {
    let what = "the table of its tensors";
    let dimensions = reader.u32(what)?;
    let mut sizes = [0; DIMENSIONS_MAX];
    let Some(sizes) = sizes.get_mut(..dimensions as usize) else {
        let tensor = name.to_owned();
        return Err(GgufError::TooManyDimensions { tensor, dimensions }.into());
    };
    // The innermost dimension comes first.
    for size in sizes.iter_mut().rev() {
        *size = reader.u64(what)?;
    }
    let dtype = Dtype::from_ggml(reader.u32(what)?);
    let offset_bytes = reader.u64(what)?;
    let size_bytes = size_bytes(name, dtype, sizes)?;
    let shape = dimensions_of(sizes).ok_or_else(|| overflow(name, dtype, sizes))?;
    Ok(TensorEntry { dtype, shape, offset_bytes, size_bytes })
}

/// What a tensor takes; zero if its type is not known.
fn size_bytes(name: &str, dtype: Dtype, sizes: &[u64]) -> Result<u64, GgufError> {
    let elements = sizes
        .iter()
        .try_fold(1, |product: u64, &size| product.checked_mul(size))
        .ok_or_else(|| overflow(name, dtype, sizes))?;
    let Some((block_elements, block_bytes)) = dtype.block() else { return Ok(0) };
    let row = sizes.last().copied().unwrap_or(1);
    if row % block_elements != 0 {
        let tensor = name.to_owned();
        return Err(GgufError::PartialBlock { tensor, dtype, row, block_elements });
    }
    let bytes = (elements / block_elements).checked_mul(block_bytes);
    bytes.ok_or_else(|| overflow(name, dtype, sizes))
}

fn dimensions_of(sizes: &[u64]) -> Option<Dimensions> {
    let mut inline = [0; DIMENSIONS_MAX];
    for (to, &from) in inline.iter_mut().zip(sizes) {
        *to = usize::try_from(from).ok()?;
    }
    Dimensions::new(inline.get(..sizes.len())?)
}

fn overflow(name: &str, dtype: Dtype, sizes: &[u64]) -> GgufError {
    GgufError::ShapeOverflow { tensor: name.to_owned(), dtype, shape: sizes.to_vec() }
}

/// Checks that all tensors lie apart within the file, and makes their offsets count from its start.
/// One of an unknown type gets what is left until the next.
pub(super) fn place(
    tensors: &mut BTreeMap<String, TensorEntry>,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    let mut order: Vec<(&str, &mut TensorEntry)> =
        tensors.iter_mut().map(|(name, entry)| (name.as_str(), entry)).collect();
    for (name, entry) in &mut order {
        let offset = entry.offset_bytes;
        if !offset.is_multiple_of(alignment) {
            let tensor = (*name).to_owned();
            return Err(GgufError::Misaligned { tensor, offset, alignment });
        }
        let begin = data_start.checked_add(offset);
        let end = begin.and_then(|begin| begin.checked_add(entry.size_bytes));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(past_end(name, u64::MAX, file_bytes));
        };
        // Where there is nothing to align, the padding may be missing too.
        if end > file_bytes && entry.size_bytes > 0 || begin > file_bytes.max(data_start) {
            return Err(past_end(name, end, file_bytes));
        }
        entry.offset_bytes = begin.min(file_bytes);
    }
    order.sort_unstable_by_key(|(name, entry)| (entry.offset_bytes, entry.size_bytes, *name));
    let mut next = file_bytes;
    for (_, entry) in order.iter_mut().rev() {
        if entry.dtype.block().is_none() {
            entry.size_bytes = next - entry.offset_bytes;
        }
        next = entry.offset_bytes;
    }
    let overlap = order.windows(2).find(|pair| {
        let [(_, first), (_, second)] = pair else { unreachable!("windows of two") };
        first.offset_bytes + first.size_bytes > second.offset_bytes
    });
    match overlap {
        Some([(tensor, _), (other, entry)]) => Err(GgufError::Overlap {
            tensor: (*tensor).to_owned(),
            other: (*other).to_owned(),
            at_byte: entry.offset_bytes,
        }),
        _ => Ok(()),
    }
}

fn past_end(name: &str, end: u64, file_bytes: u64) -> GgufError {
    GgufError::PastEnd { tensor: name.to_owned(), end, file_bytes }
}

/// Gives tensors the shapes that the keys say they have in their model.
pub(super) fn reshape(
    tensors: &mut BTreeMap<String, TensorEntry>,
    keys: &Keys,
) -> Result<(), GgufError> {
    for (key, _) in keys.iter() {
        let Some(name) = key.strip_prefix(SHAPE_KEY) else { continue };
        let Some(entry) = tensors.get_mut(name) else { continue };
        let sizes = keys.array(key).map(|array| (array.integers.as_slice(), array.count));
        let shape = sizes.and_then(|(sizes, count)| {
            let whole = sizes.len() as u64 == count;
            let sizes: Option<Vec<u64>> = sizes.iter().map(|&size| size.try_into().ok()).collect();
            let sizes = sizes.filter(|_| whole)?;
            let product = sizes.iter().try_fold(1, |all: u64, &size| all.checked_mul(size))?;
            let stored: u64 = entry.shape.as_slice().iter().map(|&size| size as u64).product();
            dimensions_of(&sizes).filter(|_| product == stored)
        });
        entry.shape = shape.ok_or_else(|| GgufError::Shape {
            key: key.to_owned(),
            got: keys.value(key).map(ToString::to_string).unwrap_or_default(),
            stored: entry.shape.as_slice().to_vec(),
        })?;
    }
    Ok(())
}
