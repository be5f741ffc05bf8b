//! Files that a user asks for: written whole, or not at all.
//!
//! Every file goes to a temporary one in its own directory first. Renaming comes last, when all of them are
//! complete, so that a job that dies leaves nothing behind.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use png::{BitDepth, ColorType, Encoder};
use protocol::message::Image;
use tempfile::NamedTempFile;

/// The keyword under which other programs look for a picture's settings (AUTOMATIC1111's web UI and those
/// that read its files).
const SETTINGS_KEYWORD: &str = "parameters";

/// Why an output was not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The place cannot be written to.
    #[error("cannot write {}: {cause}; hint: --output names a file in a directory that can be written", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The picture could not be encoded.
    #[error("cannot encode {}: {cause}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: png::EncodingError,
    },
}

/// A file on its way: complete, but not under its name yet.
pub struct Pending {
    file: NamedTempFile,
    path: PathBuf,
}

impl Pending {
    /// A file with this content.
    pub fn write(path: &Path, content: &[u8]) -> Result<Pending, OutputError> {
        let fail = |cause| OutputError::Unwritable { path: path.to_owned(), cause };
        let mut file = create(path)?;
        file.write_all(content).map_err(fail)?;
        Ok(Pending { file, path: path.to_owned() })
    }

    /// A picture with its settings.
    pub fn picture(path: &Path, image: &Image, settings: &str) -> Result<Pending, OutputError> {
        let fail = |cause| OutputError::Encode { path: path.to_owned(), cause };
        let mut file = create(path)?;
        let mut encoder = Encoder::new(io::BufWriter::new(&mut file), image.width, image.height);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        // Text beyond Latin-1 does not fit in a tEXt chunk; iTXt holds any.
        let added = if settings.chars().all(|c| c == '\n' || (' '..='~').contains(&c)) {
            encoder.add_text_chunk(SETTINGS_KEYWORD.to_owned(), settings.to_owned())
        } else {
            encoder.add_itxt_chunk(SETTINGS_KEYWORD.to_owned(), settings.to_owned())
        };
        added.map_err(fail)?;
        let mut writer = encoder.write_header().map_err(fail)?;
        writer.write_image_data(&image.pixels).map_err(fail)?;
        writer.finish().map_err(fail)?;
        Ok(Pending { file, path: path.to_owned() })
    }

    /// Gives the file its name, in place of what had it.
    pub fn finish(self) -> Result<PathBuf, OutputError> {
        match self.file.persist(&self.path) {
            Ok(_) => Ok(self.path),
            Err(error) => Err(OutputError::Unwritable { path: self.path, cause: error.error }),
        }
    }
}

/// An error now if the file could not be written later.
pub fn check(path: &Path) -> Result<(), OutputError> {
    if path.is_dir() {
        let cause = io::Error::from(io::ErrorKind::IsADirectory);
        return Err(OutputError::Unwritable { path: path.to_owned(), cause });
    }
    create(path).map(drop)
}

/// The files of a batch: the name itself for one picture, else with `-1`, `-2` … before the extension.
pub fn batch_paths(path: &Path, batch: u32) -> Vec<PathBuf> {
    if batch == 1 {
        return vec![path.to_owned()];
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension =
        path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    (1..=batch).map(|number| path.with_file_name(format!("{stem}-{number}{extension}"))).collect()
}

fn create(path: &Path) -> Result<NamedTempFile, OutputError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // As for any file that a program makes: the user's mask takes off what it must.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
        .prefix(".berth-")
        .suffix(".part")
        .tempfile_in(directory)
        // Of the error only its kind: its text names the temporary file.
        .map_err(|error| OutputError::Unwritable {
            path: path.to_owned(),
            cause: error.kind().into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_numbered_before_the_extension() {
        let names = |path, batch| -> Vec<String> {
            batch_paths(Path::new(path), batch).iter().map(|p| p.display().to_string()).collect()
        };
        assert_eq!(names("a/b.png", 1), ["a/b.png"]);
        assert_eq!(names("a/b.png", 2), ["a/b-1.png", "a/b-2.png"]);
        assert_eq!(names("b", 2), ["b-1", "b-2"]);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.toml");
        drop(Pending::write(&path, b"half").unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        Pending::write(&path, b"whole").unwrap().finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert!(check(&directory.path().join("missing/x.png")).is_err());
        assert!(check(directory.path()).is_err());
    }
}
