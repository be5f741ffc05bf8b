//! What beside a job's shape decides what is computed.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::storage::StorageType;

/// Queries that one worker attends with at a time where nothing else is said. With AVX-512 and 24
/// heads of 128 over 1536 tokens, 64 queries run at 0.86 of its rate, 128 at 0.95 and 512 at 0.99,
/// as keys and values are read and packed once a chunk (`executor/benches/kernels.rs`).
pub const ATTENTION_CHUNK: u32 = 256;

/// What beside the job decides what is computed and held, and in what pieces.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct GraphOptions {
    /// Pieces of the VAE; `None` for the whole picture at once.
    pub vae_tile: Option<VaeTile>,
    /// Queries that one worker attends with at a time.
    pub attention_chunk: u32,
    /// Whether the host's kernels form all products in f32, even where they could of integers or
    /// of bf16.
    pub exact_matmul: bool,
    /// LoRA files, in the order in which they are applied.
    pub loras: Vec<Lora>,
    /// Components whose LoRA products are added while they run; the others' weights are changed
    /// when loaded.
    pub lora_runtime: Vec<String>,
    /// For a look at files that are not there, never loaded: sizes as if matrices of whole blocks
    /// were of this type.
    pub weights_as: Option<StorageType>,
    /// Steps from one preview of the first picture to the next; 0 for none.
    #[serde(default)]
    pub preview_every: u32,
}

/// Documents name `preview_every` where there are previews; the wire, which has no names, always
/// has all fields.
impl Serialize for GraphOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let GraphOptions {
            vae_tile,
            attention_chunk,
            exact_matmul,
            loras,
            lora_runtime,
            weights_as,
            preview_every,
        } = self;
        let is_named = *preview_every > 0 || !serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("GraphOptions", 6 + usize::from(is_named))?;
        fields.serialize_field("vae_tile", vae_tile)?;
        fields.serialize_field("attention_chunk", attention_chunk)?;
        fields.serialize_field("exact_matmul", exact_matmul)?;
        fields.serialize_field("loras", loras)?;
        fields.serialize_field("lora_runtime", lora_runtime)?;
        fields.serialize_field("weights_as", weights_as)?;
        if is_named {
            fields.serialize_field("preview_every", preview_every)?;
        }
        fields.end()
    }
}

impl GraphOptions {
    /// What may be chosen of it without another picture.
    pub fn pieces(&self) -> PieceSizes {
        PieceSizes { vae_tile: self.vae_tile, attention_chunk: self.attention_chunk }
    }

    /// The same in other pieces.
    pub fn in_pieces(&self, sizes: PieceSizes) -> GraphOptions {
        let PieceSizes { vae_tile, attention_chunk } = sizes;
        GraphOptions { vae_tile, attention_chunk, ..self.clone() }
    }
}

/// The sizes of the pieces in which a job is computed. What is computed is the same in all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PieceSizes {
    /// As [`GraphOptions::vae_tile`].
    pub vae_tile: Option<VaeTile>,
    /// As [`GraphOptions::attention_chunk`].
    pub attention_chunk: u32,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions {
            vae_tile: None,
            attention_chunk: ATTENTION_CHUNK,
            exact_matmul: false,
            loras: Vec::new(),
            lora_runtime: Vec::new(),
            weights_as: None,
            preview_every: 0,
        }
    }
}

/// The size of the pieces in which the VAE works, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VaeTile {
    /// Width of a tile.
    pub width: u32,
    /// Height of a tile.
    pub height: u32,
    /// Part of a tile that it shares with each neighbour, as diffusers' `tile_overlap_factor`.
    pub overlap: f64,
}

/// A LoRA file and how strongly it is applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Path of the safetensors file.
    pub path: String,
    /// Multiplies its scale.
    pub weight: f32,
}

/// What happens to the pages of a mapped weight file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MappingPolicy {
    /// They stay in the page cache for the next run.
    #[default]
    Keep,
    /// The kernel reads ahead, and drops pages behind the reader.
    Sequential,
    /// Pages are given back as soon as their weights are on their device.
    Drop,
}

impl MappingPolicy {
    /// All policies.
    pub const ALL: [MappingPolicy; 3] =
        [MappingPolicy::Keep, MappingPolicy::Sequential, MappingPolicy::Drop];

    /// The policy's name as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            MappingPolicy::Keep => "keep",
            MappingPolicy::Sequential => "sequential",
            MappingPolicy::Drop => "drop",
        }
    }
}

impl fmt::Display for MappingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
