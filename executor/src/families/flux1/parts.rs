//! The parts of a FLUX.1 model, each read on its own, so that a damaged one does not hide the
//! others.

use protocol::PartFlag;

use super::dit::DitConfig;
use super::{names, single};
use crate::components::flow_match;
use crate::components::text::clip::{self, ClipConfig};
use crate::components::text::t5::{self, T5Config};
use crate::components::tokenizers::TokenizerFolders;
use crate::components::vae::flux1;
use crate::components::vae::kl::VaeConfig;
use crate::models::ModelError;
use crate::models::source::{ModelPart, OpenedSource, PartKind, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::sampling::FlowMatchConfig;
use crate::tokenizer::TokenizerKind;

/// All parts, or what is wrong with each.
pub struct Parts {
    /// The text encoder for the pooled embedding.
    pub clip: Result<ModelPart<ClipConfig>, ModelError>,
    /// The text encoder for the sequence of embeddings.
    pub t5: Result<ModelPart<T5Config>, ModelError>,
    /// The DiT.
    pub dit: Result<ModelPart<DitConfig>, ModelError>,
    /// The flux1::PART.
    pub vae: Result<ModelPart<VaeConfig>, ModelError>,
    /// The tokenizers of the two text encoders.
    pub tokenizers: [Result<ModelTokenizer, ModelError>; 2],
    /// The sampler's configuration.
    pub sampler: Result<FlowMatchConfig, ModelError>,
}

/// Names of weight files in transformers' and in diffusers' parts.
const TRANSFORMERS_STEM: &str = "model";
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// Folders of tokenizers in a diffusers directory: CLIP's, T5's.
const TOKENIZERS: [&str; 2] = ["tokenizer", "tokenizer_2"];

const CLIP: PartKind<ClipConfig> = PartKind {
    spec: PartSpec {
        component: "clip",
        called: "CLIP-L",
        flag: PartFlag::ClipL,
        looked_for: clip::single::LOOKED_FOR,
        is_in: clip::single::is_in,
    },
    folder: "text_encoder",
    classes: &["CLIPTextModel"],
    stem: TRANSFORMERS_STEM,
    check: ClipConfig::check,
    single: clip::single::single,
};

const T5: PartKind<T5Config> = PartKind {
    spec: PartSpec {
        component: "t5",
        called: "T5",
        flag: PartFlag::T5xxl,
        looked_for: t5::single::LOOKED_FOR,
        is_in: t5::single::is_in,
    },
    folder: "text_encoder_2",
    classes: &["T5EncoderModel"],
    stem: TRANSFORMERS_STEM,
    check: T5Config::check,
    single: t5::single::single,
};

const DIT: PartKind<DitConfig> = PartKind {
    spec: PartSpec {
        component: "dit",
        called: "the DiT",
        flag: PartFlag::DiffusionModel,
        looked_for: names::LOOKED_FOR,
        is_in: |files| names::convention(files).is_some(),
    },
    folder: "transformer",
    classes: &["FluxTransformer2DModel"],
    stem: DIFFUSERS_STEM,
    check: DitConfig::check,
    single: single::dit,
};

/// All parts, and how files that hold them are known.
pub static PARTS: [PartSpec; 4] = [CLIP.spec, T5.spec, DIT.spec, flux1::PART.spec];

impl Parts {
    /// Reads all parts.
    pub fn read(source: &OpenedSource) -> Parts {
        let clip = source.part(&CLIP, &PARTS);
        let dit = source.part(&DIT, &PARTS);
        let sampler = sampler(source, &dit);
        let folders = TokenizerFolders { source, folders: &TOKENIZERS };
        let [first, second] = TOKENIZERS;
        Parts {
            t5: source.part(&T5, &PARTS),
            vae: source.part(&flux1::PART, &PARTS),
            tokenizers: [
                clip::tokenizer::open(folders, first, CLIP.spec, clip.as_ref().ok()),
                folders.of_encoder(second, T5.spec, TokenizerKind::T5),
            ],
            clip,
            dit,
            sampler,
        }
    }
}

/// The directory's sampler, unless the DiT is a file's and embeds guidance where the directory's
/// does not, or the other way round: then, and without a directory, the published one for such a
/// DiT.
fn sampler(
    source: &OpenedSource,
    dit: &Result<ModelPart<DitConfig>, ModelError>,
) -> Result<FlowMatchConfig, ModelError> {
    let is_file = source.file_of(DIT.spec.flag).is_some();
    let of_file = dit.as_ref().ok().filter(|_| is_file);
    let embeds = of_file.map(|dit| dit.config.guidance_embeds);
    if let Some(directory) = &source.directory {
        let known = DIT.known(directory).map(|config| config.guidance_embeds);
        if known.is_none() || embeds.is_none() || known == embeds {
            return flow_match::read(directory);
        }
    }
    // What is wrong with the DiT is told once, and not here.
    Ok(single::sampler(embeds.unwrap_or(false)))
}
