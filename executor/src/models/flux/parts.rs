//! The parts of a FLUX.1 model, each read on its own, so that a damaged one does not hide the others.

use super::{names, single};
use crate::models::ModelError;
use crate::models::clip::ClipConfig;
use crate::models::config::read_text;
use crate::models::describe::{self, Held};
use crate::models::source::{Directory, Kind, Opened, Part};
use crate::models::t5::T5Config;
use crate::models::transformer::TransformerConfig;
use crate::models::vae::VaeConfig;
use crate::models::{clip, t5, tokenizers, vae};
use crate::sampler::FlowMatchConfig;
use crate::tokenizer::Tokenizer;

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

/// CLIP-L.
pub const CLIP: Kind<ClipConfig> = Kind {
    called: "CLIP-L",
    flag: "clip-l",
    folder: "text_encoder",
    class: "CLIPTextModel",
    stem: TRANSFORMERS_STEM,
    looked_for: clip::single::LOOKED_FOR,
    check: ClipConfig::check,
    single: clip::single::single,
};

/// T5-XXL.
pub const T5: Kind<T5Config> = Kind {
    called: "T5",
    flag: "t5xxl",
    folder: "text_encoder_2",
    class: "T5EncoderModel",
    stem: TRANSFORMERS_STEM,
    looked_for: t5::single::LOOKED_FOR,
    check: T5Config::check,
    single: t5::single::single,
};

/// The DiT.
pub const TRANSFORMER: Kind<TransformerConfig> = Kind {
    called: "the DiT",
    flag: "diffusion-model",
    folder: "transformer",
    class: "FluxTransformer2DModel",
    stem: DIFFUSERS_STEM,
    looked_for: names::LOOKED_FOR,
    check: TransformerConfig::check,
    single: single::transformer,
};

/// The VAE.
pub const VAE: Kind<VaeConfig> = Kind {
    called: "the VAE",
    flag: "vae",
    folder: "vae",
    class: "AutoencoderKL",
    stem: DIFFUSERS_STEM,
    looked_for: vae::single::LOOKED_FOR,
    check: VaeConfig::check,
    single: single::vae,
};

/// All kinds, and how files that hold them are known.
pub const HELD: [Held; 4] = [
    CLIP.held("clip", clip::single::is_in),
    T5.held("t5", t5::single::is_in),
    TRANSFORMER.held("dit", |files| names::convention(files).is_some()),
    VAE.held("vae", vae::single::is_in),
];

/// An error if the model is a file that gives nothing, as all that it holds was named otherwise.
pub fn check_used(opened: &Opened) -> Result<(), ModelError> {
    let Some(files) = &opened.file else { return Ok(()) };
    let own = |flag| opened.parts.iter().any(|(named, _)| *named == flag);
    let mut held = HELD.iter().filter(|part| (part.is_in)(files)).peekable();
    if held.peek().is_none() || held.any(|part| !own(part.flag)) {
        return Ok(());
    }
    let holds = describe::called(&HELD, files).join(" and ");
    Err(ModelError::Replaced { path: files.origin().to_owned(), holds })
}

impl Parts {
    /// Reads all parts.
    pub fn read(opened: &Opened) -> Parts {
        let transformer = opened.part(&TRANSFORMER, &HELD);
        let sampler = sampler(opened, &transformer);
        let clip = opened.part(&CLIP, &HELD);
        Parts {
            t5: opened.part(&T5, &HELD),
            vae: opened.part(&VAE, &HELD),
            tokenizers: [
                tokenizers::clip(opened, clip.as_ref().ok()),
                tokenizers::t5(opened, T5.flag),
            ],
            clip,
            transformer,
            sampler,
        }
    }
}

/// The directory's sampler, unless the DiT is a file's and embeds guidance where the directory's does not, or the
/// other way round: then, and without a directory, the published one for such a DiT.
fn sampler(
    opened: &Opened,
    transformer: &Result<Part<TransformerConfig>, ModelError>,
) -> Result<FlowMatchConfig, ModelError> {
    let is_file = opened.file_of(TRANSFORMER.flag).is_some();
    let of_file = transformer.as_ref().ok().filter(|_| is_file);
    let embeds = of_file.map(|dit| dit.config.guidance_embeds);
    if let Some(directory) = &opened.directory {
        let known = TRANSFORMER.known(directory).map(|config| config.guidance_embeds);
        if known.is_none() || embeds.is_none() || known == embeds {
            return directory_sampler(directory);
        }
    }
    // What is wrong with the DiT is told once, and not here.
    Ok(single::sampler(embeds.unwrap_or(false)))
}

fn directory_sampler(directory: &Directory) -> Result<FlowMatchConfig, ModelError> {
    directory.index.part("scheduler", &["FlowMatchEulerDiscreteScheduler"])?;
    let file = "scheduler/scheduler_config.json";
    let path = directory.path.join(file);
    if !path.exists() {
        let (dir, file) = (directory.path.clone(), file.to_owned());
        return Err(ModelError::MissingFile { dir, file });
    }
    FlowMatchConfig::parse(&read_text(&path)?)
        .map_err(|error| ModelError::Config { path, message: error.to_string() })
}
