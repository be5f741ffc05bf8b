//! LoRA for Stable Diffusion 3: what its files call the layers.
//!
//! The transformer's layers are known by diffusers' names and by Stability's, whose projections are
//! fused: one module's rows then belong to several weights.

use super::Sd3;
use super::dit::{BLOCKS, CONTEXT_MODULATION, LAST_MODULATION};
use super::names::{LAYERS, OUTER_LAYERS};
use crate::components::text::clip;
use crate::models::ModelError;
use crate::weights::lora::{ComponentNames, DENOISER_PREFIXES, LoraNames};

/// What stands before the names of CLIP-L's layers.
const CLIP_L_PREFIXES: [&str; 5] =
    ["", "text_encoder_", "lora_te_", "lora_te1_", "text_encoders_clip_l_transformer_"];

/// The same for CLIP-G.
const CLIP_G_PREFIXES: [&str; 3] =
    ["text_encoder_2_", "lora_te2_", "text_encoders_clip_g_transformer_"];

/// The same for T5.
const T5_PREFIXES: [&str; 4] =
    ["", "text_encoder_3_", "lora_te3_", "text_encoders_t5xxl_transformer_"];

impl Sd3 {
    /// The names of all layers that a LoRA can adapt.
    pub(super) fn layer_names(&self) -> Result<LoraNames, ModelError> {
        let mut names = LoraNames::default();
        names.add(self.dit_names()?);
        let graph = self.clip_l.config.graph_with_embedding(&self.clip_l.files)?;
        names.add(clip::layer_names("clip_l", &CLIP_L_PREFIXES, &graph));
        let graph = self.clip_g.config.graph_with_embedding(&self.clip_g.files)?;
        names.add(clip::layer_names("clip_g", &CLIP_G_PREFIXES, &graph));
        if let Some(t5) = &self.t5 {
            // The smallest graph: which layers there are does not depend on the job.
            let graph = t5.config.graph(&t5.files, 1)?;
            names.add(ComponentNames::new("t5", &T5_PREFIXES, graph.linear_tensors()));
        }
        Ok(names)
    }

    fn dit_names(&self) -> Result<ComponentNames, ModelError> {
        let dit = &self.dit;
        let graph = dit.config.graph(&dit.files, 1, 1, 1)?;
        // The convolution of patches is no matrix in files, and LoRA have none for it.
        let matrices = graph.linear_tensors().filter(|(_, tensor)| tensor.shape().len() == 2);
        let mut names = ComponentNames::new("dit", &DENOISER_PREFIXES, matrices);
        for (alias, module) in OUTER_LAYERS.into_iter().filter(|(alias, module)| alias != module) {
            names.alias(alias, &[module.to_owned()]);
        }
        let (original, diffusers) = LAST_MODULATION;
        swapped(&mut names, original, diffusers);
        for layer in 0..dit.config.num_layers {
            let alias_block = format!("{}.{layer}", BLOCKS.0);
            let block = format!("{}.{layer}", BLOCKS.1);
            let (alias, module) = CONTEXT_MODULATION;
            let (alias, module) = (format!("{alias_block}.{alias}"), format!("{block}.{module}"));
            match layer + 1 == dit.config.num_layers {
                true => swapped(&mut names, &alias, &module),
                false => names.alias(&alias, &[module]),
            }
            for (alias, modules) in LAYERS {
                let own: Vec<String> =
                    modules.iter().map(|module| format!("{block}.{module}")).collect();
                names.alias(&format!("{alias_block}.{alias}"), &own);
            }
        }
        Ok(names)
    }
}

/// One of the two is the layer's own name, the other stands for its halves the other way round.
fn swapped(names: &mut ComponentNames, original: &str, diffusers: &str) {
    names.alias_with_halves_swapped(original, diffusers);
    names.alias_with_halves_swapped(diffusers, original);
}
