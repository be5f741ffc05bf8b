//! The Z-Image transformer (DiT): the picture and the caption are refined apart, then go through
//! single-stream blocks together. Names and widths by diffusers' `ZImageTransformer2DModel`.
//!
//! Both sequences are filled up to multiples of [`TOKENS_MULTIPLE`] with learned tokens, which are
//! attended as any other. The picture stands before the caption.

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{WeightFiles, WeightsError};

use super::PATCH;

const NONE: Activation = Activation::None;

/// What the tokens of each sequence are filled up to (`SEQ_MULTI_OF`).
pub const TOKENS_MULTIPLE: usize = 32;

/// Width of the time's embedding, where the model is wider (`ADALN_EMBED_DIM`).
const TIME_FEATURES_MAX: usize = 256;

/// Width of its sinusoids, and of its first layer (`TimestepEmbedder`).
const SINUSOID_FEATURES: usize = 256;
const TIME_WIDTH: usize = 1024;

/// Added to the variances of the last norm (`FinalLayer`) and to the mean squares of heads
/// (`ZImageTransformerBlock`).
const LAST_EPS: f32 = 1e-6;
const HEAD_EPS: f32 = 1e-5;

/// Chunks of a block's modulation.
const ATTENTION_SCALE: usize = 0;
const ATTENTION_GATE: usize = 1;
const MLP_SCALE: usize = 2;
const MLP_GATE: usize = 3;
const CHUNKS: usize = 4;

/// What the layers of the picture's first and last are called, by their patches.
pub const EMBEDDER: &str = "all_x_embedder.2-1";
pub const FINAL: &str = "all_final_layer.2-1";

/// Blocks by what they take: the picture, the caption, both.
pub const NOISE_REFINER: &str = "noise_refiner";
pub const CONTEXT_REFINER: &str = "context_refiner";
pub const LAYERS: &str = "layers";

/// `transformer/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct ZImageDitConfig {
    /// Sides of patches, in cells: one, of [`PATCH`] cells.
    #[serde(default = "patches")]
    pub all_patch_size: Vec<usize>,
    /// Lengths of patches, in frames: one frame.
    #[serde(default = "frames")]
    pub all_f_patch_size: Vec<usize>,
    /// Channels of the latents.
    pub in_channels: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Blocks over both sequences.
    pub n_layers: usize,
    /// Blocks over each sequence alone.
    pub n_refiner_layers: usize,
    /// Heads.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Added to mean squares.
    #[serde(default = "epsilon")]
    pub norm_eps: f32,
    /// Whether heads of queries and keys are normalised.
    #[serde(default = "yes")]
    pub qk_norm: bool,
    /// Width of the text encoder.
    pub cap_feat_dim: usize,
    /// Base of the rotary positions' frequencies.
    #[serde(default = "theta")]
    pub rope_theta: f64,
    /// What times of 0 to 1 are multiplied by.
    #[serde(default = "time_scale")]
    pub t_scale: f32,
    /// Widths of the rotary positions' axes.
    #[serde(default = "axes")]
    pub axes_dims: [usize; 3],
}

fn patches() -> Vec<usize> {
    vec![PATCH]
}

fn frames() -> Vec<usize> {
    vec![1]
}

pub fn epsilon() -> f32 {
    1e-5
}

fn yes() -> bool {
    true
}

pub fn theta() -> f64 {
    256.0
}

pub fn time_scale() -> f32 {
    1000.0
}

/// Those of every published model of the class.
pub fn axes() -> [usize; 3] {
    [32, 48, 48]
}

