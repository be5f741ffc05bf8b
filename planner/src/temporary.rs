//! Files and folders on their way: named after their process, and locked while it lives.
//!
//! A lock ends with its process, however that ends. So one that can be taken belongs to nobody, and
//! [`sweep`] removes it: the numbers of processes, which come again and mean others in containers,
//! decide nothing. Where a file system has no locks, nothing is removed.
//!
//! Invariant: what [`file_in`] and [`folder_in`] return is locked and still there.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::{Builder, NamedTempFile, TempDir};

/// What all their names begin with; the number of the process follows.
const PREFIX: &str = ".berth-";

/// How the names of files and folders end.
const FILE_ENDING: &str = ".part";
const FOLDER_ENDING: &str = ".new";

/// Permissions of what only its maker may read.
pub const PRIVATE_MODE: u32 = 0o600;

/// How often a name is tried: a sweep may see a file before it is locked, and take it for left
/// over.
const TRIES_MAX: usize = 16;

/// The most entries of a folder that a sweep looks at: some tenths of a second.
const ENTRIES_MAX: usize = 100_000;

/// A folder that goes away with this, and its lock.
pub struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A new file in a folder, with these permissions less what the user's mask takes off.
pub fn file_in(folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
    for _ in 0..TRIES_MAX {
        let mut builder = Builder::new();
        let file = builder.permissions(Permissions::from_mode(mode)).suffix(FILE_ENDING);
        let file = file.prefix(&prefix()).tempfile_in(folder)?;
        if is_held(file.as_file(), file.path())? {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Writes a file whole or not at all, and to the disk: beside its place first, then under its name,
/// where it takes the place of what is there. It has exactly this mode but for the user's mask.
///
/// # Errors
/// It cannot be written; nothing is at its place then but what was there.
pub fn write(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = file_in(folder, mode)?;
    file.as_file_mut().write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // That the name lasts is the file system's business where it cannot be asked for.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// A new folder in a folder.
pub fn folder_in(folder: &Path) -> io::Result<TemporaryFolder> {
    for _ in 0..TRIES_MAX {
        let folder = Builder::new().prefix(&prefix()).suffix(FOLDER_ENDING).tempdir_in(folder)?;
        let lock = match File::open(folder.path()) {
            // A sweep was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        if is_held(&lock, folder.path())? {
            return Ok(TemporaryFolder { folder, _lock: lock });
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Removes what processes that have ended left in a folder. What cannot be removed stays.
pub fn sweep(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    for path in entries.filter(|entry| is_name(&entry.file_name())).map(|entry| entry.path()) {
        if let Err(error) = remove_unless_held(&path) {
            tracing::debug!(path = %path.display(), %error, "not removed");
        }
    }
}

fn prefix() -> String {
    format!("{PREFIX}{}-", std::process::id())
}

/// Whether a name is one that is made here.
fn is_name(name: &std::ffi::OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let Some((number, rest)) = rest.and_then(|rest| rest.split_once('-')) else { return false };
    number.parse::<u32>().is_ok() && [FILE_ENDING, FOLDER_ENDING].iter().any(|e| rest.ends_with(e))
}

/// Locks what was made at a path: false where a sweep was faster.
fn is_held(file: &File, path: &Path) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        // Without locks nobody can take it for left over.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOLCK) => return Ok(true),
        locked => locked?,
    }
    is_at(file, path)
}

/// Whether a path still names this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let of = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        there => Ok(of(there?) == of(file.metadata()?)),
    }
}

fn remove_unless_held(path: &Path) -> io::Result<()> {
    // Neither follows a link nor waits for the writer of a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Ok(());
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
        locked => locked?,
    }
    match is_at(&file, path)? {
        false => Ok(()),
        true if metadata.is_dir() => fs::remove_dir_all(path),
        true => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> = entries.map(|e| name(e).into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_held_stays_and_what_is_left_over_goes() {
        let place = tempfile::tempdir().unwrap();
        let held = (file_in(place.path(), 0o600).unwrap(), folder_in(place.path()).unwrap());
        // As if its process had ended: without a lock, and of a number that is in use.
        fs::write(place.path().join(".berth-1-abcdef.part"), "half").unwrap();
        fs::create_dir_all(place.path().join(".berth-1-abcdef.new/model")).unwrap();
        let others = [".berth-1.part", ".berth-x-y.part", "1-a.part", ".berth-1-a.png"];
        for name in others {
            fs::write(place.path().join(name), "of another kind").unwrap();
        }
        let away = place.path().join("away");
        fs::write(&away, "behind a link").unwrap();
        std::os::unix::fs::symlink(&away, place.path().join(".berth-1-link.part")).unwrap();
        sweep(place.path());
        let left = names(place.path());
        assert_eq!(left.len(), others.len() + 4, "{left:?}");
        assert!(!left.iter().any(|name| name.contains("abcdef")), "{left:?}");
        drop(held);
        sweep(place.path());
        assert_eq!(names(place.path()).len(), others.len() + 2);
    }

    #[test]
    fn what_is_made_while_others_sweep_is_there() {
        let place = tempfile::tempdir().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sweeps = || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep(place.path());
                }
            };
            let sweepers = [scope.spawn(sweeps), scope.spawn(sweeps)];
            let made = (0..2000).map(|_| {
                let (folder, file) = (folder_in(place.path())?, file_in(place.path(), 0o600)?);
                Ok(folder.path().is_dir() && file.path().is_file())
            });
            let made: io::Result<Vec<bool>> = made.collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            sweepers.into_iter().for_each(|sweeper| sweeper.join().unwrap());
            assert!(made.unwrap().into_iter().all(|there| there));
        });
    }

    #[test]
    fn a_lock_ends_with_its_process() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".berth-1-abcdef.part");
        let lock = File::create(&path).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        sweep(place.path());
        assert!(path.exists());
        drop(lock);
        sweep(place.path());
        assert!(!path.exists());
    }
}
