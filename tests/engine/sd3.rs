//! Stable Diffusion 3 and 3.5 against diffusers, by the real program: every tensor of every golden
//! case, wherever it is computed and from whichever files.
//!
//! Golden tensors were computed by diffusers in f32 (`golden/sd3_medium.json`, `sd35_medium.json`).
//! Runs start from the prompt, and each stage is held to the tolerance of that stage alone.

mod files;
mod golden;
mod lora;
mod parity;
mod places;
mod plans;
mod refused;
mod stages;
mod wide;
mod without_t5;
