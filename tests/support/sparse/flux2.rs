//! FLUX.2 klein 4B and 9B at their true sizes, likewise: diffusers directories of sparse files.

use std::fs;
use std::io::Result;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    DIFFUSERS_SHARD_BYTES, TRANSFORMERS_SHARD_BYTES, Tensor, Tensors, VAE_LAYERS_PER_BLOCK,
    VAE_WIDTHS, copy_files, data_bytes, full_size, place, vae_tensors_of, write_component,
};

/// The data bytes of each component that was written (headers not counted).
#[derive(Debug)]
pub struct SparseFlux2 {
    /// All tensors of the transformer: 3.876 B and 9.079 B parameters.
    pub dit_bytes: u64,
    /// All tensors of Qwen3: 4.022 B and, with an output layer of its own, 8.191 B parameters.
    pub llm_bytes: u64,
    /// All tensors of the VAE: 0.084 B parameters.
    pub vae_bytes: u64,
}

/// What the two models differ in, by their published `config.json` files.
pub struct Sizes {
    heads: u64,
    double_blocks: usize,
    single_blocks: usize,
    llm_width: u64,
    llm_mlp: u64,
    /// Whether the output layer is stored beside the table of tokens.
    llm_output: bool,
}

/// FLUX.2-klein-4B, with Qwen3-4B.
pub const KLEIN_4B: Sizes = Sizes {
    heads: 24,
    double_blocks: 5,
    single_blocks: 20,
    llm_width: 2560,
    llm_mlp: 9728,
    llm_output: false,
};

/// FLUX.2-klein-9B, with Qwen3-8B.
pub const KLEIN_9B: Sizes = Sizes {
    heads: 32,
    double_blocks: 8,
    single_blocks: 24,
    llm_width: 4096,
    llm_mlp: 12_288,
    llm_output: true,
};

const HEAD_DIM: u64 = 128;
const TOKEN: u64 = 128;
const SINUSOID: u64 = 256;
/// Feed-forward width over residual width.
const MLP_RATIO: u64 = 3;
/// States of the text encoder that the DiT takes.
const STATES: u64 = 3;

const LLM_LAYERS: usize = 36;
const LLM_HEADS: u64 = 32;
const LLM_KV_HEADS: u64 = 8;
const LLM_VOCAB: u64 = 151_936;

const LATENT_CHANNELS: u64 = 32;

/// Writes the complete directory, creating `dir` where it is missing.
///
/// Fails where the file system does, or where the fixture `flux2_klein` is not there: it lends the
/// pipeline index, the sampler's configuration, the tokenizer, and every key that is not a size.
pub fn write_klein(dir: &Path, sizes: &Sizes) -> Result<SparseFlux2> {
    let fixture = place::root().join("tests/fixtures/flux2_klein");
    fs::create_dir_all(dir)?;
    fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
    for part in ["scheduler", "tokenizer"] {
        copy_files(&fixture.join(part), &dir.join(part))?;
    }
    let (dit, llm, vae) = (sizes.dit_tensors(), sizes.llm_tensors(), vae_tensors());
    let model = SparseFlux2 {
        dit_bytes: data_bytes(&dit),
        llm_bytes: data_bytes(&llm),
        vae_bytes: data_bytes(&vae),
    };
    let (dit_config, llm_config) = (sizes.dit_dimensions(), sizes.llm_dimensions());
    for (part, stem, dimensions, tensors, shard_bytes_max) in [
        ("transformer", "diffusion_pytorch_model", dit_config, dit, DIFFUSERS_SHARD_BYTES),
        ("vae", "diffusion_pytorch_model", vae_dimensions(), vae, DIFFUSERS_SHARD_BYTES),
        ("text_encoder", "model", llm_config, llm, TRANSFORMERS_SHARD_BYTES),
    ] {
        let config = full_size(&fixture.join(part).join("config.json"), dimensions)?;
        write_component(&dir.join(part), stem, config, tensors, shard_bytes_max)?;
    }
    Ok(model)
}

