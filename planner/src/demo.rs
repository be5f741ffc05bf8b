//! The built-in demo model: tiny and trained, embedded in the program and mapped from the
//! cache.
//!
//! Written once, under a name made of its hash: a directory with that name is whole, because it is
//! renamed into place, and right, because a process hashes its content before it first uses it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use etcetera::BaseStrategy;
use protocol::{Bytes, ModelSource};
use sha2::{Digest, Sha256};

use crate::read;
use crate::temporary;

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../demo/model/", $path)).as_slice())),*]
    };
}

/// The files of the model directory, by path within it.
static FILES: [(&str, &[u8]); 15] = embedded![
    "berth.toml",
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "text_encoder_2/config.json",
    "text_encoder_2/model.safetensors",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer_2/tokenizer.json",
    "tokenizer_2/tokenizer_config.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
];

/// What people are told that it is.
pub const NAME: &str = "the built-in demo model";

/// What a daemon calls it.
pub const SERVED_NAME: &str = "demo";

/// Its directory's name begins so, and ends with a part of its hash.
const PREFIX: &str = "demo-";

/// Why the demo model is not there.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// There is no cache directory to write to.
    #[error("no cache directory for the demo model: {0}; hint: set XDG_CACHE_HOME or HOME")]
    NoCache(etcetera::HomeDirError),
    /// The cache could not be written.
    #[error("cannot write the demo model to {}: {cause}; hint: set XDG_CACHE_HOME, or name a model", path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
}

/// The demo model's directory, written first if it is not there or not right.
pub fn directory() -> Result<PathBuf, DemoError> {
    let directories = etcetera::choose_base_strategy().map_err(DemoError::NoCache)?;
    directory_in(&directories.cache_dir().join("berth"))
}

/// What people read where a model is named: that it is the built-in one, or its path.
pub fn shown_name(model: &ModelSource) -> String {
    if is_it(model) { NAME.to_owned() } else { model.to_string() }
}

/// Whether a model is the built-in one.
pub fn is_it(model: &ModelSource) -> bool {
    let directories = etcetera::choose_base_strategy();
    directories.is_ok_and(|directories| is_in(model, &directories.cache_dir()))
}

/// Whether a model is the demo model in a cache, with nothing of it from elsewhere.
fn is_in(model: &ModelSource, cache: &Path) -> bool {
    let Some(path) = model.model.as_deref().map(Path::new) else { return false };
    let named = path.file_name().and_then(|name| name.to_str());
    let is_there = path.parent() == Some(&cache.join("berth"));
    is_there && model.parts.is_empty() && named.is_some_and(|name| name.starts_with(PREFIX))
}

/// The hash of the embedded files.
static EMBEDDED: LazyLock<String> =
    LazyLock::new(|| hash(|(_, bytes)| Some(bytes.to_vec())).expect("embedded files can be read"));

/// The directories that were found right, with their files as they were then: a daemon asks for
/// every job.
static RIGHT: Mutex<BTreeMap<PathBuf, Vec<FileStamp>>> = Mutex::new(BTreeMap::new());

/// A file's length and when it was written.
type FileStamp = (u64, SystemTime);

fn directory_in(cache: &Path) -> Result<PathBuf, DemoError> {
    let path = cache.join(format!("{PREFIX}{}", &EMBEDDED[..16]));
    let stamps = stamps(&path);
    let right = || RIGHT.lock().unwrap_or_else(PoisonError::into_inner);
    if stamps.is_some() && right().get(&path) == stamps.as_ref() {
        return Ok(path);
    }
    temporary::sweep(cache);
    make_right(cache, &path)?;
    if let Some(stamps) = stamps {
        right().insert(path.clone(), stamps);
    }
    Ok(path)
}

/// How all files of a directory are; `None` where one is missing.
fn stamps(directory: &Path) -> Option<Vec<FileStamp>> {
    let stamp = |(name, _): &(&str, &[u8])| {
        let metadata = fs::metadata(directory.join(name)).ok()?;
        Some((metadata.len(), metadata.modified().ok()?))
    };
    FILES.iter().map(stamp).collect()
}

/// Writes the directory where it is not there or not right.
fn make_right(cache: &Path, path: &Path) -> Result<(), DemoError> {
    let there = |(name, embedded): (&str, &[u8])| {
        read::bytes(&path.join(name), Bytes(embedded.len() as u64)).ok()
    };
    let is_right = || hash(there).as_ref() == Some(&*EMBEDDED);
    if !is_right() {
        let written = write(cache, path);
        // Another process may have been faster.
        if let Err(cause) = written
            && !is_right()
        {
            return Err(DemoError::Write { path: path.to_owned(), cause });
        }
    }
    Ok(())
}

/// Hash of all names and contents; `None` where a file cannot be read.
fn hash(read: impl Fn((&str, &[u8])) -> Option<Vec<u8>>) -> Option<String> {
    let mut hasher = Sha256::new();
    for (name, embedded) in FILES {
        let bytes = read((name, embedded))?;
        hasher.update(name.as_bytes());
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(&bytes);
    }
    Some(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes all files beside the final place, then renames the directory there.
fn write(cache: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(cache)?;
    let new = temporary::folder_in(cache)?;
    let model = new.path().join("model");
    for (name, bytes) in FILES {
        let file = model.join(name);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(file, bytes)?;
    }
    if path.exists() {
        // Damaged: moved into the temporary directory, which goes away with it.
        fs::rename(path, new.path().join("damaged"))?;
    }
    fs::rename(model, path)
}

#[cfg(test)]
mod tests {
    use protocol::PartFlag;

    use super::*;

    #[test]
    fn it_is_written_once_and_mended_when_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let path = directory_in(cache.path()).unwrap();
        let index = path.join("model_index.json");
        let written = fs::metadata(&index).unwrap().modified().unwrap();
        assert_eq!(directory_in(cache.path()).unwrap(), path);
        assert_eq!(fs::metadata(&index).unwrap().modified().unwrap(), written);

        fs::write(&index, "{}").unwrap();
        assert_eq!(directory_in(cache.path()).unwrap(), path);
        assert!(fs::read_to_string(&index).unwrap().contains("FluxPipeline"));
        // Nothing but the model is left behind.
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn it_is_called_what_it_is() {
        let cache = Path::new("/someones/cache");
        let demo = ModelSource::of("/someones/cache/berth/demo-0123456789abcdef".to_owned());
        assert!(is_in(&demo, cache));
        assert!(!is_in(&demo, Path::new("/other")));
        let mixed = demo.with(PartFlag::Vae, "/vae.safetensors");
        assert!(!is_in(&mixed, cache), "a part of it is another model's");
        assert!(!is_in(&ModelSource::of("/models/demo-1".to_owned()), cache));
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = directory_in(file.path()).unwrap_err().to_string();
        assert!(error.contains("cannot write the demo model"), "{error}");
    }
}
