//! Qwen-Image against diffusers, by the real program: every tensor of every golden case, wherever
//! it is computed and from whichever files; and stage by stage.
//!
//! Golden tensors were computed by diffusers in f32 (`golden/qwen_image.json`). Runs start from the
//! prompt, and each stage is held to the tolerance of that stage alone.

mod files;
mod golden;
mod lora;
mod parity;
mod places;
mod plans;
mod refused;
mod stages;
