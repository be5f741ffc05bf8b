//! The parts of a FLUX.1 directory, each read on its own, so that a damaged one does not hide the others.

use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::models::ModelError;
use crate::models::clip::ClipConfig;
use crate::models::config::{ModelIndex, read_part, read_text};
use crate::models::t5::T5Config;
use crate::models::transformer::TransformerConfig;
use crate::models::vae::VaeConfig;
use crate::sampler::FlowMatchConfig;
use crate::tokenizer::{Tokenizer, TokenizerKind};
use crate::weights::WeightFiles;

/// A part of the model: its configuration and weights.
#[derive(Clone)]
pub struct Part<C> {
    /// The class that the model index names.
    pub class: String,
    /// Its configuration, checked.
    pub config: C,
    /// Its weights, mapped.
    pub files: Arc<WeightFiles>,
}

/// All parts, or what is wrong with each.
pub struct Parts {
    /// The text encoder for the pooled embedding.
    pub clip: Result<Part<ClipConfig>, ModelError>,
    /// The text encoder for the sequence of embeddings.
    pub t5: Result<Part<T5Config>, ModelError>,
    /// The DiT.
    pub transformer: Result<Part<TransformerConfig>, ModelError>,
    /// The VAE.
    pub vae: Result<Part<VaeConfig>, ModelError>,
    /// The tokenizers of the two text encoders.
    pub tokenizers: [Result<Tokenizer, ModelError>; 2],
    /// The sampler's configuration.
    pub sampler: Result<FlowMatchConfig, ModelError>,
}

/// Names of weight files in transformers' and in diffusers' parts.
const TRANSFORMERS_STEM: &str = "model";
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

impl Parts {
    /// Reads all parts.
    pub fn read(dir: &Path, index: &ModelIndex) -> Parts {
        let reader = Reader { dir, index };
        let tokenizer = |folder: &str, kind| Ok(Tokenizer::open(&dir.join(folder), kind)?);
        Parts {
            clip: reader.part(
                "text_encoder",
                "CLIPTextModel",
                TRANSFORMERS_STEM,
                ClipConfig::check,
            ),
            t5: reader.part("text_encoder_2", "T5EncoderModel", TRANSFORMERS_STEM, T5Config::check),
            transformer: reader.part(
                "transformer",
                "FluxTransformer2DModel",
                DIFFUSERS_STEM,
                TransformerConfig::check,
            ),
            vae: reader.part("vae", "AutoencoderKL", DIFFUSERS_STEM, VaeConfig::check),
            tokenizers: [
                tokenizer("tokenizer", TokenizerKind::Clip),
                tokenizer("tokenizer_2", TokenizerKind::T5),
            ],
            sampler: reader.sampler(),
        }
    }
}

struct Reader<'a> {
    dir: &'a Path,
    index: &'a ModelIndex,
}

impl Reader<'_> {
    fn part<C: DeserializeOwned>(
        &self,
        name: &str,
        class: &str,
        stem: &str,
        check: impl Fn(&C, &Path) -> Result<(), ModelError>,
    ) -> Result<Part<C>, ModelError> {
        let class = self.index.part(name, &[class])?;
        let (path, config) = read_part::<C>(self.dir, name)?;
        check(&config, &path)?;
        let files = Arc::new(WeightFiles::open(&self.dir.join(name), &[stem])?);
        Ok(Part { class, config, files })
    }

    fn sampler(&self) -> Result<FlowMatchConfig, ModelError> {
        self.index.part("scheduler", &["FlowMatchEulerDiscreteScheduler"])?;
        let file = "scheduler/scheduler_config.json";
        let path = self.dir.join(file);
        if !path.is_file() {
            return Err(ModelError::MissingFile {
                dir: self.dir.to_owned(),
                file: file.to_owned(),
            });
        }
        FlowMatchConfig::parse(&read_text(&path)?)
            .map_err(|error| ModelError::Config { path, message: error.to_string() })
    }
}
