//! The parts of a Qwen-Image model, each read on its own, so that a damaged one does not hide the
//! others.

use std::sync::Arc;

use protocol::PartFlag;

use super::dit::QwenDitConfig;
use super::single;
use crate::components::flow_match;
use crate::components::text::qwen_vl::{self, QwenVlConfig};
use crate::components::tokenizers::TokenizerFolders;
use crate::components::vae::causal::{self, CausalVaeConfig};
use crate::components::vae::job;
use crate::models::ModelError;
use crate::models::source::{ModelPart, OpenedSource, PartKind, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::sampling::FlowMatchConfig;
use crate::tokenizer::TokenizerKind;
use crate::weights::{WeightFiles, WeightsError};

/// All parts, or what is wrong with each.
pub struct QwenParts {
    /// The text encoder.
    pub llm: Result<ModelPart<QwenVlConfig>, ModelError>,
    /// What denoises.
    pub dit: Result<ModelPart<QwenDitConfig>, ModelError>,
    /// Between pictures and latents, both ways.
    pub vae: Result<ModelPart<CausalVaeConfig>, ModelError>,
    /// The text encoder's tokenizer.
    pub tokenizer: Result<ModelTokenizer, ModelError>,
    /// Which noise levels steps visit.
    pub sampler: Result<FlowMatchConfig, ModelError>,
}

/// The tokenizer's folder in a diffusers directory.
const TOKENIZER: &str = "tokenizer";
const TOKENIZERS: [&str; 1] = [TOKENIZER];

const LLM: PartKind<QwenVlConfig> = PartKind {
    spec: PartSpec {
        component: "llm",
        called: "Qwen2.5-VL",
        flag: PartFlag::Llm,
        looked_for: qwen_vl::LOOKED_FOR,
        is_in: qwen_vl::is_in,
    },
    folder: "text_encoder",
    classes: &["Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLModel", "Qwen2_5_VLTextModel"],
    stem: "model",
    check: QwenVlConfig::check,
    single: qwen_vl::single,
};

const DIT: PartKind<QwenDitConfig> = PartKind {
    spec: PartSpec {
        component: "dit",
        called: "the DiT",
        flag: PartFlag::DiffusionModel,
        looked_for: single::LOOKED_FOR,
        is_in: |files| single::prefix(files).is_some(),
    },
    folder: "transformer",
    classes: &["QwenImageTransformer2DModel"],
    stem: "diffusion_pytorch_model",
    check: QwenDitConfig::check,
    single: single::dit,
};

const VAE: PartKind<CausalVaeConfig> = PartKind {
    spec: PartSpec {
        component: job::DECODER,
        called: "the VAE",
        flag: PartFlag::Vae,
        looked_for: causal::single::LOOKED_FOR,
        is_in: causal::single::is_in,
    },
    folder: "vae",
    classes: &["AutoencoderKLQwenImage"],
    stem: "diffusion_pytorch_model",
    check: CausalVaeConfig::check,
    single: causal::single::single,
};

/// All parts, and how files that hold them are known.
pub static PARTS: [PartSpec; 3] = [LLM.spec, DIT.spec, VAE.spec];

impl QwenParts {
    /// Takes each from where the source has it.
    pub fn read(source: &OpenedSource) -> QwenParts {
        let folders = TokenizerFolders { source, folders: &TOKENIZERS };
        let llm = source.part(&LLM, &PARTS);
        let vae = source.part(&VAE, &PARTS);
        QwenParts {
            llm: llm.and_then(|part| named(source, LLM.spec, part, qwen_vl::named)),
            dit: source.part(&DIT, &PARTS),
            vae: vae.and_then(|part| named(source, VAE.spec, part, causal::single::named)),
            tokenizer: folders.of_encoder(TOKENIZER, LLM.spec, TokenizerKind::QWEN),
            sampler: match &source.directory {
                Some(directory) => flow_match::read(directory),
                None => Ok(single::sampler()),
            },
        }
    }
}

/// A part with its files under the names that its graph asks for; those that are no directory's
/// have them.
fn named<C>(
    source: &OpenedSource,
    spec: PartSpec,
    part: ModelPart<C>,
    names: fn(&WeightFiles) -> Result<WeightFiles, WeightsError>,
) -> Result<ModelPart<C>, ModelError> {
    if source.file_of(spec.flag).is_some() {
        return Ok(part);
    }
    let files = Arc::new(names(&part.files)?);
    Ok(ModelPart { files, ..part })
}
