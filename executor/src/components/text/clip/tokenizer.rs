//! CLIP's tokenizers: the model's own, or the built-in ones, which every published CLIP-L and
//! CLIP-G have.

use super::ClipConfig;
use crate::components::tokenizers::TokenizerFolders;
use crate::models::ModelError;
use crate::models::source::{ModelPart, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// CLIP-L's tokenizer; `encoder` is the text encoder `part` where it could be read.
///
/// # Errors
/// Its files are at fault; or none gives it, and the built-in one is of another vocabulary.
pub fn open(
    folders: TokenizerFolders<'_>,
    folder: &'static str,
    part: PartSpec,
    encoder: Option<&ModelPart<ClipConfig>>,
) -> Result<ModelTokenizer, ModelError> {
    open_or(folders, folder, part, encoder, Tokenizer::clip)
}

/// CLIP-G's, likewise.
///
/// # Errors
/// As [`open`].
pub fn open_g(
    folders: TokenizerFolders<'_>,
    folder: &'static str,
    part: PartSpec,
    encoder: Option<&ModelPart<ClipConfig>>,
) -> Result<ModelTokenizer, ModelError> {
    open_or(folders, folder, part, encoder, Tokenizer::clip_g)
}

fn open_or(
    folders: TokenizerFolders<'_>,
    folder: &'static str,
    part: PartSpec,
    encoder: Option<&ModelPart<ClipConfig>>,
    built_in: fn() -> Tokenizer,
) -> Result<ModelTokenizer, ModelError> {
    let kind = TokenizerKind::CLIP;
    let found = match folders.named(folder, kind)? {
        Some(place) => Some(place),
        None => folders.own(folder, kind)?,
    };
    if let Some(place) = found {
        return Ok(ModelTokenizer::new(move || place.open(kind)));
    }
    let has = Tokenizer::CLIP_TOKENS;
    match encoder {
        Some(ModelPart { config, path, .. }) if config.vocab_size < has => {
            let (path, knows, called) = (path.clone(), config.vocab_size, part.called);
            Err(ModelError::OtherVocabulary { path, called, folder, knows, has })
        }
        _ => Ok(ModelTokenizer::new(move || Ok(built_in()))),
    }
}
