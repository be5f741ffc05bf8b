//! A1111's `png-info`: the settings in a picture's file.

use serde_json::{Map, Value, json};

use crate::job::infotext::{self, Settings};
use crate::media;
use crate::serve::edge::errors::EdgeError;

/// Reads a picture's file.
///
/// # Errors
/// It is no picture, or is damaged.
pub fn document(picture: &[u8]) -> Result<Value, EdgeError> {
    let damaged = |error: media::SettingsError| EdgeError::bad_value("image", error.to_string());
    let Some(text) = media::settings(picture).map_err(damaged)? else {
        return Ok(json!({ "info": "", "items": {}, "parameters": {} }));
    };
    let parameters = parameters(&text);
    Ok(json!({ "info": text, "items": { "parameters": text }, "parameters": parameters }))
}

/// The settings as A1111 hands them to its own form: all as text, with its names for what stands
/// outside of the last line.
fn parameters(text: &str) -> Map<String, Value> {
    let Ok(infotext::Reading { settings, unknown }) = infotext::read(text) else {
        return Map::new();
    };
    let Settings { prompt, negative_prompt, size, .. } = &settings;
    let own = [
        ("Prompt", prompt.clone()),
        ("Negative prompt", negative_prompt.clone().unwrap_or_default()),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
    let sides = size.map(|[width, height]| [("Size-1", width), ("Size-2", height)]);
    let sides = sides.into_iter().flatten().map(|(key, side)| (key.to_owned(), side.to_string()));
    let pairs = infotext::pairs(&settings).into_iter().filter(|(key, _)| key != "Size");
    let all = own.chain(sides).chain(pairs).chain(unknown);
    all.map(|(key, value)| (key, Value::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use ipc_channel::ipc::IpcSharedMemory;
    use protocol::message::Image;

    use super::*;
    use crate::media::PictureFormat;

    fn picture(format: PictureFormat, settings: Option<&str>) -> Vec<u8> {
        let pixels = IpcSharedMemory::from_bytes(&[9; 12]);
        let image = Image { index: 0, seed: 7, width: 2, height: 2, pixels };
        format.encode(&image, settings, 90).unwrap().bytes
    }

    #[test]
    fn settings_are_read_from_each_format() {
        let text = "a cat\nNegative prompt: dogs\n\
             Steps: 4, Sampler: Euler, Seed: 7, Size: 64x32, Other: 1";
        for format in PictureFormat::ALL {
            let document = document(&picture(format, Some(text))).unwrap();
            assert_eq!(document["info"], text);
            assert_eq!(document["items"]["parameters"], text);
            let expected = json!({
                "Prompt": "a cat", "Negative prompt": "dogs", "Steps": "4", "Sampler": "Euler",
                "Seed": "7", "Size-1": "64", "Size-2": "32", "Other": "1",
            });
            assert_eq!(document["parameters"], expected, "{format:?}");
        }
    }

    #[test]
    fn a_picture_without_settings_is_no_error_and_no_picture_is_one() {
        let empty = json!({ "info": "", "items": {}, "parameters": {} });
        assert_eq!(document(&picture(PictureFormat::Png, None)).unwrap(), empty);
        let error = document(b"GIF89a").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("image"));
    }
}
