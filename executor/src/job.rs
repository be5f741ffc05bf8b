//! What a job holds in the host's RAM from its first phase to its last, sized beforehand.

use std::sync::Arc;

use protocol::Bytes;

use crate::backend::memory::Charge;
use crate::backend::{Memory, OutOfMemory};

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
    /// One picture: `[height, width, 3]`.
    pub picture: [usize; 3],
}

impl JobLayout {
    /// All buffers together. Pictures stand three times: as the VAE gives one, as 8-bit values of one, and
    /// in shared memory, which holds all of the batch until the planner has written them.
    pub fn bytes(&self) -> Bytes {
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let floats = self.prompts
            * (count(&self.clip_hidden) + count(&self.text_hidden) + count(&self.latents))
            + count(&self.latents)
            + count(&self.rope)
            + count(&self.vae_latents)
            + count(&self.picture);
        let pixels = count(&self.picture) * (1 + self.latents[0]);
        Bytes((4 * floats + pixels) as u64)
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
    /// One picture as the VAE gives it.
    pub picture: Vec<f32>,
    /// The same in 8 bits.
    pub pixels: Vec<u8>,
    _charge: Charge,
}

impl JobBuffers {
    /// Allocates all buffers, charged to the host as one.
    pub fn allocate(layout: &JobLayout, memory: &Arc<Memory>) -> Result<JobBuffers, OutOfMemory> {
        let charge = memory.charge("job buffers", layout.bytes())?;
        let refused = || memory.refused("job buffers", layout.bytes());
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
            picture: floats(&layout.picture)?,
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
