//! T5 in a file of its own or among other parts: in transformers' names, or in llama.cpp's.

use std::sync::Arc;

use super::{T5Config, epsilon, max_distance};
use crate::models::ModelError;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (t5xxl files), ComfyUI's and Stability's all-in-one files,
/// diffusers' parts in one file.
const PREFIXES: [&str; 4] =
    ["", "text_encoders.t5xxl.transformer.", "text_encoder_2.", "text_encoder_3."];

const MARK: &str = "encoder.block.0.layer.0.SelfAttention.q.weight";

/// The same of llama.cpp (`gguf-py/gguf/constants.py`, `T5ENCODER`), whose files have no prefix.
const LLAMA_MARK: &str = "enc.blk.0.attn_q.weight";

/// Tensors of every file that holds T5, for people.
pub const LOOKED_FOR: &str = "encoder.block.0.layer.0.SelfAttention.q or enc.blk.0.attn_q";

/// Tensors of a block by transformers' and by llama.cpp's names.
const BLOCK: [(&str, &str); 9] = [
    ("layer.0.SelfAttention.q", "attn_q"),
    ("layer.0.SelfAttention.k", "attn_k"),
    ("layer.0.SelfAttention.v", "attn_v"),
    ("layer.0.SelfAttention.o", "attn_o"),
    ("layer.0.layer_norm", "attn_norm"),
    ("layer.1.DenseReluDense.wi_0", "ffn_gate"),
    ("layer.1.DenseReluDense.wi_1", "ffn_up"),
    ("layer.1.DenseReluDense.wo", "ffn_down"),
    ("layer.1.layer_norm", "ffn_norm"),
];

const BIAS: &str = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";

/// Whether a file holds T5.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    files.tensor(LLAMA_MARK).is_some() || first_prefix(files, &PREFIXES, MARK).is_some()
}

/// Takes T5 from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&T5Config>,
) -> Result<Option<(T5Config, WeightFiles)>, ModelError> {
    let files = if files.tensor(LLAMA_MARK).is_some() {
        files.named(llama_names(files))?
    } else {
        let Some(prefix) = first_prefix(files, &PREFIXES, MARK) else { return Ok(None) };
        files.named(Names::behind(prefix))?
    };
    let config = config(&files, known)?;
    Ok(Some((config, files)))
}

fn llama_names(files: &WeightFiles) -> Names {
    let mut names = Names::behind("");
    names.whole("shared.weight", "token_embd.weight");
    names.whole("encoder.final_layer_norm.weight", "enc.output_norm.weight");
    names.whole(BIAS, "enc.blk.0.attn_rel_b.weight");
    let blocks = Shapes::of(files).count(|block| format!("enc.blk.{block}.attn_q.weight"));
    for block in 0..blocks {
        for (asked, own) in BLOCK {
            let asked = format!("encoder.block.{block}.{asked}.weight");
            names.whole(&asked, &format!("enc.blk.{block}.{own}.weight"));
        }
    }
    names
}

fn config(files: &WeightFiles, known: Option<&T5Config>) -> Result<T5Config, ModelError> {
    let shapes = Shapes::of(files);
    // As the graph does, of the two names that one table may have.
    let shared = shapes.has("shared.weight");
    let table = if shared { "shared.weight" } else { "encoder.embed_tokens.weight" };
    let [vocab_size, d_model] = shapes.sizes(table)?;
    let [relative_attention_num_buckets, num_heads] = shapes.sizes(BIAS)?;
    let [inner, _] = shapes.sizes(MARK)?;
    let [d_ff, _] = shapes.sizes("encoder.block.0.layer.1.DenseReluDense.wi_0.weight")?;
    let block = |block| format!("encoder.block.{block}.layer.0.SelfAttention.q.weight");
    let num_layers = shapes.count(block);
    // What shapes do not say: the class defaults, which T5 v1.1 has.
    let known = known.filter(|known| known.d_model == d_model && known.num_layers == num_layers);
    Ok(T5Config {
        d_model,
        // Heads that do not divide the rows are found when the graph asks for the matrix.
        d_kv: inner / num_heads.max(1),
        d_ff,
        num_layers,
        num_heads,
        vocab_size,
        relative_attention_num_buckets,
        relative_attention_max_distance: known
            .map_or(max_distance(), |known| known.relative_attention_max_distance),
        layer_norm_epsilon: known.map_or(epsilon(), |known| known.layer_norm_epsilon),
        feed_forward_proj: "gated-gelu".to_owned(),
    })
}
