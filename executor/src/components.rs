//! Components that several families share: text encoders and VAEs, each with its configuration, its
//! graphs, the names that its files have, and its tokenizer.
//!
//! Below the runtime, as models are: nothing here knows a device, or what a family does with a
//! component.

pub mod text;
pub mod vae;

pub mod flow_match;
pub mod modulation;
pub mod tokenizers;
