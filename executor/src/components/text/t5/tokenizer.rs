//! T5's tokenizer: a named directory's, a GGUF file's of the text encoder, or the model's own.

use crate::components::tokenizers::TokenizerFolders;
use crate::models::ModelError;
use crate::models::source::PartSpec;
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// The tokenizer of the text encoder `part`.
///
/// # Errors
/// Its files are at fault, or none gives it.
pub fn open(
    folders: TokenizerFolders<'_>,
    folder: &'static str,
    part: PartSpec,
) -> Result<Tokenizer, ModelError> {
    if let Some(found) = folders.named(folder, TokenizerKind::T5)? {
        return Ok(found);
    }
    let PartSpec { called, flag, .. } = part;
    if let Some(files) = folders.source.file_of(flag)
        && let Some(keys) = files.gguf_keys()
        && let Some(found) = Tokenizer::of_gguf(keys, files.origin())?
    {
        return Ok(found);
    }
    folders.own(folder, TokenizerKind::T5)?.ok_or(ModelError::NoTokenizer { called, folder, flag })
}
