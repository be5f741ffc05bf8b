//! What Black Forest Labs' files call the DiT's layers, and diffusers' names for the same
//! (diffusers, `scripts/convert_flux_to_diffusers.py`).

use super::dit::{DitConfig, LAST_MODULATION, MLP_RATIO};
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (published files and GGUF), ComfyUI's and Stability's
/// all-in-one files, ComfyUI's exports, diffusers' parts in one file.
const PREFIXES: [&str; 4] = ["", "model.diffusion_model.", "diffusion_model.", "transformer."];

/// A tensor that only this family has under that name, by both conventions.
const BFL_MARK: &str = "double_blocks.0.img_mod.lin.weight";
const DIFFUSERS_MARK: &str = "single_transformer_blocks.0.proj_mlp.weight";

/// Tensors of every file that holds the DiT, for people.
pub const LOOKED_FOR: &str = "double_blocks.0.img_mod.lin or single_transformer_blocks.0.proj_mlp";

/// Layers of a double block by both names, and those of a single block.
pub const DOUBLE_LAYERS: [(&str, &[&str]); 10] = [
    ("img_mod.lin", &["norm1.linear"]),
    ("txt_mod.lin", &["norm1_context.linear"]),
    ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("txt_attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ("img_attn.proj", &["attn.to_out.0"]),
    ("txt_attn.proj", &["attn.to_add_out"]),
    ("img_mlp.0", &["ff.net.0.proj"]),
    ("img_mlp.2", &["ff.net.2"]),
    ("txt_mlp.0", &["ff_context.net.0.proj"]),
    ("txt_mlp.2", &["ff_context.net.2"]),
];
pub const SINGLE_LAYERS: [(&str, &[&str]); 3] = [
    ("modulation.lin", &["norm.linear"]),
    ("linear1", &["attn.to_q", "attn.to_k", "attn.to_v", WIDE]),
    ("linear2", &["proj_out"]),
];

/// The one layer among fused ones that has not the hidden width but as much as a feed-forward
/// layer.
const WIDE: &str = "proj_mlp";

/// Norms of a double block's heads by both names, and those of a single block.
const DOUBLE_NORMS: [(&str, &str); 4] = [
    ("img_attn.norm.query_norm.scale", "attn.norm_q.weight"),
    ("img_attn.norm.key_norm.scale", "attn.norm_k.weight"),
    ("txt_attn.norm.query_norm.scale", "attn.norm_added_q.weight"),
    ("txt_attn.norm.key_norm.scale", "attn.norm_added_k.weight"),
];
const SINGLE_NORMS: [(&str, &str); 2] = [
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
];

/// Layers outside of blocks.
pub const OUTER_LAYERS: [(&str, &str); 9] = [
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    ("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    ("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    ("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    ("final_layer.linear", "proj_out"),
];

/// The blocks by both names.
pub const BLOCKS: [(&str, &str); 2] =
    [("double_blocks", "transformer_blocks"), ("single_blocks", "single_transformer_blocks")];

/// Whose names a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// Black Forest Labs'.
    Bfl,
    /// diffusers'.
    Diffusers,
}

/// How a file calls the DiT's tensors, if it holds the DiT.
pub fn convention(files: &WeightFiles) -> Option<(Convention, &'static str)> {
    let of = |mark| first_prefix(files, &PREFIXES, mark);
    let bfl = of(BFL_MARK).map(|prefix| (Convention::Bfl, prefix));
    bfl.or_else(|| of(DIFFUSERS_MARK).map(|prefix| (Convention::Diffusers, prefix)))
}

/// The names of those tensors whose shapes tell the configuration.
pub fn telling_names(convention: Convention, prefix: &str) -> Names {
    let mut names = Names::behind(prefix);
    if convention == Convention::Bfl {
        for (own, asked) in OUTER_LAYERS {
            names.layer(asked, own);
        }
        norms(&mut names, BLOCKS[0], 0, &DOUBLE_NORMS);
    }
    names
}

/// The names of all tensors. Those of the last modulation are kept: its halves stand the other way
/// round, which is the graph's to know.
pub fn names(
    convention: Convention,
    prefix: &str,
    config: &DitConfig,
    files: &WeightFiles,
) -> Names {
    let mut names = Names::behind(prefix);
    if convention == Convention::Diffusers {
        return names;
    }
    for (own, asked) in OUTER_LAYERS {
        names.layer(asked, own);
    }
    let (bfl, diffusers) = LAST_MODULATION;
    if !Shapes::of(files).has(&format!("{prefix}{bfl}.weight")) {
        // It is missed by the name that such files have for it.
        names.layer(diffusers, bfl);
    }
    let hidden = config.hidden();
    let [double, single] = BLOCKS;
    for index in 0..config.num_layers {
        layers(&mut names, double, index, &DOUBLE_LAYERS, hidden);
        norms(&mut names, double, index, &DOUBLE_NORMS);
    }
    for index in 0..config.num_single_layers {
        layers(&mut names, single, index, &SINGLE_LAYERS, hidden);
        norms(&mut names, single, index, &SINGLE_NORMS);
    }
    names
}

fn layers(
    names: &mut Names,
    (own_block, block): (&str, &str),
    index: usize,
    layers: &[(&str, &[&str])],
    hidden: usize,
) {
    for (own, parts) in layers {
        let own = format!("{own_block}.{index}.{own}");
        if let [layer] = parts {
            names.layer(&format!("{block}.{index}.{layer}"), &own);
            continue;
        }
        let width = |layer: &str| if layer == WIDE { MLP_RATIO * hidden } else { hidden };
        let of = parts.iter().map(|layer| width(layer)).sum();
        let mut from = 0;
        for layer in *parts {
            let rows = from..from + width(layer);
            from = rows.end;
            for end in ["weight", "bias"] {
                let asked = format!("{block}.{index}.{layer}.{end}");
                names.rows(&asked, &format!("{own}.{end}"), rows.clone(), of);
            }
        }
    }
}

fn norms(
    names: &mut Names,
    (own_block, block): (&str, &str),
    index: usize,
    norms: &[(&str, &str)],
) {
    for (own, asked) in norms {
        names.whole(&format!("{block}.{index}.{asked}"), &format!("{own_block}.{index}.{own}"));
    }
}
