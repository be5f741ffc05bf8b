//! A small model of FLUX.1's classes whose large matrices are large enough to be split by rows.
//!
//! The DiT and T5 have random weights, the same for the same seed on every machine; CLIP, the VAE,
//! the tokenizers and the sampler are the fixture's. It paints nothing that means anything, but
//! every weight has a say in its pictures, and they are not flat. Invariants:
//! - a tensor depends on the seed, its name and its shape only: models of different depth share
//!   their blocks;
//! - each weight is exact in bf16, so that both storage types hold the same model.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

#[allow(clippy::duplicate_mod, reason = "examples and tests that have no other support use it too")]
#[path = "place.rs"]
mod place;

use std::fs::{self, File};
use std::io::{BufWriter, Result, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

/// How the weights of DiT and T5 are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Half the bytes of the other.
    Bf16,
    /// As the fixtures are.
    F32,
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wide {
    /// How weights are stored.
    pub storage: Storage,
    /// Heads of the DiT. Matrices are split by rows from 4 on, where the width reaches 256.
    pub heads: usize,
    /// Double blocks of the DiT, at least 1.
    pub double_blocks: usize,
    /// Single blocks of the DiT, at least 1.
    pub single_blocks: usize,
    /// Blocks of T5, at least 1.
    pub t5_blocks: usize,
    /// What makes one model differ from another of the same sizes.
    pub seed: u64,
}

/// Bytes of the tensors in the files, for those that were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// All tensors of the DiT.
    pub dit_bytes: u64,
    /// The largest block of the DiT.
    pub dit_block_bytes: u64,
    /// All tensors of T5.
    pub t5_bytes: u64,
}

impl Wide {
    /// 8.2 M weights in the DiT, 2.2 M in T5, 21 MB in all.
    pub fn bf16() -> Wide {
        Wide {
            storage: Storage::Bf16,
            heads: 4,
            double_blocks: 2,
            single_blocks: 3,
            t5_blocks: 3,
            seed: 1,
        }
    }

    /// The same weights in twice the bytes, and fewer blocks: 26 MB in all.
    pub fn f32() -> Wide {
        Wide {
            storage: Storage::F32,
            double_blocks: 1,
            single_blocks: 2,
            t5_blocks: 2,
            ..Wide::bf16()
        }
    }

    /// A DiT of many small blocks, 20 times as large as the largest: for a device that holds few of
    /// them. Nothing of it is split by rows.
    pub fn deep() -> Wide {
        Wide { heads: 2, double_blocks: 2, single_blocks: 48, t5_blocks: 1, ..Wide::bf16() }
    }

    /// Writes the complete directory, creating `dir` where it is missing.
    ///
    /// Fails where the file system does, or where the fixture `flux_schnell` is not there.
    pub fn write(&self, dir: &Path) -> Result<Written> {
        let fixture = place::root().join("tests/fixtures/flux_schnell");
        fs::create_dir_all(dir)?;
        fs::copy(fixture.join("model_index.json"), dir.join("model_index.json"))?;
        for part in ["scheduler", "tokenizer", "tokenizer_2", "text_encoder", "vae"] {
            copy_files(&fixture.join(part), &dir.join(part))?;
        }
        let (dit, t5) = (self.dit(), self.t5());
        let written = Written {
            dit_bytes: self.bytes(dit.iter()),
            dit_block_bytes: self.bytes(
                dit.iter().filter(|tensor| tensor.name.starts_with("transformer_blocks.0.")),
            ),
            t5_bytes: self.bytes(t5.iter()),
        };
        for (part, stem, dimensions, tensors) in [
            ("transformer", "diffusion_pytorch_model", self.dit_dimensions(), dit),
            ("text_encoder_2", "model", self.t5_dimensions(), t5),
        ] {
            fs::create_dir_all(dir.join(part))?;
            let config = with(&fixture.join(part).join("config.json"), dimensions)?;
            fs::write(dir.join(part).join("config.json"), format!("{config:#}\n"))?;
            let path = dir.join(part).join(format!("{stem}.safetensors"));
            self.write_safetensors(&path, &tensors)?;
        }
        Ok(written)
    }
}

