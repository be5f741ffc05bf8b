//! Decoder language models as text encoders: causal transformers with grouped-query attention,
//! rotary positions and a gated feed-forward layer. A prompt goes through once, so nothing is kept
//! from token to token, and what follows a token changes nothing of it.
//!
//! Qwen3, which normalises the heads of queries and keys, and Qwen2.5, whose projections to them
//! have biases. Names are transformers'; files have them behind `model.` or without it.

pub mod single;

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, VOCABULARY_MAX, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::lora::ComponentNames;
use crate::weights::{WeightFiles, WeightsError};

/// What stands before all names in most files.
const PREFIX: &str = "model.";

/// The table of tokens.
const TABLE: &str = "embed_tokens.weight";

const NONE: Activation = Activation::None;

/// `text_encoder/config.json`. Absent keys have transformers' class defaults (`Qwen3Config`).
#[derive(Debug, Clone, Deserialize)]
pub struct DecoderConfig {
    /// Which model it is: see [`DecoderKind`].
    pub model_type: DecoderKind,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values.
    pub num_key_value_heads: usize,
    /// Width of one head; the residual stream divided by the heads where it is left out.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Entries of the token table.
    pub vocab_size: usize,
    /// Added to mean squares.
    #[serde(default = "epsilon")]
    pub rms_norm_eps: f32,
    /// Base of the rotary positions' frequencies.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// The same, where transformers 5 writes it.
    #[serde(default)]
    pub rope_parameters: Option<RopeParameters>,
    /// Whether positions are stretched, which is not known here.
    #[serde(default)]
    pub rope_scaling: Option<serde_json::Value>,
    /// Activation of the feed-forward layer.
    #[serde(default = "silu")]
    pub hidden_act: String,
    /// Whether projections have biases beyond those of the kind.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether tokens see only those of a window.
    #[serde(default)]
    pub use_sliding_window: bool,
}

/// What tells decoder language models apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderKind {
    /// Qwen3: heads of queries and keys are normalised.
    Qwen3,
    /// Qwen2 and Qwen2.5: projections to queries, keys and values have biases.
    Qwen2,
}

/// Rotary positions as transformers 5 writes them.
#[derive(Debug, Clone, Deserialize)]
pub struct RopeParameters {
    rope_theta: f64,
    #[serde(default = "plain_rope")]
    rope_type: String,
}

fn epsilon() -> f32 {
    1e-6
}

fn silu() -> String {
    "silu".to_owned()
}

fn plain_rope() -> String {
    "default".to_owned()
}

/// Base of the frequencies where nothing says it (`Qwen3Config`).
const THETA: f64 = 10_000.0;

