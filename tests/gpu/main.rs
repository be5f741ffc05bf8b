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

/// What has the host round nothing to bf16, whatever its processor could: for pictures of GPUs that
/// are compared with its own.
fn f32_host() -> Vec<(&'static str, std::ffi::OsString)> {
    vec![("BERTH_ISA", "avx2".into())]
}
