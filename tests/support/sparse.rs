//! FLUX.1-dev at its true size, without its data: a diffusers directory of sparse files.
//!
//! Names, shapes, byte ranges, shards and configurations are those of the published checkpoint in
//! bf16, so that inspecting, measuring and planning can be tested at full scale on any disk. It is
//! not a model that can paint: all weights read as zero, and of T5's tokenizer most tokens are made
//! up.
//!
//! Invariants: a file's length is 8 + header + data exactly, each tensor of a component lies in one
//! shard, and the whole directory takes less than 8 MB of disk on a file system with holes.

#[allow(clippy::duplicate_mod, reason = "examples and tests that have no other support use it too")]
#[path = "place.rs"]
mod place;

#[allow(dead_code, reason = "each program writes its own model")]
#[path = "sparse/flux2.rs"]
pub mod flux2;

#[allow(dead_code, reason = "each program writes its own model")]
#[path = "sparse/qwen_image.rs"]
pub mod qwen_image;

#[allow(dead_code, reason = "each program writes its own model")]
#[path = "sparse/sd3.rs"]
pub mod sd3;

#[allow(dead_code, reason = "each program writes its own model")]
#[path = "sparse/z_image.rs"]
pub mod z_image;

use serde_json::{Map, Value, json};
use std::fmt;
use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// What was written, and the data bytes of each component (headers not counted).
#[derive(Debug)]
pub struct SparseModel {
    /// The model directory, as it was given.
    pub dir: PathBuf,
    /// All tensors of the transformer: 11.901 B parameters.
    pub dit_bytes: u64,
    /// All tensors of the T5 encoder: 4.762 B parameters.
    pub t5_bytes: u64,
    /// All tensors of the CLIP text encoder: 0.123 B parameters.
    pub clip_bytes: u64,
    /// All tensors of the VAE, encoder and decoder: 0.084 B parameters.
    pub vae_bytes: u64,
    /// The part of `vae_bytes` that decoding needs: `decoder.*` and `post_quant_conv.*`.
    pub vae_decoder_bytes: u64,
}

/// Writes the complete directory, creating `dir` where it is missing.
///
/// Fails where the file system does, or where the fixture `flux_dev` is not there: it lends the
/// pipeline index, the sampler's configuration, the tokenizers, and every key that is not a size.
pub fn write_flux_dev(dir: &Path) -> Result<SparseModel> {
    let fixture = place::root().join("tests/fixtures/flux_dev");
    fs::create_dir_all(dir)?;
    fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
    for part in ["scheduler", "tokenizer", "tokenizer_2"] {
        copy_files(&fixture.join(part), &dir.join(part))?;
    }
    let published = place::root().join("executor/src/tokenizer/builtin");
    for table in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
        fs::copy(published.join(table), dir.join("tokenizer").join(table))?;
    }
    fill_up(&dir.join("tokenizer_2/tokenizer.json"), T5_TOKENS)?;

    let (dit, t5, clip, vae) = (dit_tensors(), t5_tensors(), clip_tensors(), vae_tensors());
    let decoder: Vec<Tensor> = vae
        .iter()
        .filter(|tensor| {
            ["decoder.", "post_quant_conv."].iter().any(|p| tensor.name.starts_with(p))
        })
        .cloned()
        .collect();
    let model = SparseModel {
        dir: dir.to_path_buf(),
        dit_bytes: data_bytes(&dit),
        t5_bytes: data_bytes(&t5),
        clip_bytes: data_bytes(&clip),
        vae_bytes: data_bytes(&vae),
        vae_decoder_bytes: data_bytes(&decoder),
    };

    for (part, stem, dimensions, tensors, shard_bytes_max) in [
        ("transformer", "diffusion_pytorch_model", dit_dimensions(), dit, DIFFUSERS_SHARD_BYTES),
        ("vae", "diffusion_pytorch_model", vae_dimensions(), vae, DIFFUSERS_SHARD_BYTES),
        ("text_encoder", "model", clip_dimensions(), clip, TRANSFORMERS_SHARD_BYTES),
        ("text_encoder_2", "model", t5_dimensions(), t5, TRANSFORMERS_SHARD_BYTES),
    ] {
        let config = full_size(&fixture.join(part).join("config.json"), dimensions)?;
        write_component(&dir.join(part), stem, config, tensors, shard_bytes_max)?;
    }
    Ok(model)
}

