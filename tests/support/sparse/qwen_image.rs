//! Qwen-Image at its true size, likewise: a diffusers directory of sparse files.

use std::fs;
use std::io::Result;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    DIFFUSERS_SHARD_BYTES, TRANSFORMERS_SHARD_BYTES, Tensor, Tensors, copy_files, data_bytes,
    full_size, place, write_component,
};

/// The data bytes of each component that was written (headers not counted).
#[derive(Debug)]
pub struct SparseQwenImage {
    /// All tensors of the transformer: 20.430 B parameters.
    pub dit_bytes: u64,
    /// All tensors of Qwen2.5-VL: 8.292 B parameters, of which a text needs 7.071 B.
    pub llm_bytes: u64,
    /// All tensors of the VAE: 0.127 B parameters.
    pub vae_bytes: u64,
}

// The dimensions are those of the published `config.json` files of Qwen-Image.
const WIDTH: u64 = HEADS * HEAD_DIM;
const HEADS: u64 = 24;
const HEAD_DIM: u64 = 128;
const LAYERS: usize = 60;
const MLP: u64 = 4 * WIDTH;
const SINUSOID: u64 = 256;
const TOKEN: u64 = 64;

const LLM_WIDTH: u64 = 3584;
const LLM_LAYERS: usize = 28;
const LLM_HEADS: u64 = 28;
const LLM_KV_HEADS: u64 = 4;
const LLM_MLP: u64 = 18_944;
const LLM_VOCAB: u64 = 152_064;

const VISION_WIDTH: u64 = 1280;
const VISION_LAYERS: usize = 32;
const VISION_MLP: u64 = 3420;
/// Four neighbouring patches become one token.
const VISION_MERGED: u64 = 4 * VISION_WIDTH;

const VAE_WIDTHS: [u64; 4] = [96, 192, 384, 384];
const VAE_RES_BLOCKS: usize = 2;
const LATENT_CHANNELS: u64 = 16;
/// Which levels but the innermost halve the frames too.
const HALVES_FRAMES: [bool; 3] = [false, true, true];

/// Writes the complete directory, creating `dir` where it is missing.
///
/// Fails where the file system does, or where the fixture `qwen_image` is not there: it lends the
/// pipeline index, the sampler's configuration, the tokenizer, and every key that is not a size.
pub fn write_qwen_image(dir: &Path) -> Result<SparseQwenImage> {
    let fixture = place::root().join("tests/fixtures/qwen_image");
    fs::create_dir_all(dir)?;
    fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
    for part in ["scheduler", "tokenizer"] {
        copy_files(&fixture.join(part), &dir.join(part))?;
    }
    let (dit, llm, vae) = (dit_tensors(), llm_tensors(), vae_tensors());
    let model = SparseQwenImage {
        dit_bytes: data_bytes(&dit),
        llm_bytes: data_bytes(&llm),
        vae_bytes: data_bytes(&vae),
    };
    for (part, stem, dimensions, tensors, shard_bytes_max) in [
        ("transformer", "diffusion_pytorch_model", dit_dimensions(), dit, DIFFUSERS_SHARD_BYTES),
        ("vae", "diffusion_pytorch_model", vae_dimensions(), vae, DIFFUSERS_SHARD_BYTES),
        ("text_encoder", "model", llm_dimensions(), llm, TRANSFORMERS_SHARD_BYTES),
    ] {
        let config = full_size(&fixture.join(part).join("config.json"), dimensions)?;
        write_component(&dir.join(part), stem, config, tensors, shard_bytes_max)?;
    }
    Ok(model)
}

