//! The DiT in a file of its own or among other parts, and what published FLUX.2 klein models have
//! beside its weights.

use std::sync::Arc;

use super::dit::{Flux2DitConfig, TIME_IN};
use super::names::{self, BLOCKS, Origin};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::sampling::FlowMatchConfig;
use crate::weights::WeightFiles;

/// `scheduler/scheduler_config.json` of FLUX.2-klein-4B and FLUX.2-klein-9B.
const SAMPLER: &str = r#"{ "shift": 3.0, "use_dynamic_shifting": true }"#;

/// Takes the DiT from a file, if it is there.
pub fn dit(
    files: &Arc<WeightFiles>,
    known: Option<&Flux2DitConfig>,
) -> Result<Option<(Flux2DitConfig, WeightFiles)>, ModelError> {
    let Some((origin, prefix)) = names::origin(files) else { return Ok(None) };
    let config = config(&files.named(names::telling_names(origin, prefix))?, origin, known)?;
    // Rows are counted in widths, which must be checked before.
    config.check(files.origin())?;
    let files = files.named(names::names(origin, prefix, &config, files))?;
    Ok(Some((config, files)))
}

fn config(
    files: &WeightFiles,
    origin: Origin,
    known: Option<&Flux2DitConfig>,
) -> Result<Flux2DitConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [hidden, in_channels] = shapes.sizes("x_embedder.weight")?;
    let [_, joint_attention_dim] = shapes.sizes("context_embedder.weight")?;
    let [_, timestep_guidance_channels] = shapes.sizes(&format!("{TIME_IN}.weight"))?;
    let [attention_head_dim] = shapes.sizes("transformer_blocks.0.attn.norm_q.weight")?;
    let [double, single] = BLOCKS.map(|(bfl, diffusers)| match origin {
        Origin::Bfl => bfl,
        Origin::Diffusers => diffusers,
    });
    let [double_mark, single_mark] = match origin {
        Origin::Bfl => ["img_mlp.2.weight", "linear2.weight"],
        Origin::Diffusers => ["ff.linear_out.weight", "attn.to_out.weight"],
    };
    let [_, wide] = shapes.sizes(&format!("{double}.0.{double_mark}"))?;
    let count = |block: &str, mark: &str| shapes.count(|at| format!("{block}.{at}.{mark}"));
    let published = Flux2DitConfig::default();
    let known = known.filter(|known| known.attention_head_dim == attention_head_dim);
    let said = known.unwrap_or(&published);
    let limits = Limits::of(files.origin());
    limits.holds(said.axes_dims_rope.iter().sum::<usize>() == attention_head_dim, || {
        format!(
            "heads are {attention_head_dim} wide, and a file does not say how positions divide them; known is how \
             they divide {}; hint: give the directory that the DiT is of as MODEL",
            published.attention_head_dim
        )
    })?;
    let num_attention_heads = hidden / attention_head_dim;
    limits.holds(num_attention_heads * attention_head_dim == hidden, || {
        format!("heads of {attention_head_dim} do not divide the hidden width {hidden}")
    })?;
    Ok(Flux2DitConfig {
        in_channels,
        num_layers: count(double, double_mark),
        num_single_layers: count(single, single_mark),
        attention_head_dim,
        num_attention_heads,
        joint_attention_dim,
        timestep_guidance_channels,
        // Half a feature more: the width is what is left of the product without its fraction.
        mlp_ratio: (wide as f64 + 0.5) / hidden as f64,
        axes_dims_rope: said.axes_dims_rope,
        rope_theta: said.rope_theta,
        eps: said.eps,
        ..published
    })
}

/// The sampler of the published models, which no file of weights says.
pub fn sampler() -> FlowMatchConfig {
    FlowMatchConfig::parse(SAMPLER).expect("a published configuration")
}
