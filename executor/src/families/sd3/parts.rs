//! The parts of a Stable Diffusion 3 model, each read on its own, so that a damaged one does not
//! hide the others.

use protocol::PartFlag;

use super::dit::Sd3DitConfig;
use super::{names, single};
use crate::components::flow_match;
use crate::components::text::clip::{self, ClipConfig};
use crate::components::text::t5::{self, T5Config};
use crate::components::tokenizers::TokenizerFolders;
use crate::components::vae::kl::VaeConfig;
use crate::components::vae::sd3;
use crate::models::ModelError;
use crate::models::source::{ModelPart, OpenedSource, PartKind, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::sampling::FlowMatchConfig;
use crate::tokenizer::TokenizerKind;

/// All parts, or what is wrong with each.
pub struct Sd3Parts {
    /// The text encoder whose states stand in the first columns.
    pub clip_l: Result<ModelPart<ClipConfig>, ModelError>,
    /// The one whose states stand beside them.
    pub clip_g: Result<ModelPart<ClipConfig>, ModelError>,
    /// The text encoder of long texts; absent where the model is to do without.
    pub t5: Option<Result<ModelPart<T5Config>, ModelError>>,
    /// The transformer.
    pub dit: Result<ModelPart<Sd3DitConfig>, ModelError>,
    /// What makes pictures of latents, and latents of a picture.
    pub vae: Result<ModelPart<VaeConfig>, ModelError>,
    /// The tokenizers of the two CLIP.
    pub clip_tokenizers: [Result<ModelTokenizer, ModelError>; 2],
    /// That of T5, where the model has it.
    pub t5_tokenizer: Option<Result<ModelTokenizer, ModelError>>,
    /// Which noise levels a job goes through.
    pub sampler: Result<FlowMatchConfig, ModelError>,
}

/// Names of weight files in transformers' and in diffusers' parts.
const TRANSFORMERS_STEM: &str = "model";
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// Folders of tokenizers in a diffusers directory: CLIP-L's, CLIP-G's, T5's.
const TOKENIZERS: [&str; 3] = ["tokenizer", "tokenizer_2", "tokenizer_3"];

/// Class of both CLIP.
const CLIP_CLASSES: &[&str] = &["CLIPTextModelWithProjection"];

const CLIP_L: PartKind<ClipConfig> = PartKind {
    spec: PartSpec {
        component: "clip_l",
        called: "CLIP-L",
        flag: PartFlag::ClipL,
        looked_for: clip::single::LOOKED_FOR,
        is_in: clip::single::is_in,
    },
    folder: "text_encoder",
    classes: CLIP_CLASSES,
    stem: TRANSFORMERS_STEM,
    check: ClipConfig::check,
    single: clip::single::single,
};

const CLIP_G: PartKind<ClipConfig> = PartKind {
    spec: PartSpec {
        component: "clip_g",
        called: "CLIP-G",
        flag: PartFlag::ClipG,
        looked_for: clip::single::LOOKED_FOR_G,
        is_in: clip::single::is_g_in,
    },
    folder: "text_encoder_2",
    classes: CLIP_CLASSES,
    stem: TRANSFORMERS_STEM,
    check: ClipConfig::check,
    single: clip::single::single_g,
};

const T5: PartKind<T5Config> = PartKind {
    spec: PartSpec {
        component: "t5",
        called: "T5",
        flag: PartFlag::T5xxl,
        looked_for: t5::single::LOOKED_FOR,
        is_in: t5::single::is_in,
    },
    folder: "text_encoder_3",
    classes: &["T5EncoderModel"],
    stem: TRANSFORMERS_STEM,
    check: T5Config::check,
    single: t5::single::single,
};

const DIT: PartKind<Sd3DitConfig> = PartKind {
    spec: PartSpec {
        component: "dit",
        called: "the DiT",
        flag: PartFlag::DiffusionModel,
        looked_for: names::LOOKED_FOR,
        is_in: |files| names::style(files).is_some(),
    },
    folder: "transformer",
    classes: &["SD3Transformer2DModel"],
    stem: DIFFUSERS_STEM,
    check: Sd3DitConfig::check,
    single: single::dit,
};

/// All parts, and how files that hold them are known.
pub static PARTS: [PartSpec; 5] = [CLIP_L.spec, CLIP_G.spec, T5.spec, DIT.spec, sd3::PART.spec];

impl Sd3Parts {
    /// Those of a source, whatever is wrong with any of them.
    pub fn read(source: &OpenedSource) -> Sd3Parts {
        let clip_l = source.part(&CLIP_L, &PARTS);
        let clip_g = source.part(&CLIP_G, &PARTS);
        let folders = TokenizerFolders { source, folders: &TOKENIZERS };
        let [first, second, third] = TOKENIZERS;
        let has_t5 = has_t5(source);
        Sd3Parts {
            t5: has_t5.then(|| source.part(&T5, &PARTS).map_err(or_without)),
            dit: source.part(&DIT, &PARTS),
            vae: source.part(&sd3::PART, &PARTS),
            clip_tokenizers: [
                clip::tokenizer::open(folders, first, CLIP_L.spec, clip_l.as_ref().ok()),
                clip::tokenizer::open_g(folders, second, CLIP_G.spec, clip_g.as_ref().ok()),
            ],
            t5_tokenizer: has_t5.then(|| folders.of_encoder(third, T5.spec, TokenizerKind::T5)),
            clip_l,
            clip_g,
            sampler: match &source.directory {
                Some(directory) => flow_match::read(directory),
                None => Ok(single::sampler()),
            }
            .map(FlowMatchConfig::over_trained_levels),
        }
    }
}

/// Whether the model has T5: not where it is left out by hand, nor by the directory that is the
/// model.
fn has_t5(source: &OpenedSource) -> bool {
    let PartSpec { flag, .. } = T5.spec;
    if source.source.part(flag).is_some() {
        return !source.source.leaves_out(flag);
    }
    let index = source.directory.as_ref().map(|directory| &directory.index);
    index.is_none_or(|index| index.class_of(T5.folder).is_some())
}

/// That T5 is in no file is told with what else can be done about it.
fn or_without(error: ModelError) -> ModelError {
    match error {
        ModelError::NoPart { called, flag } => ModelError::NoOptionalPart { called, flag },
        other => other,
    }
}
