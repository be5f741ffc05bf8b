//! WebP: lossy, with settings in an EXIF chunk. (RFC 9649.)

use webp::{Encoder, WebPConfig};

use super::{EncodeError, EncodedPicture, RgbRows, SettingsError, exif};

/// The largest width and height: 14 bits (RFC 9649, section 2.5).
pub const SIDE_PIXELS_MAX: u32 = (1 << 14) - 1;

/// Length of a chunk's name and size, and of the file's own.
const CHUNK_HEADER_BYTES: usize = 8;
const FILE_HEADER_BYTES: usize = 12;

/// The flag of the extended header that says that there are EXIF data (RFC 9649, section 2.7).
const HAS_EXIF: u8 = 1 << 3;

/// Whether a file begins as WebP.
pub fn is_webp(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..FILE_HEADER_BYTES) == Some(b"WEBP")
}

/// Encodes a picture, of a size that is checked.
pub fn encode(
    image: RgbRows<'_>,
    settings: Option<&str>,
    quality: u8,
) -> Result<EncodedPicture, EncodeError> {
    let refused = || EncodeError("libwebp of another version".to_owned());
    let mut config = WebPConfig::new().map_err(|()| refused())?;
    config.quality = f32::from(quality);
    let encoder = Encoder::from_rgb(image.pixels, image.width, image.height);
    let simple =
        encoder.encode_advanced(&config).map_err(|error| EncodeError(format!("{error:?}")))?;
    let bytes = match settings {
        None => simple.to_vec(),
        Some(text) => extended(image, &simple, &exif::with_user_comment(text)),
    };
    Ok(EncodedPicture { bytes, left_out_bytes: None })
}

/// The file of a picture alone, made one with EXIF data: that takes a header of its own.
fn extended(image: RgbRows<'_>, simple: &[u8], exif: &[u8]) -> Vec<u8> {
    let mut header = vec![HAS_EXIF, 0, 0, 0];
    for side in [image.width, image.height] {
        // 24 bits, less one.
        header.extend(&(side - 1).to_le_bytes()[..3]);
    }
    let mut chunks = b"WEBP".to_vec();
    chunks.extend(chunk(b"VP8X", &header));
    chunks.extend(&simple[FILE_HEADER_BYTES..]);
    chunks.extend(chunk(b"EXIF", exif));
    chunk(b"RIFF", &chunks)
}

/// A chunk, filled up to an even length.
fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut bytes = name.to_vec();
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    bytes
}

/// The EXIF data of a file, from their TIFF header on.
pub fn exif(bytes: &[u8]) -> Result<Option<&[u8]>, SettingsError> {
    let cut = || SettingsError::Damaged("a chunk ends behind the file".to_owned());
    let mut at = FILE_HEADER_BYTES;
    while let Some(header) = bytes.get(at..at + CHUNK_HEADER_BYTES) {
        let (name, size) = header.split_at(4);
        let size = u32::from_le_bytes(*size.first_chunk().expect("4 bytes")) as usize;
        let start = at + CHUNK_HEADER_BYTES;
        let content = bytes.get(start..).and_then(|rest| rest.get(..size)).ok_or_else(cut)?;
        if name == b"EXIF" {
            return Ok(Some(content.strip_prefix(&exif::PREFIX).unwrap_or(content)));
        }
        at = start + size.next_multiple_of(2);
    }
    Ok(None)
}