impl Sizes {
    fn dit_tensors(&self) -> Vec<Tensor> {
        let mut t = Tensors::default();
        let width = self.heads * HEAD_DIM;
        let mlp = MLP_RATIO * width;
        t.weight("time_guidance_embed.timestep_embedder.linear_1", &[width, SINUSOID]);
        t.weight("time_guidance_embed.timestep_embedder.linear_2", &[width, width]);
        for stream in ["img", "txt"] {
            let module = format!("double_stream_modulation_{stream}.linear");
            t.weight(&module, &[6 * width, width]);
        }
        t.weight("single_stream_modulation.linear", &[3 * width, width]);
        t.weight("x_embedder", &[width, TOKEN]);
        t.weight("context_embedder", &[width, STATES * self.llm_width]);
        for block in 0..self.double_blocks {
            let block = format!("transformer_blocks.{block}");
            let attn = format!("{block}.attn");
            for projection in ["to_q", "to_k", "to_v", "to_out.0"] {
                t.weight(&format!("{attn}.{projection}"), &[width, width]);
            }
            for projection in ["add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] {
                t.weight(&format!("{attn}.{projection}"), &[width, width]);
            }
            t.head_norms(&attn, &["norm_q", "norm_k", "norm_added_q", "norm_added_k"]);
            for ff in ["ff", "ff_context"] {
                t.weight(&format!("{block}.{ff}.linear_in"), &[2 * mlp, width]);
                t.weight(&format!("{block}.{ff}.linear_out"), &[width, mlp]);
            }
        }
        for block in 0..self.single_blocks {
            let attn = format!("single_transformer_blocks.{block}.attn");
            t.weight(&format!("{attn}.to_qkv_mlp_proj"), &[3 * width + 2 * mlp, width]);
            t.head_norms(&attn, &["norm_q", "norm_k"]);
            t.weight(&format!("{attn}.to_out"), &[width, width + mlp]);
        }
        t.weight("norm_out.linear", &[2 * width, width]);
        t.weight("proj_out", &[TOKEN, width]);
        t.0
    }

    fn llm_tensors(&self) -> Vec<Tensor> {
        let mut t = Tensors::default();
        let width = self.llm_width;
        t.weight("model.embed_tokens", &[LLM_VOCAB, width]);
        for layer in 0..LLM_LAYERS {
            let layer = format!("model.layers.{layer}");
            let (queries, keys) = (LLM_HEADS * HEAD_DIM, LLM_KV_HEADS * HEAD_DIM);
            t.weight(&format!("{layer}.self_attn.q_proj"), &[queries, width]);
            t.weight(&format!("{layer}.self_attn.k_proj"), &[keys, width]);
            t.weight(&format!("{layer}.self_attn.v_proj"), &[keys, width]);
            t.weight(&format!("{layer}.self_attn.o_proj"), &[width, queries]);
            t.head_norms(&format!("{layer}.self_attn"), &["q_norm", "k_norm"]);
            t.weight(&format!("{layer}.mlp.gate_proj"), &[self.llm_mlp, width]);
            t.weight(&format!("{layer}.mlp.up_proj"), &[self.llm_mlp, width]);
            t.weight(&format!("{layer}.mlp.down_proj"), &[width, self.llm_mlp]);
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                t.weight(&format!("{layer}.{norm}"), &[width]);
            }
        }
        t.weight("model.norm", &[width]);
        if self.llm_output {
            t.weight("lm_head", &[LLM_VOCAB, width]);
        }
        t.0
    }

    fn dit_dimensions(&self) -> Value {
        json!({
            "attention_head_dim": HEAD_DIM,
            "axes_dims_rope": [32, 32, 32, 32],
            "in_channels": TOKEN,
            "joint_attention_dim": STATES * self.llm_width,
            "num_attention_heads": self.heads,
            "num_layers": self.double_blocks,
            "num_single_layers": self.single_blocks,
        })
    }

    fn llm_dimensions(&self) -> Value {
        json!({
            "head_dim": HEAD_DIM,
            "hidden_size": self.llm_width,
            "intermediate_size": self.llm_mlp,
            "max_window_layers": LLM_LAYERS,
            "num_attention_heads": LLM_HEADS,
            "num_hidden_layers": LLM_LAYERS,
            "num_key_value_heads": LLM_KV_HEADS,
            "tie_word_embeddings": !self.llm_output,
            "vocab_size": LLM_VOCAB,
        })
    }
}

fn vae_tensors() -> Vec<Tensor> {
    let mut t = Tensors(vae_tensors_of(LATENT_CHANNELS));
    t.biased("quant_conv", &[2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1, 1]);
    t.biased("post_quant_conv", &[LATENT_CHANNELS, LATENT_CHANNELS, 1, 1]);
    for name in ["bn.running_mean", "bn.running_var"] {
        t.0.push(Tensor { name: name.to_owned(), shape: vec![TOKEN] });
    }
    t.0
}

fn vae_dimensions() -> Value {
    json!({
        "block_out_channels": VAE_WIDTHS,
        "latent_channels": LATENT_CHANNELS,
        "layers_per_block": VAE_LAYERS_PER_BLOCK,
        "norm_num_groups": 32,
        "sample_size": 1024,
    })
}