/// Width of one head of either component.
const HEAD_DIM: usize = 64;
/// Channels of a packed latent of the fixture's VAE.
const LATENT_CHANNELS: usize = 64;
/// Width of the fixture's CLIP.
const CLIP_WIDTH: usize = 32;
/// Channels of the sinusoid that carries the timestep.
const SINUSOID: usize = 256;
const T5_WIDTH: usize = 256;
const T5_MLP: usize = 512;
/// Entries of the fixture's tokenizer.
const T5_VOCAB: usize = 1008;
const T5_BUCKETS: usize = 32;

/// A tensor, and the half-width of the interval around `centre` that its weights are drawn from.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    centre: f32,
    spread: f32,
}

impl Tensor {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Collects tensors by module.
#[derive(Default)]
struct Tensors(Vec<Tensor>);

impl Tensors {
    fn push(&mut self, name: String, shape: &[usize], centre: f32, spread: f32) {
        self.0.push(Tensor { name, shape: shape.to_vec(), centre, spread });
    }

    /// A matrix `[rows, columns]` that keeps the variance of what it multiplies. (torch's own
    /// default spreads less: each block would say less than the one before.)
    fn matrix(&mut self, module: &str, rows: usize, columns: usize) {
        let spread = (3.0 / columns as f32).sqrt();
        self.push(format!("{module}.weight"), &[rows, columns], 0.0, spread);
    }

    /// The same with a bias, which is spread as torch does it.
    fn linear(&mut self, module: &str, rows: usize, columns: usize) {
        self.matrix(module, rows, columns);
        let spread = (columns as f32).powf(-0.5);
        self.push(format!("{module}.bias"), &[rows], 0.0, spread);
    }

    /// Factors of a normalisation, around 1.
    fn norm(&mut self, module: &str, width: usize) {
        self.push(format!("{module}.weight"), &[width], 1.0, 0.25);
    }
}

impl Wide {
    fn width(&self) -> usize {
        self.heads * HEAD_DIM
    }

    fn dit(&self) -> Vec<Tensor> {
        let mut t = Tensors::default();
        let width = self.width();
        for (embedder, input) in [("timestep_embedder", SINUSOID), ("text_embedder", CLIP_WIDTH)] {
            t.linear(&format!("time_text_embed.{embedder}.linear_1"), width, input);
            t.linear(&format!("time_text_embed.{embedder}.linear_2"), width, width);
        }
        t.linear("context_embedder", width, T5_WIDTH);
        t.linear("x_embedder", width, LATENT_CHANNELS);
        for index in 0..self.double_blocks {
            let block = format!("transformer_blocks.{index}");
            for norm in ["norm1", "norm1_context"] {
                t.linear(&format!("{block}.{norm}.linear"), 6 * width, width);
            }
            for projection in [
                "to_q",
                "to_k",
                "to_v",
                "to_out.0",
                "add_q_proj",
                "add_k_proj",
                "add_v_proj",
                "to_add_out",
            ] {
                t.linear(&format!("{block}.attn.{projection}"), width, width);
            }
            for norm in ["norm_q", "norm_k", "norm_added_q", "norm_added_k"] {
                t.norm(&format!("{block}.attn.{norm}"), HEAD_DIM);
            }
            for ff in ["ff", "ff_context"] {
                t.linear(&format!("{block}.{ff}.net.0.proj"), 4 * width, width);
                t.linear(&format!("{block}.{ff}.net.2"), width, 4 * width);
            }
        }
        for index in 0..self.single_blocks {
            let block = format!("single_transformer_blocks.{index}");
            t.linear(&format!("{block}.norm.linear"), 3 * width, width);
            t.linear(&format!("{block}.proj_mlp"), 4 * width, width);
            t.linear(&format!("{block}.proj_out"), width, 5 * width);
            for projection in ["to_q", "to_k", "to_v"] {
                t.linear(&format!("{block}.attn.{projection}"), width, width);
            }
            for norm in ["norm_q", "norm_k"] {
                t.norm(&format!("{block}.attn.{norm}"), HEAD_DIM);
            }
        }
        t.linear("norm_out.linear", 2 * width, width);
        t.linear("proj_out", LATENT_CHANNELS, width);
        t.0
    }

