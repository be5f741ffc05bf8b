//! LoRA for FLUX.2: what its files call the layers.
//!
//! The DiT's layers are known by diffusers' names and by those of Black Forest Labs, of which both
//! fuse projections: one module's rows then belong to several weights.

use super::Flux2;
use super::dit::LAST_MODULATION;
use super::names::{BLOCKS, DOUBLE_LAYERS, OUTER_LAYERS, SINGLE_LAYERS};
use crate::components::text::decoder;
use crate::models::ModelError;
use crate::weights::lora::{ComponentNames, DENOISER_PREFIXES, LoraNames};

/// What stands before the names of the text encoder's layers.
const LLM_PREFIXES: [&str; 6] = [
    "",
    "text_encoder_",
    "lora_te_",
    "lora_te1_",
    "text_encoders_qwen3_4b_transformer_",
    "text_encoders_qwen3_8b_transformer_",
];

impl Flux2 {
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
        for (alias, module) in OUTER_LAYERS {
            names.alias(alias, &[module.to_owned()]);
        }
        // One of the two is the layer's own name, the other stands for its halves the other way
        // round.
        let (bfl, diffusers) = LAST_MODULATION;
        names.alias_with_halves_swapped(bfl, diffusers);
        names.alias_with_halves_swapped(diffusers, bfl);
        let [double, single] = BLOCKS;
        for ((bfl_block, block), count, layers) in [
            (double, dit.config.num_layers, &DOUBLE_LAYERS[..]),
            (single, dit.config.num_single_layers, &SINGLE_LAYERS[..]),
        ] {
            for index in 0..count {
                for layer in layers {
                    let own = layer.parts.iter().map(|part| format!("{block}.{index}.{part}"));
                    let own: Vec<String> = own.collect();
                    names.alias(&format!("{bfl_block}.{index}.{}", layer.bfl), &own);
                    if let Some(fused) = layer.diffusers {
                        names.alias(&format!("{block}.{index}.{fused}"), &own);
                    }
                }
            }
        }
        Ok(names)
    }
}
