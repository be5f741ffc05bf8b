//! Where a text encoder's tokenizer comes from: a named directory, the encoder's own file, the model's directory,
//! or the program itself, in this order.

use std::path::Path;

use super::ModelError;
use super::clip::ClipConfig;
use super::source::{Opened, Part};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// Folders of a diffusers directory.
const CLIP_FOLDER: &str = "tokenizer";
const T5_FOLDER: &str = "tokenizer_2";
const FOLDERS: [&str; 2] = [CLIP_FOLDER, T5_FOLDER];

/// CLIP's tokenizer; the built-in one, which every published CLIP-L has, where nothing else gives one.
pub fn clip(opened: &Opened, encoder: Option<&Part<ClipConfig>>) -> Result<Tokenizer, ModelError> {
    let kind = TokenizerKind::Clip;
    let found = named(opened, CLIP_FOLDER, kind).or_else(|| own(opened, CLIP_FOLDER, kind));
    if let Some(found) = found {
        return found;
    }
    let tokenizer = Tokenizer::clip();
    let has = tokenizer.vocabulary_size();
    match encoder {
        Some(Part { config, path, .. }) if config.vocab_size < has => {
            let (path, knows) = (path.clone(), config.vocab_size);
            Err(ModelError::OtherVocabulary { path, knows, has })
        }
        _ => Ok(tokenizer),
    }
}

/// T5's tokenizer; `flag` names a file with T5.
pub fn t5(opened: &Opened, flag: &str) -> Result<Tokenizer, ModelError> {
    if let Some(found) = named(opened, T5_FOLDER, TokenizerKind::T5) {
        return found;
    }
    if let Some(files) = opened.file_of(flag)
        && let Some(keys) = files.gguf_keys()
        && let Some(found) = Tokenizer::of_gguf(keys, files.origin())?
    {
        return Ok(found);
    }
    own(opened, T5_FOLDER, TokenizerKind::T5).unwrap_or(Err(ModelError::NoTokenizer))
}

/// What a named directory holds.
fn named(
    opened: &Opened,
    folder: &str,
    kind: TokenizerKind,
) -> Option<Result<Tokenizer, ModelError>> {
    let dir = Path::new(opened.source.tokenizer_dir.as_deref()?);
    if FOLDERS.iter().all(|folder| !dir.join(folder).is_dir()) {
        return Some(Err(ModelError::NoTokenizers { dir: dir.to_owned() }));
    }
    let dir = dir.join(folder);
    dir.is_dir().then(|| Tokenizer::open(&dir, kind).map_err(ModelError::from))
}

/// What the model's directory holds.
fn own(
    opened: &Opened,
    folder: &str,
    kind: TokenizerKind,
) -> Option<Result<Tokenizer, ModelError>> {
    let dir = opened.directory.as_ref()?.path.join(folder);
    Some(Tokenizer::open(&dir, kind).map_err(ModelError::from))
}