    fn t5(&self) -> Vec<Tensor> {
        let mut t = Tensors::default();
        let heads = T5_WIDTH / HEAD_DIM;
        t.push("shared.weight".to_owned(), &[T5_VOCAB, T5_WIDTH], 0.0, 1.0);
        for index in 0..self.t5_blocks {
            let attention = format!("encoder.block.{index}.layer.0");
            let mlp = format!("encoder.block.{index}.layer.1");
            for name in ["q", "k", "v", "o"] {
                t.matrix(&format!("{attention}.SelfAttention.{name}"), T5_WIDTH, T5_WIDTH);
            }
            if index == 0 {
                let bias = format!("{attention}.SelfAttention.relative_attention_bias.weight");
                t.push(bias, &[T5_BUCKETS, heads], 0.0, 1.0);
            }
            t.norm(&format!("{attention}.layer_norm"), T5_WIDTH);
            for name in ["wi_0", "wi_1"] {
                t.matrix(&format!("{mlp}.DenseReluDense.{name}"), T5_MLP, T5_WIDTH);
            }
            t.matrix(&format!("{mlp}.DenseReluDense.wo"), T5_WIDTH, T5_MLP);
            t.norm(&format!("{mlp}.layer_norm"), T5_WIDTH);
        }
        t.norm("encoder.final_layer_norm", T5_WIDTH);
        t.0
    }

    fn dit_dimensions(&self) -> Value {
        json!({
            "attention_head_dim": HEAD_DIM,
            "axes_dims_rope": [16, 24, 24],
            "in_channels": LATENT_CHANNELS,
            "joint_attention_dim": T5_WIDTH,
            "num_attention_heads": self.heads,
            "num_layers": self.double_blocks,
            "num_single_layers": self.single_blocks,
            "pooled_projection_dim": CLIP_WIDTH,
        })
    }

    fn t5_dimensions(&self) -> Value {
        json!({
            "d_ff": T5_MLP,
            "d_kv": HEAD_DIM,
            "d_model": T5_WIDTH,
            "num_heads": T5_WIDTH / HEAD_DIM,
            "num_layers": self.t5_blocks,
            "relative_attention_num_buckets": T5_BUCKETS,
            "vocab_size": T5_VOCAB,
        })
    }

    fn bytes<'a>(&self, tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
        let elements: usize = tensors.map(Tensor::elements).sum();
        (elements * self.element_bytes()) as u64
    }

    fn element_bytes(&self) -> usize {
        match self.storage {
            Storage::Bf16 => 2,
            Storage::F32 => 4,
        }
    }

    fn write_safetensors(&self, path: &Path, tensors: &[Tensor]) -> Result<()> {
        let dtype = match self.storage {
            Storage::Bf16 => "BF16",
            Storage::F32 => "F32",
        };
        let mut entries = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
        let mut end = 0;
        for tensor in tensors {
            let start = end;
            end += tensor.elements() * self.element_bytes();
            let entry =
                json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end] });
            entries.insert(tensor.name.clone(), entry);
        }
        let mut header = Value::Object(entries).to_string();
        // Spaces up to a multiple of 8 keep the data aligned.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));

        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for tensor in tensors {
            file.write_all(&self.data(tensor))?;
        }
        file.flush()
    }

    fn data(&self, tensor: &Tensor) -> Vec<u8> {
        let mut random = SplitMix64(self.seed ^ hash(&tensor.name));
        let mut data = Vec::with_capacity(tensor.elements() * self.element_bytes());
        let mut drawn = 0;
        for index in 0..tensor.elements() {
            if index % 4 == 0 {
                drawn = random.next();
            }
            // From -1 to 1 in steps of 2^-15.
            let unit = f32::from(drawn as u16) / 32_768.0 - 1.0;
            drawn >>= 16;
            let upper = (tensor.centre + unit * tensor.spread).to_bits() >> 16;
            match self.storage {
                Storage::Bf16 => data.extend((upper as u16).to_le_bytes()),
                Storage::F32 => data.extend((upper << 16).to_le_bytes()),
            }
        }
        data
    }
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// A number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// Whether it happens, once in a hundred for each per cent.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The fixture's `config.json` with these keys replaced.
fn with(config: &Path, dimensions: Value) -> Result<Value> {
    let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(config)?)?;
    for (key, value) in dimensions.as_object().expect("dimensions are written as an object") {
        config.insert(key.clone(), value.clone());
    }
    Ok(Value::Object(config))
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
