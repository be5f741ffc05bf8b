//! Qwen2.5-VL's language half as a text encoder: the decoder of Qwen2.5. For a text alone its
//! positions of three axes are equal, and so are plain ones. What sees pictures, and the layer that
//! chooses the next token, are left in their files.
//!
//! Names are transformers' of any version, or llama.cpp's. A part's files have the decoder's own
//! names, whatever they are called there.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{DecoderConfig, DecoderKind};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::gguf::GgufValue;
use crate::weights::{Names, WeightFiles, WeightsError};

/// What stands before the names: nothing (the text encoder's own files), ComfyUI's all-in-one
/// files, diffusers' parts in one file.
const PREFIXES: [&str; 3] = ["", "text_encoders.qwen25_7b.transformer.", "text_encoder."];

/// The same within the model: transformers 5, some versions of 4, published files, and none.
const INNER: [&str; 4] = ["model.language_model.", "language_model.model.", "model.", ""];

/// The table of tokens.
const TABLE: &str = "embed_tokens.weight";

/// A tensor that Qwen2.5 has beside such a table, and no other model here.
const MARK: &str = "layers.0.self_attn.q_proj.bias";

/// The same of llama.cpp, whose files have no prefix and say whose they are.
const LLAMA_MARK: &str = "blk.0.attn_q.bias";
const ARCHITECTURE: &str = "qwen2vl";

/// Tensors of every file that holds the language half, for people.
pub const LOOKED_FOR: &str = "model.layers.0.self_attn.q_proj.bias or blk.0.attn_q.bias";

/// Layers of a block by transformers' and by llama.cpp's names.
const LAYERS: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Of every published Qwen2.5-VL (`Qwen/Qwen2.5-VL-7B-Instruct`, `config.json`): the base of the
/// frequencies, the width of a head, what is added to mean squares.
const THETA: f64 = 1e6;
const HEAD_DIM: usize = 128;
const EPS: f32 = 1e-6;

/// The language half's part of `text_encoder/config.json`, which stands under `text_config`, beside
/// it, or in both places.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Value")]
pub struct QwenVlConfig(pub DecoderConfig);

impl TryFrom<Value> for QwenVlConfig {
    type Error = String;

    fn try_from(document: Value) -> Result<QwenVlConfig, String> {
        let Value::Object(mut config) = document else {
            return Err("the configuration is no object".to_owned());
        };
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("none");
        if !kind.starts_with("qwen2_5_vl") {
            return Err(format!("model_type is `{kind}`, expected qwen2_5_vl"));
        }
        if let Some(Value::Object(text)) = config.remove("text_config") {
            config.extend(text);
        }
        config.insert("model_type".to_owned(), "qwen2".into());
        // Positions by sections, of which a text's are all the same.
        let is_plain = |scaling: &Value| {
            let types = ["type", "rope_type"].map(|key| scaling.get(key).and_then(Value::as_str));
            types.into_iter().flatten().all(|of| ["default", "mrope"].contains(&of))
        };
        if config.get("rope_scaling").is_some_and(is_plain) {
            config.remove("rope_scaling");
        }
        if let Some(Value::Object(rope)) = config.get_mut("rope_parameters")
            && rope.get("rope_type").is_some_and(|of| of == "mrope")
        {
            rope.remove("rope_type");
        }
        serde_json::from_value(config.into()).map(QwenVlConfig).map_err(|error| error.to_string())
    }
}

impl QwenVlConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        self.0.check(path)
    }
}

/// Whether a file holds the language half.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    is_llama(files) || prefix(files).is_some()
}

fn is_llama(files: &WeightFiles) -> bool {
    let says = files.gguf_keys().and_then(|keys| keys.keys().text("general.architecture"));
    says == Some(ARCHITECTURE) && files.tensor(LLAMA_MARK).is_some()
}

/// What stands before the decoder's own names in these files.
fn prefix(files: &WeightFiles) -> Option<String> {
    INNER.into_iter().find_map(|inner| {
        let outer = first_prefix(files, &PREFIXES, &format!("{inner}{MARK}"))?;
        let prefix = format!("{outer}{inner}");
        files.tensor(&format!("{prefix}{TABLE}")).is_some().then_some(prefix)
    })
}

/// The files under the decoder's own names.
///
/// # Errors
/// None of these is there.
pub fn named(files: &WeightFiles) -> Result<WeightFiles, WeightsError> {
    // Published names, where nothing is known: a message then says what was looked for.
    let prefix = prefix(files).unwrap_or_else(|| "model.".to_owned());
    files.named(Names::behind(&prefix))
}

/// Takes the language half from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&QwenVlConfig>,
) -> Result<Option<(QwenVlConfig, WeightFiles)>, ModelError> {
    let named = match is_llama(files) {
        true => files.named(llama_names(files))?,
        false if prefix(files).is_some() => named(files)?,
        false => return Ok(None),
    };
    let config = config(&named, known.map(|known| &known.0))?;
    Ok(Some((QwenVlConfig(config), named)))
}

fn llama_names(files: &WeightFiles) -> Names {
    let mut names = Names::behind("");
    names.whole(TABLE, "token_embd.weight");
    names.whole("norm.weight", "output_norm.weight");
    let blocks = Shapes::of(files).count(|block| format!("blk.{block}.attn_q.weight"));
    for block in 0..blocks {
        for (asked, own) in LAYERS {
            names.layer(&format!("layers.{block}.{asked}"), &format!("blk.{block}.{own}"));
        }
    }
    names
}

