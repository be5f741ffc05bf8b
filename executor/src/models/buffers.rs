//! What a job holds in the host's RAM from its first phase to its last: a list that its family
//! makes. Here are names and sizes only; the runtime allocates them.

use protocol::{Bytes, JobShape};

use super::ModelError;
use crate::sampling::named::kept;

/// The name of the buffer in which previews are shown; all families call it so.
pub const PREVIEW: &str = "preview";

/// What a job's sampler keeps from one call of the DiT to another; all families call it so.
pub const HISTORY: &str = "history";

/// The fresh noise of a step; likewise.
pub const FRESH_NOISE: &str = "fresh_noise";

/// What the elements of a buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferElement {
    /// Activations: 4 bytes.
    F32,
    /// Levels of pixels: 1 byte.
    U8,
}

impl BufferElement {
    /// How much one of them takes.
    pub const fn bytes(self) -> u64 {
        match self {
            BufferElement::F32 => 4,
            BufferElement::U8 => 1,
        }
    }
}

/// Whose memory a buffer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferPlace {
    /// The executor's alone.
    Own,
    /// The executor's, which the planner reads in turns.
    Lent,
    /// What the planner has handed over or will be handed: counted for the whole job, and allocated
    /// where that happens.
    HandedOver,
}

/// Buffers of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// Its name, of which a job has one.
    pub name: &'static str,
    /// Dimensions of one copy, outermost first.
    pub shape: Vec<usize>,
    /// What its elements are.
    pub element: BufferElement,
    /// How many there are; 0 where this job has no use for it.
    pub copies: usize,
    /// Whose memory it is in.
    pub place: BufferPlace,
}

impl BufferSpec {
    /// One buffer of activations.
    pub fn floats(name: &'static str, shape: &[usize]) -> BufferSpec {
        let (element, place) = (BufferElement::F32, BufferPlace::Own);
        BufferSpec { name, shape: shape.to_vec(), element, copies: 1, place }
    }

    /// One buffer of pixels.
    pub fn pixels(name: &'static str, shape: &[usize], place: BufferPlace) -> BufferSpec {
        let element = BufferElement::U8;
        BufferSpec { name, shape: shape.to_vec(), element, copies: 1, place }
    }

    /// What the job's sampler keeps beside the latents, of their shape; none for the usual one.
    ///
    /// # Errors
    /// A sampler that makes no sense for the family.
    pub fn of_sampler(job: &JobShape, latents: &[usize]) -> Result<[BufferSpec; 2], ModelError> {
        let kept = kept(job).map_err(|error| ModelError::Job(error.to_string()))?;
        Ok([
            BufferSpec::floats(HISTORY, latents).copies(kept.history),
            BufferSpec::floats(FRESH_NOISE, latents).copies(kept.noise),
        ])
    }

    /// As many of them, which may be none.
    pub fn copies(self, copies: usize) -> BufferSpec {
        BufferSpec { copies, ..self }
    }

    /// Elements of one copy.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// All copies together.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.elements() * self.copies) as u64 * self.element.bytes())
    }
}

/// All buffers of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BufferPlan(pub Vec<BufferSpec>);

impl BufferPlan {
    /// All buffers together.
    pub fn bytes(&self) -> Bytes {
        self.0.iter().map(BufferSpec::bytes).sum()
    }
}