fn dit_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.biased("time_text_embed.timestep_embedder.linear_1", &[WIDTH, SINUSOID]);
    t.biased("time_text_embed.timestep_embedder.linear_2", &[WIDTH, WIDTH]);
    t.weight("txt_norm", &[LLM_WIDTH]);
    t.biased("img_in", &[WIDTH, TOKEN]);
    t.biased("txt_in", &[WIDTH, LLM_WIDTH]);
    for layer in 0..LAYERS {
        let block = format!("transformer_blocks.{layer}");
        let attention = format!("{block}.attn");
        let projections = [
            "to_q",
            "to_k",
            "to_v",
            "add_q_proj",
            "add_k_proj",
            "add_v_proj",
            "to_out.0",
            "to_add_out",
        ];
        t.projections(&attention, &projections, WIDTH);
        t.head_norms(&attention, &["norm_q", "norm_k", "norm_added_q", "norm_added_k"]);
        for stream in ["img", "txt"] {
            t.biased(&format!("{block}.{stream}_mod.1"), &[6 * WIDTH, WIDTH]);
            t.biased(&format!("{block}.{stream}_mlp.net.0.proj"), &[MLP, WIDTH]);
            t.biased(&format!("{block}.{stream}_mlp.net.2"), &[WIDTH, MLP]);
        }
    }
    t.biased("norm_out.linear", &[2 * WIDTH, WIDTH]);
    t.biased("proj_out", &[TOKEN, WIDTH]);
    t.0
}

fn llm_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.weight("model.embed_tokens", &[LLM_VOCAB, LLM_WIDTH]);
    for layer in 0..LLM_LAYERS {
        let layer = format!("model.layers.{layer}");
        let queries = LLM_HEADS * HEAD_DIM;
        let keys = LLM_KV_HEADS * HEAD_DIM;
        t.biased(&format!("{layer}.self_attn.q_proj"), &[queries, LLM_WIDTH]);
        t.biased(&format!("{layer}.self_attn.k_proj"), &[keys, LLM_WIDTH]);
        t.biased(&format!("{layer}.self_attn.v_proj"), &[keys, LLM_WIDTH]);
        t.weight(&format!("{layer}.self_attn.o_proj"), &[LLM_WIDTH, queries]);
        t.weight(&format!("{layer}.mlp.gate_proj"), &[LLM_MLP, LLM_WIDTH]);
        t.weight(&format!("{layer}.mlp.up_proj"), &[LLM_MLP, LLM_WIDTH]);
        t.weight(&format!("{layer}.mlp.down_proj"), &[LLM_WIDTH, LLM_MLP]);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            t.weight(&format!("{layer}.{norm}"), &[LLM_WIDTH]);
        }
    }
    t.weight("model.norm", &[LLM_WIDTH]);
    t.weight("lm_head", &[LLM_VOCAB, LLM_WIDTH]);
    t.weight("visual.patch_embed.proj", &[VISION_WIDTH, 3, 2, 14, 14]);
    for layer in 0..VISION_LAYERS {
        let block = format!("visual.blocks.{layer}");
        t.weight(&format!("{block}.norm1"), &[VISION_WIDTH]);
        t.weight(&format!("{block}.norm2"), &[VISION_WIDTH]);
        t.biased(&format!("{block}.attn.qkv"), &[3 * VISION_WIDTH, VISION_WIDTH]);
        t.biased(&format!("{block}.attn.proj"), &[VISION_WIDTH, VISION_WIDTH]);
        t.biased(&format!("{block}.mlp.gate_proj"), &[VISION_MLP, VISION_WIDTH]);
        t.biased(&format!("{block}.mlp.up_proj"), &[VISION_MLP, VISION_WIDTH]);
        t.biased(&format!("{block}.mlp.down_proj"), &[VISION_WIDTH, VISION_MLP]);
    }
    t.weight("visual.merger.ln_q", &[VISION_WIDTH]);
    t.biased("visual.merger.mlp.0", &[VISION_MERGED, VISION_MERGED]);
    t.biased("visual.merger.mlp.2", &[LLM_WIDTH, VISION_MERGED]);
    t.0
}