impl fmt::Display for SparseModel {
    /// One `name bytes` line for each component, then the decoder's share of the VAE.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "directory   {}", self.dir.display())?;
        writeln!(f, "dit         {}", self.dit_bytes)?;
        writeln!(f, "t5          {}", self.t5_bytes)?;
        writeln!(f, "clip        {}", self.clip_bytes)?;
        writeln!(f, "vae         {}", self.vae_bytes)?;
        writeln!(f, "vae_decoder {}", self.vae_decoder_bytes)
    }
}

/// Default shard limit of diffusers' `save_pretrained` ("10GB"); it cut the published transformer.
const DIFFUSERS_SHARD_BYTES: u64 = 10_000_000_000;
/// Default shard limit of transformers v4 ("5GB"); it cut the published T5.
const TRANSFORMERS_SHARD_BYTES: u64 = 5_000_000_000;
/// Bytes of one bf16 element.
const BF16_BYTES: u64 = 2;

// The dimensions are those of the published `config.json` files of FLUX.1-dev.
/// Entries of T5's published vocabulary.
const T5_TOKENS: usize = 32_000;
const DIT_WIDTH: u64 = 24 * DIT_HEAD_DIM;
const DIT_HEAD_DIM: u64 = 128;
const DIT_DOUBLE_BLOCKS: usize = 19;
const DIT_SINGLE_BLOCKS: usize = 38;
const DIT_IN_CHANNELS: u64 = 64;
const DIT_MLP: u64 = 4 * DIT_WIDTH;
/// Channels of the sinusoid that carries timestep and guidance.
const DIT_SINUSOID: u64 = 256;

const T5_WIDTH: u64 = 4096;
const T5_BLOCKS: usize = 24;
const T5_HEADS: u64 = 64;
const T5_HEAD_DIM: u64 = 64;
const T5_MLP: u64 = 10_240;
const T5_VOCAB: u64 = 32_128;
const T5_BUCKETS: u64 = 32;

const CLIP_WIDTH: u64 = 768;
const CLIP_BLOCKS: usize = 12;
const CLIP_MLP: u64 = 3072;
const CLIP_VOCAB: u64 = 49_408;
const CLIP_POSITIONS: u64 = 77;

const VAE_WIDTHS: [u64; 4] = [128, 256, 512, 512];
const VAE_LAYERS_PER_BLOCK: usize = 2;
const VAE_LATENT_CHANNELS: u64 = 16;

/// A tensor of a header: its checkpoint name and its shape, outermost dimension first.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * BF16_BYTES
    }
}

fn data_bytes(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(Tensor::bytes).sum()
}

/// Collects tensors in the order of the modules, which decides where the shards are cut.
#[derive(Default)]
struct Tensors(Vec<Tensor>);

impl Tensors {
    fn weight(&mut self, module: &str, shape: &[u64]) {
        self.0.push(Tensor { name: format!("{module}.weight"), shape: shape.to_vec() });
    }

    /// A weight of any rank with a bias over its first dimension.
    fn biased(&mut self, module: &str, shape: &[u64]) {
        self.weight(module, shape);
        self.0.push(Tensor { name: format!("{module}.bias"), shape: vec![shape[0]] });
    }

    /// Square projections of one width, each with bias.
    fn projections(&mut self, module: &str, names: &[&str], width: u64) {
        for name in names {
            self.biased(&format!("{module}.{name}"), &[width, width]);
        }
    }

    /// RMS norms over one attention head.
    fn head_norms(&mut self, module: &str, names: &[&str]) {
        for name in names {
            self.weight(&format!("{module}.{name}"), &[DIT_HEAD_DIM]);
        }
    }
}

