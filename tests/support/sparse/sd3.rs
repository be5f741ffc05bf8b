//! Stable Diffusion 3.5 medium and large at their true sizes, likewise: diffusers directories of
//! sparse files.

use std::fs;
use std::io::Result;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    CLIP_BLOCKS, CLIP_MLP, CLIP_POSITIONS, CLIP_VOCAB, CLIP_WIDTH, DIFFUSERS_SHARD_BYTES, T5_WIDTH,
    TRANSFORMERS_SHARD_BYTES, Tensor, Tensors, clip_dimensions, copy_files, data_bytes, full_size,
    place, t5_dimensions, t5_tensors, vae_dimensions, vae_tensors, write_component,
};

/// The data bytes of each component that was written (headers not counted).
#[derive(Debug)]
pub struct SparseSd3 {
    /// All tensors of the transformer without its table of positions.
    pub dit_bytes: u64,
    /// The table of positions.
    pub positions_bytes: u64,
    /// All tensors of CLIP-L with its projection.
    pub clip_l_bytes: u64,
    /// All tensors of CLIP-G with its projection.
    pub clip_g_bytes: u64,
    /// All tensors of T5.
    pub t5_bytes: u64,
}

/// A published transformer, by its `config.json`.
pub struct Sd3Size {
    heads: u64,
    layers: usize,
    /// Blocks with a second attention.
    dual: usize,
    /// Side of the table of positions.
    side: u64,
}

/// 3.5-medium: 2.243 B parameters.
pub const MEDIUM: Sd3Size = Sd3Size { heads: 24, layers: 24, dual: 13, side: 384 };

/// 3.5-large: 8.057 B parameters.
pub const LARGE: Sd3Size = Sd3Size { heads: 38, layers: 38, dual: 0, side: 192 };

const HEAD: u64 = 64;
const CHANNELS: u64 = 16;
const PATCH: u64 = 2;
const SINUSOID: u64 = 256;
const POOLED: u64 = CLIP_WIDTH + CLIP_G_WIDTH;

const CLIP_G_WIDTH: u64 = 1280;
const CLIP_G_BLOCKS: usize = 32;
const CLIP_G_MLP: u64 = 5120;

/// Writes the complete directory, creating `dir` where it is missing.
///
/// Fails where the file system does, or where the fixture `sd35_medium` is not there: it lends the
/// pipeline index, the sampler's configuration, the tokenizers, and every key that is not a size.
pub fn write_sd35(dir: &Path, size: &Sd3Size) -> Result<SparseSd3> {
    let fixture = place::root().join("tests/fixtures/sd35_medium");
    fs::create_dir_all(dir)?;
    fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
    for part in ["scheduler", "tokenizer", "tokenizer_2", "tokenizer_3"] {
        copy_files(&fixture.join(part), &dir.join(part))?;
    }
    let (dit, positions) = (dit_tensors(size), positions(size));
    let (clip_l, clip_g, t5) = (clip_l_tensors(), clip_g_tensors(), t5_tensors());
    let model = SparseSd3 {
        dit_bytes: data_bytes(&dit),
        positions_bytes: positions.bytes(),
        clip_l_bytes: data_bytes(&clip_l),
        clip_g_bytes: data_bytes(&clip_g),
        t5_bytes: data_bytes(&t5),
    };
    let dit = std::iter::once(positions).chain(dit).collect();
    let diffusers = ("diffusion_pytorch_model", DIFFUSERS_SHARD_BYTES);
    let transformers = ("model", TRANSFORMERS_SHARD_BYTES);
    for (part, (stem, shard_bytes_max), dimensions, tensors) in [
        ("transformer", diffusers, dit_dimensions(size), dit),
        ("vae", diffusers, vae_dimensions(), vae_tensors()),
        ("text_encoder", transformers, clip_dimensions(), clip_l),
        ("text_encoder_2", transformers, clip_g_dimensions(), clip_g),
        ("text_encoder_3", transformers, t5_dimensions(), t5),
    ] {
        let config = full_size(&fixture.join(part).join("config.json"), dimensions)?;
        write_component(&dir.join(part), stem, config, tensors, shard_bytes_max)?;
    }
    Ok(model)
}

fn positions(size: &Sd3Size) -> Tensor {
    let shape = vec![1, size.side * size.side, size.heads * HEAD];
    Tensor { name: "pos_embed.pos_embed".to_owned(), shape }
}

