//! What the engine promises, on host and virtual devices: the pictures of diffusers, plans that are
//! exact and stay what they are, one picture from every placement. `cargo test --test engine
//! parity::` runs the tests of one file.

#[path = "../support/lib.rs"]
mod support;

mod conditioned;
mod dealt_items;
mod faults;
mod flux2;
mod formats;
mod golden_plans;
mod item_splits;
mod items;
mod lora;
mod parity;
mod pipelines;
mod placements;
mod qwen_image;
mod random_plans;
mod real_sizes;
mod samplers;
mod sd3;
mod single_files;
mod streaming;
mod tensor_splits;
mod tiles;
mod usage;
mod warm;
mod wide_model;
mod z_image;
