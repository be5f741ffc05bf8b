//! Which model a command is about: a directory, a file, files of parts, or the built-in demo model.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use protocol::{ModelSource, PartFlag};

use crate::job::model::ModelName;

/// The model.
#[derive(Debug, Default, Args)]
pub struct ModelArguments {
    /// A directory in diffusers format, or a file (safetensors, GGUF) that holds one or more parts
    /// [default: the built-in demo model, unless parts are named]
    model: Option<PathBuf>,
    /// Take the DiT from this file (safetensors, GGUF)
    #[arg(long, value_name = "FILE", help_heading = "Parts")]
    diffusion_model: Option<PathBuf>,
    /// Take the VAE from this file
    #[arg(long, value_name = "FILE", help_heading = "Parts")]
    vae: Option<PathBuf>,
    /// Take CLIP-L from this file
    #[arg(long, value_name = "FILE", help_heading = "Parts")]
    clip_l: Option<PathBuf>,
    /// Take T5-XXL from this file
    #[arg(long, value_name = "FILE", help_heading = "Parts")]
    t5xxl: Option<PathBuf>,
    /// Take tokenizers from this directory, which holds tokenizer/ and tokenizer_2/, or one of
    /// them, as a diffusers directory does
    #[arg(long, value_name = "DIR", help_heading = "Parts")]
    tokenizer_dir: Option<PathBuf>,
}

impl ModelArguments {
    /// MODEL, where nothing else is named.
    pub fn single(&self) -> Option<&Path> {
        self.model.as_deref().filter(|_| self.parts().next().is_none())
    }

    /// The parts that are named, each with its path as it was typed.
    fn parts(&self) -> impl Iterator<Item = (PartFlag, &Path)> {
        let path = |flag| match flag {
            PartFlag::DiffusionModel => &self.diffusion_model,
            PartFlag::Vae => &self.vae,
            PartFlag::ClipL => &self.clip_l,
            PartFlag::T5xxl => &self.t5xxl,
            PartFlag::TokenizerDir => &self.tokenizer_dir,
        };
        let named = move |&flag: &PartFlag| Some((flag, path(flag).as_deref()?));
        PartFlag::ALL.iter().filter_map(named)
    }

    /// What a request says of the model: the paths as they were typed.
    pub fn name(&self) -> Result<ModelName> {
        let mut source = ModelSource::default();
        if let Some(path) = &self.model {
            source.model = Some(text(path)?);
        }
        for (flag, path) in self.parts() {
            source.parts.insert(flag, text(path)?);
        }
        Ok(ModelName::Files(source))
    }
}

/// A path as it is sent.
fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the model's path {} is not UTF-8", path.display()),
    }
}
