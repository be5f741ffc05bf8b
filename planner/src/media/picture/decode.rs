//! The three formats: what their headers say, and their pixels as 8-bit RGB.

use std::io::Cursor;

use image_webp::WebPDecoder;
use png::{ColorType, Transformations};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{PIXELS_MAX, Rgb};
use crate::media::webp;

/// First bytes of a PNG file (PNG specification, section 5.2).
const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Start of image, and the first byte of any marker (ITU T.81, table B.1).
const JPEG_SIGNATURE: [u8; 3] = [0xff, 0xd8, 0xff];

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Portable Network Graphics.
    Png,
    /// Baseline and progressive JPEG.
    Jpeg,
    /// WebP, lossy or without loss, that does not move.
    WebP,
}

/// What stands before the pixels.
pub struct Header {
    /// Width and height as stored.
    pub size: [usize; 2],
    /// EXIF data, from its TIFF header on.
    pub exif: Option<Vec<u8>>,
}

impl Format {
    /// The format of a file that begins like this.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        if bytes.starts_with(&PNG_SIGNATURE) {
            return Some(Format::Png);
        }
        if webp::is_webp(bytes) {
            return Some(Format::WebP);
        }
        bytes.starts_with(&JPEG_SIGNATURE).then_some(Format::Jpeg)
    }

    /// Reads a file's header.
    pub fn header(self, bytes: &[u8]) -> Result<Header, String> {
        match self {
            Format::Png => {
                let reader = png_reader(bytes)?;
                let info = reader.info();
                let size = [info.width as usize, info.height as usize];
                Ok(Header { size, exif: info.exif_metadata.as_ref().map(|exif| exif.to_vec()) })
            }
            Format::Jpeg => {
                let mut decoder = jpeg_decoder(bytes);
                decoder.decode_headers().map_err(|error| error.to_string())?;
                let info = decoder.info().ok_or("it has no frame")?;
                let size = [usize::from(info.width), usize::from(info.height)];
                Ok(Header { size, exif: decoder.exif().cloned() })
            }
            Format::WebP => {
                let (width, height) = webp_decoder(bytes)?.dimensions();
                let exif = webp::exif(bytes).map_err(|_| "a chunk ends behind it")?;
                let size = [width as usize, height as usize];
                Ok(Header { size, exif: exif.map(<[u8]>::to_vec) })
            }
        }
    }

    /// Reads a file's pixels; its header said that they are not too many.
    pub fn decode(self, bytes: &[u8]) -> Result<Rgb, String> {
        match self {
            Format::Png => decode_png(bytes),
            Format::Jpeg => decode_jpeg(bytes),
            Format::WebP => decode_webp(bytes),
        }
    }
}

fn png_reader(bytes: &[u8]) -> Result<png::Reader<Cursor<&[u8]>>, String> {
    // Four bytes a pixel, and as much again for chunks beside them.
    let limits = png::Limits { bytes: 8 * PIXELS_MAX as usize };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.read_info().map_err(|error| error.to_string())
}

fn decode_png(bytes: &[u8]) -> Result<Rgb, String> {
    let mut reader = png_reader(bytes)?;
    let mut decoded = vec![0; reader.output_buffer_size().ok_or("its size overflows")?];
    let frame = reader.next_frame(&mut decoded).map_err(|error| error.to_string())?;
    // A file that ends early may have given all its pixels by then.
    reader.finish().map_err(|error| error.to_string())?;
    decoded.truncate(frame.buffer_size());
    let pixels = match frame.color_type {
        ColorType::Rgb => decoded,
        ColorType::Grayscale => decoded.iter().flat_map(|&gray| [gray; 3]).collect(),
        ColorType::GrayscaleAlpha => {
            decoded.as_chunks().0.iter().flat_map(|&[gray, a]| over_white([gray; 3], a)).collect()
        }
        ColorType::Rgba => all_over_white(&decoded),
        ColorType::Indexed => return Err("its palette was not applied".to_owned()),
    };
    Ok(Rgb { width: frame.width as usize, height: frame.height as usize, pixels })
}

