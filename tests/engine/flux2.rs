//! FLUX.2 klein against diffusers, by the real program: every tensor of every golden case, wherever
//! it is computed and from whichever files.
//!
//! Golden tensors were computed by diffusers in f32 (`golden/flux2_klein.json`). Runs start from
//! the prompt, and each stage is held to the tolerance of that stage alone.

mod files;
mod golden;
mod guidance;
mod lora;
mod parity;
mod places;
mod plans;
mod refused;
mod vae;
mod wide;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Home, damaged, fixture};

/// The reference model under `tests/fixtures`.
const MODEL: &str = "flux2_klein";

/// A path under `tests/fixtures`.
fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

/// A copy of it in a home, in place of one that is there.
fn copy(home: &Home) -> PathBuf {
    let to = home.path("model");
    if to.exists() {
        fs::remove_dir_all(&to).expect("the copy can be removed");
    }
    damaged::copy(&fixture(MODEL), &to);
    to
}

/// Replaces text in a file of a copy.
fn change(model: &Path, file: &str, from: &str, to: &str) {
    let path = model.join(file);
    let text = fs::read_to_string(&path).expect("a text");
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(path, text.replace(from, to)).expect("the copy can be written");
}

/// A copy of it that is not distilled: guidance counts.
fn base(home: &Home) -> PathBuf {
    let model = copy(home);
    change(&model, "model_index.json", "\"is_distilled\": true", "\"is_distilled\": false");
    model
}
