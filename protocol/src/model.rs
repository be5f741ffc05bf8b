//! Where a model is: one directory or file, files of single parts, or both.
//!
//! Invariant: a source and its text, as it stands in plans, stand for one another;
//! [`ModelSource::check`] refuses what breaks that.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{STRING_BYTES_MAX, TooLong};

macro_rules! part_flags {
    ($($(#[$doc:meta])* $flag:ident = $name:literal, $label:literal, $help:literal;)*) => {
        /// The flags that name a file with one part of a model, in place of the model's own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PartFlag {
            $($(#[$doc])* $flag,)*
        }

        impl PartFlag {
            /// All flags, in the order of a source's text.
            pub const ALL: &'static [PartFlag] = &[$(PartFlag::$flag,)*];

            /// As on the command line, without its dashes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PartFlag::$flag => $name,)*
                }
            }

            /// What people call the part, where a picture's settings name its file.
            pub const fn label(self) -> &'static str {
                match self {
                    $(PartFlag::$flag => $label,)*
                }
            }

            /// What the flag does, for the command line's help.
            pub const fn help(self) -> &'static str {
                match self {
                    $(PartFlag::$flag => $help,)*
                }
            }
        }
    };
}

part_flags! {
    /// What denoises: a DiT or a UNet.
    DiffusionModel = "diffusion-model", "Diffusion model", "Take the DiT from this file (safetensors, GGUF)";
    /// The VAE, both ways.
    Vae = "vae", "VAE", "Take the VAE from this file";
    /// The text encoder CLIP-L.
    ClipL = "clip-l", "CLIP-L", "Take CLIP-L from this file";
    /// The text encoder CLIP-G.
    ClipG = "clip-g", "CLIP-G", "Take CLIP-G from this file";
    /// The text encoder T5-XXL.
    T5xxl = "t5xxl", "T5-XXL", "Take T5-XXL from this file; `none` leaves it out of a model that can do without";
    /// A language model as text encoder.
    Llm = "llm", "LLM", "Take the language model that encodes text from this file (safetensors, GGUF)";
    /// What of a language model sees pictures, which people have in a file of its own.
    LlmVision = "llm-vision", "LLM vision",
        "Name the file with what of the language model sees pictures (mmproj); nothing is taken from it";
    /// A directory that holds `tokenizer`, `tokenizer_2` and the like; no weights.
    TokenizerDir = "tokenizer-dir", "Tokenizer",
        "Take tokenizers from this directory, which holds tokenizer/ and tokenizer_2/, or one of them, as a diffusers directory does";
}

/// What stands in place of a part's path where the model is to do without the part.
pub const LEFT_OUT: &str = "none";

impl PartFlag {
    /// Whether it names a directory, and not a file with weights.
    pub const fn is_directory(self) -> bool {
        matches!(self, PartFlag::TokenizerDir)
    }

    /// Whether nothing is taken from what it names: no model makes use of it.
    pub const fn is_unused(self) -> bool {
        matches!(self, PartFlag::LlmVision)
    }
}

impl fmt::Display for PartFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The paths of a model's parts. As text, in plans and documents, it reads as on the command line:
/// `/models/a-directory --vae /models/ae.safetensors`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ModelSource {
    /// A diffusers directory, or a file that holds one or more parts.
    pub model: Option<String>,
    /// What comes from elsewhere, in place of the model's own.
    pub parts: BTreeMap<PartFlag, String>,
}

