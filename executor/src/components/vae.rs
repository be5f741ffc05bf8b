//! VAEs: between pictures and latents.

pub mod kl;
pub mod published;
pub mod tiles;
