//! CLIP's tokenizer: the model's own, or the built-in one, which every published CLIP-L has.

use super::ClipConfig;
use crate::components::tokenizers::TokenizerFolders;
use crate::models::ModelError;
use crate::models::source::{ModelPart, PartSpec};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// The tokenizer of the text encoder `part`, which `encoder` is where it could be read.
///
/// # Errors
/// Its files are at fault; or none gives it, and the built-in one is of another vocabulary.
pub fn open(
    folders: TokenizerFolders<'_>,
    folder: &'static str,
    part: PartSpec,
    encoder: Option<&ModelPart<ClipConfig>>,
) -> Result<Tokenizer, ModelError> {
    if let Some(found) = folders.named(folder, TokenizerKind::CLIP)? {
        return Ok(found);
    }
    if let Some(found) = folders.own(folder, TokenizerKind::CLIP)? {
        return Ok(found);
    }
    let tokenizer = Tokenizer::clip();
    let has = tokenizer.vocabulary_size();
    match encoder {
        Some(ModelPart { config, path, .. }) if config.vocab_size < has => {
            let (path, knows, called) = (path.clone(), config.vocab_size, part.called);
            Err(ModelError::OtherVocabulary { path, called, folder, knows, has })
        }
        _ => Ok(tokenizer),
    }
}
