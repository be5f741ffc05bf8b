//! Where the repository is while a test program runs: its fixtures, models and kernels.
//!
//! A program that was built elsewhere is told by `BERTH_TEST_ROOT`, as `scripts/gpu-check.sh` does
//! on a machine that builds nothing. Not here: where `berth` is (`support.rs`).

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    let beside_the_crate = || Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = std::env::var_os("BERTH_TEST_ROOT").map_or_else(beside_the_crate, PathBuf::from);
    root.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", root.display()))
}
