//! LoRA for Qwen-Image: what its files call the layers. The DiT's names are the same everywhere.

use super::QwenImage;
use crate::components::text::decoder;
use crate::models::ModelError;
use crate::weights::lora::{ComponentNames, DENOISER_PREFIXES, LoraNames};

/// What stands before the names of the text encoder's layers.
const LLM_PREFIXES: [&str; 7] = [
    "",
    "text_encoder_",
    "text_encoder_model_language_model_",
    "lora_te_",
    "lora_te1_",
    "lora_te1_model_language_model_",
    "text_encoders_qwen25_7b_transformer_",
];

impl QwenImage {
    /// The names of all layers that a LoRA can adapt.
    pub(super) fn layer_names(&self) -> Result<LoraNames, ModelError> {
        let mut names = LoraNames::default();
        // The smallest graphs: which layers there are does not depend on the job.
        let dit = self.dit.config.graph(&self.dit.files, 1, 1, 1)?;
        names.add(ComponentNames::new("dit", &DENOISER_PREFIXES, dit.linear_tensors()));
        let llm = self.llm_graph(1)?;
        names.add(decoder::layer_names("llm", &LLM_PREFIXES, &llm));
        Ok(names)
    }
}
