//! Pictures as bytes: the formats that are written and the settings that each of them carries, and
//! pictures that are read ([`picture`]).
//!
//! Settings are one text, as AUTOMATIC1111's web UI writes it and many programs read it: in PNG the
//! text `parameters`, in JPEG and WebP the user comment of EXIF. The same picture, settings and
//! quality make the same bytes. Not here: where bytes go ([`crate::output`]).

pub mod exif;
mod jpeg;
pub mod picture;
mod png;
mod webp;

use std::path::Path;

use protocol::message::Image;

/// The most bytes of settings that are read: some ten times the longest prompts.
pub const SETTINGS_BYTES_MAX: usize = 1 << 20;

/// The quality of lossy formats where none is asked for: hardly to be told from the original.
pub const QUALITY: u8 = 90;

/// The formats that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    /// Portable Network Graphics: without loss.
    Png,
    /// Lossy and baseline, which every reader takes.
    Jpeg,
    /// WebP, lossy.
    WebP,
}

/// A picture's pixels, wherever they lie.
#[derive(Debug, Clone, Copy)]
pub struct RgbRows<'a> {
    /// Pixels of a row.
    pub width: u32,
    /// How many rows of pixels.
    pub height: u32,
    /// Rows from the top, 3 bytes RGB a pixel.
    pub pixels: &'a [u8],
}

impl<'a> From<&'a Image> for RgbRows<'a> {
    fn from(image: &'a Image) -> RgbRows<'a> {
        RgbRows { width: image.width, height: image.height, pixels: &image.pixels }
    }
}

/// A picture's file, in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPicture {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// Settings that the format has no room for, and that were left out: their bytes as they would
    /// be stored.
    pub left_out_bytes: Option<usize>,
}

/// Why a picture could not be encoded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(String);

/// Why settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The bytes begin as no format that is known.
    #[error("it is no picture in PNG, JPEG or WebP")]
    Unknown,
    /// The file is not what its beginning says.
    #[error("the picture is damaged: {0}")]
    Damaged(String),
    /// The settings are longer than [`SETTINGS_BYTES_MAX`].
    #[error("its settings take more than {SETTINGS_BYTES_MAX} B")]
    TooLong,
}

impl PictureFormat {
    /// All of them.
    pub const ALL: [PictureFormat; 3] =
        [PictureFormat::Png, PictureFormat::Jpeg, PictureFormat::WebP];

    /// The format that the ending of a name says, in letters of either case.
    pub fn of_name(name: &Path) -> Option<PictureFormat> {
        let ending = name.extension()?.to_str()?.to_ascii_lowercase();
        PictureFormat::ALL.into_iter().find(|format| format.endings().contains(&ending.as_str()))
    }

    /// The format of a file that begins like this.
    pub fn of_bytes(bytes: &[u8]) -> Option<PictureFormat> {
        let is: [fn(&[u8]) -> bool; 3] = [png::is_png, jpeg::is_jpeg, webp::is_webp];
        PictureFormat::ALL.into_iter().zip(is).find(|(_, is)| is(bytes)).map(|(format, _)| format)
    }

    /// How names of its files end.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            PictureFormat::Png => &["png"],
            PictureFormat::Jpeg => &["jpg", "jpeg"],
            PictureFormat::WebP => &["webp"],
        }
    }

    /// Whether quality can be given away for size.
    pub fn is_lossy(self) -> bool {
        self != PictureFormat::Png
    }

    /// The largest width and height, in pixels.
    pub fn side_pixels_max(self) -> u32 {
        match self {
            PictureFormat::Png => png::SIDE_PIXELS_MAX,
            PictureFormat::Jpeg => jpeg::SIDE_PIXELS_MAX,
            PictureFormat::WebP => webp::SIDE_PIXELS_MAX,
        }
    }

    /// Encodes a picture with its settings. `quality` is 1 to 100, and of no effect on PNG.
    ///
    /// # Errors
    /// The picture is larger than the format allows, or its pixels are not as many as its size
    /// says.
    pub fn encode<'a>(
        self,
        image: impl Into<RgbRows<'a>>,
        settings: Option<&str>,
        quality: u8,
    ) -> Result<EncodedPicture, EncodeError> {
        let image = image.into();
        let expected = 3 * image.width as usize * image.height as usize;
        if image.pixels.len() != expected {
            let got = image.pixels.len();
            return Err(EncodeError(format!("it has {got} B of pixels, expected {expected}")));
        }
        if image.width.max(image.height) > self.side_pixels_max() {
            let (width, height, max) = (image.width, image.height, self.side_pixels_max());
            return Err(EncodeError(format!("{width}x{height} pixels, at most {max} a side")));
        }
        match self {
            PictureFormat::Png => png::encode(image, settings),
            PictureFormat::Jpeg => jpeg::encode(image, settings, quality),
            PictureFormat::WebP => webp::encode(image, settings, quality),
        }
    }
}

/// The settings that a picture's file carries; `None` where it carries none.
///
/// # Errors
/// All of [`SettingsError`]. Of the pixels nothing is read.
pub fn settings(bytes: &[u8]) -> Result<Option<String>, SettingsError> {
    match PictureFormat::of_bytes(bytes).ok_or(SettingsError::Unknown)? {
        PictureFormat::Png => png::settings(bytes),
        PictureFormat::Jpeg => of_exif(jpeg::exif(bytes)?),
        PictureFormat::WebP => of_exif(webp::exif(bytes)?),
    }
}

fn of_exif(exif: Option<&[u8]>) -> Result<Option<String>, SettingsError> {
    match exif {
        Some(exif) if exif.len() > 2 * SETTINGS_BYTES_MAX => Err(SettingsError::TooLong),
        exif => Ok(exif.and_then(exif::user_comment)),
    }
}

#[cfg(test)]
mod tests;
