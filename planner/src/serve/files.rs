//! The daemon's files: pictures that jobs made, and pictures that they start from.
//!
//! ```text
//! desk ──FileOrder──► thread `files`: PNG with its settings, written ──► DeskEvent::Filed
//! edge ──keep_picture──► a file named after its content             (on the caller's thread)
//!
//! DIR/pictures/2026-07-31/<job>-<n>.png    n from 0, as in the job's record; the day is UTC's
//! DIR/pictures/2026-07-31/<job>.json       what its pictures were made with
//! DIR/inputs/<sha256>.png                  or .jpg
//! ```
//! Not here: which jobs are kept ([`desk`](super::desk)) and how pictures are encoded
//! ([`crate::media`]).
//!
//! Invariants: a name holds a whole file or none; nothing outside of the two folders is written or
//! removed; all files are their owner's alone. A picture is byte for byte the one that `berth
//! generate` writes as PNG for the same settings.

mod gallery;
mod inputs;
mod place;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use protocol::Bytes;

use super::desk::action::FileOrder;
use super::desk::event::{DeskEvent, FiledPicture, MadePicture};
use super::desk::job::{JobError, JobRecord, PictureRecord};
use crate::job::infotext;
use crate::media::{PictureFormat, QUALITY, RgbRows};
use crate::temporary::{self, PRIVATE_MODE};
use inputs::InputFiles;
use place::{JobPlace, PictureFolder};

/// The daemon's files; clones share them.
#[derive(Debug, Clone)]
pub struct PictureFiles {
    work: Sender<FileWork>,
    folder: PictureFolder,
    inputs: Arc<InputFiles>,
}

#[derive(Debug)]
enum FileWork {
    File(Box<FileOrder>),
    Erase(Box<JobRecord>),
    /// Tells that all before it is done, by being dropped.
    Settle(Sender<()>),
}

impl PictureFiles {
    /// Makes the folders within a directory and starts the thread. Orders are answered to `events`.
    ///
    /// # Errors
    /// The folders cannot be made, or the system has no more threads.
    pub fn open(directory: &Path, events: Sender<DeskEvent>) -> io::Result<PictureFiles> {
        let folder = PictureFolder::open(directory.join("pictures"))?;
        let inputs = Arc::new(InputFiles::open(directory.join("inputs"))?);
        let (work, orders) = mpsc::channel();
        let own = folder.clone();
        thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || run(&own, &orders, &events))?;
        Ok(PictureFiles { work, folder, inputs })
    }

    /// Has a run's pictures encoded and written; [`DeskEvent::Filed`] tells when they are.
    pub fn file(&self, order: Box<FileOrder>) {
        let _ = self.work.send(FileWork::File(order));
    }

    /// Has the files of a job's pictures removed, after all that was ordered before. What cannot be
    /// removed is logged, and stays.
    pub fn erase(&self, record: Box<JobRecord>) {
        let _ = self.work.send(FileWork::Erase(record));
    }

    /// Waits until all orders so far are done; false where that takes longer than `grace`.
    pub fn settle(&self, grace: Duration) -> bool {
        let (done, settled) = mpsc::channel();
        let _ = self.work.send(FileWork::Settle(done));
        settled.recv_timeout(grace) == Err(RecvTimeoutError::Disconnected)
    }

    /// Where a picture's file is; `None` for one that was not written, or whose record names no
    /// place of ours.
    pub fn path(&self, picture: &PictureRecord) -> Option<PathBuf> {
        self.folder.path(picture.file.as_deref()?)
    }

    /// Checks a picture to start from and keeps it under a name made of its content; the same
    /// content is one file. It decodes the whole picture, one at a time, and writes: blocking work.
    ///
    /// # Errors
    /// It is no picture that can be started from, or cannot be written.
    pub fn keep_picture(&self, bytes: Vec<u8>) -> Result<PathBuf, JobError> {
        self.inputs.keep(bytes)
    }

    /// Removes pictures to start from that are none of `used`, nor kept within the last
    /// `inputs::SPARED`, whose jobs may be on their way. Blocking work.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn sweep(&self, used: &[PathBuf]) -> io::Result<()> {
        self.inputs.sweep(used)
    }

    /// What is free where pictures are written, for this user.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn free_bytes(&self) -> io::Result<Bytes> {
        self.folder.free_bytes()
    }
}

