//! LoRA for FLUX.1: what its files call the layers.
//!
//! The DiT's layers are known by diffusers' names and by those of Black Forest Labs, whose
//! projections are fused: one module's rows then belong to several weights.

use super::Flux1;
use super::dit::LAST_MODULATION;
use super::names::{BLOCKS, DOUBLE_LAYERS, OUTER_LAYERS, SINGLE_LAYERS};
use crate::components::text::clip;
use crate::models::ModelError;
use crate::weights::lora::{ComponentNames, DENOISER_PREFIXES, LoraNames};

/// What stands before the names of CLIP's layers.
const CLIP_PREFIXES: [&str; 5] =
    ["", "text_encoder_", "lora_te_", "lora_te1_", "text_encoders_clip_l_transformer_"];

/// The same for T5, which is the second text encoder for OneTrainer and the third for sd-scripts,
/// as in SD3.
const T5_PREFIXES: [&str; 5] =
    ["", "text_encoder_2_", "lora_te2_", "lora_te3_", "text_encoders_t5xxl_transformer_"];

impl Flux1 {
    /// The names of all layers that a LoRA can adapt.
    pub(super) fn layer_names(&self) -> Result<LoraNames, ModelError> {
        let mut names = LoraNames::default();
        names.add(self.dit_names()?);
        let clip = self.clip.config.graph(&self.clip.files)?;
        names.add(clip::layer_names("clip", &CLIP_PREFIXES, &clip));
        // The smallest graph: which layers there are does not depend on the job.
        let t5 = self.t5.config.graph(&self.t5.files, 1)?;
        names.add(ComponentNames::new("t5", &T5_PREFIXES, t5.linear_tensors()));
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
        let blocks = [
            (double, dit.config.num_layers, &DOUBLE_LAYERS[..]),
            (single, dit.config.num_single_layers, &SINGLE_LAYERS[..]),
        ];
        for ((alias_block, block), count, layers) in blocks {
            for index in 0..count {
                for (alias, modules) in layers {
                    let own = modules.iter().map(|module| format!("{block}.{index}.{module}"));
                    let own: Vec<String> = own.collect();
                    names.alias(&format!("{alias_block}.{index}.{alias}"), &own);
                }
            }
        }
        Ok(names)
    }
}
