//! What a job holds in the host's RAM from its first phase to its last, sized beforehand.

use std::sync::Arc;

use protocol::Bytes;

use crate::backend::memory::Charge;
use crate::backend::{Memory, OutOfMemory, SharedBytes, limits};
use crate::models::vae::tiles::TileGrid;

/// Sizes of the buffers in which a VAE's tiles are joined, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileLayout {
    /// The largest tile.
    pub values: usize,
    /// The last rows of all tiles of a row, which the tiles below blend with.
    pub above: usize,
    /// The last columns of one tile, which the next one blends with.
    pub left: usize,
}

impl TileLayout {
    /// For values of `channels`, with `scale` of them along a cell of latents.
    pub fn new(grid: &TileGrid, scale: usize, channels: usize) -> TileLayout {
        let [rows, columns] = grid.largest();
        let cell = scale * scale * channels;
        let widths: usize = grid.columns.spans.iter().map(|span| span.len).sum();
        let (more_rows, more_columns) = (grid.rows.spans.len() > 1, grid.columns.spans.len() > 1);
        TileLayout {
            values: rows * columns * cell,
            above: if more_rows { widths * grid.rows.overlap * cell } else { 0 },
            left: if more_columns { rows * grid.columns.overlap * cell } else { 0 },
        }
    }

    /// Buffers that do for either.
    pub fn or(self, other: TileLayout) -> TileLayout {
        TileLayout {
            values: self.values.max(other.values),
            above: self.above.max(other.above),
            left: self.left.max(other.left),
        }
    }
}

/// Sizes of a job's buffers, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLayout {
    /// Prompts encoded: 2 with true classifier-free guidance.
    pub prompts: usize,
    /// Hidden states of the pooled text encoder: `[tokens, features]`.
    pub clip_hidden: [usize; 2],
    /// Hidden states of the long text encoder: `[tokens, features]`.
    pub text_hidden: [usize; 2],
    /// Packed latents: `[batch, image_tokens, channels]`.
    pub latents: [usize; 3],
    /// Rotary table: `[text_tokens + image_tokens, head_dim / 2, 2]`.
    pub rope: [usize; 3],
    /// Latents of one picture as the VAE takes them: `[height, width, channels]`.
    pub vae_latents: [usize; 3],
    /// Where the VAE's tiles, on either way, are joined.
    pub vae_tile: TileLayout,
    /// What the VAE's encoder makes of the given picture: `[height, width, 2 × channels]`; zeros without one.
    pub moments: [usize; 3],
    /// One picture: `[height, width, 3]`.
    pub picture: [usize; 3],
    /// Whether the job starts from a picture.
    pub init_picture: bool,
    /// A preview `[height, width, 3]`, in shared memory; zeros without any.
    pub preview: [usize; 3],
}

impl JobLayout {
    /// All buffers together. Pictures are of 8 bits: the one that is being made, and in shared memory the given
    /// one and all of the batch until the planner has written them.
    pub fn bytes(&self) -> Bytes {
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let floats = self.prompts
            * (count(&self.clip_hidden) + count(&self.text_hidden) + count(&self.latents))
            + count(&self.latents)
            + count(&self.rope)
            + count(&self.vae_latents)
            + self.vae_tile.values
            + self.vae_tile.above
            + self.vae_tile.left
            + count(&self.moments);
        let pictures = 1 + self.latents[0] + usize::from(self.init_picture);
        let pixels = count(&self.picture) * pictures;
        Bytes((4 * floats + pixels + count(&self.preview)) as u64)
    }
}

/// The buffers of a running job.
pub struct JobBuffers {
    /// Hidden states of the pooled text encoder for each prompt.
    pub clip_hidden: Vec<Vec<f32>>,
    /// Hidden states of the long text encoder for each prompt.
    pub text_hidden: Vec<Vec<f32>>,
    /// The DiT's result for each prompt.
    pub velocity: Vec<Vec<f32>>,
    /// Packed latents.
    pub latents: Vec<f32>,
    /// Rotary table.
    pub rope: Vec<f32>,
    /// Latents of one picture as the VAE takes them.
    pub vae_latents: Vec<f32>,
    /// One tile as the VAE takes or gives it.
    pub tile: Vec<f32>,
    /// What the tiles of one row leave to those below.
    pub above: Vec<f32>,
    /// What one tile leaves to the next.
    pub left: Vec<f32>,
    /// What the VAE's encoder makes of the given picture.
    pub moments: Vec<f32>,
    /// One picture in 8 bits.
    pub pixels: Vec<u8>,
    /// A preview in 8 bits, where there are any.
    pub preview: Option<SharedBytes>,
    _charge: Charge,
}

impl JobBuffers {
    /// Allocates all buffers, charged to the host as one.
    pub fn allocate(layout: &JobLayout, memory: &Arc<Memory>) -> Result<JobBuffers, OutOfMemory> {
        let charge = memory.charge("job buffers", layout.bytes())?;
        // Before any of them: what is asked for is their sum.
        let left = limits::left();
        let refused = || memory.refused_within("job buffers", layout.bytes(), left);
        let floats = |shape: &[usize]| zeroed(shape.iter().product(), 0.0).ok_or_else(refused);
        let each = |shape: &[usize]| {
            (0..layout.prompts).map(|_| floats(shape)).collect::<Result<Vec<_>, _>>()
        };
        Ok(JobBuffers {
            clip_hidden: each(&layout.clip_hidden)?,
            text_hidden: each(&layout.text_hidden)?,
            velocity: each(&layout.latents)?,
            latents: floats(&layout.latents)?,
            rope: floats(&layout.rope)?,
            vae_latents: floats(&layout.vae_latents)?,
            tile: floats(&[layout.vae_tile.values])?,
            above: floats(&[layout.vae_tile.above])?,
            left: floats(&[layout.vae_tile.left])?,
            moments: floats(&layout.moments)?,
            preview: match layout.preview.iter().product() {
                0 => None,
                bytes => Some(SharedBytes::allocate(bytes)),
            },
            pixels: zeroed(layout.picture.iter().product(), 0).ok_or_else(refused)?,
            _charge: charge,
        })
    }
}

/// A buffer of exactly this length; `None` where the system has no room.
fn zeroed<T: Clone>(length: usize, zero: T) -> Option<Vec<T>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).ok()?;
    buffer.resize(length, zero);
    Some(buffer)
}
