//! The sizes of an attention, and what a worker's scratch holds of it.

use crate::backend::kernels::grid::aligned_len;
use crate::backend::kernels::outer::PANEL;

/// The most keys of a block: their scores of a panel of queries take 28 KiB. A multiple of 14, the
/// rows of the largest tile.
pub(super) const KEY_BLOCK_MAX: usize = 224;

/// The fewest keys of a block of wide heads.
const KEY_BLOCK_MIN: usize = 56;

/// About how many elements of keys a block has, and of values: together 512 KiB, a part of a second
/// level cache.
const BLOCK_ELEMENTS: usize = 1 << 16;

/// Added to the length of packed rows: rows a power of two apart would share the sets of a cache.
const ROW_PADDING: usize = 16;

/// The sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// How many sequences.
    pub batch: usize,
    /// How many rows of queries each sequence has.
    pub query_tokens: usize,
    /// Tokens that are asked.
    pub key_tokens: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values, which divide those of the queries: neighbours share one.
    pub kv_heads: usize,
    /// Features of one head.
    pub head_dim: usize,
    /// Multiplies the dot products.
    pub scale: f32,
    /// Whether a query sees only the keys up to its own index; needs as many keys as queries.
    pub causal: bool,
    /// Queries of a head that one task takes, at least 1; the last chunk may be shorter. More cost
    /// more scratch and pack keys and values less often. Results are the same bits for any;
    /// multiples of 32 fill the lanes.
    pub query_chunk: usize,
    /// Whether the host rounds operands of products to bf16 where its processor multiplies tiles of
    /// it.
    pub rounds: bool,
}

impl AttentionShape {
    pub(super) fn features(&self) -> usize {
        self.heads * self.head_dim
    }

    pub(super) fn kv_features(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub(super) fn operations(&self) -> usize {
        4 * self.batch * self.query_tokens * self.key_tokens * self.features()
    }

    /// Chunks of one head.
    pub(super) fn chunks(&self) -> usize {
        self.query_tokens.div_ceil(self.query_chunk)
    }

    /// Queries of the longest chunk.
    pub(super) fn chunk_queries(&self) -> usize {
        self.query_tokens.min(self.query_chunk)
    }

    /// Panels of queries of the longest chunk.
    pub(super) fn panels(&self) -> usize {
        self.chunk_queries().div_ceil(PANEL)
    }

    /// Keys of the longest block. May not depend on the chunk: see the file's invariant.
    pub(super) fn block_keys(&self) -> usize {
        let fitting = BLOCK_ELEMENTS / self.head_dim / KEY_BLOCK_MIN * KEY_BLOCK_MIN;
        self.key_tokens.min(fitting.clamp(KEY_BLOCK_MIN, KEY_BLOCK_MAX))
    }

    /// The distance of features of packed keys.
    pub(super) fn key_stride(&self) -> usize {
        self.block_keys().next_multiple_of(16) + ROW_PADDING
    }

    /// The distance of packed values.
    pub(super) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(16) + ROW_PADDING
    }

    /// Lengths of the pieces of a worker's scratch, in the order of [`Scratch`](super::Scratch).
    pub(super) fn pieces(&self) -> [usize; 8] {
        let panels = self.panels() * PANEL;
        [
            panels * self.head_dim,
            panels * self.head_dim,
            panels,
            panels,
            self.head_dim * self.key_stride(),
            self.block_keys() * self.value_stride(),
            self.block_keys() * PANEL,
            self.block_keys() + PANEL,
        ]
    }

    pub(super) fn worker_scratch_len(&self) -> usize {
        self.pieces().into_iter().map(aligned_len).sum()
    }
}
