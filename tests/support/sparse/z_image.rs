//! Z-Image-Turbo at its true size, likewise: a diffusers directory of sparse files.

use std::fs;
use std::io::Result;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    DIFFUSERS_SHARD_BYTES, TRANSFORMERS_SHARD_BYTES, Tensor, Tensors, copy_files, data_bytes,
    full_size, place, vae_dimensions, vae_tensors, write_component,
};

/// The data bytes of each component that was written (headers not counted).
#[derive(Debug)]
pub struct SparseZImage {
    /// All tensors of the transformer: 6.155 B parameters.
    pub dit_bytes: u64,
    /// All tensors of Qwen3: 4.022 B parameters.
    pub llm_bytes: u64,
}

// The dimensions are those of the published `config.json` files of Z-Image-Turbo.
const WIDTH: u64 = HEADS * HEAD_DIM;
const HEADS: u64 = 30;
const HEAD_DIM: u64 = 128;
const LAYERS: usize = 30;
const REFINERS: usize = 2;
const MLP: u64 = 10_240;
const TIME: u64 = 256;
const TIME_MLP: u64 = 1024;
const TOKEN: u64 = 64;

const LLM_WIDTH: u64 = 2560;
const LLM_LAYERS: usize = 36;
const LLM_HEADS: u64 = 32;
const LLM_KV_HEADS: u64 = 8;
const LLM_MLP: u64 = 9728;
const LLM_VOCAB: u64 = 151_936;

/// Writes the complete directory, creating `dir` where it is missing.
///
/// Fails where the file system does, or where the fixture `zimage_turbo` is not there: it lends the
/// pipeline index, the sampler's configuration, the tokenizer, and every key that is not a size.
pub fn write_z_image_turbo(dir: &Path) -> Result<SparseZImage> {
    let fixture = place::root().join("tests/fixtures/zimage_turbo");
    fs::create_dir_all(dir)?;
    fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
    for part in ["scheduler", "tokenizer"] {
        copy_files(&fixture.join(part), &dir.join(part))?;
    }
    let (dit, llm) = (dit_tensors(), llm_tensors());
    let model = SparseZImage { dit_bytes: data_bytes(&dit), llm_bytes: data_bytes(&llm) };
    for (part, stem, dimensions, tensors, shard_bytes_max) in [
        ("transformer", "diffusion_pytorch_model", dit_dimensions(), dit, DIFFUSERS_SHARD_BYTES),
        ("vae", "diffusion_pytorch_model", vae_dimensions(), vae_tensors(), DIFFUSERS_SHARD_BYTES),
        ("text_encoder", "model", llm_dimensions(), llm, TRANSFORMERS_SHARD_BYTES),
    ] {
        let config = full_size(&fixture.join(part).join("config.json"), dimensions)?;
        write_component(&dir.join(part), stem, config, tensors, shard_bytes_max)?;
    }
    Ok(model)
}

fn dit_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.biased("all_x_embedder.2-1", &[WIDTH, TOKEN]);
    t.biased("all_final_layer.2-1.linear", &[TOKEN, WIDTH]);
    t.biased("all_final_layer.2-1.adaLN_modulation.1", &[WIDTH, TIME]);
    for (kind, layers, is_modulated) in [
        ("noise_refiner", REFINERS, true),
        ("context_refiner", REFINERS, false),
        ("layers", LAYERS, true),
    ] {
        for layer in 0..layers {
            let block = format!("{kind}.{layer}");
            for projection in ["to_q", "to_k", "to_v", "to_out.0"] {
                t.weight(&format!("{block}.attention.{projection}"), &[WIDTH, WIDTH]);
            }
            t.head_norms(&format!("{block}.attention"), &["norm_q", "norm_k"]);
            t.weight(&format!("{block}.feed_forward.w1"), &[MLP, WIDTH]);
            t.weight(&format!("{block}.feed_forward.w2"), &[WIDTH, MLP]);
            t.weight(&format!("{block}.feed_forward.w3"), &[MLP, WIDTH]);
            for norm in ["attention_norm1", "ffn_norm1", "attention_norm2", "ffn_norm2"] {
                t.weight(&format!("{block}.{norm}"), &[WIDTH]);
            }
            if is_modulated {
                t.biased(&format!("{block}.adaLN_modulation.0"), &[4 * WIDTH, TIME]);
            }
        }
    }
    t.biased("t_embedder.mlp.0", &[TIME_MLP, TIME]);
    t.biased("t_embedder.mlp.2", &[TIME, TIME_MLP]);
    t.weight("cap_embedder.0", &[LLM_WIDTH]);
    t.biased("cap_embedder.1", &[WIDTH, LLM_WIDTH]);
    for name in ["x_pad_token", "cap_pad_token"] {
        t.0.push(Tensor { name: name.to_owned(), shape: vec![1, WIDTH] });
    }
    t.0
}

fn llm_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.weight("model.embed_tokens", &[LLM_VOCAB, LLM_WIDTH]);
    for layer in 0..LLM_LAYERS {
        let layer = format!("model.layers.{layer}");
        let queries = LLM_HEADS * HEAD_DIM;
        let keys = LLM_KV_HEADS * HEAD_DIM;
        t.weight(&format!("{layer}.self_attn.q_proj"), &[queries, LLM_WIDTH]);
        t.weight(&format!("{layer}.self_attn.k_proj"), &[keys, LLM_WIDTH]);
        t.weight(&format!("{layer}.self_attn.v_proj"), &[keys, LLM_WIDTH]);
        t.weight(&format!("{layer}.self_attn.o_proj"), &[LLM_WIDTH, queries]);
        t.head_norms(&format!("{layer}.self_attn"), &["q_norm", "k_norm"]);
        t.weight(&format!("{layer}.mlp.gate_proj"), &[LLM_MLP, LLM_WIDTH]);
        t.weight(&format!("{layer}.mlp.up_proj"), &[LLM_MLP, LLM_WIDTH]);
        t.weight(&format!("{layer}.mlp.down_proj"), &[LLM_WIDTH, LLM_MLP]);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            t.weight(&format!("{layer}.{norm}"), &[LLM_WIDTH]);
        }
    }
    t.weight("model.norm", &[LLM_WIDTH]);
    t.0
}

fn dit_dimensions() -> Value {
    json!({
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
        "cap_feat_dim": LLM_WIDTH,
        "dim": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": HEADS,
        "n_layers": LAYERS,
        "n_refiner_layers": REFINERS,
    })
}

fn llm_dimensions() -> Value {
    json!({
        "head_dim": HEAD_DIM,
        "hidden_size": LLM_WIDTH,
        "intermediate_size": LLM_MLP,
        "max_window_layers": LLM_LAYERS,
        "num_attention_heads": LLM_HEADS,
        "num_hidden_layers": LLM_LAYERS,
        "num_key_value_heads": LLM_KV_HEADS,
        "vocab_size": LLM_VOCAB,
    })
}
