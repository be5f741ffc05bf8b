//! VAEs: between pictures and latents.

pub mod causal;
pub mod flux1;
pub mod job;
pub mod kl;
pub mod published;
pub mod tiles;
