//! What of a directory is a model or a LoRA, one level deep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::serve::config::values::read_name;

/// The most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// The file by which a directory is a model's (diffusers).
const MODEL_INDEX: &str = "model_index.json";

/// How names of files with weights end.
const MODEL_ENDINGS: [&str; 2] = ["safetensors", "gguf"];
const LORA_ENDING: &str = "safetensors";

/// Models of a directory by name: directories in diffusers format, and files of weights, in the
/// order of their paths. What is wrong is added to `problems`.
pub fn models(folder: &Path, problems: &mut Vec<String>) -> Vec<(String, PathBuf)> {
    named(folder, problems, |path| match path.is_dir() {
        true if path.join(MODEL_INDEX).is_file() => path.file_name(),
        true => None,
        false => MODEL_ENDINGS.iter().any(|e| ends_in(path, e)).then(|| path.file_stem()).flatten(),
    })
}

/// LoRA files of a directory by name, likewise.
pub fn loras(folder: &Path, problems: &mut Vec<String>) -> Vec<(String, PathBuf)> {
    named(folder, problems, |path| match ends_in(path, LORA_ENDING) && path.is_file() {
        true => path.file_stem(),
        false => None,
    })
}

/// Entries of a directory that have a name by `stem`; hidden ones have none.
fn named(
    folder: &Path,
    problems: &mut Vec<String>,
    stem: impl Fn(&Path) -> Option<&std::ffi::OsStr>,
) -> Vec<(String, PathBuf)> {
    let mut paths = match entries(folder) {
        Ok(paths) => paths,
        Err(error) => {
            problems.push(format!(
                "cannot read the directory {}: {error}; hint: create it, or leave it out",
                folder.display()
            ));
            return Vec::new();
        }
    };
    if paths.len() > ENTRIES_MAX {
        problems.push(format!(
            "{} has more than {ENTRIES_MAX} entries, and the rest is not looked at; hint: use several directories",
            folder.display()
        ));
        paths.truncate(ENTRIES_MAX);
    }
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let Some(name) = stem(&path) else { continue };
        let name = name.to_str().map(str::to_owned);
        match name.filter(|name| path.to_str().is_some() && read_name(name).is_ok()) {
            Some(name) if name.starts_with('.') => {}
            Some(name) => found.push((name, path)),
            None => problems.push(format!(
                "{} is left out: its name is not plain text on one line; hint: rename it",
                path.display().to_string().escape_debug()
            )),
        }
    }
    found
}

/// The paths in a directory, up to one more than the limit.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.take(ENTRIES_MAX + 1);
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}
