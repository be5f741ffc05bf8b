//! The CLIP text models, CLIP-L and CLIP-G: causal transformers with learned positions.
//!
//! Names: published checkpoints put everything but the projection under `text_model.`; those
//! written by transformers 5 may leave the prefix out.

pub mod single;
pub mod tokenizer;

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, VOCABULARY_MAX, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::lora::ComponentNames;
use crate::weights::{WeightFiles, WeightsError};

/// What stands before all names in published checkpoints.
const PREFIX: &str = "text_model.";

/// `text_encoder/config.json`. Absent keys have transformers' class defaults (`CLIPTextConfig`).
#[derive(Debug, Clone, Deserialize)]
pub struct ClipConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// How many blocks follow each other.
    pub num_hidden_layers: usize,
    /// Into how many its features are divided.
    pub num_attention_heads: usize,
    /// Entries of the token table.
    pub vocab_size: usize,
    /// Tokens, padding included.
    #[serde(default = "positions")]
    pub max_position_embeddings: usize,
    /// Activation of the feed-forward layer.
    #[serde(default = "quick_gelu")]
    pub hidden_act: String,
    /// Added to variances.
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f32,
    /// The id that ends a text. Early configurations say 2, which is not CLIP's; see
    /// [`ClipConfig::pooled_token`].
    #[serde(default)]
    pub eos_token_id: u32,
    /// Width of the projection of the pooled state, where a model takes that; without one it is
    /// taken as it is.
    #[serde(default = "projection")]
    pub projection_dim: Option<usize>,
}

fn positions() -> usize {
    77
}

fn quick_gelu() -> String {
    "quick_gelu".to_owned()
}

fn epsilon() -> f32 {
    1e-5
}

fn projection() -> Option<usize> {
    Some(512)
}

/// The layer that projects the pooled state (`CLIPTextModelWithProjection`).
const PROJECTION: &str = "text_projection";

/// The names of its layers for LoRA: with and without the prefix that newer checkpoints leave out.
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

