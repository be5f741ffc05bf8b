//! Which model a command is about: a directory, a file, files of parts, or the built-in demo model.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use protocol::ModelSource;

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
    /// Take tokenizers from this directory, which holds tokenizer/ and tokenizer_2/, or one of them, as a diffusers
    /// directory does
    #[arg(long, value_name = "DIR", help_heading = "Parts")]
    tokenizer_dir: Option<PathBuf>,
}

impl ModelArguments {
    /// MODEL, where nothing else is named.
    pub fn single(&self) -> Option<&Path> {
        let parts = [&self.diffusion_model, &self.vae, &self.clip_l, &self.t5xxl];
        let alone = parts.into_iter().chain([&self.tokenizer_dir]).all(Option::is_none);
        self.model.as_deref().filter(|_| alone)
    }

    /// What a request says of the model: the paths as they were typed.
    pub fn name(&self) -> Result<ModelName> {
        Ok(ModelName::Files(ModelSource {
            model: text(self.model.as_deref())?,
            diffusion_model: text(self.diffusion_model.as_deref())?,
            vae: text(self.vae.as_deref())?,
            clip_l: text(self.clip_l.as_deref())?,
            t5xxl: text(self.t5xxl.as_deref())?,
            tokenizer_dir: text(self.tokenizer_dir.as_deref())?,
        }))
    }
}

/// A path as it is sent.
fn text(path: Option<&Path>) -> Result<Option<String>> {
    match path.map(|path| (path, path.to_str())) {
        Some((path, None)) => bail!("the model's path {} is not UTF-8", path.display()),
        Some((_, Some(text))) => Ok(Some(text.to_owned())),
        None => Ok(None),
    }
}
