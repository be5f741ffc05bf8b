//! Reading small files that others gave: regular ones only, and never past a limit.
//!
//! A pipe would be waited for, a device may have no end, and a file may grow while it is read. So a
//! file is looked at once it is open, and the limit holds for what is read, whatever length the
//! system tells. Links to regular files are followed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use protocol::Bytes;
use rustix::fs::{Mode, OFlags};

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be opened or read.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is a directory, a pipe, a socket or a device.
    #[error("it is not a regular file")]
    NotRegular,
    /// It is not UTF-8.
    #[error("it is not text in UTF-8")]
    NotText,
    /// It is larger than such a file may be.
    #[error("it is larger than {limit}")]
    TooLarge {
        /// Its size, or what was read of it before reading ended.
        got: Bytes,
        /// The most that is read.
        limit: Bytes,
    },
}

impl ReadError {
    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::System(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Opens a regular file for reading; the answer has its length in bytes.
pub fn open(path: &Path) -> Result<(File, u64), ReadError> {
    // Without NONBLOCK, opening a pipe would wait for its writer. Regular files do not heed it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
    let file = File::from(file);
    let status = file.metadata()?;
    if status.is_file() { Ok((file, status.len())) } else { Err(ReadError::NotRegular) }
}

/// The bytes of a regular file of at most `limit`.
pub fn bytes(path: &Path, limit: Bytes) -> Result<Vec<u8>, ReadError> {
    let (file, length) = open(path)?;
    if length > limit.0 {
        return Err(ReadError::TooLarge { got: Bytes(length), limit });
    }
    let mut bytes = Vec::new();
    file.take(limit.0 + 1).read_to_end(&mut bytes)?;
    let got = Bytes(bytes.len() as u64);
    if got > limit { Err(ReadError::TooLarge { got, limit }) } else { Ok(bytes) }
}

/// The text of a regular file of at most `limit`.
pub fn text(path: &Path, limit: Bytes) -> Result<String, ReadError> {
    String::from_utf8(bytes(path, limit)?).map_err(|_| ReadError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Bytes = Bytes(4);

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("small"), "four").expect("a file");
        std::fs::write(path("large"), "five!").expect("a file");
        std::fs::write(path("binary"), [0xff]).expect("a file");
        std::os::unix::fs::symlink(path("small"), path("link")).expect("a link");
        std::os::unix::fs::symlink("/dev/zero", path("endless")).expect("a link");
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), Mode::RUSR).expect("a pipe");
        assert_eq!(text(&path("small"), LIMIT).expect("it is small"), "four");
        assert_eq!(text(&path("link"), LIMIT).expect("it leads to a file"), "four");
        let error = |name: &str| text(&path(name), LIMIT).expect_err(name);
        assert!(matches!(error("large"), ReadError::TooLarge { got: Bytes(5), limit: LIMIT }));
        for name in ["endless", "pipe", "."] {
            assert!(matches!(error(name), ReadError::NotRegular), "{name}: {}", error(name));
        }
        assert!(error("none").is_missing() && !error("binary").is_missing());
    }

    #[test]
    fn a_file_whose_length_is_not_told_is_read_up_to_the_limit() {
        // The system says 0 bytes of it.
        let path = Path::new("/proc/self/maps");
        assert_eq!(path.metadata().expect("it is there").len(), 0);
        let error = bytes(path, LIMIT).expect_err("it is longer");
        assert!(matches!(error, ReadError::TooLarge { got: Bytes(5), .. }), "{error}");
    }
}
