//! The rules: each a function from noise levels to the calls of a run.

pub mod discrete;
pub mod exponential;
pub mod polynomial;
pub mod straight;
pub mod unipc;
