//! What the pictures of a job were made with, in a file beside them: the gallery can be had from
//! these alone.

use std::io;

use protocol::Bytes;
use serde::{Deserialize, Serialize};

use super::place::JobPlace;
use crate::read;
use crate::serve::desk::job::PictureRecord;
use crate::temporary::{self, PRIVATE_MODE};

/// The version of the file.
const VERSION: u32 = 1;

/// The largest that is read again: 64 pictures, each with the longest settings that pictures carry,
/// escaped.
const FILE_BYTES_MAX: Bytes = Bytes::mib(128);

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
pub struct GalleryEntry {
    /// [`VERSION`].
    pub v: u32,
    /// The ULID of the job that made them.
    pub job: String,
    /// When it was accepted, in milliseconds since 1970.
    pub created_at: u64,
    /// Its pictures that are files, by their places in the job.
    pub pictures: Vec<PictureRecord>,
}

/// Adds the pictures of a run to those of the job's runs before.
///
/// # Errors
/// The file cannot be written. One that cannot be read is written anew.
pub fn add(place: &JobPlace, created_at: u64, pictures: Vec<PictureRecord>) -> io::Result<()> {
    if pictures.is_empty() {
        return Ok(());
    }
    let path = place.gallery();
    let text = read::bytes(&path, FILE_BYTES_MAX).ok();
    let before = text.and_then(|text| serde_json::from_slice::<GalleryEntry>(&text).ok());
    let before = before.filter(|entry| entry.v == VERSION && entry.job == place.job());
    let mut all = before.map(|entry| entry.pictures).unwrap_or_default();
    // A run that is done again makes its pictures again.
    all.retain(|old| pictures.iter().all(|new| new.index != old.index));
    all.extend(pictures);
    all.sort_by_key(|picture| picture.index);
    let entry = GalleryEntry { v: VERSION, job: place.job().to_owned(), created_at, pictures: all };
    let text = serde_json::to_vec(&entry).map_err(io::Error::other)?;
    temporary::write(&path, PRIVATE_MODE, &text)
}
