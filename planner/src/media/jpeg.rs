//! JPEG: baseline, with settings in an EXIF segment.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use super::{EncodeError, EncodedPicture, RgbRows, SettingsError, exif};

/// The largest width and height: 16 bits (ITU T.81, table B.2).
pub const SIDE_PIXELS_MAX: u32 = u16::MAX as u32;

/// Start of image, and the first byte of any marker (ITU T.81, table B.1).
const SIGNATURE: [u8; 3] = [0xff, 0xd8, 0xff];

/// The marker of EXIF's segment, APP1, by its number.
const APP1: u8 = 1;

/// The most bytes of a segment beside its own length (ITU T.81, section B.1.1.4).
const SEGMENT_BYTES_MAX: usize = u16::MAX as usize - 2;

/// From this quality on colours have as many samples as brightness: thin coloured lines stay sharp.
const FULL_COLOUR_QUALITY: u8 = 90;

/// Whether a file begins as JPEG.
pub fn is_jpeg(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE)
}

/// Encodes a picture, of a size that is checked.
pub fn encode(
    image: RgbRows<'_>,
    settings: Option<&str>,
    quality: u8,
) -> Result<EncodedPicture, EncodeError> {
    let fail = |error: jpeg_encoder::EncodingError| EncodeError(error.to_string());
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, quality);
    encoder.set_sampling_factor(match quality >= FULL_COLOUR_QUALITY {
        true => SamplingFactor::F_1_1,
        false => SamplingFactor::F_2_2,
    });
    let mut left_out_bytes = None;
    if let Some(text) = settings {
        let segment = [&exif::PREFIX[..], &exif::with_user_comment(text)].concat();
        match segment.len() > SEGMENT_BYTES_MAX {
            true => left_out_bytes = Some(segment.len()),
            false => encoder.add_app_segment(APP1, segment).map_err(fail)?,
        }
    }
    let [width, height] = [image.width, image.height].map(|side| side as u16);
    encoder.encode(image.pixels, width, height, ColorType::Rgb).map_err(fail)?;
    Ok(EncodedPicture { bytes, left_out_bytes })
}

/// The EXIF data of a file, from their TIFF header on.
pub fn exif(bytes: &[u8]) -> Result<Option<&[u8]>, SettingsError> {
    let cut = || SettingsError::Damaged("it ends within its header".to_owned());
    let mut at = 2;
    loop {
        let &[first, marker] = bytes.get(at..).and_then(|b| b.first_chunk()).ok_or_else(cut)?;
        match (first, marker) {
            // Fill bytes may stand before a marker.
            (0xff, 0xff) => at += 1,
            // The picture begins, or it ends without one: EXIF stands before.
            (0xff, 0xda | 0xd9) => return Ok(None),
            (0xff, _) => {
                let length = bytes.get(at + 2..).and_then(|b| b.first_chunk()).ok_or_else(cut)?;
                let end = at + 2 + usize::from(u16::from_be_bytes(*length));
                let segment = bytes.get(at + 4..end).ok_or_else(cut)?;
                if marker == 0xe0 + APP1
                    && let Some(exif) = segment.strip_prefix(&exif::PREFIX)
                {
                    return Ok(Some(exif));
                }
                at = end;
            }
            _ => return Err(SettingsError::Damaged("a segment does not end".to_owned())),
        }
    }
}
