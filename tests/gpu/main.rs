//! The CUDA backend, on simulated GPUs (`tests/simulator`). `cargo test --test gpu ops::` runs the
//! tests of one file; docs/cuda.md says which of them run on real GPUs too.

#[path = "../support/lib.rs"]
mod support;

mod check;
mod faults;
mod finite;
mod jobs;
mod ops;
mod parts;
mod plans;
mod self_test;
mod simulated;
