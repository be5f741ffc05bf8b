//! Where pictures are: a folder a day, and names made of a job's and a number.
//!
//! Invariant: a path that is made here lies within the folder, whatever a record says.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use protocol::Bytes;

use crate::serve::desk::job::JobId;
use crate::serve::store::FOLDER_MODE;
use crate::temporary;

/// The longest name of a job that is taken for one: a ULID has 26 characters.
const ID_BYTES_MAX: usize = 64;

/// How files of pictures, and what is written of them, end.
const PICTURE_ENDING: &str = ".png";
const GALLERY_ENDING: &str = ".json";

/// The folder of all pictures.
#[derive(Debug, Clone)]
pub struct PictureFolder(PathBuf);

/// Where the files of one job are.
#[derive(Debug)]
pub struct JobPlace {
    root: PathBuf,
    /// As `2026-07-31`.
    day: String,
    job: String,
}

/// Makes a folder and those above it, for their owner alone.
pub fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

impl PictureFolder {
    /// Makes the folder, and removes from its days what a daemon that ended left half written.
    pub fn open(path: PathBuf) -> io::Result<PictureFolder> {
        make_folder(&path)?;
        let days = fs::read_dir(&path)?.flatten().map(|entry| entry.path());
        days.filter(|day| day.is_dir()).for_each(|day| temporary::sweep(&day));
        Ok(PictureFolder(path))
    }

    /// One that is not there, for its names.
    #[cfg(test)]
    pub fn of(path: PathBuf) -> PictureFolder {
        PictureFolder(path)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The path of a file below the folder, as records name it.
    pub fn path(&self, file: &str) -> Option<PathBuf> {
        let (day, name) = file.split_once('/')?;
        let (job, number) = name.strip_suffix(PICTURE_ENDING)?.rsplit_once('-')?;
        let is_ours = is_day(day) && is_job(job) && is_number(number);
        is_ours.then(|| self.0.join(day).join(name))
    }

    /// The place of a job that was accepted at this time, in milliseconds since 1970.
    ///
    /// # Errors
    /// There is no such time, or the job's name is none; as a sentence.
    pub fn place(&self, job: &JobId, created_at: u64) -> Result<JobPlace, String> {
        let time = i64::try_from(created_at).ok();
        let time = time.and_then(|time| jiff::Timestamp::from_millisecond(time).ok());
        let day = time.map(|time| time.strftime("%Y-%m-%d").to_string());
        let day = day.filter(|day| is_day(day));
        let day =
            day.ok_or_else(|| format!("job {job} was accepted at no time: {created_at} ms"))?;
        match is_job(&job.0) {
            true => Ok(JobPlace { root: self.0.clone(), day, job: job.0.clone() }),
            false => Err("a job's name is not one that files can have".to_owned()),
        }
    }

    /// What is free on its file system, for this user.
    pub fn free_bytes(&self) -> io::Result<Bytes> {
        let status = rustix::fs::statvfs(&self.0)?;
        Ok(Bytes(status.f_bavail.saturating_mul(status.f_frsize)))
    }
}

impl JobPlace {
    /// The name of the file of a picture, counted from 0.
    pub fn picture(&self, index: u32) -> String {
        format!("{}-{index}{PICTURE_ENDING}", self.job)
    }

    /// The file that says what its pictures were made with.
    pub fn gallery(&self) -> PathBuf {
        self.path(&format!("{}{GALLERY_ENDING}", self.job))
    }

    /// The ULID that all its files begin with.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// One of its files as records name it.
    pub fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.day)
    }

    /// The folder of its day.
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.day)
    }

    /// Makes it, for its owner alone, where it is not there.
    pub fn make_folder(&self) -> io::Result<()> {
        make_folder(&self.folder())
    }

    /// All of its files that there are.
    pub fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let is_its = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(rest) = name.strip_prefix(&self.job) else { return false };
            let number = rest.strip_prefix('-').and_then(|rest| rest.strip_suffix(PICTURE_ENDING));
            rest == GALLERY_ENDING || number.is_some_and(is_number)
        };
        entries.map(|entry| entry.path()).filter(is_its).collect()
    }
}

/// Whether it is a day as they are called here.
fn is_day(text: &str) -> bool {
    let has_place = |(place, c): (usize, u8)| match place {
        4 | 7 => c == b'-',
        _ => c.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(has_place)
}

fn is_job(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit())
}
