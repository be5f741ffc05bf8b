//! What beside a job's shape decides what is computed.

use serde::{Deserialize, Serialize};

use super::{ATTENTION_CHUNK, Lora, VaeTile};
use crate::storage::StorageType;

/// What beside the job decides what is computed, and in what pieces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphOptions {
    /// Pieces of the VAE; `None` for the whole picture at once.
    pub vae_tile: Option<VaeTile>,
    /// Queries that one worker attends with at a time.
    pub attention_chunk: u32,
    /// Whether the host's kernels form products with quantised weights in f32, even where they could of integers.
    pub exact_matmul: bool,
    /// LoRA files, in the order in which they are applied.
    pub loras: Vec<Lora>,
    /// Components whose LoRA products are added while they run; the others' weights are changed when loaded.
    pub lora_runtime: Vec<String>,
    /// For a look at files that are not there, never loaded: sizes as if matrices of whole blocks were of this type.
    pub weights_as: Option<StorageType>,
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
        }
    }
}
