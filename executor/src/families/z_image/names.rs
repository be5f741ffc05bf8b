//! What ComfyUI's files and GGUF files call the DiT's layers, and diffusers' names for the same
//! (diffusers, `convert_z_image_transformer_checkpoint_to_diffusers`).

use super::dit::{CONTEXT_REFINER, EMBEDDER, FINAL, LAYERS, NOISE_REFINER, ZImageDitConfig};
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (GGUF), ComfyUI's all-in-one files and exports, diffusers'
/// parts in one file.
const PREFIXES: [&str; 4] = ["", "model.diffusion_model.", "diffusion_model.", "transformer."];

/// A tensor that only this family has.
const MARK: &str = "cap_pad_token";

/// Tensors of every file that holds the DiT, for people.
pub const LOOKED_FOR: &str = "cap_pad_token";

/// Layers outside of blocks.
pub const OUTER_LAYERS: [(&str, &str); 2] = [("x_embedder", EMBEDDER), ("final_layer", FINAL)];

/// Projections of a block that ComfyUI has in one piece.
pub const FUSED: (&str, [&str; 3]) =
    ("attention.qkv", ["attention.to_q", "attention.to_k", "attention.to_v"]);

/// Layers of a block by both names.
pub const RENAMED: (&str, &str) = ("attention.out", "attention.to_out.0");

/// Norms of a block's heads by both names.
const NORMS: [(&str, &str); 2] =
    [("attention.q_norm", "attention.norm_q"), ("attention.k_norm", "attention.norm_k")];

/// Layers within an outer one.
pub const FINAL_LAYERS: [&str; 2] = ["linear", "adaLN_modulation.1"];

/// Whose names a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// ComfyUI's, which are those of the model's makers.
    Original,
    /// diffusers'.
    Diffusers,
}

/// How a file calls the DiT's tensors, if it holds the DiT.
pub fn spelling(files: &WeightFiles) -> Option<(Spelling, &'static str)> {
    let prefix = first_prefix(files, &PREFIXES, MARK)?;
    let is_diffusers = files.tensor(&format!("{prefix}{EMBEDDER}.weight")).is_some();
    Some((if is_diffusers { Spelling::Diffusers } else { Spelling::Original }, prefix))
}

/// The names of those tensors whose shapes tell the configuration.
pub fn telling_names(spelling: Spelling, prefix: &str) -> Names {
    let mut names = Names::behind(prefix);
    if spelling == Spelling::Original {
        outer(&mut names);
        norms(&mut names, &format!("{LAYERS}.0"));
    }
    names
}

/// The names of all tensors.
pub fn names(spelling: Spelling, prefix: &str, config: &ZImageDitConfig) -> Names {
    let mut names = Names::behind(prefix);
    if spelling == Spelling::Diffusers {
        return names;
    }
    outer(&mut names);
    for block in blocks(config) {
        norms(&mut names, &block);
        let (own, parts) = FUSED;
        for (index, part) in parts.iter().enumerate() {
            let rows = index * config.dim..(index + 1) * config.dim;
            let (asked, own) = (format!("{block}.{part}.weight"), format!("{block}.{own}.weight"));
            names.rows(&asked, &own, rows, parts.len() * config.dim);
        }
        let (own, asked) = RENAMED;
        names.whole(&format!("{block}.{asked}.weight"), &format!("{block}.{own}.weight"));
    }
    names
}

/// The names of all blocks, which are the same everywhere.
pub fn blocks(config: &ZImageDitConfig) -> impl Iterator<Item = String> {
    let kinds = [
        (NOISE_REFINER, config.n_refiner_layers),
        (CONTEXT_REFINER, config.n_refiner_layers),
        (LAYERS, config.n_layers),
    ];
    kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |at| format!("{kind}.{at}")))
}

fn outer(names: &mut Names) {
    let [(own_embedder, embedder), (own_final, last)] = OUTER_LAYERS;
    names.layer(embedder, own_embedder);
    for layer in FINAL_LAYERS {
        names.layer(&format!("{last}.{layer}"), &format!("{own_final}.{layer}"));
    }
}

fn norms(names: &mut Names, block: &str) {
    for (own, asked) in NORMS {
        names.whole(&format!("{block}.{asked}.weight"), &format!("{block}.{own}.weight"));
    }
}
