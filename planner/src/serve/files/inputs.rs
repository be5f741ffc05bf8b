//! Pictures to start from, as files named after their content.
//!
//! Invariant: a file has the content that its name says; it was decoded whole before it was
//! written.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::place::make_folder;
use crate::media::PictureFormat;
use crate::media::picture::{FILE_BYTES_MAX, PIXELS_MAX, Picture, PictureError};
use crate::serve::desk::job::{ErrorCode, JobError};
use crate::temporary::{self, PRIVATE_MODE};

/// How long a picture stays that no job uses: its job may be on its way, as bodies may take minutes
/// and quotes seconds.
pub const SPARED: Duration = Duration::from_secs(3600);

/// What errors call a picture that came without a name.
const SENT: &str = "the picture";

/// The folder of these files.
#[derive(Debug)]
pub struct InputFiles {
    folder: PathBuf,
    /// Held while one is decoded and written, and while old ones are removed: a decoded picture may
    /// take 200 MB, and none may be removed between its check and its use.
    one_at_a_time: Mutex<()>,
}

impl InputFiles {
    /// Makes the folder, and removes what a daemon that ended left half written.
    pub fn open(folder: PathBuf) -> io::Result<InputFiles> {
        make_folder(&folder)?;
        temporary::sweep(&folder);
        Ok(InputFiles { folder, one_at_a_time: Mutex::new(()) })
    }

    /// Checks a picture and keeps it; where it is.
    pub fn keep(&self, bytes: Vec<u8>) -> Result<PathBuf, JobError> {
        if bytes.len() as u64 > FILE_BYTES_MAX.0 {
            return Err(refused(&PictureError::FileTooLarge { path: SENT.into() }));
        }
        let ending = PictureFormat::of_bytes(&bytes).map_or("png", |format| format.endings()[0]);
        let picture = Picture::of(bytes, Path::new(SENT)).map_err(|error| refused(&error))?;
        let path = self.folder.join(format!("{}.{ending}", picture.sha256()));
        let _one = self.lock();
        if is_touched(&path) {
            return Ok(path);
        }
        picture.check().map_err(|error| refused(&error))?;
        let write = || temporary::write(&path, PRIVATE_MODE, picture.bytes());
        write().or_else(|_| make_folder(&self.folder).and_then(|()| write())).map_err(|cause| {
            let folder = self.folder.display();
            let message =
                format!("cannot keep a picture in {folder}: {cause}; hint: is its disk full?");
            JobError::new(ErrorCode::Disk, message)
        })?;
        Ok(path)
    }

    /// Removes files that are not used and were not kept lately.
    pub fn sweep(&self, used: &[PathBuf]) -> io::Result<()> {
        let _one = self.lock();
        // By their names, which say their content: records may know the folder by another path.
        let used: BTreeSet<&OsStr> = used.iter().filter_map(|path| path.file_name()).collect();
        let now = SystemTime::now();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_used = path.file_name().is_some_and(|name| used.contains(name));
            if is_used || !is_content_name(&path) || !is_old(&path, now) {
                continue;
            }
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "not removed");
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // It guards no data that a panic could leave half changed.
        self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file is there, which then counts as kept now.
fn is_touched(path: &Path) -> bool {
    let touch = |file: File| file.set_times(FileTimes::new().set_modified(SystemTime::now()));
    File::options().append(true).open(path).and_then(touch).is_ok()
}

/// Whether a file was last kept longer than [`SPARED`] ago. One of the future is not: clocks jump.
fn is_old(path: &Path, now: SystemTime) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|file| file.modified());
    modified.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > SPARED))
}

/// Whether a file is called as those that are kept here.
fn is_content_name(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_digits = stem.len() == 64 && stem.bytes().all(|c| c.is_ascii_hexdigit());
    is_digits && PictureFormat::of_name(path).is_some()
}

/// What the client is told.
fn refused(error: &PictureError) -> JobError {
    let message = match error {
        PictureError::FileTooLarge { .. } => {
            format!("the picture is larger than {FILE_BYTES_MAX}; hint: scale it down first")
        }
        PictureError::TooManyPixels { width, height, .. } => format!(
            "the picture has {width}x{height} pixels, and at most {PIXELS_MAX} can be read; hint: scale it down first"
        ),
        PictureError::Damaged { message, .. } => {
            format!("the picture is damaged: {message}; hint: save or send it again")
        }
        PictureError::Unknown { .. } | PictureError::Read { .. } => {
            "the picture is neither PNG nor JPEG nor WebP; hint: convert it to one of these"
                .to_owned()
        }
    };
    JobError::new(ErrorCode::BadValue, message)
}