fn dit_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    let width = DIT_WIDTH;
    for (embedder, input) in [
        ("timestep_embedder", DIT_SINUSOID),
        ("guidance_embedder", DIT_SINUSOID),
        ("text_embedder", CLIP_WIDTH),
    ] {
        t.biased(&format!("time_text_embed.{embedder}.linear_1"), &[width, input]);
        t.biased(&format!("time_text_embed.{embedder}.linear_2"), &[width, width]);
    }
    t.biased("context_embedder", &[width, T5_WIDTH]);
    t.biased("x_embedder", &[width, DIT_IN_CHANNELS]);
    for index in 0..DIT_DOUBLE_BLOCKS {
        let block = format!("transformer_blocks.{index}");
        let attn = format!("{block}.attn");
        for norm in ["norm1", "norm1_context"] {
            t.biased(&format!("{block}.{norm}.linear"), &[6 * width, width]);
        }
        t.head_norms(&attn, &["norm_q", "norm_k"]);
        let image = ["to_q", "to_k", "to_v"];
        let text = ["add_k_proj", "add_v_proj", "add_q_proj"];
        t.projections(&attn, &image, width);
        t.projections(&attn, &text, width);
        t.projections(&attn, &["to_out.0", "to_add_out"], width);
        t.head_norms(&attn, &["norm_added_q", "norm_added_k"]);
        for ff in ["ff", "ff_context"] {
            t.biased(&format!("{block}.{ff}.net.0.proj"), &[DIT_MLP, width]);
            t.biased(&format!("{block}.{ff}.net.2"), &[width, DIT_MLP]);
        }
    }
    for index in 0..DIT_SINGLE_BLOCKS {
        let block = format!("single_transformer_blocks.{index}");
        let attn = format!("{block}.attn");
        t.biased(&format!("{block}.norm.linear"), &[3 * width, width]);
        t.biased(&format!("{block}.proj_mlp"), &[DIT_MLP, width]);
        t.biased(&format!("{block}.proj_out"), &[width, width + DIT_MLP]);
        t.head_norms(&attn, &["norm_q", "norm_k"]);
        t.projections(&attn, &["to_q", "to_k", "to_v"], width);
    }
    t.biased("norm_out.linear", &[2 * width, width]);
    t.biased("proj_out", &[DIT_IN_CHANNELS, width]);
    t.0
}

fn t5_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    let inner = T5_HEADS * T5_HEAD_DIM;
    t.weight("shared", &[T5_VOCAB, T5_WIDTH]);
    for index in 0..T5_BLOCKS {
        let attention = format!("encoder.block.{index}.layer.0");
        let mlp = format!("encoder.block.{index}.layer.1");
        for name in ["q", "k", "v"] {
            t.weight(&format!("{attention}.SelfAttention.{name}"), &[inner, T5_WIDTH]);
        }
        t.weight(&format!("{attention}.SelfAttention.o"), &[T5_WIDTH, inner]);
        if index == 0 {
            let bias = format!("{attention}.SelfAttention.relative_attention_bias");
            t.weight(&bias, &[T5_BUCKETS, T5_HEADS]);
        }
        t.weight(&format!("{attention}.layer_norm"), &[T5_WIDTH]);
        for name in ["wi_0", "wi_1"] {
            t.weight(&format!("{mlp}.DenseReluDense.{name}"), &[T5_MLP, T5_WIDTH]);
        }
        t.weight(&format!("{mlp}.DenseReluDense.wo"), &[T5_WIDTH, T5_MLP]);
        t.weight(&format!("{mlp}.layer_norm"), &[T5_WIDTH]);
    }
    t.weight("encoder.final_layer_norm", &[T5_WIDTH]);
    t.0
}

fn clip_tensors() -> Vec<Tensor> {
    let mut t = Tensors::default();
    t.weight("text_model.embeddings.token_embedding", &[CLIP_VOCAB, CLIP_WIDTH]);
    t.weight("text_model.embeddings.position_embedding", &[CLIP_POSITIONS, CLIP_WIDTH]);
    for index in 0..CLIP_BLOCKS {
        let layer = format!("text_model.encoder.layers.{index}");
        let names = ["k_proj", "v_proj", "q_proj", "out_proj"];
        t.projections(&format!("{layer}.self_attn"), &names, CLIP_WIDTH);
        t.biased(&format!("{layer}.layer_norm1"), &[CLIP_WIDTH]);
        t.biased(&format!("{layer}.mlp.fc1"), &[CLIP_MLP, CLIP_WIDTH]);
        t.biased(&format!("{layer}.mlp.fc2"), &[CLIP_WIDTH, CLIP_MLP]);
        t.biased(&format!("{layer}.layer_norm2"), &[CLIP_WIDTH]);
    }
    t.biased("text_model.final_layer_norm", &[CLIP_WIDTH]);
    t.0
}

