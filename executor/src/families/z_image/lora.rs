//! LoRA for Z-Image: what its files call the layers.
//!
//! The DiT's layers are known by diffusers' names and by ComfyUI's, whose projections are fused:
//! one module's rows then belong to several weights.

use super::ZImage;
use super::names::{FINAL_LAYERS, FUSED, OUTER_LAYERS, RENAMED, blocks};
use crate::components::text::decoder;
use crate::models::ModelError;
use crate::weights::lora::{ComponentNames, DENOISER_PREFIXES, LoraNames};

/// What stands before the names of the text encoder's layers.
const LLM_PREFIXES: [&str; 5] =
    ["", "text_encoder_", "lora_te_", "lora_te1_", "text_encoders_qwen3_4b_transformer_"];

impl ZImage {
    /// The names of all layers that a LoRA can adapt.
    pub(super) fn layer_names(&self) -> Result<LoraNames, ModelError> {
        let mut names = LoraNames::default();
        names.add(self.dit_names()?);
        // The smallest graph: which layers there are does not depend on the job.
        let llm = self.llm_graph(1)?;
        names.add(decoder::layer_names("llm", &LLM_PREFIXES, &llm));
        Ok(names)
    }

    fn dit_names(&self) -> Result<ComponentNames, ModelError> {
        let dit = &self.dit;
        let graph = dit.config.graph(&dit.files, 1, 1, 1)?;
        let mut names = ComponentNames::new("dit", &DENOISER_PREFIXES, graph.linear_tensors());
        let [(embedder_alias, embedder), (final_alias, last)] = OUTER_LAYERS;
        names.alias(embedder_alias, &[embedder.to_owned()]);
        for layer in FINAL_LAYERS {
            names.alias(&format!("{final_alias}.{layer}"), &[format!("{last}.{layer}")]);
        }
        for block in blocks(&dit.config) {
            let (alias, modules) = FUSED;
            let modules = modules.map(|module| format!("{block}.{module}"));
            names.alias(&format!("{block}.{alias}"), &modules);
            let (alias, module) = RENAMED;
            names.alias(&format!("{block}.{alias}"), &[format!("{block}.{module}")]);
        }
        Ok(names)
    }
}
