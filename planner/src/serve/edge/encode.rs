//! Pictures of jobs in the format that a client wants: blocking work.

use std::path::Path;

use super::errors::EdgeError;
use crate::media::picture::Picture;
use crate::media::{self, PictureFormat, RgbRows};
use crate::serve::desk::event::{FiledPicture, PreviewImage};

/// The file of a job's picture in a format, with its settings; `quality` is 0 to 100, and of effect
/// on JPEG only: WebP is without loss here, as PNG is.
///
/// # Errors
/// Its file cannot be read back, or it is too large for the format.
pub fn picture(
    picture: &FiledPicture,
    format: PictureFormat,
    quality: u8,
) -> Result<Vec<u8>, EdgeError> {
    if format == PictureFormat::Png {
        return Ok(picture.png.to_vec());
    }
    let record = &picture.record;
    let opened = Picture::of(picture.png.to_vec(), Path::new("picture"));
    let pixels = opened
        .and_then(|opened| opened.pixels(record.width as usize, record.height as usize))
        .map_err(|error| EdgeError::internal(error.to_string()))?;
    let image = RgbRows { width: record.width, height: record.height, pixels: &pixels };
    encode(image, Some(&record.infotext), format, quality)
}

/// The file of a preview in a format.
///
/// # Errors
/// It is too large for the format.
pub fn preview(
    preview: &PreviewImage,
    format: PictureFormat,
    quality: u8,
) -> Result<Vec<u8>, EdgeError> {
    let PreviewImage { width, height, ref pixels } = *preview;
    encode(RgbRows { width, height, pixels }, None, format, quality)
}

fn encode(
    image: RgbRows<'_>,
    settings: Option<&str>,
    format: PictureFormat,
    quality: u8,
) -> Result<Vec<u8>, EdgeError> {
    let encoded = match format {
        PictureFormat::WebP => media::webp_without_loss(image, settings),
        // The formats count from 1.
        format => format.encode(image, settings, quality.max(1)),
    };
    encoded.map(|encoded| encoded.bytes).map_err(|error| {
        let message = format!("the picture cannot be encoded: {error}; hint: ask for png");
        EdgeError::unsupported("output_format", message)
    })
}
