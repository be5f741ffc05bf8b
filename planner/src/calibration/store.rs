//! The calibration file's place: read within limits, updated under a lock, written whole.
//!
//! The lock is a file of its own beside it, as the file itself is replaced by each update; the
//! system frees it when its holder ends, however that happens. Readers need none: what they open is
//! always whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use etcetera::BaseStrategy;
use rustix::fs::OFlags;

use super::content::Content;
use super::key::Machine;
use super::limits::FILE_BYTES_MAX;
use crate::read;
use crate::temporary;

/// The environment variable that names the directory; empty: nothing is read or kept.
pub const STATE_DIR: &str = "BERTH_STATE_DIR";

/// The file within its directory.
const FILE: &str = "calibration.toml";

/// The lock within the same directory.
const LOCK: &str = "calibration.lock";

/// How long the lock is waited for: others hold it for as long as it takes to write a small file.
const LOCK_GRACE: Duration = Duration::from_secs(1);

/// How long to wait between two tries: the system has no wait for a lock that ends by itself.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What is wrong with the file or its place.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no directory for it.
    #[error("there is no directory for the calibration; hint: set {STATE_DIR} or HOME")]
    NoPlace,
    /// The file cannot be used.
    #[error(
        "the calibration {} is ignored: {message}; hint: delete it, or measure anew by `berth calibrate`",
        path.display()
    )]
    Ignored {
        /// The file.
        path: PathBuf,
        /// Why, as a clause.
        message: String,
    },
    /// The file cannot be written.
    #[error(
        "cannot write the calibration {}: {message}; hint: {STATE_DIR} names another directory, or none if empty",
        path.display()
    )]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why not.
        message: String,
    },
    /// The figures to be written are outside of all sense.
    #[error(
        "the executor's figures are not kept: {message}; this is a fault of Berth, please report it"
    )]
    Nonsense {
        /// Which one, as a clause.
        message: String,
    },
}

/// Where Berth keeps what lasts: the directory that [`STATE_DIR`] names, else the user's under the
/// XDG state directory. `None` where there is none, or none is wanted.
pub fn state_directory() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(STATE_DIR) {
        return (!directory.is_empty()).then(|| PathBuf::from(directory));
    }
    let directories = etcetera::choose_base_strategy().ok()?;
    let state = directories.state_dir().unwrap_or_else(|| directories.data_dir());
    Some(state.join("berth"))
}

/// The file's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The user's: in the directory that [`STATE_DIR`] names, else under the XDG state directory.
    /// `None` where there is none, or none is wanted.
    pub fn of_user() -> Option<Store> {
        state_directory().map(|directory| Store::under(&directory))
    }

    /// The one in a directory.
    pub fn under(directory: &Path) -> Store {
        Store { path: directory.join(FILE) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; `None` where there is no file, or another version's.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn read(&self) -> Result<Option<Content>, StoreError> {
        let ignored = |message| StoreError::Ignored { path: self.path.clone(), message };
        match read::text(&self.path, FILE_BYTES_MAX) {
            Ok(text) => Content::parse(&text).map_err(ignored),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(ignored(error.to_string())),
        }
    }

    /// Changes what the file says of a machine; what was said of another one, or by another
    /// version, goes.
    ///
    /// # Errors
    /// It cannot be read, makes no sense, or cannot be written.
    pub fn update(
        &self,
        machine: &Machine,
        change: impl FnOnce(&mut Content),
    ) -> Result<(), StoreError> {
        self.rewrite(machine, change, Store::read)
    }

    /// As [`Store::update`], but a file that cannot be used is as good as none.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn replace(
        &self,
        machine: &Machine,
        change: impl FnOnce(&mut Content),
    ) -> Result<(), StoreError> {
        self.rewrite(machine, change, |store| Ok(store.read().unwrap_or(None)))
    }

    fn rewrite(
        &self,
        machine: &Machine,
        change: impl FnOnce(&mut Content),
        read: impl FnOnce(&Store) -> Result<Option<Content>, StoreError>,
    ) -> Result<(), StoreError> {
        let fail = |error: io::Error| StoreError::Unwritable {
            path: self.path.clone(),
            message: error.to_string(),
        };
        let directory = self.path.parent().expect("the file is in a directory");
        fs::create_dir_all(directory).map_err(fail)?;
        let _lock = lock_file(&directory.join(LOCK)).map_err(fail)?;
        let content = read(self)?;
        let mut content = content.map_or_else(|| Content::new(machine), |c| c.on(machine));
        change(&mut content);
        let text = content.text().map_err(|message| StoreError::Nonsense { message })?;
        self.write(directory, &text).map_err(fail)
    }

    fn write(&self, directory: &Path, text: &str) -> io::Result<()> {
        if text.len() as u64 > FILE_BYTES_MAX.0 {
            return Err(io::Error::other(format!("it would be larger than {FILE_BYTES_MAX}")));
        }
        temporary::sweep(directory);
        let mut file = temporary::file_in(directory, temporary::PRIVATE_MODE)?;
        file.write_all(text.as_bytes())?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Waits for the lock, which ends with the returned file.
pub fn lock_file(path: &Path) -> io::Result<File> {
    // A pipe of that name would wait for a reader.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().create(true).append(true).custom_flags(flags).open(path)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_GRACE => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let seconds = LOCK_GRACE.as_secs();
                return Err(io::Error::other(format!(
                    "another process has held {} beside it for {seconds} s",
                    path.file_name().unwrap_or_default().display()
                )));
            }
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
