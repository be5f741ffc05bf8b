//! What is written is read back: pixels nearly, settings exactly; what is damaged is an error or
//! nothing.

use ipc_channel::ipc::IpcSharedMemory;
use proptest::prelude::*;
use protocol::message::Image;

use super::*;

/// Settings as they are written, with letters of several scripts and one beyond 16 bits.
const TEXT: &str = "a größe 円 🎨\nNegative prompt: b\nSteps: 4, Seed: 7";

/// By how much levels of a smooth picture may be off at the usual quality.
const LOSSY: u8 = 12;

/// A smooth picture of odd sides.
fn image() -> Image {
    let (width, height) = (33_u32, 17_u32);
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels: Vec<u8> =
        places.flat_map(|(x, y)| [5 * x, 9 * y, 3 * (x + y)].map(|level| level as u8)).collect();
    Image { index: 0, seed: 7, width, height, pixels: IpcSharedMemory::from_bytes(&pixels) }
}

fn encoded(format: PictureFormat, settings: Option<&str>) -> Vec<u8> {
    let encoded = format.encode(&image(), settings, QUALITY).unwrap();
    assert_eq!(encoded.left_out_bytes, None);
    encoded.bytes
}

fn decoded(format: PictureFormat, bytes: &[u8]) -> Vec<u8> {
    match format {
        PictureFormat::WebP => ::webp::Decoder::new(bytes).decode().unwrap().to_vec(),
        PictureFormat::Jpeg => {
            zune_jpeg::JpegDecoder::new(std::io::Cursor::new(bytes)).decode().unwrap()
        }
        PictureFormat::Png => {
            let mut reader = ::png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            pixels
        }
    }
}

#[test]
fn every_format_shows_the_picture_and_carries_its_settings() {
    for format in PictureFormat::ALL {
        for settings in [None, Some("plain, Seed: 1"), Some(TEXT)] {
            let bytes = encoded(format, settings);
            assert_eq!(PictureFormat::of_bytes(&bytes), Some(format));
            let read = super::settings(&bytes).unwrap();
            assert_eq!(read.as_deref(), settings, "{format:?}");
            let (got, expected) = (decoded(format, &bytes), image().pixels);
            assert_eq!(got.len(), expected.len());
            let off = got.iter().zip(&*expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            assert!(off <= if format.is_lossy() { LOSSY } else { 0 }, "{format:?}: {off}");
            assert_eq!(bytes, encoded(format, settings), "the same bytes again");
        }
    }
}

#[test]
fn quality_is_size() {
    for format in [PictureFormat::Jpeg, PictureFormat::WebP] {
        let length = |quality| format.encode(&image(), None, quality).unwrap().bytes.len();
        let lengths = [1, 50, 90, 100].map(length);
        assert!(lengths.is_sorted() && lengths[0] < lengths[3], "{format:?}: {lengths:?}");
    }
}

#[test]
fn what_a_format_cannot_hold_is_said() {
    let long = "x".repeat(40_000);
    let jpeg = PictureFormat::Jpeg.encode(&image(), Some(&long), QUALITY).unwrap();
    assert!(jpeg.left_out_bytes.is_some_and(|bytes| bytes > 80_000));
    assert_eq!(settings(&jpeg.bytes).unwrap(), None);
    for format in [PictureFormat::Png, PictureFormat::WebP] {
        let bytes = encoded(format, Some(&long));
        assert_eq!(settings(&bytes).unwrap().as_ref(), Some(&long));
    }
    let wide = Image {
        width: 20_000,
        height: 1,
        pixels: IpcSharedMemory::from_bytes(&[0; 60_000]),
        ..image()
    };
    let error = PictureFormat::WebP.encode(&wide, None, QUALITY).unwrap_err().to_string();
    assert_eq!(error, "20000x1 pixels, at most 16383 a side");
    let short = Image { height: 18, ..image() };
    assert!(PictureFormat::Png.encode(&short, None, QUALITY).is_err());
}

#[test]
fn user_comments_of_other_programs_are_read() {
    let comment = |characters: &[u8], text: &[u8]| {
        let mut exif = exif::with_user_comment("");
        let length = (characters.len() + text.len()) as u32;
        let at = exif.len() - 8 - 12;
        exif.truncate(exif.len() - 8);
        exif[at..at + 4].copy_from_slice(&length.to_be_bytes());
        exif.extend([characters, text].concat());
        exif::user_comment(&exif)
    };
    let units = |to_bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        TEXT.encode_utf16().flat_map(to_bytes).collect()
    };
    let text = Some(TEXT.to_owned());
    assert_eq!(comment(b"UNICODE\0", &units(u16::to_be_bytes)), text);
    assert_eq!(comment(b"UNICODE\0", &units(u16::to_le_bytes)), text);
    let marked = [vec![0xff, 0xfe], units(u16::to_le_bytes)].concat();
    assert_eq!(comment(b"UNICODE\0", &marked), text);
    assert_eq!(comment(b"ASCII\0\0\0", b"Steps: 4\0\0"), Some("Steps: 4".to_owned()));
    assert_eq!(comment(&[0; 8], TEXT.as_bytes()), text);
    assert_eq!(comment(b"JIS\0\0\0\0\0", b"Steps: 4"), None);
    assert_eq!(comment(b"UNICODE\0", b""), None);
    assert_eq!(comment(b"ASC", b""), None, "it ends within the name of its characters");
}

#[test]
fn packed_settings_are_unpacked_up_to_a_limit() {
    let with = |length: usize| {
        let mut bytes = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut bytes, 1, 1);
        let text = "x".repeat(length);
        encoder.add_ztxt_chunk("parameters".to_owned(), text).unwrap();
        encoder.write_header().unwrap().write_image_data(&[0]).unwrap();
        settings(&bytes)
    };
    assert_eq!(with(1000).unwrap().map(|text| text.len()), Some(1000));
    assert!(with(SETTINGS_BYTES_MAX + 1).is_err());
}

#[test]
fn only_pictures_have_settings() {
    for bytes in [&b""[..], b"BM", b"GIF89a", &[0xff, 0xd8], b"RIFF\0\0\0\0WAVE"] {
        assert!(matches!(settings(bytes), Err(SettingsError::Unknown)), "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Damaged files end in an answer: no panic, nothing unbounded.
    #[test]
    fn damage_ends_in_an_answer(
        which in 0_usize..3,
        cut in 0_usize..1200,
        at in 0_usize..300,
        byte: u8,
    ) {
        let mut bytes = encoded(PictureFormat::ALL[which], Some(TEXT));
        bytes.truncate(cut.max(1));
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = settings(&bytes);
    }
}
