//! The FLUX.2 transformer (DiT): double blocks with a text and an image stream, then single blocks
//! over both. The blocks of a kind share one modulation, feed-forward layers are gated, and no
//! layer has a bias.
//!
//! Text stands before image in every joint sequence. Widths by diffusers'
//! `Flux2Transformer2DModel`, whose fused projections are here by their parts.

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{WeightFiles, WeightsError};

const NONE: Activation = Activation::None;

/// The last modulation by Black Forest Labs' name, of whose halves the first shifts and the second
/// scales, and by diffusers', the other way round (`AdaLayerNormContinuous`).
pub const LAST_MODULATION: (&str, &str) = ("final_layer.adaLN_modulation.1", "norm_out.linear");

/// What all blocks of a kind are modulated by: double blocks' image and text, and single blocks.
pub const IMAGE_MODULATION: &str = "double_stream_modulation_img.linear";
pub const TEXT_MODULATION: &str = "double_stream_modulation_txt.linear";
pub const SINGLE_MODULATION: &str = "single_stream_modulation.linear";

/// The layers of the time's embedding.
pub const TIME_IN: &str = "time_guidance_embed.timestep_embedder.linear_1";
pub const TIME_OUT: &str = "time_guidance_embed.timestep_embedder.linear_2";

/// The halves of a feed-forward layer's first projection.
pub const GATE: &str = "gate";
pub const UP: &str = "up";

/// Where these are in a single block, which has them beside its projections to heads.
pub const SINGLE_MLP: &str = "mlp";

/// `transformer/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Flux2DitConfig {
    /// Tokens along a side of a token: one.
    pub patch_size: usize,
    /// Channels of a packed latent token.
    pub in_channels: usize,
    /// Those of the result, where they are others.
    pub out_channels: Option<usize>,
    /// Double blocks.
    pub num_layers: usize,
    /// Single blocks, over both streams at once.
    pub num_single_layers: usize,
    /// Width of one head.
    pub attention_head_dim: usize,
    /// Heads, of queries as of keys.
    pub num_attention_heads: usize,
    /// Width of the text encoder's states, one beside the other.
    pub joint_attention_dim: usize,
    /// Width of the time's sinusoids.
    pub timestep_guidance_channels: usize,
    /// Width of feed-forward layers over that of the residual stream.
    pub mlp_ratio: f64,
    /// Widths of the rotary positions' axes: time, row, column, place in the text.
    pub axes_dims_rope: [usize; 4],
    /// Base of their frequencies.
    pub rope_theta: f64,
    /// Added to variances and mean squares throughout.
    pub eps: f32,
}

impl Default for Flux2DitConfig {
    fn default() -> Flux2DitConfig {
        Flux2DitConfig {
            patch_size: 1,
            in_channels: 128,
            out_channels: None,
            num_layers: 8,
            num_single_layers: 48,
            attention_head_dim: 128,
            num_attention_heads: 48,
            joint_attention_dim: 15_360,
            timestep_guidance_channels: 256,
            mlp_ratio: 3.0,
            axes_dims_rope: [32; 4],
            rope_theta: 2000.0,
            eps: 1e-6,
        }
    }
}

