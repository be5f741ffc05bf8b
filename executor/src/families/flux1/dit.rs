//! The FLUX.1 transformer (DiT): double blocks with a text and an image stream, then single blocks
//! over both.
//!
//! Text stands before image in every joint sequence. Widths by diffusers' `FluxTransformer2DModel`.

use std::path::Path;

use serde::Deserialize;

use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{WeightFiles, WeightsError};

/// Added to variances and mean squares throughout (`FluxTransformer2DModel`, `AdaLayerNormZero`).
const EPS: f32 = 1e-6;

const NONE: Activation = Activation::None;

/// Width of the sinusoidal embedding of timestep and guidance
/// (`CombinedTimestepGuidanceTextProjEmbeddings`).
const SINUSOID_FEATURES: usize = 256;

/// Feed-forward width over residual width (`FluxTransformerBlock`, `FluxSingleTransformerBlock`).
pub const MLP_RATIO: usize = 4;

/// The last modulation by Black Forest Labs' name, of whose halves the first shifts and the second
/// scales, and by diffusers', the other way round (`AdaLayerNormContinuous`).
pub const LAST_MODULATION: (&str, &str) = ("final_layer.adaLN_modulation.1", "norm_out.linear");

/// `transformer/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct DitConfig {
    /// Channels of a packed latent token.
    pub in_channels: usize,
    /// Double blocks.
    pub num_layers: usize,
    /// Single blocks.
    pub num_single_layers: usize,
    /// Width of one head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the long text encoder.
    pub joint_attention_dim: usize,
    /// Width of the pooled text embedding.
    pub pooled_projection_dim: usize,
    /// Whether guidance is embedded beside the timestep.
    #[serde(default)]
    pub guidance_embeds: bool,
    /// Widths of the rotary embedding's axes.
    #[serde(default = "axes")]
    pub axes_dims_rope: [usize; 3],
}

/// Those of every published model of the class.
pub fn axes() -> [usize; 3] {
    [16, 56, 56]
}

