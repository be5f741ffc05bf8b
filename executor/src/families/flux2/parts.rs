//! The parts of a FLUX.2 klein model, each read on its own, so that a damaged one does not hide the
//! others.

use std::path::Path;
use std::sync::Arc;

use protocol::PartFlag;

use super::dit::Flux2DitConfig;
use super::names::{self, Origin};
use super::{STATES, single};
use crate::components::flow_match;
use crate::components::text::decoder::{self, DecoderConfig};
use crate::components::tokenizers::TokenizerFolders;
use crate::components::vae::flux2::{self, Flux2VaeConfig};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::source::{ModelPart, OpenedSource, PartKind, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::sampling::FlowMatchConfig;
use crate::tokenizer::TokenizerKind;

/// All parts, or what is wrong with each.
pub struct Flux2Parts {
    /// The text encoder.
    pub llm: Result<ModelPart<DecoderConfig>, ModelError>,
    /// The DiT, under the names that its graph asks for.
    pub dit: Result<ModelPart<Flux2DitConfig>, ModelError>,
    /// The VAE, whose statistics its files may lack.
    pub vae: Result<ModelPart<Flux2VaeConfig>, ModelError>,
    /// The text encoder's tokenizer.
    pub tokenizer: Result<ModelTokenizer, ModelError>,
    /// The sampler, with the shift that the family's pipeline computes.
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
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    stem: "model",
    check: check_llm,
    single: decoder::single::single,
};

const DIT: PartKind<Flux2DitConfig> = PartKind {
    spec: PartSpec {
        component: "dit",
        called: "the DiT",
        flag: PartFlag::DiffusionModel,
        looked_for: names::LOOKED_FOR,
        is_in: |files| names::origin(files).is_some(),
    },
    folder: "transformer",
    classes: &["Flux2Transformer2DModel"],
    stem: "diffusion_pytorch_model",
    check: Flux2DitConfig::check,
    single: single::dit,
};

/// Checks a text encoder: the DiT takes states of layers that it must have.
fn check_llm(config: &DecoderConfig, path: &Path) -> Result<(), ModelError> {
    config.check(path)?;
    let (layers, needed) = (config.num_hidden_layers, STATES[STATES.len() - 1].1);
    Limits::of(path).holds(layers >= needed, || {
        format!("num_hidden_layers is {layers}, and the DiT takes a state of layer {needed}")
    })
}

/// All parts, and how files that hold them are known.
pub static PARTS: [PartSpec; 3] = [LLM.spec, DIT.spec, flux2::PART.spec];

impl Flux2Parts {
    /// Reads each from where it is.
    pub fn read(source: &OpenedSource) -> Flux2Parts {
        let folders = TokenizerFolders { source, folders: &TOKENIZERS };
        let sampler = match &source.directory {
            Some(directory) => flow_match::read(directory),
            None => Ok(single::sampler()),
        };
        Flux2Parts {
            llm: source.part(&LLM, &PARTS),
            dit: dit(source),
            vae: source.part(&flux2::PART, &PARTS),
            tokenizer: folders.of_encoder(TOKENIZER, LLM.spec, TokenizerKind::QWEN),
            sampler: sampler.map(FlowMatchConfig::with_empirical_shift),
        }
    }
}

/// The DiT under the names that its graph asks for, wherever it is from.
fn dit(source: &OpenedSource) -> Result<ModelPart<Flux2DitConfig>, ModelError> {
    let part = source.part(&DIT, &PARTS)?;
    if source.file_of(DIT.spec.flag).is_some() {
        return Ok(part);
    }
    let names = names::names(Origin::Diffusers, "", &part.config, &part.files);
    let files = Arc::new(part.files.named(names)?);
    Ok(ModelPart { files, ..part })
}
