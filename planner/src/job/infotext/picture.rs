//! The settings in a picture's file.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use super::Reading;
use crate::media::picture::FILE_BYTES_MAX;
use crate::media::{self, PictureFormat};
use crate::read::{self, ReadError};

/// Bytes of a file's beginning that say whether it is a picture: WebP names itself in the third
/// four.
const HEAD_BYTES: u64 = 16;

/// Whether a file begins as a picture of a format that carries settings. One that cannot be read
/// does not.
pub fn is_picture(path: &Path) -> bool {
    let mut head = Vec::new();
    read::open(path).is_ok_and(|(file, _)| file.take(HEAD_BYTES).read_to_end(&mut head).is_ok())
        && PictureFormat::of_bytes(&head).is_some()
}

/// The settings in a picture's file.
///
/// # Errors
/// It is no picture that can be read, or has no settings.
pub fn of_picture(path: &Path) -> Result<Reading> {
    let bytes = read(path)?;
    let cannot = |why: &dyn Display| {
        let path = path.display();
        anyhow!(
            "cannot read the settings of {path}: {why}; hint: name a picture in PNG, JPEG or WebP as Berth wrote it"
        )
    };
    let text = media::settings(&bytes).map_err(|error| cannot(&error))?.with_context(|| {
        format!(
            "{} has no settings; hint: name a picture as Berth wrote it: many programs leave settings out when they save it again",
            path.display()
        )
    })?;
    super::read(&text).map_err(|error| cannot(&error))
}

/// A picture's file, whole, within the limit of pictures.
fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    read::bytes(path, FILE_BYTES_MAX).map_err(|error| match error {
        ReadError::TooLarge { .. } => {
            anyhow!(
                "{shown} is larger than {FILE_BYTES_MAX}; hint: name a picture as Berth wrote it"
            )
        }
        error if error.is_missing() => {
            anyhow!("there is no picture at {shown}; hint: name a file in PNG, JPEG or WebP")
        }
        ReadError::NotRegular => {
            anyhow!("{shown} is not a regular file; hint: name a file in PNG, JPEG or WebP")
        }
        error => anyhow!(error).context(format!("cannot read the picture {shown}")),
    })
}