impl DitConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        for (name, value) in [
            ("in_channels", self.in_channels),
            ("joint_attention_dim", self.joint_attention_dim),
            ("pooled_projection_dim", self.pooled_projection_dim),
        ] {
            limits.count(name, value, WIDTH_MAX)?;
        }
        limits.count("num_layers", self.num_layers, LAYERS_MAX)?;
        limits.count("num_single_layers", self.num_single_layers, LAYERS_MAX)?;
        limits.count("attention_head_dim", self.attention_head_dim, 1024)?;
        limits.count("num_attention_heads", self.num_attention_heads, 256)?;
        limits.count("the hidden width", self.hidden(), WIDTH_MAX / MLP_RATIO)?;
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

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.attention_head_dim.saturating_mul(self.num_attention_heads)
    }

    /// The graph of one call: `latents` `[batch, image_tokens, in_channels]`,
    /// `encoder_hidden_states` `[batch, text_tokens, joint]`, `pooled` `[batch, pooled]`,
    /// `timestep` and `guidance` `[batch]`, `rope` `[text_tokens + image_tokens, head_dim / 2, 2]`
    /// → `velocity` `[batch, image_tokens, in_channels]`.
    pub fn graph(
        &self,
        files: &WeightFiles,
        batch: usize,
        text_tokens: usize,
        image_tokens: usize,
    ) -> Result<Graph, WeightsError> {
        let hidden = self.hidden();
        let mut b = GraphBuilder::new(files);
        let latents =
            b.input("latents", &[batch, image_tokens, self.in_channels], ElementType::F32);
        let text = b.input(
            "encoder_hidden_states",
            &[batch, text_tokens, self.joint_attention_dim],
            ElementType::F32,
        );
        let tokens = text_tokens + image_tokens;
        let rope = b.input("rope", &[tokens, self.attention_head_dim / 2, 2], ElementType::F32);

        b.segment("embedders");
        let emb = self.time_text_embed(&mut b, batch)?; // [batch, hidden]
        let mut image = b.linear(&[latents], "x_embedder", hidden, NONE)?; // [batch, image, hidden]
        let mut text = b.linear(&[text], "context_embedder", hidden, NONE)?; // [batch, text, hidden]
        for layer in 0..self.num_layers {
            b.block(format!("transformer_blocks.{layer}"));
            let name = format!("transformer_blocks.{layer}");
            (text, image) = self.double_block(&mut b, &name, text, image, emb, rope)?;
        }
        let mut joint = None;
        for layer in 0..self.num_single_layers {
            b.block(format!("single_transformer_blocks.{layer}"));
            let x = joint.unwrap_or_else(|| b.concat_tokens(text, image)); // [batch, tokens, hidden]
            let name = format!("single_transformer_blocks.{layer}");
            joint = Some(self.single_block(&mut b, &name, x, emb, rope)?);
        }
        b.segment("proj_out");
        let joint = joint.expect("a configuration has at least one single block");
        let image = b.slice_tokens(joint, text_tokens, image_tokens); // [batch, image, hidden]
        let (shift_first, scale_first) = LAST_MODULATION;
        let (name, shift, scale) = match files.tensor(&format!("{shift_first}.weight")) {
            Some(_) => (shift_first, 0, 1),
            None => (scale_first, 1, 0),
        };
        let modulation = b.linear(&[emb], name, 2 * hidden, NONE)?; // [batch, 2 × hidden]
        let image = b.ada_layer_norm(image, modulation, shift, scale, EPS); // [batch, image, hidden]
        let velocity = b.linear(&[image], "proj_out", self.in_channels, NONE)?;
        b.output("velocity", velocity);
        Ok(b.finish())
    }

    /// SiLU of the summed embeddings of timestep, guidance and pooled text: every modulation starts
    /// so.
    fn time_text_embed(&self, b: &mut GraphBuilder, batch: usize) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let pooled = b.input("pooled", &[batch, self.pooled_projection_dim], ElementType::F32);
        let timestep = b.input("timestep", &[batch], ElementType::F32);
        let mut sum = self.embedder(b, timestep, "timestep_embedder")?;
        if self.guidance_embeds {
            let guidance = b.input("guidance", &[batch], ElementType::F32);
            let guidance = self.embedder(b, guidance, "guidance_embedder")?;
            sum = b.add(sum, guidance);
        }
        let h = b.linear(
            &[pooled],
            "time_text_embed.text_embedder.linear_1",
            hidden,
            Activation::Silu,
        )?;
        let h = b.linear(&[h], "time_text_embed.text_embedder.linear_2", hidden, NONE)?;
        let sum = b.add(sum, h);
        Ok(b.activate(sum, Activation::Silu))
    }

    fn embedder(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId, WeightsError> {
        let h = b.sinusoid(x, SINUSOID_FEATURES); // [batch, 256]
        let h = b.linear(
            &[h],
            &format!("time_text_embed.{name}.linear_1"),
            self.hidden(),
            Activation::Silu,
        )?;
        b.linear(&[h], &format!("time_text_embed.{name}.linear_2"), self.hidden(), NONE)
    }

    fn double_block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        text: ValueId,
        image: ValueId,
        emb: ValueId,
        rope: ValueId,
    ) -> Result<(ValueId, ValueId), WeightsError> {
        let hidden = self.hidden();
        let (text_tokens, image_tokens) = (b.shape(text)[1], b.shape(image)[1]);
        // Chunks: shift, scale, gate of attention, then of the feed-forward layer.
        let image_mod = b.linear(&[emb], &format!("{name}.norm1.linear"), 6 * hidden, NONE)?;
        let text_mod =
            b.linear(&[emb], &format!("{name}.norm1_context.linear"), 6 * hidden, NONE)?;
        let image_in = b.ada_layer_norm(image, image_mod, 0, 1, EPS);
        let text_in = b.ada_layer_norm(text, text_mod, 0, 1, EPS);

        let q = self.heads(
            b,
            image_in,
            &format!("{name}.attn.to_q"),
            Some(&format!("{name}.attn.norm_q")),
        )?;
        let text_q = self.heads(
            b,
            text_in,
            &format!("{name}.attn.add_q_proj"),
            Some(&format!("{name}.attn.norm_added_q")),
        )?;
        let q = b.concat_tokens(text_q, q); // [batch, text_tokens + image_tokens, hidden]
        let q = b.rope(q, rope, self.num_attention_heads);
        let k = self.heads(
            b,
            image_in,
            &format!("{name}.attn.to_k"),
            Some(&format!("{name}.attn.norm_k")),
        )?;
        let text_k = self.heads(
            b,
            text_in,
            &format!("{name}.attn.add_k_proj"),
            Some(&format!("{name}.attn.norm_added_k")),
        )?;
        let k = b.concat_tokens(text_k, k);
        let k = b.rope(k, rope, self.num_attention_heads);
        let v = self.heads(b, image_in, &format!("{name}.attn.to_v"), None)?;
        let text_v = self.heads(b, text_in, &format!("{name}.attn.add_v_proj"), None)?;
        let v = b.concat_tokens(text_v, v);
        let joint = self.attention(b, [q, k, v]); // [batch, tokens, hidden]

        let h = b.slice_tokens(joint, text_tokens, image_tokens);
        let h = b.linear(&[h], &format!("{name}.attn.to_out.0"), hidden, NONE)?;
        let image = b.gated_add(image, h, image_mod, 2);
        let h = b.slice_tokens(joint, 0, text_tokens);
        let h = b.linear(&[h], &format!("{name}.attn.to_add_out"), hidden, NONE)?;
        let text = b.gated_add(text, h, text_mod, 2);

        let image = self.feed_forward(b, &format!("{name}.ff"), image, image_mod)?;
        let text = self.feed_forward(b, &format!("{name}.ff_context"), text, text_mod)?;
        Ok((text, image))
    }

    fn feed_forward(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        modulation: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let h = b.ada_layer_norm(x, modulation, 3, 4, EPS);
        let h = b.linear(
            &[h],
            &format!("{name}.net.0.proj"),
            MLP_RATIO * hidden,
            Activation::GeluTanh,
        )?;
        let h = b.linear(&[h], &format!("{name}.net.2"), hidden, NONE)?;
        Ok(b.gated_add(x, h, modulation, 5))
    }

    fn single_block(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        x: ValueId,
        emb: ValueId,
        rope: ValueId,
    ) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let modulation = b.linear(&[emb], &format!("{name}.norm.linear"), 3 * hidden, NONE)?;
        let h = b.ada_layer_norm(x, modulation, 0, 1, EPS);
        let q =
            self.heads(b, h, &format!("{name}.attn.to_q"), Some(&format!("{name}.attn.norm_q")))?;
        let q = b.rope(q, rope, self.num_attention_heads);
        let k =
            self.heads(b, h, &format!("{name}.attn.to_k"), Some(&format!("{name}.attn.norm_k")))?;
        let k = b.rope(k, rope, self.num_attention_heads);
        let v = self.heads(b, h, &format!("{name}.attn.to_v"), None)?;
        let attention = self.attention(b, [q, k, v]); // [batch, tokens, hidden]
        let mlp =
            b.linear(&[h], &format!("{name}.proj_mlp"), MLP_RATIO * hidden, Activation::GeluTanh)?;
        let h = b.linear(&[attention, mlp], &format!("{name}.proj_out"), hidden, NONE)?;
        Ok(b.gated_add(x, h, modulation, 2))
    }

    /// A projection to all heads, normalised by head where a norm is named.
    fn heads(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        projection: &str,
        norm: Option<&str>,
    ) -> Result<ValueId, WeightsError> {
        let h = b.linear(&[x], projection, self.hidden(), NONE)?;
        match norm {
            Some(norm) => b.rms_norm(h, norm, self.attention_head_dim, EPS),
            None => Ok(h),
        }
    }

    fn attention(&self, b: &mut GraphBuilder, qkv: [ValueId; 3]) -> ValueId {
        let heads = self.num_attention_heads;
        let scale = (self.attention_head_dim as f32).powf(-0.5);
        b.attention(qkv, None, AttentionOp { heads, kv_heads: heads, scale, causal: false })
    }
}