fn dit_tensors(size: &Sd3Size) -> Vec<Tensor> {
    let width = size.heads * HEAD;
    let mut t = Tensors::default();
    t.biased("pos_embed.proj", &[width, CHANNELS, PATCH, PATCH]);
    for (embedder, input) in [("timestep_embedder", SINUSOID), ("text_embedder", POOLED)] {
        t.biased(&format!("time_text_embed.{embedder}.linear_1"), &[width, input]);
        t.biased(&format!("time_text_embed.{embedder}.linear_2"), &[width, width]);
    }
    t.biased("context_embedder", &[width, T5_WIDTH]);
    for layer in 0..size.layers {
        block(&mut t, layer, size);
    }
    t.biased("norm_out.linear", &[2 * width, width]);
    t.biased("proj_out", &[PATCH * PATCH * CHANNELS, width]);
    t.0
}

fn block(t: &mut Tensors, layer: usize, size: &Sd3Size) {
    let (block, width) = (format!("transformer_blocks.{layer}"), size.heads * HEAD);
    let (is_last, is_dual) = (layer + 1 == size.layers, layer < size.dual);
    let attn = format!("{block}.attn");
    t.biased(&format!("{block}.norm1.linear"), &[if is_dual { 9 } else { 6 } * width, width]);
    let context = if is_last { 2 } else { 6 };
    t.biased(&format!("{block}.norm1_context.linear"), &[context * width, width]);
    t.projections(&attn, &["to_q", "to_k", "to_v"], width);
    t.projections(&attn, &["add_k_proj", "add_v_proj", "add_q_proj"], width);
    t.projections(&attn, &["to_out.0"], width);
    for norm in ["norm_q", "norm_k", "norm_added_q", "norm_added_k"] {
        t.weight(&format!("{attn}.{norm}"), &[HEAD]);
    }
    if !is_last {
        t.projections(&attn, &["to_add_out"], width);
    }
    if is_dual {
        let attn = format!("{block}.attn2");
        t.projections(&attn, &["to_q", "to_k", "to_v", "to_out.0"], width);
        for norm in ["norm_q", "norm_k"] {
            t.weight(&format!("{attn}.{norm}"), &[HEAD]);
        }
    }
    let streams: &[&str] = if is_last { &["ff"] } else { &["ff", "ff_context"] };
    for ff in streams {
        t.biased(&format!("{block}.{ff}.net.0.proj"), &[4 * width, width]);
        t.biased(&format!("{block}.{ff}.net.2"), &[width, 4 * width]);
    }
}

fn clip_l_tensors() -> Vec<Tensor> {
    text_model(CLIP_WIDTH, CLIP_BLOCKS, CLIP_MLP)
}

fn clip_g_tensors() -> Vec<Tensor> {
    text_model(CLIP_G_WIDTH, CLIP_G_BLOCKS, CLIP_G_MLP)
}

fn text_model(width: u64, layers: usize, mlp: u64) -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.weight("text_model.embeddings.token_embedding", &[CLIP_VOCAB, width]);
    t.weight("text_model.embeddings.position_embedding", &[CLIP_POSITIONS, width]);
    for layer in 0..layers {
        let layer = format!("text_model.encoder.layers.{layer}");
        let names = ["k_proj", "v_proj", "q_proj", "out_proj"];
        t.projections(&format!("{layer}.self_attn"), &names, width);
        t.biased(&format!("{layer}.layer_norm1"), &[width]);
        t.biased(&format!("{layer}.mlp.fc1"), &[mlp, width]);
        t.biased(&format!("{layer}.mlp.fc2"), &[width, mlp]);
        t.biased(&format!("{layer}.layer_norm2"), &[width]);
    }
    t.biased("text_model.final_layer_norm", &[width]);
    t.weight("text_projection", &[width, width]);
    t.0
}

fn dit_dimensions(size: &Sd3Size) -> Value {
    json!({
        "caption_projection_dim": size.heads * HEAD,
        "attention_head_dim": HEAD,
        "dual_attention_layers": (0..size.dual).collect::<Vec<usize>>(),
        "joint_attention_dim": T5_WIDTH,
        "num_attention_heads": size.heads,
        "num_layers": size.layers,
        "pooled_projection_dim": POOLED,
        "pos_embed_max_size": size.side,
        "sample_size": 128,
    })
}

fn clip_g_dimensions() -> Value {
    json!({
        "hidden_size": CLIP_G_WIDTH,
        "intermediate_size": CLIP_G_MLP,
        "max_position_embeddings": CLIP_POSITIONS,
        "num_attention_heads": 20,
        "num_hidden_layers": CLIP_G_BLOCKS,
        "projection_dim": CLIP_G_WIDTH,
        "vocab_size": CLIP_VOCAB,
    })
}
