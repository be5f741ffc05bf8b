//! The transformer of Stable Diffusion 3 (MMDiT): blocks with a stream for the picture and one for
//! the text, which attend to each other. Names and widths by diffusers' `SD3Transformer2DModel`.
//!
//! The picture stands before the text in every joint sequence. The last block has no text behind
//! its attention. In 3.5 heads are normalised, and in some blocks the picture attends to itself a
//! second time.

use std::path::Path;

use serde::Deserialize;

use crate::components::modulation::{ATTENTION, CHUNKS, FEED_FORWARD, ModulationChunks};
use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::weights::{TensorRef, WeightFiles, WeightsError};

/// Added to variances and mean squares throughout (`JointTransformerBlock`, `AdaLayerNormZero`).
const EPS: f32 = 1e-6;

const NONE: Activation = Activation::None;

/// Width of the sinusoidal embedding of the timestep (`CombinedTimestepTextProjEmbeddings`).
const SINUSOID_FEATURES: usize = 256;

/// Feed-forward width over residual width (`FeedForward`).
const MLP_RATIO: usize = 4;

/// Largest side of the table of positions, in tokens; published ones have 192 and 384.
const POSITIONS_MAX: usize = 4096;

/// Largest side of a patch, in cells.
const PATCH_MAX: usize = 16;

/// What `qk_norm` calls the norm of queries and keys.
pub const RMS_NORM: &str = "rms_norm";

/// The table of positions `[1, side × side, hidden]`, row by row. Jobs take of it what their
/// pictures need ([`Sd3DitConfig::positions`]); the rest goes nowhere.
pub const POSITIONS: &str = "pos_embed.pos_embed";

/// The last modulation: its halves stand the other way round in one convention.
pub const LAST_MODULATION: (&str, &str) = ("final_layer.adaLN_modulation.1", "norm_out.linear");

/// The modulation of the text in a block; in the last one its halves are swapped likewise.
pub const CONTEXT_MODULATION: (&str, &str) =
    ("context_block.adaLN_modulation.1", "norm1_context.linear");

/// The blocks by both names.
pub const BLOCKS: (&str, &str) = ("joint_blocks", "transformer_blocks");

/// ModulationChunks of the picture's second attention, behind the others, where it has one.
const SECOND_ATTENTION: ModulationChunks = ModulationChunks { shift: 6, scale: 7, gate: 8 };
const CHUNKS_OF_TWO: usize = 9;

/// `transformer/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct Sd3DitConfig {
    /// Sides of patches, in cells.
    #[serde(default = "patch")]
    pub patch_size: usize,
    /// Channels of the latents.
    #[serde(default = "channels")]
    pub in_channels: usize,
    /// Channels of the prediction; absent where they are those of the latents.
    #[serde(default)]
    pub out_channels: Option<usize>,
    /// Blocks.
    pub num_layers: usize,
    /// Width of one head.
    pub attention_head_dim: usize,
    /// Into how many the hidden width is divided.
    pub num_attention_heads: usize,
    /// Width of the text's states.
    pub joint_attention_dim: usize,
    /// Width of the text's stream.
    pub caption_projection_dim: usize,
    /// Width of the pooled text embedding.
    pub pooled_projection_dim: usize,
    /// Side of the table of positions, in tokens.
    #[serde(default = "positions")]
    pub pos_embed_max_size: usize,
    /// Blocks in which the picture attends to itself a second time.
    #[serde(default)]
    pub dual_attention_layers: Vec<usize>,
    /// How queries and keys are normalised, if they are.
    #[serde(default)]
    pub qk_norm: Option<String>,
}

fn patch() -> usize {
    2
}

fn channels() -> usize {
    16
}

fn positions() -> usize {
    96
}

/// A stream at the begin of a block: its states, and what modulates them.
#[derive(Clone, Copy)]
struct TokenStream {
    x: ValueId,
    modulation: ValueId,
}

