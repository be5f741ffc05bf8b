//! Where a text encoder's tokenizer comes from: a named directory, the encoder's own file, the
//! model's directory, or the program itself, in this order. What is built into the program is an
//! encoder's own to say; the others are alike for all encoders and are here.

use std::path::Path;

use protocol::PartFlag;

use crate::models::ModelError;
use crate::models::source::{OpenedSource, PartSpec};
use crate::tokenizer::{Tokenizer, TokenizerKind};

/// The folders of tokenizers that a family has, in a diffusers directory and in a named one.
#[derive(Clone, Copy)]
pub struct TokenizerFolders<'a> {
    /// Where to look.
    pub source: &'a OpenedSource,
    /// All folders of the family.
    pub folders: &'static [&'static str],
}

impl TokenizerFolders<'_> {
    /// What the named directory holds; nothing where none is named, or it has not this folder.
    ///
    /// # Errors
    /// The directory has none of the family's folders, or the tokenizer in it is at fault.
    pub fn named(
        &self,
        folder: &str,
        kind: TokenizerKind,
    ) -> Result<Option<Tokenizer>, ModelError> {
        let Some(dir) = self.source.source.part(PartFlag::TokenizerDir).map(Path::new) else {
            return Ok(None);
        };
        if self.folders.iter().all(|folder| !dir.join(folder).is_dir()) {
            let (dir, folders) = (dir.to_owned(), self.folders);
            return Err(ModelError::NoTokenizers { dir, folders });
        }
        let dir = dir.join(folder);
        if !dir.is_dir() {
            return Ok(None);
        }
        Ok(Some(Tokenizer::open(&dir, kind)?))
    }

    /// The tokenizer of the text encoder `part`: a named directory's, a GGUF file's of the text
    /// encoder, or the model's own.
    ///
    /// # Errors
    /// Its files are at fault, or none gives it.
    pub fn of_encoder(
        &self,
        folder: &'static str,
        part: PartSpec,
        kind: TokenizerKind,
    ) -> Result<Tokenizer, ModelError> {
        if let Some(found) = self.named(folder, kind)? {
            return Ok(found);
        }
        let PartSpec { called, flag, .. } = part;
        if let Some(files) = self.source.file_of(flag)
            && let Some(keys) = files.gguf_keys()
            && let Some(found) = Tokenizer::of_gguf(keys, files.origin(), kind)?
        {
            return Ok(found);
        }
        self.own(folder, kind)?.ok_or(ModelError::NoTokenizer { called, folder, flag })
    }

    /// What the model's own directory holds; nothing where the model is files.
    ///
    /// # Errors
    /// The tokenizer in it is at fault, or missing.
    pub fn own(&self, folder: &str, kind: TokenizerKind) -> Result<Option<Tokenizer>, ModelError> {
        let Some(directory) = &self.source.directory else { return Ok(None) };
        Ok(Some(Tokenizer::open(&directory.path.join(folder), kind)?))
    }
}
