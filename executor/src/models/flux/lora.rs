//! LoRA for FLUX.1: what its files call the layers, and the model with them applied.
//!
//! The DiT's layers are known by diffusers' names and by those of Black Forest Labs, whose projections
//! are fused: one module's rows then belong to several weights.

use std::sync::Arc;

use super::Flux;
use super::names::{BLOCKS, DOUBLE_LAYERS, LAST_MODULATION, OUTER_LAYERS, SINGLE_LAYERS};
use crate::graph::Graph;
use crate::models::ModelError;
use crate::models::source::Part;
use crate::weights::lora::{ComponentNames, LoraMode, LoraNames, LoraSource, Loras};
use crate::weights::{TensorRef, WeightFiles};

/// What stands before the names of the DiT's layers: nothing or `transformer.` (diffusers), the others by
/// ComfyUI, kohya's sd-scripts, OneTrainer and LyCORIS.
const DIT_PREFIXES: [&str; 7] = [
    "",
    "transformer_",
    "diffusion_model_",
    "model_diffusion_model_",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
];

/// The same for CLIP.
const CLIP_PREFIXES: [&str; 5] =
    ["", "text_encoder_", "lora_te_", "lora_te1_", "text_encoders_clip_l_transformer_"];

/// The same for T5, which is the second text encoder for OneTrainer and the third for sd-scripts, as in
/// SD3.
const T5_PREFIXES: [&str; 5] =
    ["", "text_encoder_2_", "lora_te2_", "lora_te3_", "text_encoders_t5xxl_transformer_"];

impl Flux {
    /// Opens LoRA files and matches them with this model's weights.
    pub fn open_loras(&self, sources: &[LoraSource]) -> Result<Loras, ModelError> {
        Ok(Loras::open(sources, &self.lora_names()?)?)
    }

    /// This model with LoRA applied; see [`Model::with_loras`](crate::models::Model::with_loras).
    pub fn with_loras(
        &self,
        loras: &Loras,
        mode: &dyn Fn(&str) -> Option<LoraMode>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Flux, ModelError> {
        let apply = |component: &str, files: &Arc<WeightFiles>| match mode(component) {
            Some(mode) => loras.apply(component, files, mode, stop),
            None => Ok(Arc::clone(files)),
        };
        let changed = loras.components().filter(|c| mode(c) != Some(LoraMode::Runtime));
        let changed_bytes = changed.map(|component| loras.private_bytes(component)).sum();
        let clip = Part { files: apply("clip", &self.clip.files)?, ..self.clip.clone() };
        let t5 = Part { files: apply("t5", &self.t5.files)?, ..self.t5.clone() };
        let files = apply("dit", &self.transformer.files)?;
        let transformer = Part { files, ..self.transformer.clone() };
        Ok(Flux { clip, t5, transformer, changed_bytes, ..self.clone() })
    }

    /// The names of all layers that a LoRA can adapt.
    fn lora_names(&self) -> Result<LoraNames, ModelError> {
        let mut names = LoraNames::default();
        names.add(self.dit_names()?);
        let clip = self.clip.config.graph(&self.clip.files)?;
        names.add(clip_names(&clip));
        // The smallest graph: which layers there are does not depend on the job.
        let t5 = self.t5.config.graph(&self.t5.files, 1)?;
        names.add(ComponentNames::new("t5", &T5_PREFIXES, linear_weights(&t5)));
        Ok(names)
    }

    fn dit_names(&self) -> Result<ComponentNames, ModelError> {
        let dit = &self.transformer;
        let graph = dit.config.graph(&dit.files, 1, 1, 1)?;
        let mut names = ComponentNames::new("dit", &DIT_PREFIXES, linear_weights(&graph));
        for (alias, module) in OUTER_LAYERS {
            names.alias(alias, &[module.to_owned()]);
        }
        // One of the two is the layer's own name, the other stands for its halves the other way round.
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

/// CLIP's layers, with and without the prefix that newer checkpoints leave out.
fn clip_names(graph: &Graph) -> ComponentNames {
    const PREFIX: &str = "text_model.";
    let mut names = ComponentNames::new("clip", &CLIP_PREFIXES, linear_weights(graph));
    for (weight, _) in linear_weights(graph) {
        let module = weight.strip_suffix(".weight").expect("a linear layer's weight");
        let alias = match module.strip_prefix(PREFIX) {
            Some(bare) => bare.to_owned(),
            None => format!("{PREFIX}{module}"),
        };
        names.alias(&alias, &[module.to_owned()]);
    }
    names
}

fn linear_weights(graph: &Graph) -> impl Iterator<Item = (&str, TensorRef)> {
    graph.linear_weights().map(|weight| (weight.name.as_str(), weight.tensor))
}