impl Sd3DitConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.count("patch_size", self.patch_size, PATCH_MAX)?;
        for (name, value) in [("in_channels", self.in_channels), ("out_channels", self.outputs())] {
            limits.count(name, value, 1024)?;
        }
        for (name, value) in [
            ("joint_attention_dim", self.joint_attention_dim),
            ("pooled_projection_dim", self.pooled_projection_dim),
        ] {
            limits.count(name, value, WIDTH_MAX)?;
        }
        limits.count("num_layers", self.num_layers, LAYERS_MAX)?;
        limits.count("attention_head_dim", self.attention_head_dim, 1024)?;
        limits.count("num_attention_heads", self.num_attention_heads, 256)?;
        limits.count("the hidden width", self.hidden(), WIDTH_MAX / CHUNKS_OF_TWO)?;
        limits.count("pos_embed_max_size", self.pos_embed_max_size, POSITIONS_MAX)?;
        for (name, value, expected) in [
            ("caption_projection_dim", self.caption_projection_dim, self.hidden()),
            ("out_channels", self.outputs(), self.in_channels),
        ] {
            limits
                .holds(value == expected, || format!("{name} is {value}, expected {expected}"))?;
        }
        let known = self.qk_norm.as_deref().is_none_or(|norm| norm == RMS_NORM);
        limits.holds(known, || {
            format!("qk_norm is {:?}, expected {RMS_NORM} or none", self.qk_norm)
        })?;
        let beyond = self.dual_attention_layers.iter().find(|layer| **layer >= self.num_layers);
        limits.holds(beyond.is_none(), || {
            format!("dual_attention_layers holds {beyond:?}, of {} blocks", self.num_layers)
        })
    }

    /// Width of the residual streams.
    pub fn hidden(&self) -> usize {
        self.attention_head_dim.saturating_mul(self.num_attention_heads)
    }

    fn outputs(&self) -> usize {
        self.out_channels.unwrap_or(self.in_channels)
    }

    /// Features of a packed token of latents.
    pub fn token_features(&self) -> usize {
        self.patch_size * self.patch_size * self.in_channels
    }

    /// Whether the picture attends to itself a second time in a block.
    fn is_dual(&self, layer: usize) -> bool {
        self.dual_attention_layers.contains(&layer)
    }

    /// The graph of one call: `latents` and `positions` `[batch, image_tokens, …]`, of a patch's
    /// features channel by channel and of the hidden width; `encoder_hidden_states` `[batch,
    /// text_tokens, joint]`, `pooled` `[batch, pooled]`, `timestep` `[batch]` → `velocity` `[batch,
    /// image_tokens, token features]`, of a patch's features cell by cell.
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
        // No node takes the table: what is wrong with it is told with what is wrong with weights.
        self.position_table(files)?;
        let (hidden, f32) = (self.hidden(), ElementType::F32);
        let mut b = GraphBuilder::new(files);
        let latents = b.input("latents", &[batch, image_tokens, self.token_features()], f32);
        let shape = [batch, text_tokens, self.joint_attention_dim];
        let text = b.input("encoder_hidden_states", &shape, f32);
        let positions = b.input("positions", &[batch, image_tokens, hidden], f32);

        b.segment("embedders");
        let emb = self.time_text_embed(&mut b, batch)?; // [batch, hidden]
        let sizes = [hidden, self.in_channels, self.patch_size];
        let image = b.linear_of_patches(latents, "pos_embed.proj", sizes)?; // [batch, image, hidden]
        let mut image = b.add(image, positions);
        let mut text = b.linear(&[text], "context_embedder", hidden, NONE)?; // [batch, text, hidden]
        for layer in 0..self.num_layers {
            b.block(format!("transformer_blocks.{layer}"));
            (image, text) = self.block(&mut b, layer, image, text, emb)?;
        }
        b.segment("proj_out");
        let image = continuous_norm(&mut b, image, emb, LAST_MODULATION)?;
        let velocity = b.linear(&[image], "proj_out", self.token_features(), NONE)?;
        b.output("velocity", velocity);
        Ok(b.finish())
    }

    /// The table of positions. Tools that quantise GGUF files leave out its first dimension.
    fn position_table(&self, files: &WeightFiles) -> Result<TensorRef, WeightsError> {
        let shape = [1, self.pos_embed_max_size * self.pos_embed_max_size, self.hidden()];
        let is_flat = files.tensor(POSITIONS).is_some_and(|tensor| tensor.shape.len() == 2);
        files.require(POSITIONS, if is_flat { &shape[1..] } else { &shape })
    }

    /// Fills `to` `[rows × columns, hidden]` with the positions of a picture's tokens: those around
    /// the middle of the table (`PatchEmbed.cropped_pos_embed`).
    ///
    /// # Panics
    /// If the picture is larger than the table.
    pub fn positions(&self, files: &WeightFiles, [rows, columns]: [usize; 2], to: &mut [f32]) {
        let (side, hidden) = (self.pos_embed_max_size, self.hidden());
        let table = self.position_table(files).expect("the graph was made where it was there");
        let table = table.view(files);
        let (top, left) = ((side - rows) / 2, (side - columns) / 2);
        for (row, to) in to.chunks_exact_mut(columns * hidden).enumerate() {
            table.read(((top + row) * side + left) * hidden, to);
        }
    }

    /// SiLU of the summed embeddings of timestep and pooled text: every modulation starts so.
    fn time_text_embed(&self, b: &mut GraphBuilder, batch: usize) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let pooled = b.input("pooled", &[batch, self.pooled_projection_dim], ElementType::F32);
        let timestep = b.input("timestep", &[batch], ElementType::F32);
        let h = b.sinusoid(timestep, SINUSOID_FEATURES); // [batch, 256]
        let time = embedder(b, h, "timestep_embedder", hidden)?;
        let text = embedder(b, pooled, "text_embedder", hidden)?;
        let sum = b.add(time, text);
        Ok(b.activate(sum, Activation::Silu))
    }

    /// A block over picture and text; behind the last one the text is what it was.
    fn block(
        &self,
        b: &mut GraphBuilder,
        layer: usize,
        image: ValueId,
        text: ValueId,
        emb: ValueId,
    ) -> Result<(ValueId, ValueId), WeightsError> {
        let (name, hidden) = (format!("transformer_blocks.{layer}"), self.hidden());
        let (is_last, is_dual) = (layer + 1 == self.num_layers, self.is_dual(layer));
        let image_tokens = b.shape(image)[1];
        let chunks = if is_dual { CHUNKS_OF_TWO } else { CHUNKS };
        let modulation =
            b.linear(&[emb], &format!("{name}.norm1.linear"), chunks * hidden, NONE)?;
        let image = TokenStream { x: image, modulation };
        let image_in = modulated(b, image, ATTENTION);
        let second_in = is_dual.then(|| modulated(b, image, SECOND_ATTENTION));
        let context = format!("{name}.{}", CONTEXT_MODULATION.1);
        let (text_modulation, text_in) = if is_last {
            let original = format!("{}.{layer}.{}", BLOCKS.0, CONTEXT_MODULATION.0);
            (None, continuous_norm(b, text, emb, (&original, &context))?)
        } else {
            let modulation = b.linear(&[emb], &context, CHUNKS * hidden, NONE)?;
            (Some(modulation), modulated(b, TokenStream { x: text, modulation }, ATTENTION))
        };

        let attn = format!("{name}.attn");
        let own = self.heads(b, image_in, &attn, ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"])?;
        let added = ["add_q_proj", "add_k_proj", "add_v_proj"];
        let norms = ["norm_added_q", "norm_added_k"];
        let other = self.heads(b, text_in, &attn, added, norms)?;
        let qkv = [0, 1, 2].map(|part| b.concat_tokens(own[part], other[part]));
        let joint = self.attention(b, qkv); // [batch, image_tokens + text_tokens, hidden]
        let h = b.slice_tokens(joint, 0, image_tokens);
        let h = b.linear(&[h], &format!("{attn}.to_out.0"), hidden, NONE)?;
        let mut x = b.gated_add(image.x, h, image.modulation, ATTENTION.gate);
        if let Some(second_in) = second_in {
            let attn = format!("{name}.attn2");
            let projections = ["to_q", "to_k", "to_v"];
            let qkv = self.heads(b, second_in, &attn, projections, ["norm_q", "norm_k"])?;
            let h = self.attention(b, qkv); // [batch, image_tokens, hidden]
            let h = b.linear(&[h], &format!("{attn}.to_out.0"), hidden, NONE)?;
            x = b.gated_add(x, h, image.modulation, SECOND_ATTENTION.gate);
        }
        let image = self.feed_forward(b, &format!("{name}.ff"), TokenStream { x, ..image })?;

        let Some(modulation) = text_modulation else { return Ok((image, text)) };
        let text_tokens = b.shape(text)[1];
        let h = b.slice_tokens(joint, image_tokens, text_tokens);
        let h = b.linear(&[h], &format!("{attn}.to_add_out"), hidden, NONE)?;
        let x = b.gated_add(text, h, modulation, ATTENTION.gate);
        let text =
            self.feed_forward(b, &format!("{name}.ff_context"), TokenStream { x, modulation })?;
        Ok((image, text))
    }

    fn feed_forward(
        &self,
        b: &mut GraphBuilder,
        name: &str,
        stream: TokenStream,
    ) -> Result<ValueId, WeightsError> {
        let hidden = self.hidden();
        let h = modulated(b, stream, FEED_FORWARD);
        let (first, wide) = (format!("{name}.net.0.proj"), MLP_RATIO * hidden);
        let h = b.linear(&[h], &first, wide, Activation::GeluTanh)?; // [batch, tokens, wide]
        let h = b.linear(&[h], &format!("{name}.net.2"), hidden, NONE)?;
        Ok(b.gated_add(stream.x, h, stream.modulation, FEED_FORWARD.gate))
    }

    /// Queries, keys and values `[batch, tokens, hidden]`, the first two normalised by head where
    /// the model does so.
    fn heads(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        attn: &str,
        projections: [&str; 3],
        norms: [&str; 2],
    ) -> Result<[ValueId; 3], WeightsError> {
        let mut qkv = [x; 3];
        for (part, projection) in projections.into_iter().enumerate() {
            let h = b.linear(&[x], &format!("{attn}.{projection}"), self.hidden(), NONE)?;
            qkv[part] = match norms.get(part) {
                Some(norm) if self.qk_norm.is_some() => {
                    b.rms_norm(h, &format!("{attn}.{norm}"), self.attention_head_dim, EPS)?
                }
                _ => h,
            };
        }
        Ok(qkv)
    }

    fn attention(&self, b: &mut GraphBuilder, qkv: [ValueId; 3]) -> ValueId {
        let heads = self.num_attention_heads;
        let scale = (self.attention_head_dim as f32).powf(-0.5);
        b.attention(qkv, None, AttentionOp { heads, kv_heads: heads, scale, causal: false })
    }
}

