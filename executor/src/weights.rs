//! The weight files of a component: found, mapped, their headers checked, their tensors handed out.
//!
//! Opening a component reads headers only, so it costs milliseconds and hardly any memory however
//! large the files are. Whatever a file may hold ends in a [`WeightsError`], never in a panic.
//!
//! Not here: what the tensors mean and how checkpoints name them (that is `models`), and computing
//! with them (that is `backend`).

pub mod files;
pub mod mapping;

pub mod gguf;
pub mod header;
pub mod index;

pub mod lora;

pub mod blocks;
pub mod dimensions;
pub mod dtype;
pub mod error;
mod excerpt;
pub(crate) mod float;
pub mod view;

pub use dtype::{Dtype, GgmlType};
pub use error::WeightsError;
pub use files::{GgufKeys, Names, RUNS_MAX, TensorInfo, TensorRef, WeightFiles};
pub use mapping::MappedFile;
pub use view::WeightView;

#[cfg(test)]
pub(crate) mod support;
