//! How large a model's files are, and when the youngest was written.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

use protocol::{Bytes, ModelSource};

/// How deep a model's directory is looked into: its components are folders within it.
const DEPTH_MAX: usize = 2;

/// The most entries of each of these folders that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// What several files come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilesSize {
    /// Bytes of all of them.
    pub bytes: Bytes,
    /// When the youngest was written, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// The files of a model, in directories and alone.
///
/// # Errors
/// One of its paths leads to nothing that can be looked at; as a clause.
pub fn of_source(source: &ModelSource) -> Result<FilesSize, String> {
    let mut size = FilesSize::default();
    let parts = source.part_paths().map(|(_, path)| path);
    for path in source.model.as_deref().into_iter().chain(parts) {
        let path = Path::new(path);
        size.add(path, DEPTH_MAX).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(size)
}

impl FilesSize {
    fn add(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let status = fs::metadata(path)?;
        if status.is_dir() {
            if depth > 0 {
                for entry in fs::read_dir(path)?.take(ENTRIES_MAX) {
                    // A link that leads nowhere is no file of the model.
                    let _ = self.add(&entry?.path(), depth - 1);
                }
            }
            return Ok(());
        }
        if !status.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let modified = status.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified_ms = u64::try_from(modified.as_millis()).unwrap_or(u64::MAX);
        self.bytes = Bytes(self.bytes.0.saturating_add(status.len()));
        self.modified_ms = self.modified_ms.max(modified_ms);
        Ok(())
    }
}
