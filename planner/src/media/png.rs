//! PNG: without loss, with settings in a text chunk.

use std::io::Cursor;

use png::{BitDepth, ColorType, Encoder};

use super::{EncodeError, EncodedPicture, RgbRows, SETTINGS_BYTES_MAX, SettingsError};

/// The largest width and height (PNG specification, section 11.2.1).
pub const SIDE_PIXELS_MAX: u32 = (1 << 31) - 1;

/// First bytes of a file (PNG specification, section 5.2).
const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// The keyword under which other programs look for a picture's settings (AUTOMATIC1111's web UI and
/// those that read its files).
const SETTINGS_KEYWORD: &str = "parameters";

/// What reading a header may allocate: settings, compressed or not, and what else stands before the
/// pixels.
const HEADER_BYTES_MAX: usize = 64 << 20;

/// Whether a file begins as PNG.
pub fn is_png(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE)
}

/// Encodes a picture, of a size that is checked.
pub fn encode(image: RgbRows<'_>, settings: Option<&str>) -> Result<EncodedPicture, EncodeError> {
    let fail = |error: png::EncodingError| EncodeError(error.to_string());
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, image.width, image.height);
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    if let Some(settings) = settings {
        let (keyword, text) = (SETTINGS_KEYWORD.to_owned(), settings.to_owned());
        // Text beyond Latin-1 does not fit in a tEXt chunk; iTXt holds any.
        let added = match settings.chars().all(|c| c == '\n' || (' '..='~').contains(&c)) {
            true => encoder.add_text_chunk(keyword, text),
            false => encoder.add_itxt_chunk(keyword, text),
        };
        added.map_err(fail)?;
    }
    let mut writer = encoder.write_header().map_err(fail)?;
    writer.write_image_data(image.pixels).map_err(fail)?;
    writer.finish().map_err(fail)?;
    Ok(EncodedPicture { bytes, left_out_bytes: None })
}

/// The settings of a file: of its text chunks before the pixels, else of its EXIF data.
pub fn settings(bytes: &[u8]) -> Result<Option<String>, SettingsError> {
    let unreadable = |error: png::DecodingError| SettingsError::Damaged(error.to_string());
    let limits = png::Limits { bytes: HEADER_BYTES_MAX };
    let decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    let reader = decoder.read_info().map_err(unreadable)?;
    let info = reader.info();
    let is_settings = |keyword: &String| keyword == SETTINGS_KEYWORD;
    let plain = info.uncompressed_latin1_text.iter().find(|chunk| is_settings(&chunk.keyword));
    let packed = info.compressed_latin1_text.iter().find(|chunk| is_settings(&chunk.keyword));
    let unicode = info.utf8_text.iter().find(|chunk| is_settings(&chunk.keyword));
    let text = if let Some(chunk) = unicode {
        let mut chunk = chunk.clone();
        chunk.decompress_text_with_limit(SETTINGS_BYTES_MAX).map_err(unreadable)?;
        chunk.get_text().map_err(unreadable)?
    } else if let Some(chunk) = plain {
        chunk.text.clone()
    } else if let Some(chunk) = packed {
        let mut chunk = chunk.clone();
        chunk.decompress_text_with_limit(SETTINGS_BYTES_MAX).map_err(unreadable)?;
        chunk.get_text().map_err(unreadable)?
    } else {
        return super::of_exif(info.exif_metadata.as_deref());
    };
    if text.len() > SETTINGS_BYTES_MAX {
        return Err(SettingsError::TooLong);
    }
    Ok(Some(text))
}