fn vae_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    let last = VAE_WIDTHS.len() - 1;
    let innermost = VAE_WIDTHS[last];

    t.biased("encoder.conv_in", &[VAE_WIDTHS[0], 3, 3, 3, 3]);
    let (mut input, mut block) = (VAE_WIDTHS[0], 0);
    for (level, &output) in VAE_WIDTHS.iter().enumerate() {
        for _ in 0..VAE_RES_BLOCKS {
            vae_resnet(&mut t, &format!("encoder.down_blocks.{block}"), input, output);
            (input, block) = (output, block + 1);
        }
        if level < last {
            let name = format!("encoder.down_blocks.{block}");
            t.biased(&format!("{name}.resample.1"), &[output, output, 3, 3]);
            if HALVES_FRAMES[level] {
                t.biased(&format!("{name}.time_conv"), &[output, output, 3, 1, 1]);
            }
            block += 1;
        }
    }
    vae_middle(&mut t, "encoder", innermost);
    gamma(&mut t, "encoder.norm_out", &[innermost, 1, 1, 1]);
    // Mean and log-variance of each latent channel.
    let moments = 2 * LATENT_CHANNELS;
    t.biased("encoder.conv_out", &[moments, innermost, 3, 3, 3]);
    t.biased("quant_conv", &[moments, moments, 1, 1, 1]);
    t.biased("post_quant_conv", &[LATENT_CHANNELS, LATENT_CHANNELS, 1, 1, 1]);

    t.biased("decoder.conv_in", &[innermost, LATENT_CHANNELS, 3, 3, 3]);
    vae_middle(&mut t, "decoder", innermost);
    let mut input = innermost;
    for (level, &output) in VAE_WIDTHS.iter().rev().enumerate() {
        let block = format!("decoder.up_blocks.{level}");
        for resnet in 0..=VAE_RES_BLOCKS {
            vae_resnet(&mut t, &format!("{block}.resnets.{resnet}"), input, output);
            input = output;
        }
        if level < last {
            let name = format!("{block}.upsamplers.0");
            t.biased(&format!("{name}.resample.1"), &[output / 2, output, 3, 3]);
            if HALVES_FRAMES[last - 1 - level] {
                t.biased(&format!("{name}.time_conv"), &[2 * output, output, 3, 1, 1]);
            }
            input = output / 2;
        }
    }
    gamma(&mut t, "decoder.norm_out", &[VAE_WIDTHS[0], 1, 1, 1]);
    t.biased("decoder.conv_out", &[3, VAE_WIDTHS[0], 3, 3, 3]);
    t.0
}

fn gamma(t: &mut Tensors, module: &str, shape: &[u64]) {
    t.0.push(Tensor { name: format!("{module}.gamma"), shape: shape.to_vec() });
}

fn vae_resnet(t: &mut Tensors, module: &str, input: u64, output: u64) {
    gamma(t, &format!("{module}.norm1"), &[input, 1, 1, 1]);
    t.biased(&format!("{module}.conv1"), &[output, input, 3, 3, 3]);
    gamma(t, &format!("{module}.norm2"), &[output, 1, 1, 1]);
    t.biased(&format!("{module}.conv2"), &[output, output, 3, 3, 3]);
    if input != output {
        t.biased(&format!("{module}.conv_shortcut"), &[output, input, 1, 1, 1]);
    }
}

fn vae_middle(t: &mut Tensors, coder: &str, width: u64) {
    let attention = format!("{coder}.mid_block.attentions.0");
    gamma(t, &format!("{attention}.norm"), &[width, 1, 1]);
    t.biased(&format!("{attention}.to_qkv"), &[3 * width, width, 1, 1]);
    t.biased(&format!("{attention}.proj"), &[width, width, 1, 1]);
    for layer in 0..2 {
        vae_resnet(t, &format!("{coder}.mid_block.resnets.{layer}"), width, width);
    }
}

fn dit_dimensions() -> Value {
    json!({
        "attention_head_dim": HEAD_DIM,
        "axes_dims_rope": [16, 56, 56],
        "in_channels": TOKEN,
        "joint_attention_dim": LLM_WIDTH,
        "num_attention_heads": HEADS,
        "num_layers": LAYERS,
    })
}

fn llm_dimensions() -> Value {
    let sizes = json!({
        "hidden_size": LLM_WIDTH,
        "intermediate_size": LLM_MLP,
        "max_window_layers": LLM_LAYERS,
        "num_attention_heads": LLM_HEADS,
        "num_hidden_layers": LLM_LAYERS,
        "num_key_value_heads": LLM_KV_HEADS,
        "vocab_size": LLM_VOCAB,
    });
    let mut dimensions = sizes.clone();
    dimensions["text_config"] = sizes;
    dimensions
}

fn vae_dimensions() -> Value {
    json!({ "base_dim": VAE_WIDTHS[0], "num_res_blocks": VAE_RES_BLOCKS })
}
