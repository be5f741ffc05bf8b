//! A picture that is read, as one to start from: PNG, JPEG or WebP, as 8-bit RGB of any size.
//!
//! It is turned as its file says, laid over white where it is transparent, and its colours are
//! taken for sRGB: profiles are not read. Whatever cannot be read whole is refused, and sizes are
//! checked before anything is made from them.

mod decode;
mod orientation;
mod resize;

use std::path::{Path, PathBuf};

use crate::fingerprint::sha256_of;
use decode::Format;
use orientation::Orientation;
use protocol::Bytes;
use resize::resize;

use crate::read::{self, ReadError};

/// Largest file. Pictures of [`PIXELS_MAX`] have at most some 250 MB.
pub const FILE_BYTES_MAX: Bytes = Bytes::mib(256);

/// Most pixels: 8192 × 8192, more than cameras of 60 megapixels make.
pub const PIXELS_MAX: u64 = 1 << 26;

/// Why a picture cannot be started from.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file could not be read.
    #[error("cannot read the picture {}: {cause}; hint: --init-image names a PNG, JPEG or WebP file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The file is larger than any picture that is taken.
    #[error("{} is larger than {} bytes; hint: scale the picture down first", path.display(), FILE_BYTES_MAX.0)]
    FileTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file begins as no picture that can be read.
    #[error("{} is no picture in PNG, JPEG or WebP; hint: convert it to one of these", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// The picture has too many pixels.
    #[error("{} has {width}x{height} pixels, at most {PIXELS_MAX} can be read; hint: scale it down first", path.display())]
    TooManyPixels {
        /// The file.
        path: PathBuf,
        /// Pixels of a row.
        width: u64,
        /// Rows.
        height: u64,
    },
    /// The file is not what its beginning says, or not all of it.
    #[error("the picture {} is damaged: {message}; hint: save or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// A picture in 8 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rgb {
    width: usize,
    height: usize,
    /// Rows from the top, 3 bytes a pixel.
    pixels: Vec<u8>,
}

/// A picture's file, of which the beginning was read and understood.
#[derive(Debug)]
pub struct Picture {
    path: PathBuf,
    bytes: Vec<u8>,
    format: Format,
    orientation: Orientation,
    stored: [usize; 2],
}

impl Picture {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`Picture::of`], or the file cannot be read.
    pub fn open(path: &Path) -> Result<Picture, PictureError> {
        Picture::of(read(path)?, path)
    }

    /// A picture of the bytes of a file, which errors call `path`.
    ///
    /// # Errors
    /// They are no picture that is taken; what is damaged behind the header shows in
    /// [`Picture::pixels`].
    pub fn of(bytes: Vec<u8>, path: &Path) -> Result<Picture, PictureError> {
        let format =
            Format::of(&bytes).ok_or_else(|| PictureError::Unknown { path: path.to_owned() })?;
        let damaged = |message| PictureError::Damaged { path: path.to_owned(), message };
        let header = format.header(&bytes).map_err(damaged)?;
        let [width, height] = header.size;
        if width as u64 * height as u64 > PIXELS_MAX {
            let (width, height) = (width as u64, height as u64);
            return Err(PictureError::TooManyPixels { path: path.to_owned(), width, height });
        }
        let orientation = header.exif.map(|exif| Orientation::of(&exif)).unwrap_or_default();
        Ok(Picture { path: path.to_owned(), bytes, format, orientation, stored: header.size })
    }

    /// Decodes it at its own size, to see whether all of it can be read.
    ///
    /// # Errors
    /// [`PictureError::Damaged`].
    pub fn check(&self) -> Result<(), PictureError> {
        self.decode().map(drop)
    }

    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// SHA-256 of the file's content, in hexadecimal digits.
    pub fn sha256(&self) -> String {
        sha256_of(&self.bytes)
    }

    /// Width and height in pixels, as it is to be seen.
    pub fn size(&self) -> [usize; 2] {
        self.orientation.size(self.stored)
    }

    /// The picture at a size: rows from the top, 3 bytes RGB a pixel.
    ///
    /// # Errors
    /// [`PictureError::Damaged`].
    pub fn pixels(&self, width: usize, height: usize) -> Result<Vec<u8>, PictureError> {
        Ok(resize(self.orientation.turn(self.decode()?), width, height).pixels)
    }

    fn decode(&self) -> Result<Rgb, PictureError> {
        let damaged = |message| PictureError::Damaged { path: self.path.clone(), message };
        self.format.decode(&self.bytes).map_err(damaged)
    }
}

/// A picture of 3 bytes a pixel at a larger size.
pub fn enlarge(pixels: &[u8], [width, height]: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    resize(Rgb { width, height, pixels: pixels.to_vec() }, to[0], to[1]).pixels
}

fn read(path: &Path) -> Result<Vec<u8>, PictureError> {
    read::bytes(path, FILE_BYTES_MAX).map_err(|error| {
        let path = path.to_owned();
        match error {
            ReadError::NotRegular => PictureError::Unknown { path },
            ReadError::TooLarge { .. } => PictureError::FileTooLarge { path },
            ReadError::System(cause) => PictureError::Read { path, cause },
            ReadError::NotText => unreachable!("a picture is not read as text"),
        }
    })
}

#[cfg(test)]
mod tests;
