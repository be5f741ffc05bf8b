//! The DiT in a file of its own or among other parts, and what published Z-Image models have beside
//! its weights.

use std::sync::Arc;

use super::PATCH;
use super::dit::{self, EMBEDDER, ZImageDitConfig};
use super::names;
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::sampling::FlowMatchConfig;
use crate::weights::WeightFiles;

/// `scheduler/scheduler_config.json` of Z-Image-Turbo.
const TURBO_SAMPLER: &str = r#"{ "shift": 3.0 }"#;

/// Takes the DiT from a file, if it is there.
pub fn dit(
    files: &Arc<WeightFiles>,
    known: Option<&ZImageDitConfig>,
) -> Result<Option<(ZImageDitConfig, WeightFiles)>, ModelError> {
    let Some((spelling, prefix)) = names::spelling(files) else { return Ok(None) };
    let config = config(&files.named(names::telling_names(spelling, prefix))?, known)?;
    // Rows are counted in widths, which must be checked before.
    config.check(files.origin())?;
    let files = files.named(names::names(spelling, prefix, &config))?;
    Ok(Some((config, files)))
}

fn config(
    files: &WeightFiles,
    known: Option<&ZImageDitConfig>,
) -> Result<ZImageDitConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [dim, token_features] = shapes.sizes(&format!("{EMBEDDER}.weight"))?;
    let [cap_feat_dim] = shapes.sizes("cap_embedder.0.weight")?;
    let [head_dim] = shapes.sizes("layers.0.attention.norm_q.weight")?;
    let count = |kind: &str| shapes.count(|block| format!("{kind}.{block}.attention_norm1.weight"));
    let known = known.filter(|known| known.dim == dim && known.head_dim() == head_dim);
    let axes_dims = known.map_or_else(dit::axes, |known| known.axes_dims);
    let limits = Limits::of(files.origin());
    limits.holds(axes_dims.iter().sum::<usize>() == head_dim, || {
        format!(
            "heads are {head_dim} wide, and a file does not say how positions divide them; known is how they \
             divide {}; hint: give the directory that the DiT is of as MODEL",
            dit::axes().iter().sum::<usize>()
        )
    })?;
    let n_heads = dim / head_dim;
    limits.holds(n_heads * head_dim == dim, || {
        format!("heads of {head_dim} do not divide the width {dim}")
    })?;
    Ok(ZImageDitConfig {
        all_patch_size: vec![PATCH],
        all_f_patch_size: vec![1],
        in_channels: token_features / (PATCH * PATCH),
        dim,
        n_layers: count(dit::LAYERS),
        n_refiner_layers: count(dit::NOISE_REFINER),
        n_heads,
        n_kv_heads: n_heads,
        norm_eps: known.map_or_else(dit::epsilon, |known| known.norm_eps),
        qk_norm: true,
        cap_feat_dim,
        rope_theta: known.map_or_else(dit::theta, |known| known.rope_theta),
        t_scale: known.map_or_else(dit::time_scale, |known| known.t_scale),
        axes_dims,
    })
}

/// The sampler of Z-Image-Turbo, which no file of weights says.
pub fn sampler() -> FlowMatchConfig {
    FlowMatchConfig::parse(TURBO_SAMPLER).expect("a published configuration")
}
