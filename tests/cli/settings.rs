//! The settings in pictures: what is recorded, how a picture is made again from them, and how a run
//! is asked for.

mod again;
mod asked;
mod refused;
mod shown;

use std::path::Path;

use crate::support::{Ended, Home};

/// Runs `berth`, which must succeed.
fn done(home: &Home, arguments: &[&str]) -> Ended {
    let ended = home.run(arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
    ended
}

/// The settings in a picture of a home, as the program reads them.
fn settings(home: &Home, picture: &str) -> serde_json::Value {
    home.json(&["inspect", picture, "--json"])["settings"].clone()
}

/// Writes a picture of one pixel with a text under the keyword of settings.
fn write_png(path: &Path, text: Option<&str>) {
    let file = std::fs::File::create(path).expect("a file in the home");
    let mut encoder = png::Encoder::new(file, 1, 1);
    encoder.set_color(png::ColorType::Rgb);
    if let Some(text) = text {
        encoder.add_itxt_chunk("parameters".to_owned(), text.to_owned()).expect("a text");
    }
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&[0, 0, 0]).expect("a pixel");
    writer.finish().expect("a whole picture");
}
