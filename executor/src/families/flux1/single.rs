//! The DiT in a file of its own or among other parts, and what published FLUX.1 models have beside
//! its weights.

use std::sync::Arc;

use super::dit::{DitConfig, axes};
use super::names::{self, BLOCKS, Convention};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::sampling::FlowMatchConfig;
use crate::weights::WeightFiles;

/// `scheduler/scheduler_config.json` of FLUX.1-dev; FLUX.1-schnell has the class defaults, which
/// shift by nothing.
const DEV_SAMPLER: &str = r#"{ "shift": 3.0, "use_dynamic_shifting": true }"#;

/// Takes the DiT from a file, if it is there.
pub fn dit(
    files: &Arc<WeightFiles>,
    known: Option<&DitConfig>,
) -> Result<Option<(DitConfig, WeightFiles)>, ModelError> {
    let Some((convention, prefix)) = names::convention(files) else { return Ok(None) };
    let config =
        config(&files.named(names::telling_names(convention, prefix))?, convention, known)?;
    // Rows are counted in widths, which must be checked before.
    config.check(files.origin())?;
    let files = files.named(names::names(convention, prefix, &config, files))?;
    Ok(Some((config, files)))
}

fn config(
    files: &WeightFiles,
    convention: Convention,
    known: Option<&DitConfig>,
) -> Result<DitConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [hidden, in_channels] = shapes.sizes("x_embedder.weight")?;
    let [_, joint_attention_dim] = shapes.sizes("context_embedder.weight")?;
    let [_, pooled_projection_dim] =
        shapes.sizes("time_text_embed.text_embedder.linear_1.weight")?;
    let [attention_head_dim] = shapes.sizes("transformer_blocks.0.attn.norm_q.weight")?;
    let [double, single] = BLOCKS.map(|(bfl, diffusers)| match convention {
        Convention::Bfl => bfl,
        Convention::Diffusers => diffusers,
    });
    let [double_mark, single_mark] = match convention {
        Convention::Bfl => ["img_mod.lin.weight", "linear2.weight"],
        Convention::Diffusers => ["norm1.linear.weight", "proj_mlp.weight"],
    };
    let axes_dims_rope = match known {
        Some(known) if known.attention_head_dim == attention_head_dim => known.axes_dims_rope,
        _ => axes(),
    };
    let limits = Limits::of(files.origin());
    limits.holds(axes_dims_rope.iter().sum::<usize>() == attention_head_dim, || {
        format!(
            "heads are {attention_head_dim} wide, and a file does not say how positions divide them; known is how \
             they divide {}; hint: give the directory that the DiT is of as MODEL",
            axes().iter().sum::<usize>()
        )
    })?;
    let num_attention_heads = hidden / attention_head_dim;
    limits.holds(num_attention_heads * attention_head_dim == hidden, || {
        format!("heads of {attention_head_dim} do not divide the hidden width {hidden}")
    })?;
    Ok(DitConfig {
        in_channels,
        num_layers: shapes.count(|block| format!("{double}.{block}.{double_mark}")),
        num_single_layers: shapes.count(|block| format!("{single}.{block}.{single_mark}")),
        attention_head_dim,
        num_attention_heads,
        joint_attention_dim,
        pooled_projection_dim,
        guidance_embeds: shapes.has("time_text_embed.guidance_embedder.linear_1.weight"),
        axes_dims_rope,
    })
}

/// The sampler of the published model whose DiT embeds guidance, or of the one whose does not.
pub fn sampler(guidance_embeds: bool) -> FlowMatchConfig {
    if !guidance_embeds {
        return FlowMatchConfig::default();
    }
    FlowMatchConfig::parse(DEV_SAMPLER).expect("a published configuration")
}
