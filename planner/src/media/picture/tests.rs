//! Every kind of picture file that `scripts/picture_fixtures.py` makes, and what is wrong with
//! others.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// Size of the pattern.
const SIZE: [usize; 2] = [24, 16];

/// By how much levels may be off: nothing, or what JPEG loses of smooth colours.
const EXACT: u8 = 0;
const LOSSY: u8 = 12;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pictures").join(name)
}

fn colours(x: usize, y: usize) -> [u8; 3] {
    [10 * x, 15 * y, 6 * (x + y)].map(|level| level as u8)
}

fn grays(x: usize, _: usize) -> [u8; 3] {
    [10 * x as u8; 3]
}

fn largest_difference(got: &[u8], expected: &[u8]) -> u8 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[track_caller]
fn assert_shows(name: &str, pattern: impl Fn(usize, usize) -> [u8; 3], tolerance: u8) {
    let source = Picture::open(&fixture(name)).unwrap();
    assert_eq!(source.size(), SIZE, "{name}");
    let got = source.pixels(SIZE[0], SIZE[1]).unwrap();
    let places = (0..SIZE[1]).flat_map(|y| (0..SIZE[0]).map(move |x| (x, y)));
    let expected: Vec<u8> = places.flat_map(|(x, y)| pattern(x, y)).collect();
    let off = largest_difference(&got, &expected);
    assert!(off <= tolerance, "{name} is {off} levels off");
}

/// A colour of a picture whose right half is transparent: a fifth of it on four fifths of white.
fn half(x: usize, colour: [u8; 3]) -> [u8; 3] {
    match x {
        0..12 => colour,
        _ => colour.map(|level| ((u32::from(level) + 4 * 255 + 2) / 5) as u8),
    }
}

#[test]
fn every_kind_of_png_is_read() {
    assert_shows("rgb.png", colours, EXACT);
    assert_shows("gray.png", grays, EXACT);
    assert_shows("gray16.png", grays, EXACT);
    assert_shows("turned.png", colours, EXACT);
    // The palette has fewer colours than the picture.
    assert_shows("palette.png", colours, LOSSY);
    assert_shows("rgba.png", |x, y| half(x, colours(x, y)), EXACT);
    assert_shows("gray_alpha.png", |x, y| half(x, grays(x, y)), EXACT);
}

#[test]
fn every_kind_of_jpeg_is_read() {
    assert_shows("baseline.jpg", colours, LOSSY);
    assert_shows("progressive.jpg", colours, LOSSY);
    assert_shows("gray.jpg", grays, LOSSY);
    assert_shows("cmyk.jpg", colours, LOSSY);
    assert_shows("turned.jpg", colours, LOSSY);
}

#[test]
fn every_kind_of_webp_is_read() {
    assert_shows("lossless.webp", colours, EXACT);
    assert_shows("turned.webp", colours, EXACT);
    assert_shows("lossy.webp", colours, LOSSY);
    assert_shows("rgba.webp", |x, y| half(x, colours(x, y)), EXACT);
    assert_shows("lossy_rgba.webp", |x, y| half(x, colours(x, y)), LOSSY);
}

#[test]
fn sizes_are_changed_as_pillow_does_it() {
    let source = Picture::open(&fixture("rgb.png")).unwrap();
    for name in ["grown.png", "shrunk.png"] {
        let expected = Picture::open(&fixture(name)).unwrap();
        let [width, height] = expected.size();
        let got = source.pixels(width, height).unwrap();
        let off = largest_difference(&got, &expected.pixels(width, height).unwrap());
        assert!(off <= 1, "{name}: {off} levels off");
    }
}

#[test]
fn a_flat_picture_stays_flat_at_any_size() {
    let flat = |width, height| Rgb { width, height, pixels: [7, 128, 255].repeat(width * height) };
    for [width, height] in [[1, 1], [3, 500], [500, 3], [16, 16]] {
        assert_eq!(resize(flat(33, 21), width, height), flat(width, height));
        assert_eq!(resize(flat(1, 1), width, height), flat(width, height));
    }
}

