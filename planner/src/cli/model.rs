//! Which model a command is about: a directory, a file, files of parts, or the built-in demo model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use protocol::ModelSource;

use crate::demo;
use crate::infotext::ModelPaths;

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

    /// The paths as they were typed.
    pub fn typed(&self) -> ModelPaths {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        ModelPaths {
            model: text(&self.model),
            diffusion_model: text(&self.diffusion_model),
            vae: text(&self.vae),
            clip_l: text(&self.clip_l),
            t5xxl: text(&self.t5xxl),
            tokenizer_dir: text(&self.tokenizer_dir),
        }
    }

    /// Takes paths for what is not named. MODEL replaces all of them, a part only its own.
    pub fn fill(&mut self, paths: ModelPaths) {
        if self.model.is_some() {
            return;
        }
        let fill = |path: &mut Option<PathBuf>, recorded: Option<String>| {
            *path = path.take().or(recorded.map(PathBuf::from));
        };
        fill(&mut self.model, paths.model);
        fill(&mut self.diffusion_model, paths.diffusion_model);
        fill(&mut self.vae, paths.vae);
        fill(&mut self.clip_l, paths.clip_l);
        fill(&mut self.t5xxl, paths.t5xxl);
        fill(&mut self.tokenizer_dir, paths.tokenizer_dir);
    }

    /// Where the model is, in absolute paths of what is there: the executor may have another working directory.
    pub fn source(&self) -> Result<ModelSource> {
        let source = ModelSource {
            model: self.model.as_deref().map(model).transpose()?,
            diffusion_model: part("diffusion-model", self.diffusion_model.as_deref())?,
            vae: part("vae", self.vae.as_deref())?,
            clip_l: part("clip-l", self.clip_l.as_deref())?,
            t5xxl: part("t5xxl", self.t5xxl.as_deref())?,
            tokenizer_dir: self.tokenizer_dir.as_deref().map(directory).transpose()?,
        };
        if source.is_empty() {
            let demo = demo::directory()?;
            return Ok(ModelSource::of(absolute(&demo)?));
        }
        source.check()?;
        Ok(source)
    }
}

fn model(path: &Path) -> Result<String> {
    if !path.exists() {
        bail!(
            "there is no model at {}; hint: name a directory in diffusers format, or a file",
            path.display()
        );
    }
    absolute(path)
}

fn part(flag: &str, path: Option<&Path>) -> Result<Option<String>> {
    let Some(path) = path else { return Ok(None) };
    if !path.exists() {
        bail!(
            "there is no file at --{flag} {}; hint: name a safetensors or GGUF file",
            path.display()
        );
    }
    if path.is_dir() {
        bail!(
            "--{flag} {} is a directory; hint: name a file, or give the directory as MODEL",
            path.display()
        );
    }
    absolute(path).map(Some)
}

fn directory(path: &Path) -> Result<String> {
    if !path.is_dir() {
        bail!(
            "--tokenizer-dir {} is no directory; hint: name one that holds tokenizer/ or tokenizer_2/",
            path.display()
        );
    }
    absolute(path)
}

/// The path from the root. A socket or a device is refused where it would be read.
fn absolute(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path)
        .with_context(|| format!("cannot make {} an absolute path", path.display()))?;
    match absolute.into_os_string().into_string() {
        Ok(text) => Ok(text),
        Err(_) => bail!("the model's path {} is not UTF-8", path.display()),
    }
}
