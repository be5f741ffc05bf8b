//! Qwen3 in a file of its own or among other parts: in transformers' names, or in llama.cpp's.

use std::sync::Arc;

use super::{DecoderConfig, DecoderKind, PREFIX, TABLE, epsilon, silu};
use crate::models::ModelError;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::gguf::GgufValue;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (the text encoder's own files), ComfyUI's all-in-one
/// files, diffusers' parts in one file.
const PREFIXES: [&str; 4] = [
    "",
    "text_encoders.qwen3_4b.transformer.",
    "text_encoders.qwen3_8b.transformer.",
    "text_encoder.",
];

/// The same within the model; see [`super::PREFIX`].
const INNER: [&str; 2] = [PREFIX, ""];

/// A tensor that Qwen3 has, and no other model here.
const MARK: &str = "layers.0.self_attn.q_norm.weight";

/// The same of llama.cpp, whose files have no prefix and say whose they are.
const LLAMA_MARK: &str = "blk.0.attn_q_norm.weight";
const ARCHITECTURE: &str = "qwen3";

/// Tensors of every file that holds Qwen3, for people.
pub const LOOKED_FOR: &str = "model.layers.0.self_attn.q_norm or blk.0.attn_q_norm";

/// Tensors of a layer by transformers' and by llama.cpp's names.
const LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Base of the frequencies of every published Qwen3 (`Qwen/Qwen3-4B`, `config.json`).
const THETA: f64 = 1e6;

/// Whether a file holds such a model.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    is_llama(files) || prefixes(files).is_some()
}

fn is_llama(files: &WeightFiles) -> bool {
    let says = files.gguf_keys().and_then(|keys| keys.keys().text("general.architecture"));
    says == Some(ARCHITECTURE) && files.tensor(LLAMA_MARK).is_some()
}

/// What stands before the names in a file.
fn prefixes(files: &WeightFiles) -> Option<(&'static str, &'static str)> {
    // Gemma's layers have such a norm too, and this one besides.
    let other = "layers.0.pre_feedforward_layernorm.weight";
    INNER.into_iter().find_map(|inner| {
        let prefix = first_prefix(files, &PREFIXES, &format!("{inner}{MARK}"))?;
        let is_other = files.tensor(&format!("{prefix}{inner}{other}")).is_some();
        (!is_other).then_some((prefix, inner))
    })
}

/// Takes Qwen3 from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&DecoderConfig>,
) -> Result<Option<(DecoderConfig, WeightFiles)>, ModelError> {
    if is_llama(files) {
        let named = files.named(llama_names(files))?;
        let config = said_by_keys(files, config(&named, "", known)?);
        return Ok(Some((config, named)));
    }
    let Some((prefix, inner)) = prefixes(files) else { return Ok(None) };
    let files = files.named(Names::behind(prefix))?;
    let config = config(&files, inner, known)?;
    Ok(Some((config, files)))
}

fn llama_names(files: &WeightFiles) -> Names {
    let mut names = Names::behind("");
    names.whole(TABLE, "token_embd.weight");
    names.whole("norm.weight", "output_norm.weight");
    let layers = Shapes::of(files).count(|layer| format!("blk.{layer}.attn_q.weight"));
    for layer in 0..layers {
        for (asked, own) in LAYER {
            let asked = format!("layers.{layer}.{asked}.weight");
            names.whole(&asked, &format!("blk.{layer}.{own}.weight"));
        }
    }
    names
}

/// The configuration with what a GGUF file says beside shapes.
fn said_by_keys(files: &WeightFiles, config: DecoderConfig) -> DecoderConfig {
    let number = |name: &str| {
        let keys = files.gguf_keys()?.keys();
        match keys.value(&format!("{ARCHITECTURE}.{name}"))? {
            GgufValue::Float(number) => Some(*number),
            _ => None,
        }
    };
    let rope_theta = number("rope.freq_base").or(config.rope_theta);
    let eps = number("attention.layer_norm_rms_epsilon").map(|eps| eps as f32);
    DecoderConfig { rope_theta, rms_norm_eps: eps.unwrap_or(config.rms_norm_eps), ..config }
}

fn config(
    files: &WeightFiles,
    inner: &str,
    known: Option<&DecoderConfig>,
) -> Result<DecoderConfig, ModelError> {
    let shapes = Shapes::of(files);
    let first = |name: &str| format!("{inner}layers.0.{name}.weight");
    let [vocab_size, hidden_size] = shapes.sizes(&format!("{inner}{TABLE}"))?;
    let [head_dim] = shapes.sizes(&first("self_attn.q_norm"))?;
    let [queries, _] = shapes.sizes(&first("self_attn.q_proj"))?;
    let [keys, _] = shapes.sizes(&first("self_attn.k_proj"))?;
    let [intermediate_size, _] = shapes.sizes(&first("mlp.gate_proj"))?;
    let num_hidden_layers =
        shapes.count(|layer| format!("{inner}layers.{layer}.self_attn.q_proj.weight"));
    let is_same = |known: &&DecoderConfig| {
        known.hidden_size == hidden_size && known.num_hidden_layers == num_hidden_layers
    };
    let known = known.filter(is_same);
    Ok(DecoderConfig {
        model_type: DecoderKind::Qwen3,
        hidden_size,
        intermediate_size,
        num_hidden_layers,
        // Heads that do not divide the rows are found when the graph asks for the matrix.
        num_attention_heads: queries / head_dim.max(1),
        num_key_value_heads: keys / head_dim.max(1),
        head_dim: Some(head_dim),
        vocab_size,
        rms_norm_eps: known.map_or(epsilon(), |known| known.rms_norm_eps),
        rope_theta: Some(known.map_or(THETA, DecoderConfig::rope_theta)),
        rope_parameters: None,
        rope_scaling: None,
        hidden_act: silu(),
        attention_bias: false,
        use_sliding_window: false,
    })
}