impl DecoderConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        let epsilon = self.rms_norm_eps;
        limits.holds((0.0..=1.0).contains(&epsilon), || {
            format!("rms_norm_eps is {epsilon}, expected 0 to 1")
        })?;
        limits.count("hidden_size", self.hidden_size, WIDTH_MAX)?;
        limits.count("intermediate_size", self.intermediate_size, WIDTH_MAX)?;
        limits.count("num_hidden_layers", self.num_hidden_layers, LAYERS_MAX)?;
        limits.count("vocab_size", self.vocab_size, VOCABULARY_MAX)?;
        limits.count("num_attention_heads", self.num_attention_heads, 1024)?;
        limits.count("num_key_value_heads", self.num_key_value_heads, self.num_attention_heads)?;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        limits.holds(heads.is_multiple_of(kv_heads), || {
            format!("{kv_heads} heads of keys cannot be shared by {heads} heads")
        })?;
        limits.count("head_dim", self.head_dim(), 1024)?;
        let head_dim = self.head_dim();
        limits.holds(head_dim.is_multiple_of(2), || format!("head_dim is the odd {head_dim}"))?;
        limits.count("the width of all heads", heads.saturating_mul(head_dim), WIDTH_MAX)?;
        let theta = self.rope_theta();
        limits.holds((1.0..=1e12).contains(&theta), || {
            format!("rope_theta is {theta}, expected 1 to 1e12")
        })?;
        let stretched = self.rope_scaling.as_ref().is_some_and(|scaling| !scaling.is_null());
        let other =
            self.rope_parameters.as_ref().is_some_and(|rope| rope.rope_type != plain_rope());
        limits.holds(!stretched && !other, || {
            "positions are stretched (rope_scaling), which is not known here".to_owned()
        })?;
        limits.holds(!self.attention_bias && !self.use_sliding_window, || {
            "attention_bias and use_sliding_window are not known here".to_owned()
        })?;
        limits.holds(self.hidden_act == silu(), || {
            format!("hidden_act is `{}`, expected silu", self.hidden_act)
        })
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Base of the rotary positions' frequencies.
    pub(super) fn rope_theta(&self) -> f64 {
        let newer = self.rope_parameters.as_ref().map(|rope| rope.rope_theta);
        newer.or(self.rope_theta).unwrap_or(THETA)
    }

    /// The graph for one text: `input_ids` `[1, tokens]` and `rope` `[tokens, head_dim / 2, 2]` →
    /// `hidden_state` `[1, tokens, hidden]`, which `layers` of the layers gave: what transformers
    /// calls `hidden_states[layers]`, of all layers behind the last norm.
    ///
    /// # Errors
    /// The files lack a weight.
    pub fn graph(
        &self,
        files: &WeightFiles,
        tokens: usize,
        layers: usize,
    ) -> Result<Graph, WeightsError> {
        self.states_graph(files, tokens, &[("hidden_state", layers)], false)
    }

    /// The same for several states, each as an output of its own: names, and the layers that give
    /// them, rising. Layers behind the last of them are left out. Of a text that is filled up, the
    /// input `known` `[1]` says how many tokens are its own: no token sees the others.
    ///
    /// # Errors
    /// The files lack a weight.
    pub fn states_graph(
        &self,
        files: &WeightFiles,
        tokens: usize,
        states: &[(&'static str, usize)],
        filled_up: bool,
    ) -> Result<Graph, WeightsError> {
        let layers = states.iter().map(|(_, layers)| *layers).max().expect("a state is wanted");
        assert!(layers <= self.num_hidden_layers, "as many layers as there are");
        let (mut b, prefix) = (GraphBuilder::new(files), prefix(files));
        let ids = b.input("input_ids", &[1, tokens], ElementType::I32); // [1, tokens]
        let rope = b.input("rope", &[tokens, self.head_dim() / 2, 2], ElementType::F32);
        let known = filled_up.then(|| b.input("known", &[1], ElementType::I32));
        b.segment("embeddings");
        let table = format!("{prefix}{TABLE}");
        // [1, tokens, hidden]
        let mut x = b.embedding(ids, &table, self.vocab_size, self.hidden_size)?;
        for ran in 0..=layers {
            if let Some(layer) = ran.checked_sub(1) {
                b.block(format!("layers.{layer}"));
                x = self.layer(&mut b, x, rope, known, &format!("{prefix}layers.{layer}"))?;
            }
            let Some((name, _)) = states.iter().find(|(_, given)| *given == ran) else { continue };
            // What transformers calls the last state is behind the last norm.
            let state = if ran == self.num_hidden_layers {
                b.segment("norm");
                b.rms_norm(x, &format!("{prefix}norm"), self.hidden_size, self.rms_norm_eps)?
            } else {
                x
            };
            b.output(name, state);
        }
        Ok(b.finish())
    }

    fn layer(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        rope: ValueId,
        known: Option<ValueId>,
        name: &str,
    ) -> Result<ValueId, WeightsError> {
        let (hidden, eps) = (self.hidden_size, self.rms_norm_eps);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let scale = (self.head_dim() as f32).powf(-0.5);
        let attention = AttentionOp { heads, kv_heads, scale, causal: true };

        let h = b.rms_norm(x, &format!("{name}.input_layernorm"), hidden, eps)?;
        let q = self.heads(b, h, name, "q", heads)?; // [1, tokens, heads × head_dim]
        let q = b.rope_halves(q, rope, heads);
        let k = self.heads(b, h, name, "k", kv_heads)?; // [1, tokens, kv_heads × head_dim]
        let k = b.rope_halves(k, rope, kv_heads);
        let v = self.projection(b, h, &format!("{name}.self_attn.v_proj"), kv_heads)?;
        // [1, tokens, heads × head_dim]
        let h = match known {
            Some(known) => b.masked_attention([q, k, v], known, attention),
            None => b.attention([q, k, v], None, attention),
        };
        let h = b.linear_no_bias(h, &format!("{name}.self_attn.o_proj"), hidden, NONE)?;
        let x = b.add(x, h);
        let h = b.rms_norm(x, &format!("{name}.post_attention_layernorm"), hidden, eps)?;
        let wide = self.intermediate_size;
        let gate = format!("{name}.mlp.gate_proj");
        let gate = b.linear_no_bias(h, &gate, wide, Activation::Silu)?; // [1, tokens, wide]
        let up = b.linear_no_bias(h, &format!("{name}.mlp.up_proj"), wide, NONE)?;
        let h = b.mul(gate, up);
        let h = b.linear_no_bias(h, &format!("{name}.mlp.down_proj"), hidden, NONE)?;
        Ok(b.add(x, h))
    }

    /// Heads of queries or keys, normalised where the kind has it so.
    fn heads(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
        which: &str,
        heads: usize,
    ) -> Result<ValueId, WeightsError> {
        let h = self.projection(b, x, &format!("{name}.self_attn.{which}_proj"), heads)?;
        match self.model_type {
            DecoderKind::Qwen3 => {
                let norm = format!("{name}.self_attn.{which}_norm");
                b.rms_norm(h, &norm, self.head_dim(), self.rms_norm_eps)
            }
            DecoderKind::Qwen2 => Ok(h),
        }
    }

    fn projection(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
        heads: usize,
    ) -> Result<ValueId, WeightsError> {
        let features = heads * self.head_dim();
        match self.model_type {
            DecoderKind::Qwen3 => b.linear_no_bias(x, name, features, NONE),
            DecoderKind::Qwen2 => b.linear(&[x], name, features, NONE),
        }
    }

    /// Fills the graph's `rope`: cosines and sines of each token's position, at frequencies
    /// theta^(-2i / head_dim). Frequencies and angles are rounded to f32, as transformers has them.
    pub fn rotary_table(&self, table: &mut [f32]) {
        let half = self.head_dim() / 2;
        let exponent = |pair: usize| (2 * pair) as f32 / self.head_dim() as f32;
        let frequency = |pair: usize| 1.0 / (self.rope_theta() as f32).powf(exponent(pair));
        for (at, rotation) in table.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let angle = f64::from((at / half) as f32 * frequency(at % half));
            *rotation = [angle.cos() as f32, angle.sin() as f32];
        }
    }
}

/// What stands before all names in these files.
fn prefix(files: &WeightFiles) -> &'static str {
    let named = files.tensor(&format!("{PREFIX}{TABLE}")).is_some();
    if named { PREFIX } else { "" }
}

/// The names of its layers for LoRA: with and without what stands before all names.
pub fn layer_names(
    component: &'static str,
    prefixes: &'static [&'static str],
    graph: &Graph,
) -> ComponentNames {
    let mut names = ComponentNames::new(component, prefixes, graph.linear_tensors());
    for (weight, _) in graph.linear_tensors() {
        let module = weight.strip_suffix(".weight").expect("a linear layer's weight");
        let alias = match module.strip_prefix(PREFIX) {
            Some(bare) => bare.to_owned(),
            None => format!("{PREFIX}{module}"),
        };
        names.alias(&alias, &[module.to_owned()]);
    }
    names
}
