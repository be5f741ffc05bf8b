//! Text encoders: from token ids to hidden states.

pub mod clip;
pub mod decoder;
pub mod t5;