/// Why a text or a set of paths is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// One part has two files.
    #[error("--{flag} stands twice; hint: name one file for each part")]
    Twice {
        /// What stands more than once.
        flag: PartFlag,
    },
    /// A path that would be read as several.
    #[error("a path of {text:?} reads like an option; hint: rename the file")]
    Ambiguous {
        /// What was to be read.
        text: String,
    },
    /// A text beyond the limit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl ModelSource {
    /// A directory or file alone.
    pub fn of(model: impl Into<String>) -> ModelSource {
        ModelSource { model: Some(model.into()), ..ModelSource::default() }
    }

    /// The same with a part from this path.
    pub fn with(mut self, flag: PartFlag, path: impl Into<String>) -> ModelSource {
        self.parts.insert(flag, path.into());
        self
    }

    /// The path that a flag names.
    pub fn part(&self, flag: PartFlag) -> Option<&str> {
        self.parts.get(&flag).map(String::as_str)
    }

    /// The paths of all parts that are named and not left out, with their flags.
    pub fn part_paths(&self) -> impl Iterator<Item = (PartFlag, &str)> {
        let named = self.parts.iter().filter(|(_, path)| *path != LEFT_OUT);
        named.map(|(&flag, path)| (flag, path.as_str()))
    }

    /// Whether the model is to do without a part.
    pub fn leaves_out(&self, flag: PartFlag) -> bool {
        self.part(flag) == Some(LEFT_OUT)
    }

    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.model.is_none() && self.parts.is_empty()
    }

    /// The name of what gives the denoiser, without its directories: what people call the model.
    pub fn name(&self) -> String {
        let path = self.part(PartFlag::DiffusionModel).or(self.model.as_deref());
        let path = path.or_else(|| self.part_paths().next().map(|(_, path)| path));
        let name = Path::new(path.unwrap_or_default()).file_name();
        name.unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Checks that its text is within the limit, and says the same.
    ///
    /// # Errors
    /// [`SourceError::TooLong`] and [`SourceError::Ambiguous`].
    pub fn check(&self) -> Result<(), SourceError> {
        let text = self.to_string();
        if text.len() > STRING_BYTES_MAX {
            let (what, got, limit) = ("model path", text.len(), STRING_BYTES_MAX);
            return Err(TooLong { what, got, limit }.into());
        }
        match text.parse() {
            Ok(read) if *self == read => Ok(()),
            _ => Err(SourceError::Ambiguous { text }),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut blank = "";
        if let Some(model) = &self.model {
            f.write_str(model)?;
            blank = " ";
        }
        for (flag, path) in &self.parts {
            write!(f, "{blank}--{flag} {path}")?;
            blank = " ";
        }
        Ok(())
    }
}

impl FromStr for ModelSource {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<ModelSource, SourceError> {
        // A blank before the text makes the first option stand as the others do.
        let text = format!(" {text}");
        // Where each begins, and where its path does.
        let mut found: Vec<(usize, usize, PartFlag)> = Vec::new();
        for &flag in PartFlag::ALL {
            let option = format!(" --{flag} ");
            found.extend(text.match_indices(&option).map(|(at, _)| (at, at + option.len(), flag)));
        }
        found.sort_unstable();
        let first = found.first().map_or(text.len(), |&(begin, ..)| begin);
        let model = text.get(1..first).filter(|model| !model.is_empty()).map(str::to_owned);
        let mut source = ModelSource { model, ..ModelSource::default() };
        for (index, &(_, from, flag)) in found.iter().enumerate() {
            let end = found.get(index + 1).map_or(text.len(), |&(begin, ..)| begin);
            // Two options may share a blank where a path is empty.
            let path = text.get(from..end).unwrap_or_default().to_owned();
            if source.parts.insert(flag, path).is_some() {
                return Err(SourceError::Twice { flag });
            }
        }
        Ok(source)
    }
}

impl From<ModelSource> for String {
    fn from(source: ModelSource) -> String {
        source.to_string()
    }
}

impl TryFrom<String> for ModelSource {
    type Error = SourceError;

    fn try_from(text: String) -> Result<ModelSource, SourceError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> ModelSource {
        ModelSource::of("/the models/dev")
            .with(PartFlag::DiffusionModel, "/the models/dit.gguf")
            .with(PartFlag::Vae, "/the models/ae -- vae.safetensors")
            .with(PartFlag::ClipL, "/the models/clip_l.safetensors")
            .with(PartFlag::ClipG, "/the models/clip_g.safetensors")
            .with(PartFlag::T5xxl, "/the models/t5--vae.gguf")
            .with(PartFlag::Llm, "/the models/llm --llm.gguf")
            .with(PartFlag::LlmVision, "/the models/mmproj.gguf")
            .with(PartFlag::TokenizerDir, "/the models/tokenizers")
    }

    #[test]
    fn a_source_and_its_text_stand_for_one_another() {
        for model in [true, false] {
            for parts in 0..1 << PartFlag::ALL.len() {
                let mut source = full();
                if !model {
                    source.model = None;
                }
                for (bit, flag) in PartFlag::ALL.iter().enumerate() {
                    if parts & (1 << bit) == 0 {
                        source.parts.remove(flag);
                    }
                }
                assert_eq!(source.check(), Ok(()), "{source}");
                let json = serde_json::to_string(&source).unwrap();
                assert_eq!(json, serde_json::to_string(&source.to_string()).unwrap());
                assert_eq!(serde_json::from_str::<ModelSource>(&json).unwrap(), source);
                assert_eq!(source.is_empty(), !model && parts == 0);
            }
        }
        let text = "/m --vae /v --t5xxl /t";
        assert_eq!(text.parse::<ModelSource>().unwrap().to_string(), text);
    }

    #[test]
    fn what_would_be_read_differently_is_refused() {
        let twice = "/m --vae /a --vae /b".parse::<ModelSource>();
        assert_eq!(twice, Err(SourceError::Twice { flag: PartFlag::Vae }));
        for path in ["/a --vae b", "/a --vae /b --clip-l /c", ""] {
            let ambiguous = ModelSource::of(path).check();
            assert!(matches!(ambiguous, Err(SourceError::Ambiguous { .. })), "{path}");
        }
        let path = "/".repeat(STRING_BYTES_MAX);
        assert_eq!(ModelSource::of(path.clone()).check(), Ok(()));
        let parts = ModelSource::of(path).with(PartFlag::Vae, "/v");
        assert!(matches!(parts.check(), Err(SourceError::TooLong(_))));
    }

    #[test]
    fn a_model_is_called_by_what_gives_its_dit() {
        let mut source = full();
        assert_eq!(source.name(), "dit.gguf");
        source.parts.remove(&PartFlag::DiffusionModel);
        assert_eq!(source.name(), "dev");
        source.model = None;
        assert_eq!(source.name(), "ae -- vae.safetensors");
        assert_eq!(ModelSource::default().name(), "");
    }

    #[test]
    fn a_part_may_be_left_out() {
        let source = ModelSource::of("/m").with(PartFlag::T5xxl, LEFT_OUT);
        assert!(source.leaves_out(PartFlag::T5xxl) && !source.leaves_out(PartFlag::Vae));
        assert_eq!(source.check(), Ok(()));
        let parts = ModelSource { model: None, ..source }.with(PartFlag::Llm, "/llm");
        assert_eq!(parts.name(), "llm");
    }
}
