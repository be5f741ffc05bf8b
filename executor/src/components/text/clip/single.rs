//! CLIP's text models in files of their own or among other parts, in transformers' names.

use std::sync::Arc;

use super::{ClipConfig, epsilon};
use crate::models::ModelError;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// Which CLIP text model a file is to hold: the names of both are the same.
#[derive(Debug)]
pub struct ClipFile {
    /// What stands before the names: nothing (files of it alone), ComfyUI's and Stability's
    /// all-in-one files, diffusers' parts in one file.
    prefixes: [&'static str; 3],
    /// Its feed-forward layers' activation, as its configuration has it.
    hidden_act: &'static str,
}

/// CLIP-L (openai/clip-vit-large-patch14).
static L: ClipFile = ClipFile {
    prefixes: ["", "text_encoders.clip_l.transformer.", "text_encoder."],
    hidden_act: "quick_gelu",
};

/// CLIP-G (laion/CLIP-ViT-bigG-14-laion2B-39B-b160k).
static G: ClipFile = ClipFile {
    prefixes: ["", "text_encoders.clip_g.transformer.", "text_encoder_2."],
    hidden_act: "gelu",
};

/// Width of CLIP-G, by which a file of it alone is told from one of CLIP-L, which has 768.
const G_WIDTH: usize = 1280;

/// The same within the text model: published files have it, those of transformers 5 do not.
const INNER: [&str; 2] = ["text_model.", ""];

/// The projection's matrix.
const PROJECTION: &str = "text_projection.weight";

const MARK: &str = "embeddings.position_embedding.weight";

/// Tensors of every file that holds CLIP-L, for people.
pub const LOOKED_FOR: &str = "text_model.embeddings.position_embedding";

/// The same of those that hold CLIP-G.
pub const LOOKED_FOR_G: &str =
    "text_encoders.clip_g.transformer.text_model.embeddings.position_embedding";

/// Width of a head in every published CLIP text model (openai/clip-vit-large-patch14: 768 in 12
/// heads; CLIP-G: 1280 in 20).
const HEAD_WIDTH: usize = 64;

/// The configured end token of both; see [`ClipConfig::pooled_token`].
const EOS_TOKEN_ID: u32 = 2;

/// Whether a file holds CLIP-L.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    prefixes(files, &L).is_some()
}

/// Whether a file holds CLIP-G. A file of a text model alone does if it is as wide.
pub fn is_g_in(files: &Arc<WeightFiles>) -> bool {
    let Some((prefix, inner)) = prefixes(files, &G) else { return false };
    let width =
        files.tensor(&format!("{prefix}{inner}{MARK}")).and_then(|mark| mark.shape.last().copied());
    !prefix.is_empty() || width == Some(G_WIDTH)
}

/// Takes CLIP-L from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&ClipConfig>,
) -> Result<Option<(ClipConfig, WeightFiles)>, ModelError> {
    take(files, known, &L)
}

/// Takes CLIP-G from a file, if it is there.
pub fn single_g(
    files: &Arc<WeightFiles>,
    known: Option<&ClipConfig>,
) -> Result<Option<(ClipConfig, WeightFiles)>, ModelError> {
    take(files, known, &G)
}

fn take(
    files: &Arc<WeightFiles>,
    known: Option<&ClipConfig>,
    of: &ClipFile,
) -> Result<Option<(ClipConfig, WeightFiles)>, ModelError> {
    let Some((prefix, inner)) = prefixes(files, of) else { return Ok(None) };
    let files = files.named(Names::behind(prefix))?;
    let config = config(&files, inner, known, of)?;
    Ok(Some((config, files)))
}

/// What stands before the names in a file.
fn prefixes(files: &WeightFiles, of: &ClipFile) -> Option<(&'static str, &'static str)> {
    INNER.into_iter().find_map(|inner| {
        let prefix = first_prefix(files, &of.prefixes, &format!("{inner}{MARK}"))?;
        Some((prefix, inner))
    })
}

fn config(
    files: &WeightFiles,
    inner: &str,
    known: Option<&ClipConfig>,
    of: &ClipFile,
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
        hidden_act: known.map_or(of.hidden_act.to_owned(), |known| known.hidden_act.clone()),
        layer_norm_eps: known.map_or(epsilon(), |known| known.layer_norm_eps),
        eos_token_id: known.map_or(EOS_TOKEN_ID, |known| known.eos_token_id),
        // Files of CLIP-L alone leave it out, and then it changes nothing (Stability's
        // `sd3_impls.py` begins with the identity, as diffusers does).
        projection_dim: match shapes.has(PROJECTION) {
            true => Some(shapes.sizes::<2>(PROJECTION)?[0]),
            false => None,
        },
    })
}
