//! Hashes of the files that a picture depends on.
//!
//! Small ones (pictures, latents, LoRA) are hashed whole. A model has tens of gigabytes: reading
//! them all would take longer than the picture. Its fingerprint is over the files' sizes, what is
//! at their beginning (the header, which says names, shapes and types of all tensors), and pages
//! spread over the rest. It tells another checkpoint, quantisation or fine-tuning; a change of a
//! few single bytes it may miss.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use protocol::{ModelDescription, ModelSource, PartFlag};
use rustix::fs::{Advice, fadvise};
use sha2::{Digest, Sha256};

/// Bytes at a weight file's beginning that count. The header of a large DiT has 170 kB.
const HEAD_BYTES: u64 = 1 << 20;

/// Pages behind them that count: the first, the last, and others at equal distances.
const PAGES: u64 = 64;

/// Bytes of such a page.
const PAGE_BYTES: u64 = 4 << 10;

/// Largest configuration or tokenizer that counts. A `tokenizer.json` of 32 000 tokens with their
/// scores has 2.4 MB.
const CONFIGURATION_BYTES_MAX: u64 = 16 << 20;

/// Most configurations of a directory that count. A diffusers directory has some fifteen.
const CONFIGURATIONS_MAX: usize = 64;

/// Ends of the names of configurations and tokenizers.
const CONFIGURATIONS: [&str; 3] = ["json", "txt", "model"];

/// Hexadecimal digits of a fingerprint: 64 bits, more than chance brings together.
const DIGITS: usize = 16;

/// SHA-256 of a whole file, in hexadecimal digits.
///
/// # Errors
/// It is no regular file, or cannot be read.
pub fn sha256_of_file(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut open(path)?, &mut Hashing(&mut hasher))?;
    Ok(digits(hasher))
}

/// SHA-256 of bytes, in hexadecimal digits.
pub fn sha256_of(bytes: &[u8]) -> String {
    digits(Sha256::new_with_prefix(bytes))
}

/// The fingerprint of the files that a model is made of. Where they lie does not count.
///
/// # Errors
/// One of them cannot be read.
pub fn of_model(model: &ModelSource, description: &ModelDescription) -> io::Result<String> {
    let weights = description.components.iter().flat_map(|component| &component.files);
    let directories = [model.model.as_deref(), model.part(PartFlag::TokenizerDir)];
    let directories = directories.into_iter().flatten();
    of_files(weights.map(Path::new), directories.map(Path::new))
}

/// The files that a model's fingerprint is over, weights first.
///
/// # Errors
/// A directory cannot be read.
pub fn files_of_model(
    model: &ModelSource,
    description: &ModelDescription,
) -> io::Result<Vec<PathBuf>> {
    let weights = description.components.iter().flat_map(|component| &component.files);
    let mut files: Vec<PathBuf> = weights.map(PathBuf::from).collect();
    let directories = [model.model.as_deref(), model.part(PartFlag::TokenizerDir)];
    for directory in directories.into_iter().flatten() {
        files.extend(configurations(Path::new(directory))?);
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// The fingerprint of weight files, each counted once, and of the configurations in directories.
fn of_files<'a>(
    weights: impl Iterator<Item = &'a Path>,
    directories: impl Iterator<Item = &'a Path>,
) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut seen = BTreeSet::new();
    for file in weights {
        if seen.insert(file) {
            add_weights(&mut hasher, file)?;
        }
    }
    for directory in directories {
        for file in configurations(directory)? {
            add_head(&mut hasher, &file, CONFIGURATION_BYTES_MAX)?;
        }
    }
    let mut text = digits(hasher);
    text.truncate(DIGITS);
    Ok(text)
}

/// Adds a weight file: its size, its beginning, and pages of the rest.
fn add_weights(hasher: &mut Sha256, path: &Path) -> io::Result<()> {
    let (mut file, bytes) = add_head(hasher, path, HEAD_BYTES)?;
    let Some(rest) = bytes.checked_sub(HEAD_BYTES + PAGE_BYTES) else {
        return add_rest(hasher, &mut file);
    };
    for page in 0..PAGES {
        let at = HEAD_BYTES + (u128::from(rest) * u128::from(page) / u128::from(PAGES - 1)) as u64;
        file.seek(SeekFrom::Start(at))?;
        add_rest(hasher, &mut (&file).take(PAGE_BYTES))?;
    }
    Ok(())
}

/// Adds a file's size and beginning; returns the file behind that, and its size.
fn add_head(hasher: &mut Sha256, path: &Path, bytes_max: u64) -> io::Result<(File, u64)> {
    let file = open(path)?;
    // The system reads megabytes ahead otherwise: for nothing, and into a page cache that the
    // executor may be clearing of the same file.
    fadvise(&file, 0, None, Advice::Random)?;
    let bytes = file.metadata()?.len();
    hasher.update(bytes.to_le_bytes());
    add_rest(hasher, &mut (&file).take(bytes_max))?;
    Ok((file, bytes))
}

fn add_rest(hasher: &mut Sha256, file: &mut impl Read) -> io::Result<()> {
    io::copy(file, &mut Hashing(hasher)).map(drop)
}

/// The configurations in a directory and in those directly within it, in the order of their names;
/// none of what is a file.
fn configurations(directory: &Path) -> io::Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    for entry in fs::read_dir(directory)? {
        folders.push(entry?.path());
    }
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let named = path.extension().is_some_and(|e| CONFIGURATIONS.iter().any(|c| e == *c));
            if named && path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found.truncate(CONFIGURATIONS_MAX);
    Ok(found)
}

/// A regular file: reading another kind could wait for ever.
fn open(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

fn digits(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes written to it are hashed.
struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_other_weights_and_configurations_and_no_other_place() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let weights: Vec<u8> = (0..3_u32 << 20).map(|at| (at / 251) as u8).collect();
        let of = |folder: &Path, weights: &[u8], configuration: &str| {
            fs::create_dir_all(folder.join("vae")).unwrap();
            fs::write(folder.join("w.safetensors"), weights).unwrap();
            fs::write(folder.join("vae/config.json"), configuration).unwrap();
            fs::write(folder.join("README.md"), configuration).unwrap();
            let file = folder.join("w.safetensors");
            of_files([file.as_path(); 2].into_iter(), [folder].into_iter()).unwrap()
        };
        let first = of(here.path(), &weights, "{}");
        assert_eq!(first.len(), DIGITS);
        assert_eq!(of(there.path(), &weights, "{}"), first);
        assert_ne!(of(here.path(), &weights, "[]"), first);
        for changed in [0, HEAD_BYTES as usize - 1, HEAD_BYTES as usize, weights.len() - 1] {
            let mut other = weights.clone();
            other[changed] ^= 1;
            assert_ne!(of(here.path(), &other, "{}"), first, "byte {changed}");
        }
        assert_ne!(of(here.path(), &weights[1..], "{}"), first);
        for bytes in [0, 1, HEAD_BYTES, HEAD_BYTES + 1, HEAD_BYTES + PAGE_BYTES] {
            let short = &weights[..bytes as usize];
            let one = of(here.path(), short, "{}");
            let mut other = short.to_vec();
            if let Some(last) = other.last_mut() {
                *last ^= 1;
                assert_ne!(of(here.path(), &other, "{}"), one, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn a_file_is_hashed_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "abc").unwrap();
        // NIST's example of SHA-256.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of_file(&path).unwrap(), abc);
        assert_eq!(sha256_of(b"abc"), abc);
        assert!(sha256_of_file(folder.path()).is_err());
        assert!(sha256_of_file(&folder.path().join("none")).is_err());
    }
}