fn vae_tensors() -> Vec<Tensor> {
    vae_tensors_of(VAE_LATENT_CHANNELS)
}

fn vae_tensors_of(latent_channels: u64) -> Vec<Tensor> {
    let mut t = Tensors::default();
    let deepest = VAE_WIDTHS[VAE_WIDTHS.len() - 1];
    let last = VAE_WIDTHS.len() - 1;

    t.biased("encoder.conv_in", &[VAE_WIDTHS[0], 3, 3, 3]);
    let mut input = VAE_WIDTHS[0];
    for (index, &output) in VAE_WIDTHS.iter().enumerate() {
        let block = format!("encoder.down_blocks.{index}");
        for layer in 0..VAE_LAYERS_PER_BLOCK {
            vae_resnet(&mut t, &format!("{block}.resnets.{layer}"), input, output);
            input = output;
        }
        if index < last {
            t.biased(&format!("{block}.downsamplers.0.conv"), &[output, output, 3, 3]);
        }
    }
    vae_mid_block(&mut t, "encoder", deepest);
    t.biased("encoder.conv_norm_out", &[deepest]);
    // Mean and log-variance of each latent channel.
    t.biased("encoder.conv_out", &[2 * latent_channels, deepest, 3, 3]);

    t.biased("decoder.conv_in", &[deepest, latent_channels, 3, 3]);
    let mut input = deepest;
    for (index, &output) in VAE_WIDTHS.iter().rev().enumerate() {
        let block = format!("decoder.up_blocks.{index}");
        for layer in 0..=VAE_LAYERS_PER_BLOCK {
            vae_resnet(&mut t, &format!("{block}.resnets.{layer}"), input, output);
            input = output;
        }
        if index < last {
            t.biased(&format!("{block}.upsamplers.0.conv"), &[output, output, 3, 3]);
        }
    }
    vae_mid_block(&mut t, "decoder", deepest);
    t.biased("decoder.conv_norm_out", &[VAE_WIDTHS[0]]);
    t.biased("decoder.conv_out", &[3, VAE_WIDTHS[0], 3, 3]);
    t.0
}

fn vae_resnet(t: &mut Tensors, module: &str, input: u64, output: u64) {
    t.biased(&format!("{module}.norm1"), &[input]);
    t.biased(&format!("{module}.conv1"), &[output, input, 3, 3]);
    t.biased(&format!("{module}.norm2"), &[output]);
    t.biased(&format!("{module}.conv2"), &[output, output, 3, 3]);
    if input != output {
        t.biased(&format!("{module}.conv_shortcut"), &[output, input, 1, 1]);
    }
}

fn vae_mid_block(t: &mut Tensors, coder: &str, width: u64) {
    let attention = format!("{coder}.mid_block.attentions.0");
    t.biased(&format!("{attention}.group_norm"), &[width]);
    t.projections(&attention, &["to_q", "to_k", "to_v", "to_out.0"], width);
    for layer in 0..2 {
        vae_resnet(t, &format!("{coder}.mid_block.resnets.{layer}"), width, width);
    }
}

fn dit_dimensions() -> Value {
    json!({
        "attention_head_dim": DIT_HEAD_DIM,
        "axes_dims_rope": [16, 56, 56],
        "guidance_embeds": true,
        "in_channels": DIT_IN_CHANNELS,
        "joint_attention_dim": T5_WIDTH,
        "num_attention_heads": DIT_WIDTH / DIT_HEAD_DIM,
        "num_layers": DIT_DOUBLE_BLOCKS,
        "num_single_layers": DIT_SINGLE_BLOCKS,
        "pooled_projection_dim": CLIP_WIDTH,
    })
}

fn t5_dimensions() -> Value {
    json!({
        "d_ff": T5_MLP,
        "d_kv": T5_HEAD_DIM,
        "d_model": T5_WIDTH,
        "num_decoder_layers": T5_BLOCKS,
        "num_heads": T5_HEADS,
        "num_layers": T5_BLOCKS,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": T5_BUCKETS,
        "vocab_size": T5_VOCAB,
    })
}