impl ZImageDitConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.holds(
            self.all_patch_size == patches() && self.all_f_patch_size == frames(),
            || {
                format!(
                    "patches are {:?} and {:?}, expected [{PATCH}] and [1]",
                    self.all_patch_size, self.all_f_patch_size
                )
            },
        )?;
        limits.count("in_channels", self.in_channels, 1024)?;
        limits.count("dim", self.dim, WIDTH_MAX / 3)?;
        limits.count("n_layers", self.n_layers, LAYERS_MAX)?;
        limits.count("n_refiner_layers", self.n_refiner_layers, LAYERS_MAX)?;
        limits.count("n_heads", self.n_heads, 256)?;
        limits.count("cap_feat_dim", self.cap_feat_dim, WIDTH_MAX)?;
        limits.holds(self.n_kv_heads == self.n_heads, || {
            format!("n_kv_heads is {}, expected n_heads, {}", self.n_kv_heads, self.n_heads)
        })?;
        limits.holds(self.qk_norm, || "qk_norm is false, expected true".to_owned())?;
        limits.holds(self.dim.is_multiple_of(self.n_heads), || {
            format!("{} heads do not divide dim {}", self.n_heads, self.dim)
        })?;
        for axis in self.axes_dims {
            limits.holds(axis % 2 == 0, || format!("axes_dims holds the odd width {axis}"))?;
            limits.count("each of axes_dims", axis, 1024)?;
        }
        let sum: usize = self.axes_dims.iter().sum();
        limits.holds(sum == self.head_dim(), || {
            format!("axes_dims sum to {sum}, heads are {} wide", self.head_dim())
        })?;
        let eps = self.norm_eps;
        limits
            .holds((0.0..=1.0).contains(&eps), || format!("norm_eps is {eps}, expected 0 to 1"))?;
        let theta = self.rope_theta;
        limits.holds((1.0..=1e12).contains(&theta), || {
            format!("rope_theta is {theta}, expected 1 to 1e12")
        })?;
        let scale = self.t_scale;
        limits.holds((1e-3..=1e6).contains(&scale), || {
            format!("t_scale is {scale}, expected 0.001 to 1000000")
        })
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.n_heads
    }

    /// Width of the feed-forward layers (`int(dim / 3 * 8)`).
    fn wide(&self) -> usize {
        (self.dim as f64 / 3.0 * 8.0) as usize
    }

    /// Channels of a packed token of latents.
    pub fn token_features(&self) -> usize {
        PATCH * PATCH * self.in_channels
    }

    /// The graph of one call: `latents` `[batch, image_tokens, token features]`, `caption`
    /// `[batch, caption_tokens, cap_feat_dim]` of which `caption_length` `[1]` tokens are known,
    /// `timestep` `[batch]`, `rope` `[1, image tokens filled up + caption_tokens, head_dim]` →
    /// `prediction` `[batch, image_tokens, token features]`.
    ///
    /// # Errors
    /// The files lack a weight.
    pub fn graph(
        &self,
        files: &WeightFiles,
        batch: usize,
        caption_tokens: usize,
        image_tokens: usize,
    ) -> Result<Graph, WeightsError> {
        let (dim, eps) = (self.dim, self.norm_eps);
        let padded = image_tokens.next_multiple_of(TOKENS_MULTIPLE);
        let tokens = padded + caption_tokens;
        let mut b = GraphBuilder::new(files);
        let shape = [batch, image_tokens, self.token_features()];
        let latents = b.input("latents", &shape, ElementType::F32);
        let shape = [batch, caption_tokens, self.cap_feat_dim];
        let caption = b.input("caption", &shape, ElementType::F32);
        let known = b.input("caption_length", &[1], ElementType::I32);
        let timestep = b.input("timestep", &[batch], ElementType::F32);
        let rope = b.input("rope", &[1, tokens, self.head_dim()], ElementType::F32);

        b.segment("embedders");
        let time = self.time_embedding(&mut b, timestep)?; // [batch, time features]
        let image = b.linear(&[latents], EMBEDDER, dim, NONE)?; // [batch, image_tokens, dim]
        let mut image = b.pad_tokens(image, None, "x_pad_token", padded)?; // [batch, padded, dim]
        let caption = b.rms_norm(caption, "cap_embedder.0", self.cap_feat_dim, eps)?;
        let caption = b.linear(&[caption], "cap_embedder.1", dim, NONE)?; // [batch, caption, dim]
        let mut caption = b.pad_tokens(caption, Some(known), "cap_pad_token", caption_tokens)?;
        let image_rope = b.slice_tokens(rope, 0, padded); // [1, padded, head_dim]
        let caption_rope = b.slice_tokens(rope, padded, caption_tokens); // [1, caption, head_dim]
        for layer in 0..self.n_refiner_layers {
            let name = format!("{NOISE_REFINER}.{layer}");
            b.block(name.clone());
            image = self.block(&mut b, &name, image, image_rope, Some(time))?;
        }
        for layer in 0..self.n_refiner_layers {
            let name = format!("{CONTEXT_REFINER}.{layer}");
            b.block(name.clone());
            caption = self.block(&mut b, &name, caption, caption_rope, None)?;
        }
        let mut joint = None;
        for layer in 0..self.n_layers {
            let name = format!("{LAYERS}.{layer}");
            b.block(name.clone());
            let x = joint.unwrap_or_else(|| b.concat_tokens(image, caption)); // [batch, tokens, dim]
            joint = Some(self.block(&mut b, &name, x, rope, Some(time))?);
        }
        b.segment("final_layer");
        let joint = joint.expect("a configuration has at least one block");
        let image = b.slice_tokens(joint, 0, image_tokens); // [batch, image_tokens, dim]
        let time = b.activate(time, Activation::Silu);
        let scale = b.linear(&[time], &format!("{FINAL}.adaLN_modulation.1"), dim, NONE)?;
        let image = b.scaled_layer_norm(image, scale, 0, LAST_EPS);
        let out = self.token_features();
        let prediction = b.linear(&[image], &format!("{FINAL}.linear"), out, NONE)?;
        b.output("prediction", prediction);
        Ok(b.finish())
    }

    fn time_embedding(
        &self,
        b: &mut GraphBuilder,
        timestep: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let h = b.sinusoid(timestep, SINUSOID_FEATURES); // [batch, 256]
        let h = b.linear(&[h], "t_embedder.mlp.0", TIME_WIDTH, Activation::Silu)?;
        b.linear(&[h], "t_embedder.mlp.2", self.dim.min(TIME_FEATURES_MAX), NONE)
    }

    /// A block over one sequence; the time's embedding modulates it, where it is given.
    fn block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        rope: ValueId,
        time: Option<ValueId>,
    ) -> Result<ValueId, WeightsError> {
        let (dim, eps) = (self.dim, self.norm_eps);
        let modulation = match time {
            // [batch, chunks × dim]
            Some(time) => {
                let name = format!("{name}.adaLN_modulation.0");
                Some(b.linear(&[time], &name, CHUNKS * dim, NONE)?)
            }
            None => None,
        };
        let scaled = |b: &mut GraphBuilder, x, norm: &str, chunk| match modulation {
            Some(modulation) => b.scaled_rms_norm(x, norm, modulation, chunk, eps),
            None => b.rms_norm(x, norm, dim, eps),
        };
        let h = scaled(b, x, &format!("{name}.attention_norm1"), ATTENTION_SCALE)?;
        let h = self.attention(b, &format!("{name}.attention"), h, rope)?; // [batch, tokens, dim]
        let gate = modulation.map(|modulation| (modulation, ATTENTION_GATE));
        let x = b.gated_norm_add(x, h, &format!("{name}.attention_norm2"), gate, eps)?;
        let h = scaled(b, x, &format!("{name}.ffn_norm1"), MLP_SCALE)?;
        let wide = self.wide();
        let first = format!("{name}.feed_forward.w1");
        let gate = b.linear_no_bias(h, &first, wide, Activation::Silu)?; // [batch, tokens, wide]
        let up = b.linear_no_bias(h, &format!("{name}.feed_forward.w3"), wide, NONE)?;
        let h = b.mul(gate, up);
        let h = b.linear_no_bias(h, &format!("{name}.feed_forward.w2"), dim, NONE)?;
        let gate = modulation.map(|modulation| (modulation, MLP_GATE));
        b.gated_norm_add(x, h, &format!("{name}.ffn_norm2"), gate, eps)
    }

    fn attention(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        rope: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let (heads, head_dim) = (self.n_heads, self.head_dim());
        let q = b.linear_no_bias(x, &format!("{name}.to_q"), self.dim, NONE)?;
        let q = b.rms_norm(q, &format!("{name}.norm_q"), head_dim, HEAD_EPS)?;
        let q = b.rope(q, rope, heads);
        let k = b.linear_no_bias(x, &format!("{name}.to_k"), self.dim, NONE)?;
        let k = b.rms_norm(k, &format!("{name}.norm_k"), head_dim, HEAD_EPS)?;
        let k = b.rope(k, rope, heads);
        let v = b.linear_no_bias(x, &format!("{name}.to_v"), self.dim, NONE)?;
        let scale = (head_dim as f32).powf(-0.5);
        let op = AttentionOp { heads, kv_heads: heads, scale, causal: false };
        let h = b.attention([q, k, v], None, op); // [batch, tokens, dim]
        b.linear_no_bias(h, &format!("{name}.to_out.0"), self.dim, NONE)
    }

    /// Fills the graph's `rope`: positions are (frame, row, column). Those of the caption count
    /// frames from 1, the picture is the frame behind them, and what fills it up is at 0.
    pub fn rotary_table(
        &self,
        table: &mut [f32],
        caption_tokens: usize,
        [rows, columns]: [usize; 2],
    ) {
        let (image, head_dim) = (rows * columns, self.head_dim());
        let padded = image.next_multiple_of(TOKENS_MULTIPLE);
        for (token, row) in table.chunks_exact_mut(head_dim).enumerate() {
            let position = match token.checked_sub(padded) {
                Some(caption) => [caption + 1, 0, 0],
                None if token < image => [caption_tokens + 1, token / columns, token % columns],
                None => [0; 3],
            };
            let angles = position.iter().zip(self.axes_dims).flat_map(|(&position, axis)| {
                (0..axis / 2).map(move |pair| {
                    let exponent = (2 * pair) as f64 / axis as f64;
                    position as f64 * (1.0 / self.rope_theta.powf(exponent))
                })
            });
            for (rotation, angle) in row.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                // Angles are rounded to f32 as by `RopeEmbedder`.
                let angle = f64::from(angle as f32);
                *rotation = [angle.cos() as f32, angle.sin() as f32];
            }
        }
    }
}
