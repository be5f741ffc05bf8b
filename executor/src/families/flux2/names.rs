//! What Black Forest Labs' files call the DiT's layers, and diffusers' names for the same
//! (diffusers, `scripts/convert_flux2_to_diffusers.py`). Both have projections in one piece that
//! the graph takes by their parts.

use super::dit::{
    Flux2DitConfig, GATE, IMAGE_MODULATION, LAST_MODULATION, SINGLE_MODULATION, TEXT_MODULATION,
    TIME_IN, TIME_OUT, UP,
};
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (published files and GGUF), ComfyUI's and Stability's
/// all-in-one files, ComfyUI's exports, diffusers' parts in one file.
const PREFIXES: [&str; 4] = ["", "model.diffusion_model.", "diffusion_model.", "transformer."];

/// A tensor that only FLUX.2 has under that name, by both conventions.
const BFL_MARK: &str = "double_stream_modulation_img.lin.weight";
const DIFFUSERS_MARK: &str = "double_stream_modulation_img.linear.weight";

/// What FLUX.2-dev has and the klein models have not: guidance is an input of it.
const GUIDANCE: [&str; 2] =
    ["guidance_in.in_layer.weight", "time_guidance_embed.guidance_embedder.linear_1.weight"];

/// Tensors of every file that holds the DiT, for people.
pub const LOOKED_FOR: &str =
    "double_stream_modulation_img.lin or double_stream_modulation_img.linear";

/// Layers outside of blocks.
pub const OUTER_LAYERS: [(&str, &str); 8] = [
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", TIME_IN),
    ("time_in.out_layer", TIME_OUT),
    ("double_stream_modulation_img.lin", IMAGE_MODULATION),
    ("double_stream_modulation_txt.lin", TEXT_MODULATION),
    ("single_stream_modulation.lin", SINGLE_MODULATION),
    ("final_layer.linear", "proj_out"),
];

/// The blocks by both names.
pub const BLOCKS: [(&str, &str); 2] =
    [("double_blocks", "transformer_blocks"), ("single_blocks", "single_transformer_blocks")];

/// A layer of a block in Black Forest Labs' files, in diffusers', and its parts where it is fused.
pub struct BlockLayer {
    /// Black Forest Labs' name of it.
    pub bfl: &'static str,
    /// diffusers' name of it, where it is one layer there.
    pub diffusers: Option<&'static str>,
    /// The layers that it is made of, by the graph's names, in the order of its rows.
    pub parts: &'static [&'static str],
}

const fn fused(
    bfl: &'static str,
    diffusers: Option<&'static str>,
    parts: &'static [&'static str],
) -> BlockLayer {
    BlockLayer { bfl, diffusers, parts }
}

/// Of double blocks.
pub const DOUBLE_LAYERS: [BlockLayer; 8] = [
    fused("img_attn.qkv", None, &["attn.to_q", "attn.to_k", "attn.to_v"]),
    fused("txt_attn.qkv", None, &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    fused("img_attn.proj", None, &["attn.to_out.0"]),
    fused("txt_attn.proj", None, &["attn.to_add_out"]),
    fused("img_mlp.0", Some("ff.linear_in"), &["ff.linear_in.gate", "ff.linear_in.up"]),
    fused("img_mlp.2", None, &["ff.linear_out"]),
    fused(
        "txt_mlp.0",
        Some("ff_context.linear_in"),
        &["ff_context.linear_in.gate", "ff_context.linear_in.up"],
    ),
    fused("txt_mlp.2", None, &["ff_context.linear_out"]),
];

/// Of single blocks.
pub const SINGLE_LAYERS: [BlockLayer; 2] = [
    fused(
        "linear1",
        Some("attn.to_qkv_mlp_proj"),
        &["attn.to_q", "attn.to_k", "attn.to_v", "mlp.gate", "mlp.up"],
    ),
    fused("linear2", None, &["attn.to_out"]),
];

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

/// Whose names a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Black Forest Labs'.
    Bfl,
    /// diffusers'.
    Diffusers,
}

