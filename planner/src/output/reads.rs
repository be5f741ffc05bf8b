//! What a job reads: its files, which no output may destroy.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::destination::Identity;

/// The most entries of a model's folder that are looked at, and how deep: some twenty times the
/// largest published.
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 4;

/// How files end that are read of a model's folder; also others may lie there.
const MODEL_FILE_ENDINGS: [&str; 5] = ["safetensors", "gguf", "json", "txt", "model"];

/// A model's own defaults.
const MODEL_DEFAULTS: &str = "berth.toml";

/// Files and folders that a job reads.
#[derive(Debug, Default)]
pub struct ReadFiles(Vec<(String, PathBuf)>);

impl ReadFiles {
    /// With one more: `what` it is to the job, and where it is. A folder stands for the model files
    /// in it.
    pub fn add(&mut self, what: &str, path: impl Into<PathBuf>) {
        self.0.push((what.to_owned(), path.into()));
    }

    /// What a place is to the job, if the job reads it.
    pub(super) fn holds(&self, place: &Identity) -> Option<String> {
        let Identity::There(device, inode) = *place else { return None };
        let is_it = |metadata: &Metadata| metadata.dev() == device && metadata.ino() == inode;
        let mut reads = self.0.iter();
        reads.find_map(|(what, path)| {
            let metadata = fs::metadata(path).ok()?;
            let mut left = ENTRIES_MAX;
            let holds = match metadata.is_dir() {
                true => folder_holds(path, &is_it, DEPTH_MAX, &mut left),
                false => is_it(&metadata),
            };
            holds.then(|| what.clone())
        })
    }
}

/// Whether a folder holds a model file that `is_it`, behind links too.
fn folder_holds(
    folder: &Path,
    is_it: &impl Fn(&Metadata) -> bool,
    depth: usize,
    left: &mut usize,
) -> bool {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        let path = entry.path();
        let holds = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                depth > 0 && folder_holds(&path, is_it, depth - 1, left)
            }
            Ok(metadata) => is_model_file(&path) && is_it(&metadata),
            Err(_) => false,
        };
        if holds {
            return true;
        }
    }
    false
}

fn is_model_file(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    path.file_name().is_some_and(|name| name == MODEL_DEFAULTS)
        || ending.is_some_and(|ending| MODEL_FILE_ENDINGS.contains(&ending.as_str()))
}
