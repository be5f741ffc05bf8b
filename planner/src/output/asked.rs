//! An output as an argument asks for it: the argument, and the path that it names.

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::OutputError;

/// An output as it was asked for.
#[derive(Debug)]
pub struct AskedOutput {
    /// The argument.
    pub flag: &'static str,
    /// Its value: a path, or `-`.
    pub given: PathBuf,
}

impl AskedOutput {
    /// Its name, for people and programs.
    pub fn shown(&self) -> String {
        match self.given == Path::new("-") {
            true => "standard output".to_owned(),
            false => self.given.display().to_string(),
        }
    }

    /// It cannot be written, for this reason.
    pub fn unwritable(&self, cause: io::Error) -> OutputError {
        OutputError::Unwritable { flag: self.flag, path: self.shown(), cause }
    }

    /// It is of a kind that is not written to.
    pub fn refused(&self, what: &'static str) -> OutputError {
        OutputError::Kind { flag: self.flag, path: self.shown(), what }
    }
}

/// What a thing is that is not written to.
pub fn unwritable(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_block_device() => "a block device",
        _ => "no file",
    }
}
