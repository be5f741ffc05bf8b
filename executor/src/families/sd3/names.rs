//! What Stability's files call the transformer's layers, and diffusers' names for the same
//! (diffusers, `convert_sd3_transformer_checkpoint_to_diffusers`).

use super::dit::{BLOCKS, CONTEXT_MODULATION, LAST_MODULATION, POSITIONS, Sd3DitConfig};
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (GGUF), Stability's all-in-one files, ComfyUI's exports,
/// diffusers' parts in one file.
const PREFIXES: [&str; 4] = ["", "model.diffusion_model.", "diffusion_model.", "transformer."];

/// Tensors that only this family has under that name, by both conventions.
const ORIGINAL_MARK: &str = "joint_blocks.0.x_block.attn.qkv.weight";
const DIFFUSERS_MARKS: [&str; 2] =
    ["transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"];

/// Tensors of every file that holds the transformer, for people.
pub const LOOKED_FOR: &str =
    "joint_blocks.0.x_block.attn.qkv or transformer_blocks.0.attn.add_q_proj with pos_embed.proj";

/// Layers outside of blocks.
pub const OUTER_LAYERS: [(&str, &str); 7] = [
    ("x_embedder.proj", "pos_embed.proj"),
    ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
    ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
    ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
    ("context_embedder", "context_embedder"),
    ("final_layer.linear", "proj_out"),
];

/// Layers of a block by both names: one, or several of as many rows in one piece. Which of them a
/// block has follows from the model and from its place.
pub const LAYERS: [(&str, &[&str]); 11] = [
    ("x_block.adaLN_modulation.1", &["norm1.linear"]),
    ("x_block.attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("context_block.attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ("x_block.attn.proj", &["attn.to_out.0"]),
    ("context_block.attn.proj", &["attn.to_add_out"]),
    ("x_block.attn2.qkv", &["attn2.to_q", "attn2.to_k", "attn2.to_v"]),
    ("x_block.attn2.proj", &["attn2.to_out.0"]),
    ("x_block.mlp.fc1", &["ff.net.0.proj"]),
    ("x_block.mlp.fc2", &["ff.net.2"]),
    ("context_block.mlp.fc1", &["ff_context.net.0.proj"]),
    ("context_block.mlp.fc2", &["ff_context.net.2"]),
];

/// Norms of a block's heads by both names.
const NORMS: [(&str, &str); 6] = [
    ("x_block.attn.ln_q", "attn.norm_q"),
    ("x_block.attn.ln_k", "attn.norm_k"),
    ("context_block.attn.ln_q", "attn.norm_added_q"),
    ("context_block.attn.ln_k", "attn.norm_added_k"),
    ("x_block.attn2.ln_q", "attn2.norm_q"),
    ("x_block.attn2.ln_k", "attn2.norm_k"),
];

/// Whose names a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStyle {
    /// Those of the model's makers, which ComfyUI and GGUF files kept.
    Stability,
    /// diffusers'.
    Diffusers,
}

/// How a file calls the transformer's tensors, if it holds it.
pub fn style(files: &WeightFiles) -> Option<(NameStyle, &'static str)> {
    if let Some(prefix) = first_prefix(files, &PREFIXES, ORIGINAL_MARK) {
        return Some((NameStyle::Stability, prefix));
    }
    let [first, second] = DIFFUSERS_MARKS;
    let prefix = first_prefix(files, &PREFIXES, first)?;
    files.tensor(&format!("{prefix}{second}"))?;
    Some((NameStyle::Diffusers, prefix))
}

/// The names of those tensors whose shapes tell the configuration.
pub fn telling_names(style: NameStyle, prefix: &str) -> Names {
    let mut names = Names::behind(prefix);
    if style == NameStyle::Stability {
        outer(&mut names);
    }
    names
}

/// The names of all tensors. Those of the modulations whose halves stand the other way round are
/// kept: that is the graph's to know.
pub fn names(style: NameStyle, prefix: &str, config: &Sd3DitConfig, files: &WeightFiles) -> Names {
    let mut names = Names::behind(prefix);
    if style == NameStyle::Diffusers {
        return names;
    }
    outer(&mut names);
    // Where one of these is missing, it is missed by the name that such files have for it.
    let has = |own: &str| Shapes::of(files).has(&format!("{prefix}{own}.weight"));
    let (own, asked) = LAST_MODULATION;
    if !has(own) {
        names.layer(asked, own);
    }
    for layer in 0..config.num_layers {
        let own_block = format!("{}.{layer}", BLOCKS.0);
        let block = format!("{}.{layer}", BLOCKS.1);
        let (own, asked) = CONTEXT_MODULATION;
        let own = format!("{own_block}.{own}");
        if layer + 1 < config.num_layers || !has(&own) {
            names.layer(&format!("{block}.{asked}"), &own);
        }
        for (own, parts) in LAYERS {
            layers(&mut names, &format!("{own_block}.{own}"), &block, parts, config.hidden());
        }
        for (own, asked) in NORMS {
            names.whole(&format!("{block}.{asked}.weight"), &format!("{own_block}.{own}.weight"));
        }
    }
    names
}

fn layers(names: &mut Names, own: &str, block: &str, parts: &[&str], hidden: usize) {
    if let [layer] = parts {
        names.layer(&format!("{block}.{layer}"), own);
        return;
    }
    for (index, layer) in parts.iter().enumerate() {
        let rows = index * hidden..(index + 1) * hidden;
        for end in ["weight", "bias"] {
            let (asked, own) = (format!("{block}.{layer}.{end}"), format!("{own}.{end}"));
            names.rows(&asked, &own, rows.clone(), parts.len() * hidden);
        }
    }
}

fn outer(names: &mut Names) {
    for (own, asked) in OUTER_LAYERS {
        names.layer(asked, own);
    }
    names.whole(POSITIONS, "pos_embed");
}
