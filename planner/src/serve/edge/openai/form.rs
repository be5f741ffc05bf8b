//! Forms of OpenAI's edits: files are pictures, everything else is a field as JSON would have it.

use axum::body::Bytes;
use serde_json::{Map, Value};

use crate::serve::edge::body::FormField;
use crate::serve::edge::embedded;
use crate::serve::edge::errors::EdgeError;

/// What clients call the pictures: one, or each of several.
const PICTURES: [&str; 2] = ["image", "image[]"];

/// Takes a form apart.
///
/// # Errors
/// A field is no text, or a picture no base64 where it is none.
pub fn read(parts: Vec<FormField>) -> Result<(Map<String, Value>, Vec<Bytes>), EdgeError> {
    let (mut fields, mut pictures) = (Map::new(), Vec::new());
    for FormField { name, file_name, bytes } in parts {
        match file_name {
            Some(_) if PICTURES.contains(&name.as_str()) => pictures.push(bytes),
            // What it holds does not matter: it is refused or told by its name.
            Some(_) => {
                fields.insert(name, Value::from("a file"));
            }
            None => {
                let text = std::str::from_utf8(&bytes).map_err(|_| {
                    EdgeError::bad_value(&name, format!("{name} must be a text in UTF-8"))
                })?;
                if PICTURES.contains(&name.as_str()) {
                    pictures.push(embedded::base64(&name, text)?.into());
                } else {
                    fields.insert(name, Value::from(text));
                }
            }
        }
    }
    Ok((fields, pictures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, file_name: Option<&str>, bytes: &'static [u8]) -> FormField {
        let file_name = file_name.map(str::to_owned);
        FormField { name: name.to_owned(), file_name, bytes: Bytes::from_static(bytes) }
    }

    #[test]
    fn files_are_pictures_and_texts_are_fields() {
        let (fields, pictures) = read(vec![
            part("image[]", Some("a.png"), b"one"),
            part("image[]", Some("b.png"), b"two"),
            part("image", None, b"data:image/png;base64,aGk="),
            part("prompt", None, "ein Käse".as_bytes()),
            part("n", None, b"2"),
            part("mask", Some("mask.png"), b"three"),
        ])
        .unwrap();
        assert_eq!(pictures, [&b"one"[..], b"two", b"hi"]);
        assert_eq!(fields["prompt"], "ein Käse");
        assert_eq!(fields["n"], "2");
        assert_eq!(fields["mask"], "a file");
    }

    #[test]
    fn what_cannot_be_read_names_its_field() {
        for (part, param) in [
            (part("prompt", None, b"\xff"), "prompt"),
            (part("image", None, b"https://example.com/a.png"), "image"),
        ] {
            assert_eq!(read(vec![part]).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
