//! Names that command lines may have for what plans and profiles call otherwise: by what a
//! component does in any family, and as another program has them.
//!
//! The only place of the planner that names the parts of families.

/// Names for all text encoders together, where no component has the name itself.
pub const CONDITIONERS: [&str; 5] = ["cond", "te", "clip", "t5", "llm"];

/// Names for what runs in each step.
pub const DENOISERS: [&str; 4] = ["dit", "diffusion", "unet", "model"];

/// The name that decoder and encoder of the VAE begin with.
pub const VAE: &str = "vae";

/// The flag of stable-diffusion.cpp that has all text encoders computed by the CPU.
pub const CONDITIONERS_ON_CPU: &str = "clip-on-cpu";
