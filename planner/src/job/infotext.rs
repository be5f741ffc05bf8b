//! How a picture was made, as a value and as the text that stands in the picture's file.
//!
//! The text has the form that AUTOMATIC1111's web UI writes and many programs read ("infotext"):
//! the prompt, a line with the negative prompt, one line of `Key: value` pairs. What holds `,`,
//! `:`, a quote or a line break is quoted as JSON.
//!
//! Invariant: reading what was written gives the same value, whatever the prompt is. Where the
//! plain form would lose something of a prompt (blanks at a line's end, a line that reads `Negative
//! prompt:`), it also stands quoted in the last line.

mod pairs;
pub mod picture;
mod read;
mod write;

use protocol::{ModelSource, PartFlag};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub use read::{InfotextError, Reading, read};
pub use write::{pairs, write};

/// How a picture was made. What had no effect on it is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Settings {
    /// What the picture should show.
    pub prompt: String,
    /// The prompt of the long text encoder, where it had one of its own.
    pub prompt_2: Option<String>,
    /// The negative prompt, with classifier-free guidance only.
    pub negative_prompt: Option<String>,
    /// Denoising steps, those that a start from a picture leaves out included.
    pub steps: Option<u32>,
    /// The denoising rule, as AUTOMATIC1111 writes it: `Euler`.
    pub sampler: Option<String>,
    /// The table of noise levels, likewise; `None` for the model's own.
    pub scheduler: Option<String>,
    /// Levels in its place, before the model shifted them.
    pub sigmas: Option<Vec<f32>>,
    /// How much fresh noise the rule took, where somebody said.
    pub eta: Option<f32>,
    /// Classifier-free guidance; 1 is none.
    pub cfg_scale: Option<f32>,
    /// Whether what that guidance made was kept as long as what the prompt alone gave.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cfg_normalization: bool,
    /// Guidance that the model takes as an input.
    pub guidance_scale: Option<f32>,
    /// The seed of this picture's noise, not of its batch's.
    pub seed: Option<u64>,
    /// Where the noise came from: `CPU`, as torch's CPU generator.
    pub rng: Option<String>,
    /// Width and height in pixels.
    pub size: Option<[u32; 2]>,
    /// Pictures that were made together, where these were more than one.
    pub batch_size: Option<u32>,
    /// The picture's place among them, from 0.
    pub batch_position: Option<u32>,
    /// Text tokens of the long text encoder.
    pub max_sequence_length: Option<u32>,
    /// The picture that it was started from.
    pub init_image: Option<FileRecord>,
    /// How far that one was changed, 0 to 1.
    pub strength: Option<f64>,
    /// The file of latents that it was started from.
    pub init_latents: Option<FileRecord>,
    /// LoRA files in the order in which they were applied.
    pub loras: Vec<LoraRecord>,
    /// Components that a LoRA was added to while they ran; in the others it was added to the
    /// weights.
    pub lora_at_run_time: Vec<String>,
    /// The model's name, for people.
    pub model: Option<String>,
    /// Where the model was, by paths as they were typed; empty for the built-in demo model.
    #[serde(serialize_with = "as_paths")]
    pub paths: ModelSource,
    /// A hash over parts of the model's files: [`crate::fingerprint::of_model`].
    pub fingerprint: Option<String>,
    /// The type that each component's weights are stored in: `dit q8_0, vae f16`.
    pub weights: Option<String>,
    /// The VAE's tiles, as `--vae-tile` takes them; `None` for the whole picture at once.
    pub vae_tile: Option<String>,
    /// Whether products were formed in f32 for which a GPU or some CPU rounds activations.
    pub exact_matmul: bool,
    /// Components that a GPU computed, which rounds otherwise than the CPU does.
    pub on_gpu: Vec<String>,
    /// The quality of its file, 1 to 100, in formats that lose something.
    pub quality: Option<u8>,
    /// The program that made it: `berth 0.1.0`.
    pub version: Option<String>,
}

/// A file that a picture depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FileRecord {
    /// Its path as it was typed.
    pub path: String,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: Option<String>,
}

/// A LoRA that was applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoraRecord {
    /// Its path, and its hash where that is known.
    #[serde(flatten)]
    pub file: FileRecord,
    /// What its scale was multiplied by.
    pub weight: f32,
}

/// The paths of a model as a document has them: a key each.
fn as_paths<S: Serializer>(source: &ModelSource, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1 + PartFlag::ALL.len()))?;
    map.serialize_entry("model", &source.model)?;
    for &flag in PartFlag::ALL {
        map.serialize_entry(&flag.name().replace('-', "_"), &source.part(flag))?;
    }
    map.end()
}

/// A text of a file as it may be shown: control characters could steer a terminal.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// How [`Settings::version`] begins in what Berth wrote.
const BERTH: &str = "berth ";

impl Settings {
    /// The version of the Berth that runs, as it is written into pictures.
    pub fn this_version() -> String {
        format!("{BERTH}{}", env!("CARGO_PKG_VERSION"))
    }

    /// Whether Berth wrote them: then all that decides the picture is recorded.
    pub fn are_ours(&self) -> bool {
        self.version.as_deref().is_some_and(|version| version.starts_with(BERTH))
    }
}

/// The keys of a text's last line, as AUTOMATIC1111 and Forge call them where they have them.
mod key {
    pub const PROMPT: &str = "Exact prompt";
    pub const NEGATIVE_PROMPT: &str = "Exact negative prompt";
    pub const PROMPT_2: &str = "Second prompt";
    pub const STEPS: &str = "Steps";
    pub const SAMPLER: &str = "Sampler";
    pub const SCHEDULER: &str = "Schedule type";
    pub const SIGMAS: &str = "Sigmas";
    pub const ETA: &str = "Eta";
    pub const CFG_SCALE: &str = "CFG scale";
    pub const CFG_NORMALIZATION: &str = "CFG normalization";
    pub const GUIDANCE_SCALE: &str = "Distilled CFG Scale";
    pub const SEED: &str = "Seed";
    pub const RNG: &str = "RNG";
    pub const SIZE: &str = "Size";
    pub const BATCH_SIZE: &str = "Batch size";
    pub const BATCH_POSITION: &str = "Batch pos";
    pub const MAX_SEQUENCE_LENGTH: &str = "Max sequence length";
    pub const INIT_IMAGE: &str = "Init image";
    pub const INIT_IMAGE_SHA256: &str = "Init image SHA-256";
    pub const STRENGTH: &str = "Denoising strength";
    pub const INIT_LATENTS: &str = "Init latents";
    pub const INIT_LATENTS_SHA256: &str = "Init latents SHA-256";
    /// Followed by a number from 1.
    pub const LORA: &str = "LoRA ";
    /// Stands behind the number.
    pub const LORA_SHA256: &str = " SHA-256";
    pub const LORA_AT_RUN_TIME: &str = "LoRA at run time";
    pub const MODEL: &str = "Model";
    pub const MODEL_PATH: &str = "Model path";
    /// Behind the label of each part that has a file of its own.
    pub const PART_PATH: &str = " path";
    pub const FINGERPRINT: &str = "Model fingerprint";
    pub const WEIGHTS: &str = "Weights";
    pub const VAE_TILE: &str = "VAE tile";
    pub const EXACT_MATMUL: &str = "Exact matmul";
    pub const ON_GPU: &str = "On GPU";
    pub const QUALITY: &str = "Quality";
    pub const VERSION: &str = "Version";
}

/// How the line of the negative prompt begins.
const NEGATIVE_LINE: &str = "Negative prompt:";

#[cfg(test)]
mod tests;
