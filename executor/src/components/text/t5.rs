//! The T5 v1.1 encoder: bidirectional transformer without scaling of scores, with a bias by
//! distance.

pub mod single;

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, VOCABULARY_MAX, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{WeightFiles, WeightsError};

/// `text_encoder_2/config.json`. Absent keys have transformers' class defaults (`T5Config`).
#[derive(Debug, Clone, Deserialize)]
pub struct T5Config {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of one head.
    pub d_kv: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    /// How many blocks follow each other.
    pub num_layers: usize,
    /// Into how many its features are divided.
    pub num_heads: usize,
    /// Entries of the token table.
    pub vocab_size: usize,
    /// Rows of the table of biases.
    #[serde(default = "buckets")]
    pub relative_attention_num_buckets: usize,
    /// Distances beyond this share a bucket.
    #[serde(default = "max_distance")]
    pub relative_attention_max_distance: usize,
    /// Added to mean squares.
    #[serde(default = "epsilon")]
    pub layer_norm_epsilon: f32,
    /// Kind of the feed-forward layer.
    #[serde(default)]
    pub feed_forward_proj: String,
}

fn buckets() -> usize {
    32
}

fn max_distance() -> usize {
    128
}

fn epsilon() -> f32 {
    1e-6
}

impl T5Config {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        let epsilon = self.layer_norm_epsilon;
        limits.holds((0.0..=1.0).contains(&epsilon), || {
            format!("layer_norm_epsilon is {epsilon}, expected 0 to 1")
        })?;
        for (name, value) in [("d_model", self.d_model), ("d_kv", self.d_kv), ("d_ff", self.d_ff)] {
            limits.count(name, value, WIDTH_MAX)?;
        }
        limits.count("num_layers", self.num_layers, LAYERS_MAX)?;
        limits.count("num_heads", self.num_heads, 1024)?;
        limits.count("d_kv * num_heads", self.d_kv.saturating_mul(self.num_heads), WIDTH_MAX)?;
        limits.count("vocab_size", self.vocab_size, VOCABULARY_MAX)?;
        limits.count(
            "relative_attention_num_buckets",
            self.relative_attention_num_buckets,
            4096,
        )?;
        let buckets = self.relative_attention_num_buckets;
        limits.holds(buckets >= 4 && buckets.is_multiple_of(4), || {
            format!("relative_attention_num_buckets {buckets} is no multiple of 4")
        })?;
        limits.holds(self.relative_attention_max_distance > buckets / 4, || {
            format!(
                "relative_attention_max_distance {} is within the exact buckets",
                self.relative_attention_max_distance
            )
        })?;
        limits.holds(self.feed_forward_proj == "gated-gelu", || {
            format!("feed_forward_proj is `{}`, expected gated-gelu", self.feed_forward_proj)
        })
    }

    /// The graph for one text: `input_ids` `[1, tokens]` → `last_hidden_state`
    /// `[1, tokens, d_model]`. Padding is not masked, as for FLUX.1 and Stable Diffusion 3.
    pub fn graph(&self, files: &WeightFiles, tokens: usize) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let ids = b.input("input_ids", &[1, tokens], ElementType::I32); // [1, tokens]
        b.segment("embeddings");
        // Checkpoints hold the table under one of these names, or under both.
        let shared = files.tensor("shared.weight").is_some();
        let table = if shared { "shared.weight" } else { "encoder.embed_tokens.weight" };
        let mut x = b.embedding(ids, table, self.vocab_size, self.d_model)?; // [1, tokens, d_model]
        let bias = b.relative_position_bias(
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            self.relative_attention_num_buckets,
            self.num_heads,
            tokens,
            self.relative_attention_max_distance,
        )?; // [heads, 2 × tokens - 1]
        for layer in 0..self.num_layers {
            b.block(format!("block.{layer}"));
            x = self.block(&mut b, x, bias, &format!("encoder.block.{layer}.layer"))?;
        }
        b.segment("final_layer_norm");
        let x = b.rms_norm(x, "encoder.final_layer_norm", self.d_model, self.layer_norm_epsilon)?;
        b.output("last_hidden_state", x);
        Ok(b.finish())
    }

    fn block(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        bias: ValueId,
        name: &str,
    ) -> Result<ValueId, WeightsError> {
        let inner = self.d_kv * self.num_heads;
        let (heads, scale) = (self.num_heads, 1.0);
        let attention = AttentionOp { heads, kv_heads: heads, scale, causal: false };
        let none = Activation::None;

        let h =
            b.rms_norm(x, &format!("{name}.0.layer_norm"), self.d_model, self.layer_norm_epsilon)?;
        let q = b.linear_no_bias(h, &format!("{name}.0.SelfAttention.q"), inner, none)?;
        let k = b.linear_no_bias(h, &format!("{name}.0.SelfAttention.k"), inner, none)?;
        let v = b.linear_no_bias(h, &format!("{name}.0.SelfAttention.v"), inner, none)?;
        let h = b.attention([q, k, v], Some(bias), attention); // [1, tokens, d_kv × heads]
        let h = b.linear_no_bias(h, &format!("{name}.0.SelfAttention.o"), self.d_model, none)?;
        let x = b.add(x, h);
        let h =
            b.rms_norm(x, &format!("{name}.1.layer_norm"), self.d_model, self.layer_norm_epsilon)?;
        let gate = b.linear_no_bias(
            h,
            &format!("{name}.1.DenseReluDense.wi_0"),
            self.d_ff,
            Activation::GeluTanh,
        )?;
        let up = b.linear_no_bias(h, &format!("{name}.1.DenseReluDense.wi_1"), self.d_ff, none)?;
        let h = b.mul(gate, up); // [1, tokens, d_ff]
        let h = b.linear_no_bias(h, &format!("{name}.1.DenseReluDense.wo"), self.d_model, none)?;
        Ok(b.add(x, h))
    }
}
