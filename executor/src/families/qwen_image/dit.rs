//! The Qwen-Image transformer (DiT): double blocks with an image and a text stream, which meet in
//! attention alone. Names and widths by diffusers' `QwenImageTransformer2DModel`.
//!
//! The image stands before the text, which is filled up: so the tokens that are known stand first,
//! and attention sees no others. The order of tokens changes nothing but that of sums.

use std::path::Path;

use serde::Deserialize;

use super::PATCH;
use crate::components::modulation::{ATTENTION, CHUNKS, FEED_FORWARD};
use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{WeightFiles, WeightsError};

/// Added to variances and mean squares throughout (`QwenImageTransformerBlock`, `txt_norm`,
/// `norm_out`).
const EPS: f32 = 1e-6;

const NONE: Activation = Activation::None;

/// Width of the time's sinusoids, and what their angles are multiplied by last
/// (`QwenTimestepProjEmbeddings`).
const SINUSOID_FEATURES: usize = 256;
const TIME_SCALE: f32 = 1000.0;

/// Base of the rotary positions' frequencies (`QwenImageTransformer2DModel`).
const THETA: f32 = 10_000.0;

/// Feed-forward width over residual width (`FeedForward`).
const MLP_RATIO: usize = 4;

/// Names of a stream's layers in a block.
struct StreamNames {
    modulation: &'static str,
    mlp: &'static str,
    /// Projections to queries and keys, each with the norm of its heads; to values; from heads.
    queries: [&'static str; 2],
    keys: [&'static str; 2],
    values: &'static str,
    out: &'static str,
}

const IMAGE: StreamNames = StreamNames {
    modulation: "img_mod.1",
    mlp: "img_mlp",
    queries: ["attn.to_q", "attn.norm_q"],
    keys: ["attn.to_k", "attn.norm_k"],
    values: "attn.to_v",
    out: "attn.to_out.0",
};

const TEXT: StreamNames = StreamNames {
    modulation: "txt_mod.1",
    mlp: "txt_mlp",
    queries: ["attn.add_q_proj", "attn.norm_added_q"],
    keys: ["attn.add_k_proj", "attn.norm_added_k"],
    values: "attn.add_v_proj",
    out: "attn.to_add_out",
};

/// `transformer/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct QwenDitConfig {
    /// Cells along a side of a token: [`PATCH`].
    #[serde(default = "patch")]
    pub patch_size: usize,
    /// Channels of a packed token of latents.
    #[serde(default = "token_features")]
    pub in_channels: usize,
    /// Channels of a cell of the result.
    #[serde(default = "channels")]
    pub out_channels: Option<usize>,
    /// Blocks.
    #[serde(default = "layers")]
    pub num_layers: usize,
    /// Width of one head.
    #[serde(default = "head_dim")]
    pub attention_head_dim: usize,
    /// Of queries as of keys and values.
    #[serde(default = "heads")]
    pub num_attention_heads: usize,
    /// Width of the text encoder.
    #[serde(default = "text_features")]
    pub joint_attention_dim: usize,
    /// Whether guidance is embedded beside the time, which no published model has.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Widths of the rotary positions' axes.
    #[serde(default = "axes")]
    pub axes_dims_rope: [usize; 3],
    /// What models of several pictures have.
    #[serde(default)]
    pub zero_cond_t: bool,
    /// Likewise.
    #[serde(default)]
    pub use_additional_t_cond: bool,
    /// Likewise.
    #[serde(default)]
    pub use_layer3d_rope: bool,
}

fn patch() -> usize {
    PATCH
}

fn token_features() -> usize {
    64
}

fn channels() -> Option<usize> {
    Some(16)
}

fn layers() -> usize {
    60
}

fn head_dim() -> usize {
    128
}

fn heads() -> usize {
    24
}

fn text_features() -> usize {
    3584
}

/// Those of every published model of the class.
pub fn axes() -> [usize; 3] {
    [16, 56, 56]
}

impl QwenDitConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.holds(self.patch_size == PATCH, || {
            format!("patch_size is {}, expected {PATCH}", self.patch_size)
        })?;
        limits.count("in_channels", self.in_channels, 1024)?;
        limits.count("joint_attention_dim", self.joint_attention_dim, WIDTH_MAX)?;
        limits.count("num_layers", self.num_layers, LAYERS_MAX)?;
        limits.count("attention_head_dim", self.attention_head_dim, 1024)?;
        limits.count("num_attention_heads", self.num_attention_heads, 256)?;
        limits.count("the hidden width", self.hidden(), WIDTH_MAX / CHUNKS)?;
        let out = self.out_channels.unwrap_or(self.in_channels);
        limits.holds(out.checked_mul(PATCH * PATCH) == Some(self.in_channels), || {
            format!(
                "out_channels is {out}, expected a cell's part of in_channels {}",
                self.in_channels
            )
        })?;
        for (name, is_set) in [
            ("guidance_embeds", self.guidance_embeds),
            ("zero_cond_t", self.zero_cond_t),
            ("use_additional_t_cond", self.use_additional_t_cond),
            ("use_layer3d_rope", self.use_layer3d_rope),
        ] {
            limits.holds(!is_set, || {
                format!("{name} is true, as in models that are not run; expected false")
            })?;
        }
        for axis in self.axes_dims_rope {
            limits.holds(axis % 2 == 0, || format!("axes_dims_rope holds the odd width {axis}"))?;
            limits.count("each of axes_dims_rope", axis, 1024)?;
        }
        let sum: usize = self.axes_dims_rope.iter().sum();
        limits.holds(sum == self.attention_head_dim, || {
            format!(
                "axes_dims_rope sum to {sum}, attention_head_dim is {}",
                self.attention_head_dim
            )
        })
    }

    /// Width of the residual streams.
    pub fn hidden(&self) -> usize {
        self.attention_head_dim.saturating_mul(self.num_attention_heads)
    }

    /// The graph of one call: `latents` `[batch, image_tokens, in_channels]`, `text` `[batch,
    /// text_tokens, joint_attention_dim]`, of all tokens those that are known, `known_tokens`
    /// `[1]`, `timestep` `[batch]` of 0 to 1, `rope` `[image_tokens + text_tokens, head_dim / 2,
    /// 2]` → `velocity` `[batch, image_tokens, in_channels]`.
    ///
    /// # Errors
    /// The files lack a weight.
    pub fn graph(
        &self,
        files: &WeightFiles,
        batch: usize,
        text_tokens: usize,
        image_tokens: usize,
    ) -> Result<Graph, WeightsError> {
        let (hidden, features) = (self.hidden(), self.joint_attention_dim);
        let mut b = GraphBuilder::new(files);
        let latents =
            b.input("latents", &[batch, image_tokens, self.in_channels], ElementType::F32);
        let text = b.input("text", &[batch, text_tokens, features], ElementType::F32);
        let known = b.input("known_tokens", &[1], ElementType::I32);
        let timestep = b.input("timestep", &[batch], ElementType::F32);
        let tokens = image_tokens + text_tokens;
        let rope = b.input("rope", &[tokens, self.attention_head_dim / 2, 2], ElementType::F32);

        b.segment("embedders");
        let time = self.time_embedding(&mut b, timestep)?; // [batch, hidden]
        let mut image = b.linear(&[latents], "img_in", hidden, NONE)?; // [batch, image, hidden]
        let text = b.rms_norm(text, "txt_norm", features, EPS)?;
        let mut text = b.linear(&[text], "txt_in", hidden, NONE)?; // [batch, text, hidden]
        for layer in 0..self.num_layers {
            let name = format!("transformer_blocks.{layer}");
            b.block(name.clone());
            let around = Around { time, rope, known };
            (image, text) = self.block(&mut b, &name, [image, text], around)?;
        }
        b.segment("proj_out");
        let modulation = b.linear(&[time], "norm_out.linear", 2 * hidden, NONE)?;
        let image = b.ada_layer_norm(image, modulation, 1, 0, EPS); // [batch, image, hidden]
        let velocity = b.linear(&[image], "proj_out", self.in_channels, NONE)?;
        b.output("velocity", velocity);
        Ok(b.finish())
    }

    /// SiLU of the time's embedding: every modulation starts so.
    fn time_embedding(
        &self,
        b: &mut GraphBuilder,
        timestep: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let h = b.scaled_sinusoid(timestep, SINUSOID_FEATURES, TIME_SCALE); // [batch, 256]
        let name = "time_text_embed.timestep_embedder";
        let h = b.linear(&[h], &format!("{name}.linear_1"), self.hidden(), Activation::Silu)?;
        let h = b.linear(&[h], &format!("{name}.linear_2"), self.hidden(), NONE)?;
        Ok(b.activate(h, Activation::Silu))
    }

    /// A block over the image's and the text's stream.
    fn block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        streams: [ValueId; 2],
        Around { time, rope, known }: Around,
    ) -> Result<(ValueId, ValueId), WeightsError> {
        let (hidden, heads) = (self.hidden(), self.num_attention_heads);
        let [image, text] = streams;
        let (image_tokens, text_tokens) = (b.shape(image)[1], b.shape(text)[1]);
        let image_mod = self.modulation(b, name, &IMAGE, time)?; // [batch, chunks × hidden]
        let text_mod = self.modulation(b, name, &TEXT, time)?;
        let image_in = b.ada_layer_norm(image, image_mod, ATTENTION.shift, ATTENTION.scale, EPS);
        let text_in = b.ada_layer_norm(text, text_mod, ATTENTION.shift, ATTENTION.scale, EPS);

        let q = self.heads(b, name, image_in, IMAGE.queries)?;
        let text_q = self.heads(b, name, text_in, TEXT.queries)?;
        let q = b.concat_tokens(q, text_q); // [batch, tokens, hidden]
        let q = b.rope(q, rope, heads);
        let k = self.heads(b, name, image_in, IMAGE.keys)?;
        let text_k = self.heads(b, name, text_in, TEXT.keys)?;
        let k = b.concat_tokens(k, text_k);
        let k = b.rope(k, rope, heads);
        let v = b.linear(&[image_in], &format!("{name}.{}", IMAGE.values), hidden, NONE)?;
        let text_v = b.linear(&[text_in], &format!("{name}.{}", TEXT.values), hidden, NONE)?;
        let v = b.concat_tokens(v, text_v);
        let scale = (self.attention_head_dim as f32).powf(-0.5);
        let op = AttentionOp { heads, kv_heads: heads, scale, causal: false };
        let joint = b.masked_attention([q, k, v], known, op); // [batch, tokens, hidden]

        let h = b.slice_tokens(joint, 0, image_tokens);
        let h = b.linear(&[h], &format!("{name}.{}", IMAGE.out), hidden, NONE)?;
        let image = b.gated_add(image, h, image_mod, ATTENTION.gate);
        let h = b.slice_tokens(joint, image_tokens, text_tokens);
        let h = b.linear(&[h], &format!("{name}.{}", TEXT.out), hidden, NONE)?;
        let text = b.gated_add(text, h, text_mod, ATTENTION.gate);

        let image = self.feed_forward(b, &format!("{name}.{}", IMAGE.mlp), image, image_mod)?;
        let text = self.feed_forward(b, &format!("{name}.{}", TEXT.mlp), text, text_mod)?;
        Ok((image, text))
    }

    fn modulation(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        stream: &StreamNames,
        time: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let name = format!("{name}.{}", stream.modulation);
        b.linear(&[time], &name, CHUNKS * self.hidden(), NONE)
    }

    /// A projection to all heads, each normalised.
    fn heads(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        [projection, norm]: [&str; 2],
    ) -> Result<ValueId, WeightsError> {
        let h = b.linear(&[x], &format!("{name}.{projection}"), self.hidden(), NONE)?;
        b.rms_norm(h, &format!("{name}.{norm}"), self.attention_head_dim, EPS)
    }

    fn feed_forward(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        modulation: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let h = b.ada_layer_norm(x, modulation, FEED_FORWARD.shift, FEED_FORWARD.scale, EPS);
        let (first, wide) = (format!("{name}.net.0.proj"), MLP_RATIO * hidden);
        let h = b.linear(&[h], &first, wide, Activation::GeluTanh)?; // [batch, tokens, wide]
        let h = b.linear(&[h], &format!("{name}.net.2"), hidden, NONE)?;
        Ok(b.gated_add(x, h, modulation, FEED_FORWARD.gate))
    }

    /// Fills the graph's `rope`: positions are (frame, row, column). Rows and columns of the
    /// picture are counted from its middle; those of the text stand on the diagonal behind it.
    /// Frequencies and angles are rounded to f32, as by `QwenEmbedRope`.
    pub fn rotary_table(&self, table: &mut [f32], [rows, columns]: [usize; 2]) {
        let image = rows * columns;
        let from_middle = |at: usize, side: usize| at as i64 - (side - side / 2) as i64;
        let first_text = (rows / 2).max(columns / 2);
        for (token, row) in table.chunks_exact_mut(self.attention_head_dim).enumerate() {
            let position = match token.checked_sub(image) {
                Some(text) => [(first_text + text) as i64; 3],
                None => {
                    let (y, x) = (token / columns, token % columns);
                    [0, from_middle(y, rows), from_middle(x, columns)]
                }
            };
            let angles = position.iter().zip(self.axes_dims_rope).flat_map(|(&position, axis)| {
                (0..axis / 2).map(move |pair| {
                    let exponent = (2 * pair) as f32 / axis as f32;
                    position as f32 * (1.0 / THETA.powf(exponent))
                })
            });
            for (rotation, angle) in row.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                let angle = f64::from(angle);
                *rotation = [angle.cos() as f32, angle.sin() as f32];
            }
        }
    }
}

/// What all blocks take beside their streams.
#[derive(Clone, Copy)]
struct Around {
    time: ValueId,
    rope: ValueId,
    known: ValueId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_from_the_middle_and_text_stands_behind_them() {
        let config: QwenDitConfig =
            serde_json::from_str(r#"{ "attention_head_dim": 6, "axes_dims_rope": [2, 2, 2] }"#)
                .expect("a configuration");
        // Three rows of four columns, and two tokens of text.
        let mut table = vec![0.0; 14 * 6];
        config.rotary_table(&mut table, [3, 4]);
        let positions: Vec<[i64; 3]> = table
            .chunks_exact(6)
            .map(|row| {
                [0, 2, 4].map(|at| f64::from(row[at + 1]).atan2(row[at].into()).round() as i64)
            })
            .collect();
        assert_eq!(positions[..5], [[0, -2, -2], [0, -2, -1], [0, -2, 0], [0, -2, 1], [0, -1, -2]]);
        assert_eq!(positions[11..], [[0, 0, 1], [2, 2, 2], [3, 3, 3]]);
    }
}
