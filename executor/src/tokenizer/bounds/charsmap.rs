//! SentencePiece's compiled rules for characters: the length of a table in bytes as 32 bits, the
//! table, and the texts that characters become, each with a zero after it
//! (`Normalizer::DecodePrecompiledCharsMap` of SentencePiece).

use serde_json::Value;

use super::{BoundError, CONTENT_BYTES_MAX, at_most};

/// Largest map, in bytes. Those in use (NMT's and NFKC's rules) have 240 kB.
const CHARSMAP_BYTES_MAX: usize = 1 << 20;

/// Bytes of the field that says how long the table is.
const LENGTH_BYTES: usize = 4;

/// What a map may make of one byte of text, in bytes; an error if it is beyond a limit, or its
/// table does not lie in it.
pub fn growth(charsmap: &[u8]) -> Result<f64, BoundError> {
    at_most("bytes of precompiled_charsmap", charsmap.len(), CHARSMAP_BYTES_MAX)?;
    let (length, rest) = charsmap
        .split_first_chunk::<LENGTH_BYTES>()
        .ok_or_else(|| BoundError::malformed("its precompiled_charsmap has no length"))?;
    // The crate makes room for so many before it looks for them.
    let length = u32::from_le_bytes(*length) as usize;
    let texts = rest.get(length..).ok_or_else(|| {
        BoundError::malformed("its precompiled_charsmap is shorter than its table")
    })?;
    let longest = texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    at_most("bytes that precompiled_charsmap makes of a character", longest, CONTENT_BYTES_MAX)?;
    Ok(longest.max(1) as f64)
}

/// The same for a map as it stands in `tokenizer.json`: in base64.
pub(super) fn growth_of_text(charsmap: &Value) -> Result<f64, BoundError> {
    let text = charsmap
        .as_str()
        .ok_or_else(|| BoundError::malformed("its precompiled_charsmap is no text"))?;
    growth(&base64::decode(text).map_err(BoundError::malformed)?)
}
