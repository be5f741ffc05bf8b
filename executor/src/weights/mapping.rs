//! A file mapped into memory, read-only. Mapping reads nothing: pages come from the page cache when
//! they are first touched, and cost no anonymous memory.
//!
//! Invariant: the mapping is as long as the file was when it was opened, and at least one byte.
//!
//! Touching a page beyond the end of a file that shrank is a bus error, which no check on this side
//! can exclude. [`MappedFile::check_unchanged`] before the pages are used turns all but a race into
//! an error.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};
use protocol::Bytes;
use rustix::fs::{Mode, OFlags};

use super::WeightsError;

/// A regular file and its mapping.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl MappedFile {
    /// Opens and maps the file at `path`; links are followed.
    ///
    /// # Errors
    /// [`WeightsError::Open`], [`WeightsError::NotRegularFile`], [`WeightsError::EmptyFile`] and
    /// [`WeightsError::Map`].
    pub fn open(path: &Path) -> Result<MappedFile, WeightsError> {
        let (file, file_bytes) = open_regular(path)?;
        if file_bytes == 0 {
            return Err(WeightsError::EmptyFile { path: path.to_owned() });
        }
        let map_error =
            |cause| WeightsError::Map { path: path.to_owned(), size: Bytes(file_bytes), cause };
        let length = usize::try_from(file_bytes)
            .map_err(|_| map_error(io::Error::from(io::ErrorKind::FileTooLarge)))?;
        // SAFETY: the mapping is private to this value, read-only, and no longer than the file is
        // now. Others may write to the file meanwhile; its bytes are only ever read as plain
        // numbers, for which every bit pattern is valid, and users call `check_unchanged` before a
        // phase.
        let map = unsafe { MmapOptions::new().len(length).map(&file) }.map_err(map_error)?;
        Ok(MappedFile { path: path.to_owned(), file, map })
    }

    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Length of file and mapping.
    pub fn size(&self) -> Bytes {
        Bytes(self.map.len() as u64)
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, to read from it without touching the mapping. Its cursor starts at 0 and
    /// stays where the last reader left it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Checks that all of the mapping can still be read. A file that grew passes, as the mapped
    /// part of it is still there; so does one that was replaced by renaming, as the mapping keeps
    /// the old one.
    ///
    /// # Errors
    /// [`WeightsError::FileShrank`], or [`WeightsError::Read`] if the system does not tell the
    /// length.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        let status = self
            .file
            .metadata()
            .map_err(|cause| WeightsError::Read { path: self.path.clone(), cause })?;
        let (mapped_bytes, present_bytes) = (self.map.len() as u64, status.len());
        if present_bytes < mapped_bytes {
            let path = self.path.clone();
            return Err(WeightsError::FileShrank { path, mapped_bytes, present_bytes });
        }
        Ok(())
    }
}

/// Opens a file for reading if it is a regular one; the answer has its length in bytes.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), WeightsError> {
    let open_error = |cause| WeightsError::Open { path: path.to_owned(), cause };
    // Without NONBLOCK, opening a pipe would wait for its writer. Regular files do not heed it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map(File::from)
        .map_err(|errno| open_error(errno.into()))?;
    let status = file.metadata().map_err(open_error)?;
    if !status.is_file() {
        return Err(WeightsError::NotRegularFile { path: path.to_owned() });
    }
    Ok((file, status.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_mapped_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let content: Vec<u8> = (0..10_000u32).map(|byte| byte as u8).collect();
        fs::write(&path, &content).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(mapped.bytes(), content);
        assert_eq!(mapped.size(), Bytes(10_000));
        assert_eq!(mapped.path(), path);
    }

    #[test]
    fn what_is_no_file_of_some_bytes_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent");
        let found = MappedFile::open(&path);
        assert!(matches!(found, Err(WeightsError::Open { cause, .. })
            if cause.kind() == io::ErrorKind::NotFound));

        let found = MappedFile::open(dir.path());
        assert!(matches!(found, Err(WeightsError::NotRegularFile { path }) if path == dir.path()));

        let path = dir.path().join("empty");
        fs::write(&path, []).unwrap();
        let found = MappedFile::open(&path);
        assert!(matches!(found, Err(WeightsError::EmptyFile { path: named }) if named == path));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_without_a_writer_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::from(0o600), 0).unwrap();
        let found = MappedFile::open(&path);
        assert!(matches!(found, Err(WeightsError::NotRegularFile { .. })));
    }

    #[test]
    fn a_file_that_shrinks_is_an_error_and_one_that_grows_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        fs::write(&path, vec![1; 100_000]).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        mapped.check_unchanged().unwrap();

        let writer = File::options().write(true).open(&path).unwrap();
        writer.set_len(200_000).unwrap();
        mapped.check_unchanged().unwrap();

        writer.set_len(99_999).unwrap();
        let found = mapped.check_unchanged();
        assert!(matches!(
            found,
            Err(WeightsError::FileShrank { path: at, mapped_bytes: 100_000, present_bytes: 99_999 })
                if at == path
        ));
    }
}
