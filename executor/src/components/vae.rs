//! VAEs: between pictures and latents.

pub mod causal;
pub mod flux1;
pub mod flux2;
pub mod job;
pub mod kl;
pub mod published;
pub mod sd3;
pub mod tiles;