impl ClipConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        let epsilon = self.layer_norm_eps;
        limits.holds((0.0..=1.0).contains(&epsilon), || {
            format!("layer_norm_eps is {epsilon}, expected 0 to 1")
        })?;
        limits.count("hidden_size", self.hidden_size, WIDTH_MAX)?;
        limits.count("intermediate_size", self.intermediate_size, WIDTH_MAX)?;
        limits.count("num_hidden_layers", self.num_hidden_layers, LAYERS_MAX)?;
        limits.count("vocab_size", self.vocab_size, VOCABULARY_MAX)?;
        limits.count("max_position_embeddings", self.max_position_embeddings, 4096)?;
        limits.count("projection_dim", self.embedding_dim(), WIDTH_MAX)?;
        limits.count("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        limits.holds(self.hidden_size.is_multiple_of(self.num_attention_heads), || {
            format!(
                "{} heads do not divide hidden_size {}",
                self.num_attention_heads, self.hidden_size
            )
        })?;
        limits.holds(self.activation().is_some(), || {
            format!("hidden_act `{}` is unknown", self.hidden_act)
        })
    }

    /// Index of the token whose hidden state is the pooled one. An `eos_token_id` of 2 in a
    /// configuration stands for the highest id, which CLIP's end token has (transformers,
    /// `CLIPTextTransformer`).
    pub fn pooled_token(&self, ids: &[u32]) -> usize {
        let found = if self.eos_token_id == 2 {
            let highest = ids.iter().max();
            ids.iter().position(|id| Some(id) == highest)
        } else {
            ids.iter().position(|&id| id == self.eos_token_id)
        };
        found.unwrap_or(0)
    }

    /// Width of a text's embedding: of its pooled state, projected where it is.
    pub fn embedding_dim(&self) -> usize {
        self.projection_dim.unwrap_or(self.hidden_size)
    }

    /// The graph for one text: `input_ids` `[1, tokens]` → `last_hidden_state`
    /// `[1, tokens, hidden]`.
    pub fn graph(&self, files: &WeightFiles) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let [_, last] = self.states(&mut b)?;
        b.output("last_hidden_state", last);
        Ok(b.finish())
    }

    /// The graph for one text where a model takes more of it: `input_ids` `[1, tokens]` →
    /// `hidden_state` `[1, tokens, hidden]`, the state before the last layer without a norm
    /// (`hidden_states[-2]`); `last_hidden_state` of the same shape; and `text_embeds`
    /// `[1, tokens, embedding]`, of which the text's is that of its pooled token.
    pub fn graph_with_embedding(&self, files: &WeightFiles) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let [before_last, last] = self.states(&mut b)?;
        b.output("hidden_state", before_last);
        b.output("last_hidden_state", last);
        let embeds = match self.projection_dim {
            Some(width) => b.linear_no_bias(last, PROJECTION, width, Activation::None)?,
            None => last,
        };
        b.output("text_embeds", embeds); // [1, tokens, embedding]
        Ok(b.finish())
    }

    /// The states `[1, tokens, hidden]` before the last layer, and behind it and the final norm.
    fn states(&self, b: &mut GraphBuilder) -> Result<[ValueId; 2], WeightsError> {
        let named = b.files().tensor(&format!("{PREFIX}final_layer_norm.weight")).is_some();
        let prefix = if named { PREFIX } else { "" };
        let (hidden, eps) = (self.hidden_size, self.layer_norm_eps);
        let tokens = self.max_position_embeddings;
        let ids = b.input("input_ids", &[1, tokens], ElementType::I32); // [1, tokens]
        b.segment("embeddings");
        let table = format!("{prefix}embeddings.token_embedding.weight");
        let x = b.embedding(ids, &table, self.vocab_size, hidden)?; // [1, tokens, hidden]
        let table = format!("{prefix}embeddings.position_embedding.weight");
        let mut x = b.add_positions(x, &table, tokens)?; // [1, tokens, hidden]
        let mut before_last = x;
        for layer in 0..self.num_hidden_layers {
            b.block(format!("layers.{layer}"));
            before_last = x;
            x = self.layer(b, x, &format!("{prefix}encoder.layers.{layer}"))?;
        }
        b.segment("final_layer_norm");
        let last = b.layer_norm(x, &format!("{prefix}final_layer_norm"), eps)?;
        Ok([before_last, last]) // [1, tokens, hidden] each
    }

    fn layer(&self, b: &mut GraphBuilder, x: ValueId, name: &str) -> Result<ValueId, WeightsError> {
        let (hidden, eps) = (self.hidden_size, self.layer_norm_eps);
        let head_dim = hidden / self.num_attention_heads;
        let attention = AttentionOp {
            heads: self.num_attention_heads,
            kv_heads: self.num_attention_heads,
            scale: (head_dim as f32).powf(-0.5),
            causal: true,
        };
        let activation = self.activation().expect("checked when opened");

        let h = b.layer_norm(x, &format!("{name}.layer_norm1"), eps)?;
        let q = b.linear(&[h], &format!("{name}.self_attn.q_proj"), hidden, Activation::None)?;
        let k = b.linear(&[h], &format!("{name}.self_attn.k_proj"), hidden, Activation::None)?;
        let v = b.linear(&[h], &format!("{name}.self_attn.v_proj"), hidden, Activation::None)?;
        let h = b.attention([q, k, v], None, attention);
        let h = b.linear(&[h], &format!("{name}.self_attn.out_proj"), hidden, Activation::None)?;
        let x = b.add(x, h);
        let h = b.layer_norm(x, &format!("{name}.layer_norm2"), eps)?;
        let h = b.linear(&[h], &format!("{name}.mlp.fc1"), self.intermediate_size, activation)?;
        let h = b.linear(&[h], &format!("{name}.mlp.fc2"), hidden, Activation::None)?;
        Ok(b.add(x, h))
    }

    fn activation(&self) -> Option<Activation> {
        match self.hidden_act.as_str() {
            "quick_gelu" => Some(Activation::QuickGelu),
            "gelu" => Some(Activation::GeluErf),
            _ => None,
        }
    }
}
