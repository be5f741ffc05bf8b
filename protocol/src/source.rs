//! Where a model is: one directory or file, files of single parts, or both.
//!
//! Invariant: a source and its text, as it stands in plans, stand for one another; [`ModelSource::check`] refuses what
//! breaks that.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::STRING_BYTES_MAX;
use crate::message::TooLong;

/// The paths of a model's parts. As text, in plans and documents, it reads as on the command line:
/// `/models/FLUX.1-dev --vae /models/ae.safetensors`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ModelSource {
    /// A diffusers directory, or a file that holds one or more parts.
    pub model: Option<String>,
    /// A file with the DiT, in place of the model's own.
    pub diffusion_model: Option<String>,
    /// A file with the VAE, likewise.
    pub vae: Option<String>,
    /// A file with CLIP-L, likewise.
    pub clip_l: Option<String>,
    /// A file with T5-XXL, likewise.
    pub t5xxl: Option<String>,
    /// A directory that holds `tokenizer`, `tokenizer_2`, in place of the model's own.
    pub tokenizer_dir: Option<String>,
}

/// Why a text or a set of paths is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// One part has two files.
    #[error("--{flag} stands twice; hint: name one file for each part")]
    Twice {
        /// The part's flag, without its dashes.
        flag: &'static str,
    },
    /// A path that would be read as several.
    #[error("a path of {text:?} reads like an option; hint: rename the file")]
    Ambiguous {
        /// The source's text.
        text: String,
    },
    /// A text beyond the limit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// The flags of parts, in the order of a source's text.
const FLAGS: [&str; 5] = ["diffusion-model", "vae", "clip-l", "t5xxl", "tokenizer-dir"];

impl ModelSource {
    /// A directory or file alone.
    pub fn of(model: impl Into<String>) -> ModelSource {
        ModelSource { model: Some(model.into()), ..ModelSource::default() }
    }

    /// Each flag, without its dashes, with its path.
    pub fn parts(&self) -> [(&'static str, Option<&str>); 5] {
        let paths =
            [&self.diffusion_model, &self.vae, &self.clip_l, &self.t5xxl, &self.tokenizer_dir];
        std::array::from_fn(|at| (FLAGS[at], paths[at].as_deref()))
    }

    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        self.model.is_none() && self.parts().iter().all(|(_, path)| path.is_none())
    }

    /// The name of what gives the DiT, without its directories: what people call the model.
    pub fn name(&self) -> String {
        let path = self.diffusion_model.as_deref().or(self.model.as_deref());
        let path = path.or_else(|| self.parts().into_iter().find_map(|(_, path)| path));
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

    fn part_mut(&mut self, flag: usize) -> &mut Option<String> {
        match flag {
            0 => &mut self.diffusion_model,
            1 => &mut self.vae,
            2 => &mut self.clip_l,
            3 => &mut self.t5xxl,
            _ => &mut self.tokenizer_dir,
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
        for (flag, path) in self.parts() {
            if let Some(path) = path {
                write!(f, "{blank}--{flag} {path}")?;
                blank = " ";
            }
        }
        Ok(())
    }
}

impl FromStr for ModelSource {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<ModelSource, SourceError> {
        // A blank before the text makes the first option stand as the others do.
        let text = format!(" {text}");
        let mut found: Vec<(usize, usize, usize)> = Vec::new(); // where it begins, where its path does, flag
        for (flag, name) in FLAGS.iter().enumerate() {
            let option = format!(" --{name} ");
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
            if source.part_mut(flag).replace(path).is_some() {
                return Err(SourceError::Twice { flag: FLAGS[flag] });
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
        let path = |name: &str| Some(format!("/the models/{name}"));
        ModelSource {
            model: path("dev"),
            diffusion_model: path("dit.gguf"),
            vae: path("ae -- vae.safetensors"),
            clip_l: path("clip_l.safetensors"),
            t5xxl: path("t5--vae.gguf"),
            tokenizer_dir: path("tokenizers"),
        }
    }

    #[test]
    fn a_source_and_its_text_stand_for_one_another() {
        for model in [true, false] {
            for parts in 0..1 << FLAGS.len() {
                let mut source = full();
                if !model {
                    source.model = None;
                }
                for flag in (0..FLAGS.len()).filter(|flag| parts & (1 << flag) == 0) {
                    *source.part_mut(flag) = None;
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
        assert_eq!(twice, Err(SourceError::Twice { flag: "vae" }));
        for path in ["/a --vae b", "/a --vae /b --clip-l /c", ""] {
            let ambiguous = ModelSource::of(path).check();
            assert!(matches!(ambiguous, Err(SourceError::Ambiguous { .. })), "{path}");
        }
        let path = "/".repeat(STRING_BYTES_MAX);
        assert_eq!(ModelSource::of(path.clone()).check(), Ok(()));
        let parts = ModelSource { vae: Some("/v".to_owned()), ..ModelSource::of(path) };
        assert!(matches!(parts.check(), Err(SourceError::TooLong(_))));
    }

    #[test]
    fn a_model_is_called_by_what_gives_its_dit() {
        let mut source = full();
        assert_eq!(source.name(), "dit.gguf");
        source.diffusion_model = None;
        assert_eq!(source.name(), "dev");
        source.model = None;
        assert_eq!(source.name(), "ae -- vae.safetensors");
        assert_eq!(ModelSource::default().name(), "");
    }
}