/// The configuration by shapes, by what a GGUF file says beside them, and else by one that may fit.
fn config(files: &WeightFiles, known: Option<&DecoderConfig>) -> Result<DecoderConfig, ModelError> {
    let shapes = Shapes::of(files);
    let first = |name: &str| format!("layers.0.{name}.weight");
    let [vocab_size, hidden_size] = shapes.sizes(TABLE)?;
    let [queries, _] = shapes.sizes(&first("self_attn.q_proj"))?;
    let [keys, _] = shapes.sizes(&first("self_attn.k_proj"))?;
    let [intermediate_size, _] = shapes.sizes(&first("mlp.gate_proj"))?;
    let num_hidden_layers = shapes.count(|layer| format!("layers.{layer}.self_attn.q_proj.weight"));
    let is_same = |known: &&DecoderConfig| {
        known.hidden_size == hidden_size && known.num_hidden_layers == num_hidden_layers
    };
    let known = known.filter(is_same);
    let said = files.gguf_keys().map(|keys| keys.keys());
    let count = |name: &str| {
        let number = said?.integer(&format!("{ARCHITECTURE}.attention.{name}"))?;
        usize::try_from(number).ok().filter(|&count| count > 0)
    };
    let number = |name: &str| match said?.value(&format!("{ARCHITECTURE}.{name}"))? {
        GgufValue::Float(number) => Some(*number),
        _ => None,
    };
    let heads = count("head_count").or(known.map(|known| known.num_attention_heads));
    let heads = heads.unwrap_or(queries / HEAD_DIM);
    let is_whole = heads > 0 && queries.is_multiple_of(heads);
    let head_dim = if is_whole { queries / heads } else { 0 };
    Limits::of(files.origin()).holds(head_dim > 0 && keys.is_multiple_of(head_dim), || {
        format!(
            "{queries} features of queries and {keys} of keys are no whole heads, and the file does not say \
             how wide they are; known are heads of {HEAD_DIM}; hint: give the directory that the text encoder is of \
             as MODEL"
        )
    })?;
    let (own_theta, own_eps) =
        (number("rope.freq_base"), number("attention.layer_norm_rms_epsilon"));
    Ok(DecoderConfig {
        model_type: DecoderKind::Qwen2,
        hidden_size,
        intermediate_size,
        num_hidden_layers,
        num_attention_heads: heads,
        num_key_value_heads: keys / head_dim,
        head_dim: Some(head_dim),
        vocab_size,
        rms_norm_eps: own_eps
            .map(|eps| eps as f32)
            .or(known.map(|known| known.rms_norm_eps))
            .unwrap_or(EPS),
        rope_theta: Some(own_theta.or(known.map(DecoderConfig::rope_theta)).unwrap_or(THETA)),
        rope_parameters: None,
        rope_scaling: None,
        hidden_act: "silu".to_owned(),
        attention_bias: false,
        use_sliding_window: false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sizes() -> Value {
        json!({
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1232,
        })
    }

    fn with(more: Value) -> Value {
        let mut document = sizes();
        let Value::Object(more) = more else { panic!("an object") };
        document.as_object_mut().expect("an object").extend(more);
        document
    }

    #[test]
    fn each_versions_configuration_says_the_same() {
        let mrope = json!({ "mrope_section": [2, 3, 3], "rope_type": "default", "type": "mrope" });
        let text = with(json!({ "rope_theta": 1e6, "rope_scaling": mrope, "model_type": "x" }));
        let newer = with(json!({
            "rope_parameters": { "rope_theta": 1e6, "rope_type": "mrope", "mrope_section": [2, 3, 3] },
        }));
        for document in [
            with(json!({ "model_type": "qwen2_5_vl", "rope_theta": 1e6, "rope_scaling": mrope })),
            json!({ "model_type": "qwen2_5_vl", "text_config": text, "hidden_size": 1 }),
            json!({ "model_type": "qwen2_5_vl", "text_config": newer }),
        ] {
            let QwenVlConfig(config) = serde_json::from_value(document).expect("a configuration");
            config.check(Path::new("config.json")).expect("sound");
            assert_eq!((config.hidden_size, config.head_dim()), (64, 16));
            let mut table = [0.0; 32];
            config.rotary_table(&mut table);
            assert_eq!(table[16..18], [1_f64.cos() as f32, 1_f64.sin() as f32]);
            // The second pair turns by theta to the power of -1/8.
            let second = f64::from(1e6_f32.powf(0.125).recip());
            assert_eq!(table[18..20], [second.cos() as f32, second.sin() as f32]);
        }
    }

    #[test]
    fn other_models_and_stretched_positions_are_refused() {
        let other = with(json!({ "model_type": "qwen3" }));
        let error = serde_json::from_value::<QwenVlConfig>(other).unwrap_err().to_string();
        assert!(error.contains("expected qwen2_5_vl"), "{error}");
        let scaling = json!({ "type": "yarn", "factor": 4.0 });
        let stretched = with(json!({ "model_type": "qwen2_5_vl", "rope_scaling": scaling }));
        let QwenVlConfig(config) = serde_json::from_value(stretched).expect("a configuration");
        assert!(config.check(Path::new("config.json")).is_err());
    }
}
