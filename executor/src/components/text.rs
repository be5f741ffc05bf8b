//! Text encoders: from token ids to hidden states.

pub mod clip;
pub mod t5;