/// Pixels of 4 bytes RGBA on a white ground.
fn all_over_white(pixels: &[u8]) -> Vec<u8> {
    let pixels = pixels.as_chunks().0.iter();
    pixels.flat_map(|&[r, g, b, a]| over_white([r, g, b], a)).collect()
}

/// A colour of some opacity on a white ground.
fn over_white(colour: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha);
    colour.map(|level| ((u32::from(level) * alpha + 255 * (255 - alpha) + 127) / 255) as u8)
}

/// A decoder that refuses what it would have to guess.
fn jpeg_decoder(bytes: &[u8]) -> JpegDecoder<ZCursor<&[u8]>> {
    let side_max = usize::from(u16::MAX);
    let options = DecoderOptions::new_safe()
        .set_strict_mode(true)
        .set_max_width(side_max)
        .set_max_height(side_max)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options)
}

fn decode_jpeg(bytes: &[u8]) -> Result<Rgb, String> {
    // The decoder makes up what is missing of the last rows.
    if !jpeg_is_whole(bytes) {
        return Err("it ends early".to_owned());
    }
    let mut decoder = jpeg_decoder(bytes);
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no frame")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    if pixels.len() != 3 * width * height {
        return Err(format!("it has {} values for {width}x{height} pixels", pixels.len()));
    }
    Ok(Rgb { width, height, pixels })
}

/// Whether the segments of a JPEG file lead to its end-of-image marker. Others may stand within a
/// segment, as those of thumbnails do.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[first, marker]) = bytes.get(at..at + 2).and_then(|two| two.first_chunk()) {
        at = match (first, marker) {
            (0xff, 0xd9) => return true,
            // Fill bytes, restarts and escaped bytes of entropy-coded data have no length.
            (0xff, 0xff) => at + 1,
            (0xff, 0x00 | 0x01 | 0xd0..=0xd7) => at + 2,
            (0xff, _) => match bytes.get(at + 2..at + 4).and_then(|two| two.first_chunk()) {
                Some(&length) => at + 2 + usize::from(u16::from_be_bytes(length)).max(2),
                None => return false,
            },
            _ => at + 1,
        };
    }
    false
}

/// A decoder of a file that is whole, and that shows one picture.
fn webp_decoder(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, String> {
    // The decoder makes up what is missing of the last rows (RFC 9649, section 2.4).
    let size = bytes.get(4..8).and_then(|size| size.first_chunk());
    let size = size.map_or(0, |size| u32::from_le_bytes(*size) as usize);
    if bytes.len() - 8 < size {
        return Err("it ends early".to_owned());
    }
    let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| error.to_string())?;
    match decoder.is_animated() {
        true => Err("it moves".to_owned()),
        false => Ok(decoder),
    }
}

fn decode_webp(bytes: &[u8]) -> Result<Rgb, String> {
    let mut decoder = webp_decoder(bytes)?;
    let (width, height) = decoder.dimensions();
    let mut decoded = vec![0; decoder.output_buffer_size().ok_or("its size overflows")?];
    decoder.read_image(&mut decoded).map_err(|error| error.to_string())?;
    let pixels = if decoder.has_alpha() { all_over_white(&decoded) } else { decoded };
    Ok(Rgb { width: width as usize, height: height as usize, pixels })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparency_is_laid_over_white() {
        assert_eq!(over_white([10, 20, 255], 255), [10, 20, 255]);
        assert_eq!(over_white([10, 20, 30], 0), [255; 3]);
        assert_eq!(over_white([0, 255, 55], 51), [204, 255, 215]);
    }

    #[test]
    fn the_end_of_a_jpeg_is_the_one_outside_of_its_segments() {
        let thumbnail = [0xff, 0xe1, 0, 6, 0xff, 0xd8, 0xff, 0xd9];
        let scan = [0xff, 0xda, 0, 3, 1, 7, 0xff, 0, 0xff, 0xd3, 8];
        let whole = [&[0xff, 0xd8][..], &thumbnail, &scan, &[0xff, 0xff, 0xd9], b"more"].concat();
        let end = whole.len() - 4;
        assert!(jpeg_is_whole(&whole));
        for length in 0..whole.len() {
            assert_eq!(jpeg_is_whole(&whole[..length]), length >= end, "{length} bytes");
        }
    }
}