fn clip_dimensions() -> Value {
    json!({
        "hidden_size": CLIP_WIDTH,
        "intermediate_size": CLIP_MLP,
        "max_position_embeddings": CLIP_POSITIONS,
        "num_attention_heads": 12,
        "num_hidden_layers": CLIP_BLOCKS,
        "projection_dim": CLIP_WIDTH,
        "vocab_size": CLIP_VOCAB,
    })
}

fn vae_dimensions() -> Value {
    json!({
        "block_out_channels": VAE_WIDTHS,
        "latent_channels": VAE_LATENT_CHANNELS,
        "layers_per_block": VAE_LAYERS_PER_BLOCK,
        "norm_num_groups": 32,
        "sample_size": 1024,
    })
}

/// The fixture's `config.json`, whose other keys are the published ones, at the true dimensions.
fn full_size(config: &Path, dimensions: Value) -> Result<Value> {
    let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(config)?)?;
    config.remove("_name_or_path");
    for (key, value) in dimensions.as_object().expect("dimensions are written as an object") {
        config.insert(key.clone(), value.clone());
    }
    Ok(Value::Object(config))
}

/// Writes `config.json` and the weights: one file, or numbered shards with their index.
fn write_component(
    dir: &Path,
    stem: &str,
    config: Value,
    tensors: Vec<Tensor>,
    shard_bytes_max: u64,
) -> Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("config.json"), format!("{config:#}\n"))?;
    let total_bytes = data_bytes(&tensors);
    let shards = shards(tensors, shard_bytes_max);
    if let [single] = shards.as_slice() {
        return write_safetensors(&dir.join(format!("{stem}.safetensors")), single);
    }
    let mut weight_map = Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let file = format!("{stem}-{:05}-of-{:05}.safetensors", index + 1, shards.len());
        write_safetensors(&dir.join(&file), shard)?;
        let entries = shard.iter().map(|tensor| (tensor.name.clone(), json!(file)));
        weight_map.extend(entries);
    }
    let index = json!({ "metadata": { "total_size": total_bytes }, "weight_map": weight_map });
    fs::write(dir.join(format!("{stem}.safetensors.index.json")), format!("{index:#}\n"))
}

/// Cuts the module order into shards as upstream does: a new one where the next tensor would pass
/// the limit. Within a shard tensors are sorted by name, which is the order of their data.
fn shards(tensors: Vec<Tensor>, shard_bytes_max: u64) -> Vec<Vec<Tensor>> {
    let mut shards = vec![Vec::new()];
    let mut shard_bytes = 0;
    for tensor in tensors {
        if shard_bytes + tensor.bytes() > shard_bytes_max {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += tensor.bytes();
        shards.last_mut().expect("the list starts with one shard").push(tensor);
    }
    for shard in &mut shards {
        shard.sort_by(|a, b| a.name.cmp(&b.name));
    }
    shards
}

/// Writes length and header, and leaves the data as a hole.
fn write_safetensors(path: &Path, tensors: &[Tensor]) -> Result<()> {
    let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes();
        let entry = json!({ "dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end] });
        entries.insert(tensor.name.clone(), entry);
    }
    let mut header = Value::Object(entries).to_string();
    // Spaces up to a multiple of 8 keep the data aligned.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let header_bytes = header.len() as u64;

    let mut file = File::create(path)?;
    file.write_all(&header_bytes.to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.set_len(8 + header_bytes + end)
}

/// Gives a unigram tokenizer as many tokens as that, which no text meets.
fn fill_up(path: &Path, tokens: usize) -> Result<()> {
    let mut document: Value = serde_json::from_slice(&fs::read(path)?)?;
    let vocabulary = document["model"]["vocab"].as_array_mut();
    let vocabulary = vocabulary.expect("a unigram tokenizer has a list of tokens");
    let more = vocabulary.len()..tokens;
    vocabulary.extend(more.map(|number| json!([format!("▁filled{number:x}up"), -30.0])));
    fs::write(path, serde_json::to_vec(&document)?)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
