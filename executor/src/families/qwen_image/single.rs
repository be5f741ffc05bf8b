//! The DiT in a file of its own or among other parts, whose names are diffusers' everywhere; and
//! what published models have beside its weights.

use std::sync::Arc;

use super::PATCH;
use super::dit::{self, QwenDitConfig};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::sampling::FlowMatchConfig;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (GGUF, ComfyUI's own), all-in-one files and exports of
/// ComfyUI, diffusers' parts in one file.
const PREFIXES: [&str; 4] = ["", "model.diffusion_model.", "diffusion_model.", "transformer."];

/// Tensors that only this family has together.
const MARKS: [&str; 2] = ["txt_norm.weight", "transformer_blocks.0.img_mod.1.weight"];

/// What models of several pictures have beside them.
const OTHER: &str = "time_text_embed.addition_t_embedding.weight";

/// Tensors of every file that holds the DiT, for people.
pub const LOOKED_FOR: &str = "transformer_blocks.0.img_mod.1";

/// `scheduler/scheduler_config.json` of Qwen-Image.
const SAMPLER: &str = r#"{
    "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 8192, "max_shift": 0.9,
    "shift": 1.0, "shift_terminal": 0.02, "time_shift_type": "exponential", "use_dynamic_shifting": true
}"#;

/// What stands before the DiT's names in a file, if it holds the DiT.
pub fn prefix(files: &WeightFiles) -> Option<&'static str> {
    let [first, second] = MARKS;
    let prefix = first_prefix(files, &PREFIXES, first)?;
    let has = |name: &str| files.tensor(&format!("{prefix}{name}")).is_some();
    (has(second) && !has(OTHER)).then_some(prefix)
}

/// Takes the DiT from a file, if it is there.
pub fn dit(
    files: &Arc<WeightFiles>,
    known: Option<&QwenDitConfig>,
) -> Result<Option<(QwenDitConfig, WeightFiles)>, ModelError> {
    let Some(prefix) = prefix(files) else { return Ok(None) };
    let files = files.named(Names::behind(prefix))?;
    let config = config(&files, known)?;
    Ok(Some((config, files)))
}

fn config(files: &WeightFiles, known: Option<&QwenDitConfig>) -> Result<QwenDitConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [hidden, in_channels] = shapes.sizes("img_in.weight")?;
    let [_, joint_attention_dim] = shapes.sizes("txt_in.weight")?;
    let [attention_head_dim] = shapes.sizes("transformer_blocks.0.attn.norm_q.weight")?;
    let axes_dims_rope = match known {
        Some(known) if known.attention_head_dim == attention_head_dim => known.axes_dims_rope,
        _ => dit::axes(),
    };
    let limits = Limits::of(files.origin());
    limits.holds(axes_dims_rope.iter().sum::<usize>() == attention_head_dim, || {
        format!(
            "heads are {attention_head_dim} wide, and a file does not say how positions divide them; known is how \
             they divide {}; hint: give the directory that the DiT is of as MODEL",
            dit::axes().iter().sum::<usize>()
        )
    })?;
    limits.holds(attention_head_dim > 0 && hidden.is_multiple_of(attention_head_dim), || {
        format!("heads of {attention_head_dim} do not divide the hidden width {hidden}")
    })?;
    Ok(QwenDitConfig {
        patch_size: PATCH,
        in_channels,
        out_channels: Some(in_channels / (PATCH * PATCH)),
        num_layers: shapes.count(|block| format!("transformer_blocks.{block}.img_mod.1.weight")),
        attention_head_dim,
        num_attention_heads: hidden / attention_head_dim,
        joint_attention_dim,
        guidance_embeds: false,
        axes_dims_rope,
        zero_cond_t: false,
        use_additional_t_cond: false,
        use_layer3d_rope: false,
    })
}

/// The sampler of every published model, which no file of weights says.
pub fn sampler() -> FlowMatchConfig {
    FlowMatchConfig::parse(SAMPLER).expect("a published configuration")
}
