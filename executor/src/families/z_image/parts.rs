//! The parts of a Z-Image model, each read on its own, so that a damaged one does not hide the
//! others.

use protocol::PartFlag;

use super::dit::ZImageDitConfig;
use super::{names, single};
use crate::components::flow_match;
use crate::components::text::decoder::{self, DecoderConfig};
use crate::components::tokenizers::TokenizerFolders;
use crate::components::vae::flux1;
use crate::components::vae::kl::VaeConfig;
use crate::models::ModelError;
use crate::models::source::{ModelPart, OpenedSource, PartKind, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::sampling::FlowMatchConfig;
use crate::tokenizer::TokenizerKind;

/// All parts, or what is wrong with each.
pub struct ZImageParts {
    /// The text encoder.
    pub llm: Result<ModelPart<DecoderConfig>, ModelError>,
    /// The DiT.
    pub dit: Result<ModelPart<ZImageDitConfig>, ModelError>,
    /// The flux1::PART.
    pub vae: Result<ModelPart<VaeConfig>, ModelError>,
    /// The text encoder's tokenizer.
    pub tokenizer: Result<ModelTokenizer, ModelError>,
    /// The sampler's configuration.
    pub sampler: Result<FlowMatchConfig, ModelError>,
}

/// The tokenizer's folder in a diffusers directory.
const TOKENIZER: &str = "tokenizer";
const TOKENIZERS: [&str; 1] = [TOKENIZER];

const LLM: PartKind<DecoderConfig> = PartKind {
    spec: PartSpec {
        component: "llm",
        called: "Qwen3",
        flag: PartFlag::Llm,
        looked_for: decoder::single::LOOKED_FOR,
        is_in: decoder::single::is_in,
    },
    folder: "text_encoder",
    classes: &["Qwen3Model", "Qwen3ForCausalLM"],
    stem: "model",
    check: DecoderConfig::check,
    single: decoder::single::single,
};

const DIT: PartKind<ZImageDitConfig> = PartKind {
    spec: PartSpec {
        component: "dit",
        called: "the DiT",
        flag: PartFlag::DiffusionModel,
        looked_for: names::LOOKED_FOR,
        is_in: |files| names::spelling(files).is_some(),
    },
    folder: "transformer",
    classes: &["ZImageTransformer2DModel"],
    stem: "diffusion_pytorch_model",
    check: ZImageDitConfig::check,
    single: single::dit,
};

/// All parts, and how files that hold them are known.
pub static PARTS: [PartSpec; 3] = [LLM.spec, DIT.spec, flux1::PART.spec];

impl ZImageParts {
    /// Reads all parts.
    pub fn read(source: &OpenedSource) -> ZImageParts {
        let folders = TokenizerFolders { source, folders: &TOKENIZERS };
        ZImageParts {
            llm: source.part(&LLM, &PARTS),
            dit: source.part(&DIT, &PARTS),
            vae: source.part(&flux1::PART, &PARTS),
            tokenizer: folders.of_encoder(TOKENIZER, LLM.spec, TokenizerKind::QWEN),
            sampler: match &source.directory {
                Some(directory) => flow_match::read(directory),
                None => Ok(single::sampler()),
            },
        }
    }
}
