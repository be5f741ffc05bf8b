//! The transformer in a file of its own or among other parts, and what published models have beside
//! its weights.

use std::sync::Arc;

use super::dit::{BLOCKS, POSITIONS, RMS_NORM, Sd3DitConfig};
use super::names::{self, NameStyle};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::sampling::FlowMatchConfig;
use crate::weights::WeightFiles;

/// Width of a head in every published model.
const HEAD_WIDTH: usize = 64;

/// `scheduler/scheduler_config.json` of every published model.
const SAMPLER: &str = r#"{ "shift": 3.0 }"#;

/// Tensors of a block by both names, whose presence or shape tells something.
struct Marks {
    block: &'static str,
    /// Every block has it.
    modulation: &'static str,
    /// The norm of queries, where there is one.
    norm: &'static str,
    /// A projection of the second attention, where there is one.
    second: &'static str,
}

const STABILITY: Marks = Marks {
    block: BLOCKS.0,
    modulation: "x_block.adaLN_modulation.1",
    norm: "x_block.attn.ln_q",
    second: "x_block.attn2.qkv",
};

const DIFFUSERS: Marks = Marks {
    block: BLOCKS.1,
    modulation: "norm1.linear",
    norm: "attn.norm_q",
    second: "attn2.to_q",
};

/// Takes the transformer from a file, if it is there.
pub fn dit(
    files: &Arc<WeightFiles>,
    known: Option<&Sd3DitConfig>,
) -> Result<Option<(Sd3DitConfig, WeightFiles)>, ModelError> {
    let Some((style, prefix)) = names::style(files) else { return Ok(None) };
    let config = config(&files.named(names::telling_names(style, prefix))?, style, known)?;
    // Rows are counted in widths, which must be checked before.
    config.check(files.origin())?;
    let files = files.named(names::names(style, prefix, &config, files))?;
    Ok(Some((config, files)))
}

fn config(
    files: &WeightFiles,
    style: NameStyle,
    known: Option<&Sd3DitConfig>,
) -> Result<Sd3DitConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [hidden, in_channels, patch_size, _] = shapes.sizes("pos_embed.proj.weight")?;
    // Tools that quantise GGUF files leave out the first dimension of the table.
    let flat = files.tensor(POSITIONS).filter(|table| table.shape.len() == 2);
    let table = match flat {
        Some(table) => table.shape[0],
        None => shapes.sizes::<3>(POSITIONS)?[1],
    };
    let [caption_projection_dim, joint_attention_dim] = shapes.sizes("context_embedder.weight")?;
    let [_, pooled_projection_dim] =
        shapes.sizes("time_text_embed.text_embedder.linear_1.weight")?;
    let [out_features, _] = shapes.sizes("proj_out.weight")?;
    let marks = match style {
        NameStyle::Stability => STABILITY,
        NameStyle::Diffusers => DIFFUSERS,
    };
    let name = |layer: usize, mark| format!("{}.{layer}.{mark}.weight", marks.block);
    let num_layers = shapes.count(|layer| name(layer, marks.modulation));
    let norm = name(0, marks.norm);
    let qk_norm = shapes.has(&norm).then(|| RMS_NORM.to_owned());
    // Without norms only the directory's configuration says how wide heads are.
    let known = known.filter(|known| known.hidden() == hidden && known.num_layers == num_layers);
    let attention_head_dim = match &qk_norm {
        Some(_) => shapes.sizes::<1>(&norm)?[0],
        None => known.map_or(HEAD_WIDTH, |known| known.attention_head_dim),
    };
    let limits = Limits::of(files.origin());
    limits.count("the width of a head", attention_head_dim, 1024)?;
    limits.holds(hidden.is_multiple_of(attention_head_dim), || {
        format!("heads of {attention_head_dim} do not divide the hidden width {hidden}")
    })?;
    let side = table.isqrt();
    limits.holds(side * side == table, || {
        format!("{table} positions are no square; hint: take the whole file again")
    })?;
    limits.count("patch_size", patch_size, 1024)?;
    Ok(Sd3DitConfig {
        patch_size,
        in_channels,
        out_channels: Some(out_features / (patch_size * patch_size)),
        num_layers,
        attention_head_dim,
        num_attention_heads: hidden / attention_head_dim,
        joint_attention_dim,
        caption_projection_dim,
        pooled_projection_dim,
        pos_embed_max_size: side,
        dual_attention_layers: (0..num_layers)
            .filter(|layer| shapes.has(&name(*layer, marks.second)))
            .collect(),
        qk_norm,
    })
}

/// The sampler of every published model, which no file of weights says.
pub fn sampler() -> FlowMatchConfig {
    FlowMatchConfig::parse(SAMPLER).expect("a published configuration")
}
