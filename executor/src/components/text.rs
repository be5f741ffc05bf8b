//! Text encoders: from token ids to hidden states.

pub mod clip;
pub mod decoder;
pub mod qwen_vl;
pub mod t5;
