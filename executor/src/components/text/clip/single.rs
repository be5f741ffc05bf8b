//! CLIP's text model in a file of its own or among other parts, in transformers' names.

use std::sync::Arc;

use super::{ClipConfig, epsilon, quick_gelu};
use crate::models::ModelError;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (clip_l files), ComfyUI's and Stability's all-in-one
/// files, diffusers' parts in one file.
const PREFIXES: [&str; 3] = ["", "text_encoders.clip_l.transformer.", "text_encoder."];

/// The same within the text model: published files have it, those of transformers 5 do not.
const INNER: [&str; 2] = ["text_model.", ""];

const MARK: &str = "embeddings.position_embedding.weight";

/// Tensors of every file that holds CLIP-L, for people.
pub const LOOKED_FOR: &str = "text_model.embeddings.position_embedding";

/// Width of a head in every published CLIP text model (openai/clip-vit-large-patch14: 768 in 12
/// heads).
const HEAD_WIDTH: usize = 64;

/// The configured end token of openai/clip-vit-large-patch14; see [`ClipConfig::pooled_token`].
const EOS_TOKEN_ID: u32 = 2;

/// Whether a file holds such a text model.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    prefixes(files).is_some()
}

/// Takes CLIP from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&ClipConfig>,
) -> Result<Option<(ClipConfig, WeightFiles)>, ModelError> {
    let Some((prefix, inner)) = prefixes(files) else { return Ok(None) };
    let files = files.named(Names::behind(prefix))?;
    let config = config(&files, inner, known)?;
    Ok(Some((config, files)))
}

/// What stands before the names in a file.
fn prefixes(files: &WeightFiles) -> Option<(&'static str, &'static str)> {
    INNER.into_iter().find_map(|inner| {
        let prefix = first_prefix(files, &PREFIXES, &format!("{inner}{MARK}"))?;
        Some((prefix, inner))
    })
}

fn config(
    files: &WeightFiles,
    inner: &str,
    known: Option<&ClipConfig>,
) -> Result<ClipConfig, ModelError> {
    let shapes = Shapes::of(files);
    let [max_position_embeddings, hidden_size] = shapes.sizes(&format!("{inner}{MARK}"))?;
    let [vocab_size, _] = shapes.sizes(&format!("{inner}embeddings.token_embedding.weight"))?;
    let layer = |layer: usize, name: &str| format!("{inner}encoder.layers.{layer}.{name}.weight");
    let num_hidden_layers = shapes.count(|number| layer(number, "mlp.fc1"));
    let [intermediate_size, _] = shapes.sizes(&layer(0, "mlp.fc1"))?;
    let is_same = |known: &&ClipConfig| {
        known.hidden_size == hidden_size && known.num_hidden_layers == num_hidden_layers
    };
    let known = known.filter(is_same);
    Ok(ClipConfig {
        hidden_size,
        intermediate_size,
        num_hidden_layers,
        num_attention_heads: known
            .map_or(hidden_size.div_ceil(HEAD_WIDTH), |known| known.num_attention_heads),
        vocab_size,
        max_position_embeddings,
        hidden_act: known.map_or_else(quick_gelu, |known| known.hidden_act.clone()),
        layer_norm_eps: known.map_or(epsilon(), |known| known.layer_norm_eps),
        eos_token_id: known.map_or(EOS_TOKEN_ID, |known| known.eos_token_id),
    })
}
