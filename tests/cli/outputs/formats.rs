//! The ending of a name says the format; settings are in all of them.

use std::fs;

use planner::media::{PictureFormat, settings};

use super::{GENERATE, JPEG, PNG, SEED, WEBP, generate, generated};
use crate::support::{Home, golden, pixels};

/// By how much levels of a small picture may be off on average at the usual quality.
const LOSSY_MEAN: f64 = 8.0;

fn decoded(path: &std::path::Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    match PictureFormat::of_bytes(&bytes).unwrap() {
        PictureFormat::Png => pixels(path),
        PictureFormat::Jpeg => {
            zune_jpeg::JpegDecoder::new(std::io::Cursor::new(bytes)).decode().unwrap()
        }
        PictureFormat::WebP => webp::Decoder::new(&bytes).decode().unwrap().to_vec(),
    }
}

#[test]
fn the_ending_says_the_format() {
    let home = Home::new();
    generated(&home, &[&["a.png"][..], &SEED].concat());
    let expected = pixels(&home.path("a.png"));
    for (name, begins) in
        [("b.PNG", PNG), ("b.jpg", JPEG), ("b.jpeg", JPEG), ("b.JPG", JPEG), ("b.webp", WEBP)]
    {
        generated(&home, &[&[name][..], &SEED].concat());
        let bytes = fs::read(home.path(name)).unwrap();
        assert!(bytes.starts_with(begins), "{name}");
        let got = decoded(&home.path(name));
        assert_eq!(got.len(), expected.len(), "{name}");
        let off: u64 = got.iter().zip(&expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        let mean = off as f64 / expected.len() as f64;
        assert!(mean <= LOSSY_MEAN, "{name} is {mean} levels off");
    }
}

#[test]
fn the_same_job_makes_the_same_bytes() {
    let home = Home::new();
    for ending in ["png", "jpg", "webp"] {
        let names = [format!("a.{ending}"), format!("b.{ending}")];
        let bytes = names.map(|name| {
            generated(&home, &[&[name.as_str()][..], &SEED].concat());
            fs::read(home.path(&name)).unwrap()
        });
        assert_eq!(bytes[0], bytes[1], "{ending}");
    }
}

#[test]
fn quality_is_of_lossy_formats() {
    let home = Home::new();
    for ending in ["jpg", "webp"] {
        let lengths = ["5", "100"].map(|quality| {
            let name = format!("{quality}.{ending}");
            generated(&home, &[&name, "--quality", quality]);
            fs::metadata(home.path(&name)).unwrap().len()
        });
        assert!(lengths[0] < lengths[1], "{ending}: {lengths:?}");
    }
    for (name, outputs) in [
        ("quality-png", &["a.png", "--quality", "50"][..]),
        ("quality-0", &["a.jpg", "--quality", "0"]),
        ("quality-101", &["a.jpg", "--quality", "101"]),
        ("ending", &["a.gif"]),
        ("no-ending", &["picture"]),
        ("webp-size", &["a.webp", "--width", "16384", "--height", "16"]),
    ] {
        let begin: &[&str] = match name {
            // Without a size of its own.
            "webp-size" => &["generate", "--prompt", "a", "--steps", "1", "--output"],
            _ => &GENERATE,
        };
        let arguments = [begin, outputs].concat();
        let ended = golden::run(&format!("outputs-{name}"), &home, &arguments);
        assert_eq!(ended.code, Some(2), "{name}");
    }
}

#[test]
fn every_format_carries_the_settings() {
    let home = Home::new();
    let mut texts = Vec::new();
    for name in ["a.png", "a.jpg", "a.webp"] {
        let arguments = ["generate", "--prompt", "größe 円 🎨", "--steps", "1", "--seed", "5"];
        let ended = home.run(&[&arguments[..], &["--output", name]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let text = settings(&fs::read(home.path(name)).unwrap()).unwrap();
        texts.push(text.unwrap_or_else(|| panic!("{name} has settings")));
        generated(&home, &[name, "--no-settings"]);
        assert_eq!(settings(&fs::read(home.path(name)).unwrap()).unwrap(), None, "{name}");
    }
    assert!(texts[0].starts_with("größe 円 🎨\n") && texts[0].contains("Seed: 5"), "{}", texts[0]);
    // Only what loses something has a quality.
    let texts: Vec<String> = texts.iter().map(|text| text.replace("Quality: 90, ", "")).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
}

#[test]
fn settings_that_a_format_cannot_hold_are_told() {
    let home = Home::new();
    let prompt = "long ".repeat(8_000);
    let arguments = ["generate", "--prompt", &prompt, "--steps", "1", "--output", "a.jpg"];
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("more than a .jpg file holds, and are left out; hint: "));
    assert_eq!(settings(&fs::read(home.path("a.jpg")).unwrap()).unwrap(), None);
    assert_eq!(generate(&home, &["a.jpg"]).code, Some(0));
}