/// The error of a file with these bytes, from opening or from reading it.
fn error_of(name: &str, bytes: &[u8]) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let read = Picture::open(&path).and_then(|source| source.pixels(16, 16));
    read.err().map(|error| error.to_string())
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    for name in [
        "rgb.png",
        "palette.png",
        "baseline.jpg",
        "progressive.jpg",
        "cmyk.jpg",
        "lossless.webp",
        "lossy_rgba.webp",
        "turned.webp",
    ] {
        let whole = std::fs::read(fixture(name)).unwrap();
        assert_eq!(error_of(name, &whole), None);
        for length in 0..whole.len() {
            let error = error_of(name, &whole[..length]);
            let error = error.unwrap_or_else(|| panic!("{name}: {length} bytes are enough"));
            assert!(error.contains(name) && error.contains("hint: "), "{error}");
        }
    }
}

#[test]
fn a_header_that_says_too_much_is_refused_before_anything_is_made_from_it() {
    let mut png = std::fs::read(fixture("rgb.png")).unwrap();
    set_png_size(&mut png, 65535, 65535);
    let error = error_of("large.png", &png).unwrap();
    assert!(error.contains("65535x65535 pixels, at most 67108864"), "{error}");

    let mut jpeg = std::fs::read(fixture("baseline.jpg")).unwrap();
    let frame = jpeg.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xff);
    let error = error_of("large.jpg", &jpeg).unwrap();
    assert!(error.contains("65535x65535 pixels"), "{error}");

    // 24 bits of each side, less one.
    let mut webp = std::fs::read(fixture("lossy_rgba.webp")).unwrap();
    webp[24..30].copy_from_slice(&[0xff, 0x3f, 0, 0xff, 0x3f, 0]);
    let error = error_of("large.webp", &webp).unwrap();
    assert!(error.contains("16384x16384 pixels"), "{error}");
    // What is within the limit, and is not there, is refused too.
    webp[24..30].copy_from_slice(&[0xff, 0xf, 0, 0xff, 0xf, 0]);
    assert!(error_of("other.webp", &webp).unwrap().contains("damaged"));
}

#[test]
fn a_picture_that_moves_is_refused() {
    let error = error_of("moving.webp", &std::fs::read(fixture("moving.webp")).unwrap()).unwrap();
    assert!(error.contains("it moves"), "{error}");
}

#[test]
fn a_header_that_says_more_than_there_is_is_refused() {
    let mut png = std::fs::read(fixture("rgb.png")).unwrap();
    for (height, told) in [(16, None), (17, Some("damaged")), (8000, Some("damaged"))] {
        set_png_size(&mut png, 24, height);
        let error = error_of("tall.png", &png);
        assert_eq!(error.is_some(), told.is_some(), "{height} rows: {error:?}");
        assert!(told.is_none_or(|told| error.unwrap().contains(told)));
    }
}

/// Writes IHDR's width and height, and the sum over the chunk's name and content (PNG
/// specification, 11.2.2).
fn set_png_size(png: &mut [u8], width: u32, height: u32) {
    png[16..20].copy_from_slice(&width.to_be_bytes());
    png[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, bit: u32| (crc >> 1) ^ (0xedb8_8320 * ((crc ^ bit) & 1));
    let byte = |crc, &byte: &u8| (0..8).fold(crc, |crc, at| step(crc, u32::from(byte) >> at));
    !bytes.iter().fold(!0, byte)
}

#[test]
fn what_is_no_picture_is_told_apart() {
    let message = |path: &Path| Picture::open(path).unwrap_err().to_string();
    assert!(message(&fixture("missing.png")).starts_with("cannot read the picture "));
    assert!(message(&fixture("")).contains("is no picture in PNG, JPEG or WebP; hint: "));
    assert!(error_of("text.png", b"P6 24 16 255").unwrap().contains("is no picture"));
    assert!(error_of("empty.png", b"").unwrap().contains("is no picture"));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse.png");
    std::fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX.0 + 1).unwrap();
    assert!(message(&path).contains("is larger than 268435456 bytes"));
}

proptest! {
    /// Whatever is wrong is an error, never a panic.
    #[test]
    fn a_damaged_file_is_refused_or_read(
        name in prop::sample::select(vec![
            "rgb.png", "turned.png", "baseline.jpg", "progressive.jpg", "turned.jpg",
            "lossless.webp", "lossy.webp", "lossy_rgba.webp", "turned.webp", "moving.webp",
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let error = error_of(name, &bytes);
        prop_assert!(error.is_none_or(|error| error.contains("hint: ")));
    }
}
