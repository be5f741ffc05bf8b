//! A file on its way: complete, but not under its name yet.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::fchown;
use rustix::process::{Gid, Uid};
use tempfile::NamedTempFile;

use super::asked::{AskedOutput, unwritable};
use super::names::{NUMBER_MAX, PictureName, free_number};
use super::{OutputError, folder_of};
use crate::temporary;

/// All bits of permissions, and those without the ones that run a program as its owner.
const MODE_BITS: u32 = 0o7777;
const PLAIN_MODE_BITS: u32 = 0o777;

/// The permissions of a new file, less what the user's mask takes off, as for any that a program
/// makes.
pub const FILE_MODE: u32 = 0o666;

/// What becomes of a file that is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Existing {
    /// The new one takes its name.
    Replaced,
    /// It is an error.
    Refused,
    /// The next number is taken: the name, and the number that was free.
    CountedPast(PictureName, u32),
}

/// A file beside its place.
pub struct Pending<'a> {
    asked: &'a AskedOutput,
    path: &'a Path,
    existing: &'a Existing,
    file: NamedTempFile,
}

impl<'a> Pending<'a> {
    /// Writes a content beside `path`, to the disk.
    pub fn write(
        asked: &'a AskedOutput,
        path: &'a Path,
        existing: &'a Existing,
        content: &[u8],
    ) -> Result<Pending<'a>, OutputError> {
        let fail = |cause| asked.unwritable(cause);
        let replaced = there(asked, path)?.filter(|_| *existing == Existing::Replaced);
        // Nobody may read it before it has the permissions of the one that it replaces.
        let mode = if replaced.is_some() { temporary::PRIVATE_MODE } else { FILE_MODE };
        // Of the error only its kind: its text names the temporary file.
        let made = temporary::file_in(&folder_of(path), mode).map_err(|e| e.kind().into());
        let mut file = made.map_err(fail)?;
        file.as_file_mut().write_all(content).map_err(fail)?;
        if let Some(replaced) = replaced {
            keep_permissions(file.as_file(), &replaced).map_err(fail)?;
        }
        file.as_file().sync_all().map_err(fail)?;
        Ok(Pending { asked, path, existing, file })
    }

    /// Gives the file its name; returns what it is called.
    pub fn finish(self) -> Result<String, OutputError> {
        let Pending { asked, path, existing, file } = self;
        let fail = |cause| asked.unwritable(cause);
        // What came to the place meanwhile may be anything.
        there(asked, path)?;
        let shown = match existing {
            Existing::Replaced => {
                file.persist(path).map_err(|error| fail(error.error))?;
                asked.shown()
            }
            Existing::Refused => match file.persist_noclobber(path) {
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(OutputError::Exists { path: asked.shown() });
                }
                named => named.map(|_| asked.shown()).map_err(|e| fail(e.error))?,
            },
            Existing::CountedPast(name, first) => {
                let mut file = file;
                let mut number = *first;
                loop {
                    let path = name.path(number);
                    match file.persist_noclobber(&path) {
                        Ok(_) => break path.display().to_string(),
                        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                            file = error.file;
                        }
                        Err(error) => return Err(fail(error.error)),
                    }
                    number = free_number(name, number + 1, is_free).ok_or_else(|| {
                        OutputError::AllNumbers {
                            path: name.path(NUMBER_MAX).display().to_string(),
                        }
                    })?;
                }
            }
        };
        // That the name lasts is the file system's business where it cannot be asked for.
        let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
        Ok(shown)
    }
}

/// Whether nothing is at a path, not even a link.
pub fn is_free(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The regular file at a path, if there is one.
fn there(asked: &AskedOutput, path: &Path) -> Result<Option<Metadata>, OutputError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(asked.unwritable(error)),
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(metadata) => Err(asked.refused(unwritable(metadata.file_type()))),
    }
}

/// Gives a file the owner, group and mode of the one that it replaces, as far as this process may.
fn keep_permissions(file: &File, replaced: &Metadata) -> io::Result<()> {
    let made = file.metadata()?;
    let is_kept = |made: &Metadata| made.uid() == replaced.uid() && made.gid() == replaced.gid();
    if !is_kept(&made) {
        let (owner, group) = (Uid::from_raw(replaced.uid()), Gid::from_raw(replaced.gid()));
        // Only root gives files away; a group of one's own anybody may set.
        if fchown(file, Some(owner), Some(group)).is_err() {
            let _ = fchown(file, None, Some(group));
        }
    }
    let bits = if is_kept(&file.metadata()?) { MODE_BITS } else { PLAIN_MODE_BITS };
    // File systems without permissions refuse; there the file has those that all have.
    let _ = file.set_permissions(Permissions::from_mode(replaced.mode() & bits));
    Ok(())
}