impl Flux2DitConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.holds(self.patch_size == 1, || {
            format!("patch_size is {}, expected 1", self.patch_size)
        })?;
        let out = self.out_channels.unwrap_or(self.in_channels);
        limits.holds(out == self.in_channels, || {
            format!("out_channels is {out}, expected in_channels, {}", self.in_channels)
        })?;
        limits.count("in_channels", self.in_channels, WIDTH_MAX)?;
        limits.count("joint_attention_dim", self.joint_attention_dim, WIDTH_MAX)?;
        limits.count("timestep_guidance_channels", self.timestep_guidance_channels, WIDTH_MAX)?;
        limits.holds(self.timestep_guidance_channels.is_multiple_of(2), || {
            format!("timestep_guidance_channels is the odd {}", self.timestep_guidance_channels)
        })?;
        limits.count("num_layers", self.num_layers, LAYERS_MAX)?;
        limits.count("num_single_layers", self.num_single_layers, LAYERS_MAX)?;
        limits.count("attention_head_dim", self.attention_head_dim, 1024)?;
        limits.count("num_attention_heads", self.num_attention_heads, 256)?;
        limits.count("the hidden width", self.hidden(), WIDTH_MAX / 6)?;
        let ratio = self.mlp_ratio;
        limits.holds((0.0..=64.0).contains(&ratio), || {
            format!("mlp_ratio is {ratio}, expected above 0, at most 64")
        })?;
        limits.count("the width of feed-forward layers", self.wide(), WIDTH_MAX)?;
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
        })?;
        let theta = self.rope_theta;
        limits.holds((1.0..=1e12).contains(&theta), || {
            format!("rope_theta is {theta}, expected 1 to 1e12")
        })?;
        let eps = self.eps;
        limits.holds((0.0..=1.0).contains(&eps), || format!("eps is {eps}, expected 0 to 1"))
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.attention_head_dim.saturating_mul(self.num_attention_heads)
    }

    /// Width of feed-forward layers (`int(dim * mlp_ratio)`).
    pub fn wide(&self) -> usize {
        (self.hidden() as f64 * self.mlp_ratio) as usize
    }

    /// The graph of one call: `latents` `[batch, image_tokens, in_channels]`,
    /// `encoder_hidden_states` `[batch, text_tokens, joint]`, `timestep` `[batch]`, `rope`
    /// `[text_tokens + image_tokens, head_dim / 2, 2]` → `velocity` `[batch, image_tokens,
    /// in_channels]`.
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
        let hidden = self.hidden();
        let mut b = GraphBuilder::new(files);
        let shape = [batch, image_tokens, self.in_channels];
        let latents = b.input("latents", &shape, ElementType::F32);
        let shape = [batch, text_tokens, self.joint_attention_dim];
        let text = b.input("encoder_hidden_states", &shape, ElementType::F32);
        let tokens = text_tokens + image_tokens;
        let rope = b.input("rope", &[tokens, self.attention_head_dim / 2, 2], ElementType::F32);

        b.segment("embedders");
        let time = self.time_embedding(&mut b, batch)?; // [batch, hidden]
        let image_mod = b.linear_no_bias(time, IMAGE_MODULATION, 6 * hidden, NONE)?;
        let text_mod = b.linear_no_bias(time, TEXT_MODULATION, 6 * hidden, NONE)?;
        let single_mod = b.linear_no_bias(time, SINGLE_MODULATION, 3 * hidden, NONE)?;
        // [batch, image, hidden]
        let mut image = b.linear_no_bias(latents, "x_embedder", hidden, NONE)?;
        // [batch, text, hidden]
        let mut text = b.linear_no_bias(text, "context_embedder", hidden, NONE)?;
        for layer in 0..self.num_layers {
            let name = format!("transformer_blocks.{layer}");
            b.block(name.clone());
            let mods = [text_mod, image_mod];
            [text, image] = self.double_block(&mut b, &name, [text, image], mods, rope)?;
        }
        let mut joint = None;
        for layer in 0..self.num_single_layers {
            let name = format!("single_transformer_blocks.{layer}");
            b.block(name.clone());
            let x = joint.unwrap_or_else(|| b.concat_tokens(text, image)); // [batch, tokens, hidden]
            joint = Some(self.single_block(&mut b, &name, x, single_mod, rope)?);
        }
        b.segment("proj_out");
        let joint = joint.expect("a configuration has at least one single block");
        let image = b.slice_tokens(joint, text_tokens, image_tokens); // [batch, image, hidden]
        let (shift_first, scale_first) = LAST_MODULATION;
        let (name, shift, scale) = match files.tensor(&format!("{shift_first}.weight")) {
            Some(_) => (shift_first, 0, 1),
            None => (scale_first, 1, 0),
        };
        let modulation = b.linear_no_bias(time, name, 2 * hidden, NONE)?; // [batch, 2 × hidden]
        let image = b.ada_layer_norm(image, modulation, shift, scale, self.eps);
        let velocity = b.linear_no_bias(image, "proj_out", self.in_channels, NONE)?;
        b.output("velocity", velocity);
        Ok(b.finish())
    }

    /// SiLU of the time's embedding: every modulation starts so.
    fn time_embedding(&self, b: &mut GraphBuilder, batch: usize) -> Result<ValueId, WeightsError> {
        let timestep = b.input("timestep", &[batch], ElementType::F32);
        let h = b.sinusoid(timestep, self.timestep_guidance_channels); // [batch, sinusoids]
        let h = b.linear_no_bias(h, TIME_IN, self.hidden(), Activation::Silu)?;
        b.linear_no_bias(h, TIME_OUT, self.hidden(), Activation::Silu)
    }

    /// A block over text and image, each with its own layers; one attention over both.
    fn double_block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        [text, image]: [ValueId; 2],
        [text_mod, image_mod]: [ValueId; 2],
        rope: ValueId,
    ) -> Result<[ValueId; 2], WeightsError> {
        let (text_tokens, image_tokens) = (b.shape(text)[1], b.shape(image)[1]);
        // Chunks: shift, scale, gate of attention, then of the feed-forward layer.
        let text_in = b.ada_layer_norm(text, text_mod, 0, 1, self.eps);
        let image_in = b.ada_layer_norm(image, image_mod, 0, 1, self.eps);
        let (both, attn) = ([text_in, image_in], format!("{name}.attn"));
        let q = [("add_q_proj", "norm_added_q"), ("to_q", "norm_q")];
        let q = self.joined_heads(b, &attn, both, q)?; // [batch, tokens, hidden]
        let q = b.rope(q, rope, self.num_attention_heads);
        let k = [("add_k_proj", "norm_added_k"), ("to_k", "norm_k")];
        let k = self.joined_heads(b, &attn, both, k)?;
        let k = b.rope(k, rope, self.num_attention_heads);
        let text_v = self.heads(b, text_in, &format!("{attn}.add_v_proj"), None)?;
        let image_v = self.heads(b, image_in, &format!("{attn}.to_v"), None)?;
        let v = b.concat_tokens(text_v, image_v);
        let joint = self.attention(b, [q, k, v]); // [batch, tokens, hidden]

        let h = b.slice_tokens(joint, text_tokens, image_tokens);
        let h = b.linear_no_bias(h, &format!("{attn}.to_out.0"), self.hidden(), NONE)?;
        let image = b.gated_add(image, h, image_mod, 2);
        let h = b.slice_tokens(joint, 0, text_tokens);
        let h = b.linear_no_bias(h, &format!("{attn}.to_add_out"), self.hidden(), NONE)?;
        let text = b.gated_add(text, h, text_mod, 2);

        let image = self.feed_forward(b, &format!("{name}.ff"), image, image_mod)?;
        let text = self.feed_forward(b, &format!("{name}.ff_context"), text, text_mod)?;
        Ok([text, image])
    }

    /// Normalised heads of text and image, each by its own projection and norm, as one sequence.
    fn joined_heads(
        &self,
        b: &mut GraphBuilder,
        attn: &str,
        [text, image]: [ValueId; 2],
        [of_text, of_image]: [(&str, &str); 2],
    ) -> Result<ValueId, WeightsError> {
        let mut heads = |x, (projection, norm): (&str, &str)| {
            let norm = format!("{attn}.{norm}");
            self.heads(b, x, &format!("{attn}.{projection}"), Some(&norm))
        };
        let (image, text) = (heads(image, of_image)?, heads(text, of_text)?);
        Ok(b.concat_tokens(text, image))
    }

    fn feed_forward(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        modulation: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let h = b.ada_layer_norm(x, modulation, 3, 4, self.eps);
        let h = self.gated(b, &format!("{name}.linear_in"), h)?; // [batch, tokens, wide]
        let h = b.linear_no_bias(h, &format!("{name}.linear_out"), self.hidden(), NONE)?;
        Ok(b.gated_add(x, h, modulation, 5))
    }

    /// A block over both streams, whose attention and feed-forward layer stand side by side.
    fn single_block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        modulation: ValueId,
        rope: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let attn = format!("{name}.attn");
        let h = b.ada_layer_norm(x, modulation, 0, 1, self.eps);
        let q = self.heads(b, h, &format!("{attn}.to_q"), Some(&format!("{attn}.norm_q")))?;
        let q = b.rope(q, rope, self.num_attention_heads);
        let k = self.heads(b, h, &format!("{attn}.to_k"), Some(&format!("{attn}.norm_k")))?;
        let k = b.rope(k, rope, self.num_attention_heads);
        let v = self.heads(b, h, &format!("{attn}.to_v"), None)?;
        let attention = self.attention(b, [q, k, v]); // [batch, tokens, hidden]
        let mlp = self.gated(b, &format!("{name}.{SINGLE_MLP}"), h)?; // [batch, tokens, wide]
        let out = format!("{attn}.to_out");
        let h = b.joined_linear_no_bias(&[attention, mlp], &out, self.hidden())?;
        Ok(b.gated_add(x, h, modulation, 2))
    }

    /// The first half of a gated feed-forward layer (`Flux2SwiGLU`).
    fn gated(&self, b: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId, WeightsError> {
        let wide = self.wide();
        let gate = b.linear_no_bias(x, &format!("{name}.{GATE}"), wide, Activation::Silu)?;
        let up = b.linear_no_bias(x, &format!("{name}.{UP}"), wide, NONE)?;
        Ok(b.mul(gate, up))
    }

    /// A projection to all heads, normalised by head where a norm is named.
    fn heads(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        projection: &str,
        norm: Option<&str>,
    ) -> Result<ValueId, WeightsError> {
        let h = b.linear_no_bias(x, projection, self.hidden(), NONE)?;
        match norm {
            Some(norm) => b.rms_norm(h, norm, self.attention_head_dim, self.eps),
            None => Ok(h),
        }
    }

    fn attention(&self, b: &mut GraphBuilder, qkv: [ValueId; 3]) -> ValueId {
        let heads = self.num_attention_heads;
        let scale = (self.attention_head_dim as f32).powf(-0.5);
        b.attention(qkv, None, AttentionOp { heads, kv_heads: heads, scale, causal: false })
    }

    /// Fills the graph's `rope`: positions are (time, row, column, place). The text's are its
    /// tokens' places, the picture's its rows and columns; all else is 0.
    pub fn rotary_table(&self, table: &mut [f32], text_tokens: usize, columns: usize) {
        for (token, row) in table.chunks_exact_mut(self.attention_head_dim).enumerate() {
            let position = match token.checked_sub(text_tokens) {
                Some(image) => [0, image / columns, image % columns, 0],
                None => [0, 0, 0, token],
            };
            let angles = position.iter().zip(self.axes_dims_rope).flat_map(|(&position, axis)| {
                (0..axis / 2).map(move |pair| {
                    let exponent = (2 * pair) as f64 / axis as f64;
                    position as f64 * (1.0 / self.rope_theta.powf(exponent))
                })
            });
            for (rotation, angle) in row.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                *rotation = [angle.cos() as f32, angle.sin() as f32];
            }
        }
    }
}
