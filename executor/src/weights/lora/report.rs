//! What became of the tensors of LoRA files.

use std::path::PathBuf;

use super::Kind;

/// What became of all files, in the order in which they were named.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoraReport {
    /// One entry a file.
    pub files: Vec<LoraFileReport>,
}

/// What became of one file's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFileReport {
    /// The file.
    pub path: PathBuf,
    /// How strongly it is applied.
    pub weight: f32,
    /// Modules of the file that adapt layers of each component, by the component's name; at least
    /// one.
    pub matched: Vec<(&'static str, usize)>,
    /// Keys that are not applied, sorted.
    pub unmatched: Vec<UnmatchedKey>,
}

/// A tensor that is not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedKey {
    /// Its name in the file.
    pub key: String,
    /// What it is part of, if that is a known kind that cannot be applied. `None` if no layer of
    /// the model has the name, or if the key has no known form.
    pub kind: Option<Kind>,
}