/// How a file calls the DiT's tensors, if it holds the DiT of a klein model.
pub fn origin(files: &WeightFiles) -> Option<(Origin, &'static str)> {
    let of = |mark| first_prefix(files, &PREFIXES, mark);
    let bfl = of(BFL_MARK).map(|prefix| (Origin::Bfl, prefix));
    let found = bfl.or_else(|| of(DIFFUSERS_MARK).map(|prefix| (Origin::Diffusers, prefix)));
    found.filter(|(_, prefix)| {
        GUIDANCE.iter().all(|name| files.tensor(&format!("{prefix}{name}")).is_none())
    })
}

/// The names of those tensors whose shapes tell the configuration.
pub fn telling_names(origin: Origin, prefix: &str) -> Names {
    let mut names = Names::behind(prefix);
    if origin == Origin::Bfl {
        for (own, asked) in OUTER_LAYERS {
            names.layer(asked, own);
        }
        norms(&mut names, BLOCKS[0], 0, &DOUBLE_NORMS);
    }
    names
}

/// The names of all tensors. Those of the last modulation are kept: its halves stand the other way
/// round, which is the graph's to know.
pub fn names(origin: Origin, prefix: &str, config: &Flux2DitConfig, files: &WeightFiles) -> Names {
    let mut names = Names::behind(prefix);
    if origin == Origin::Bfl {
        for (own, asked) in OUTER_LAYERS {
            names.layer(asked, own);
        }
        let (bfl, diffusers) = LAST_MODULATION;
        if !Shapes::of(files).has(&format!("{prefix}{bfl}.weight")) {
            // It is missed by the name that such files have for it.
            names.layer(diffusers, bfl);
        }
    }
    let [double, single] = BLOCKS;
    for (block, count, block_layers, block_norms) in [
        (double, config.num_layers, &DOUBLE_LAYERS[..], &DOUBLE_NORMS[..]),
        (single, config.num_single_layers, &SINGLE_LAYERS[..], &SINGLE_NORMS[..]),
    ] {
        for index in 0..count {
            for layer in block_layers {
                list(&mut names, origin, block, index, layer, config);
            }
            if origin == Origin::Bfl {
                norms(&mut names, block, index, block_norms);
            }
        }
    }
    names
}

/// Lists one layer of a block.
fn list(
    names: &mut Names,
    origin: Origin,
    (bfl_block, block): (&str, &str),
    index: usize,
    layer: &BlockLayer,
    config: &Flux2DitConfig,
) {
    let own = match origin {
        Origin::Bfl => format!("{bfl_block}.{index}.{}", layer.bfl),
        Origin::Diffusers => match layer.diffusers {
            Some(own) => format!("{block}.{index}.{own}"),
            None => return,
        },
    };
    let asked = |part: &str| format!("{block}.{index}.{part}.weight");
    if let [part] = layer.parts {
        return names.whole(&asked(part), &format!("{own}.weight"));
    }
    let rows = |part: &str| match is_wide(part) {
        true => config.wide(),
        false => config.hidden(),
    };
    let of = layer.parts.iter().map(|part| rows(part)).sum();
    let mut from = 0;
    for part in layer.parts {
        let to = from + rows(part);
        names.rows(&asked(part), &format!("{own}.weight"), from..to, of);
        from = to;
    }
}

/// Whether a part of a fused layer has as many rows as a feed-forward layer is wide.
fn is_wide(part: &str) -> bool {
    part.rsplit('.').next().is_some_and(|last| [GATE, UP].contains(&last))
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

#[cfg(test)]
mod tests {
    use super::super::dit::SINGLE_MLP;
    use super::*;

    #[test]
    fn the_parts_of_single_blocks_are_those_that_the_graph_asks_for() {
        let parts = SINGLE_LAYERS.iter().flat_map(|layer| layer.parts);
        let gated = [GATE, UP].map(|half| format!("{SINGLE_MLP}.{half}"));
        assert!(gated.iter().all(|part| parts.clone().any(|known| known == part)));
    }
}
