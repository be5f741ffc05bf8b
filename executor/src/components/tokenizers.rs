//! Where a text encoder's tokenizer comes from: a named directory, the encoder's own file, the
//! model's directory, or the program itself, in this order. What is built into the program is an
//! encoder's own to say; the others are alike for all encoders and are here.
//!
//! Where it comes from is found when a model is opened; it is [made](ModelTokenizer) when it is
//! needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::PartFlag;

use crate::models::ModelError;
use crate::models::source::{OpenedSource, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::tokenizer::{Tokenizer, TokenizerKind};
use crate::weights::WeightFiles;

/// What gives a tokenizer.
pub enum TokenizerPlace {
    /// A directory with its files.
    Directory(PathBuf),
    /// The GGUF file of the text encoder.
    Gguf(Arc<WeightFiles>),
}

impl TokenizerPlace {
    /// The tokenizer there.
    ///
    /// # Errors
    /// Its files are at fault.
    pub fn open(&self, kind: TokenizerKind) -> Result<Tokenizer, ModelError> {
        match self {
            TokenizerPlace::Directory(directory) => Ok(Tokenizer::open(directory, kind)?),
            TokenizerPlace::Gguf(files) => {
                let keys = files.gguf_keys().expect("a file of which keys were read");
                let found = Tokenizer::of_gguf(keys, files.origin(), kind)?;
                Ok(found.expect("a file that names a tokenizer of this kind"))
            }
        }
    }
}

/// The folders of tokenizers that a family has, in a diffusers directory and in a named one.
#[derive(Clone, Copy)]
pub struct TokenizerFolders<'a> {
    /// Where to look.
    pub source: &'a OpenedSource,
    /// All folders of the family.
    pub folders: &'static [&'static str],
}

impl TokenizerFolders<'_> {
    /// The named directory's folder; nothing where none is named, or it has not this folder.
    ///
    /// # Errors
    /// The directory has none of the family's folders, or this one lacks the files.
    pub fn named(
        &self,
        folder: &str,
        kind: TokenizerKind,
    ) -> Result<Option<TokenizerPlace>, ModelError> {
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
        Tokenizer::check_there(&dir, kind)?;
        Ok(Some(TokenizerPlace::Directory(dir)))
    }

    /// The tokenizer of the text encoder `part`: a named directory's, a GGUF file's of the text
    /// encoder, or the model's own.
    ///
    /// # Errors
    /// None gives it, or a directory lacks the files.
    pub fn of_encoder(
        &self,
        folder: &'static str,
        part: PartSpec,
        kind: TokenizerKind,
    ) -> Result<ModelTokenizer, ModelError> {
        let PartSpec { called, flag, .. } = part;
        let in_file = || {
            let files = self.source.file_of(flag)?;
            let has = Tokenizer::is_in_gguf(files.gguf_keys()?, kind);
            has.then(|| TokenizerPlace::Gguf(Arc::clone(files)))
        };
        let place = match self.named(folder, kind)?.or_else(in_file) {
            Some(place) => Some(place),
            None => self.own(folder, kind)?,
        };
        let place = place.ok_or(ModelError::NoTokenizer { called, folder, flag })?;
        Ok(ModelTokenizer::new(move || place.open(kind)))
    }

    /// The folder of the model's own directory; nothing where the model is files.
    ///
    /// # Errors
    /// It lacks the files.
    pub fn own(
        &self,
        folder: &str,
        kind: TokenizerKind,
    ) -> Result<Option<TokenizerPlace>, ModelError> {
        let Some(directory) = &self.source.directory else { return Ok(None) };
        let directory = directory.path.join(folder);
        Tokenizer::check_there(&directory, kind)?;
        Ok(Some(TokenizerPlace::Directory(directory)))
    }
}