fn run(folder: &PictureFolder, orders: &Receiver<FileWork>, events: &Sender<DeskEvent>) {
    for work in orders {
        match work {
            FileWork::File(order) => {
                // Without a desk there is nobody to tell; pictures are kept all the same.
                let _ = events.send(filed(folder, *order));
            }
            FileWork::Erase(record) => erase(folder, &record),
            FileWork::Settle(done) => drop(done),
        }
    }
}

/// Encodes and writes pictures, as far as that can be done.
fn filed(folder: &PictureFolder, order: FileOrder) -> DeskEvent {
    let FileOrder { job, created_at, first, pictures } = order;
    let place = folder.place(&job, created_at);
    let mut error = place.as_ref().err().cloned();
    let mut filed = Vec::new();
    for made in &pictures {
        let index = first.saturating_add(made.index);
        match encode(made, index) {
            Ok(mut picture) => {
                let written = place.as_ref().ok().map(|place| write(place, &picture));
                match written {
                    Some(Ok(file)) => picture.record.file = Some(file),
                    Some(Err(cause)) => error = error.or(Some(unwritten(folder, &cause))),
                    None => {}
                }
                filed.push(picture);
            }
            Err(cause) => error = error.or(Some(format!("cannot encode picture {index}: {cause}"))),
        }
    }
    if let Ok(place) = &place {
        let records = filed.iter().map(|picture| &picture.record);
        let written = records.filter(|record| record.file.is_some()).cloned();
        if let Err(error) = gallery::add(place, created_at, written.collect()) {
            // The pictures are there, and carry their settings.
            tracing::warn!(%job, %error, "the settings of its pictures are not written");
        }
    }
    DeskEvent::Filed { job, pictures: filed, error }
}

/// The file of a picture, as `berth generate` makes it; not written yet.
fn encode(made: &MadePicture, index: u32) -> Result<FiledPicture, String> {
    let infotext = infotext::write(&made.settings);
    let rows = RgbRows { width: made.width, height: made.height, pixels: &made.pixels };
    let encoded = PictureFormat::Png.encode(rows, Some(&infotext), QUALITY);
    let png = encoded.map_err(|error| error.to_string())?.bytes;
    let record = PictureRecord {
        index,
        seed: made.seed,
        width: made.width,
        height: made.height,
        size_bytes: png.len() as u64,
        file: None,
        infotext,
    };
    Ok(FiledPicture { record, png: Arc::new(png) })
}

/// Writes a picture, with a second try; its file below the folder of pictures.
fn write(place: &JobPlace, picture: &FiledPicture) -> io::Result<String> {
    let name = place.picture(picture.record.index);
    let attempt = || {
        place.make_folder()?;
        temporary::write(&place.path(&name), PRIVATE_MODE, &picture.png)
    };
    attempt().or_else(|_| attempt())?;
    Ok(place.below(&name))
}

/// Why pictures are not written, as a sentence.
fn unwritten(folder: &PictureFolder, cause: &io::Error) -> String {
    let free =
        folder.free_bytes().map(|free| format!(", where {free} are free")).unwrap_or_default();
    format!(
        "cannot write pictures to {}: {cause}; hint: make room on its disk{free}, or keep fewer by keep_bytes",
        folder.root().display()
    )
}

/// Removes the pictures of a job and what is written of them, and the day's folder with its last.
fn erase(folder: &PictureFolder, record: &JobRecord) {
    let Ok(place) = folder.place(&record.id, record.created_at) else { return };
    for path in place.files() {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "not removed");
        }
    }
    // Fails where others are in it.
    let _ = fs::remove_dir(place.folder());
}

#[cfg(test)]
mod tests;