/// An embedder of two layers.
fn embedder(
    b: &mut GraphBuilder,
    x: ValueId,
    name: &str,
    hidden: usize,
) -> Result<ValueId, WeightsError> {
    let first = format!("time_text_embed.{name}.linear_1");
    let h = b.linear(&[x], &first, hidden, Activation::Silu)?; // [batch, hidden]
    b.linear(&[h], &format!("time_text_embed.{name}.linear_2"), hidden, NONE)
}

/// A stream's states, normalised and modulated by such chunks.
fn modulated(b: &mut GraphBuilder, stream: TokenStream, chunks: ModulationChunks) -> ValueId {
    b.ada_layer_norm(stream.x, stream.modulation, chunks.shift, chunks.scale, EPS)
}

/// A norm whose modulation has no gate (`AdaLayerNormContinuous`): by the original name its first
/// half shifts and its second scales, by diffusers' the other way round.
fn continuous_norm(
    b: &mut GraphBuilder,
    x: ValueId,
    emb: ValueId,
    (shift_first, scale_first): (&str, &str),
) -> Result<ValueId, WeightsError> {
    let (name, shift, scale) = match b.files().tensor(&format!("{shift_first}.weight")) {
        Some(_) => (shift_first, 0, 1),
        None => (scale_first, 1, 0),
    };
    let hidden = b.features(x);
    let modulation = b.linear(&[emb], name, 2 * hidden, NONE)?; // [batch, 2 × hidden]
    Ok(b.ada_layer_norm(x, modulation, shift, scale, EPS)) // [batch, tokens, hidden]
}
