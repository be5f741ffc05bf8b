//! Pictures in JSON bodies: texts in base64 or `data:` URLs, alone, in lists, or as OpenAI's
//! references to pictures. They are taken out of the body, which is then small.

use serde_json::{Map, Value};

use super::errors::EdgeError;
use super::fields::bad;
use super::keep;

/// Most pictures of a request (OpenAI's images API).
const PICTURES_MAX: usize = 16;

/// Takes a field with one picture or several out of a body, and decodes them. A field that is
/// absent, `null` or empty has none.
///
/// # Errors
/// It holds something else, or too many; the error names the field.
pub fn take(body: &mut Map<String, Value>, name: &str) -> Result<Vec<Vec<u8>>, EdgeError> {
    decode(name, &body.remove(name).unwrap_or_default())
}

/// Decodes a field's one picture, or several.
///
/// # Errors
/// As [`take`].
pub fn decode(name: &str, value: &Value) -> Result<Vec<Vec<u8>>, EdgeError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(pictures) if pictures.len() > PICTURES_MAX => {
            let got = pictures.len();
            let message = format!("{name} has {got} pictures, at most {PICTURES_MAX} are taken");
            Err(EdgeError::bad_value(name, message))
        }
        Value::Array(pictures) => pictures.iter().map(|picture| one(name, picture)).collect(),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        picture => Ok(vec![one(name, picture)?]),
    }
}

fn one(name: &str, picture: &Value) -> Result<Vec<u8>, EdgeError> {
    let text = match picture {
        Value::String(text) => text,
        Value::Object(reference) => match reference.get("image_url") {
            Some(Value::String(text)) => text,
            Some(Value::Object(url)) => match url.get("url") {
                Some(Value::String(text)) => text,
                _ => return Err(bad(name, EXPECTED, picture)),
            },
            _ => return Err(bad(name, EXPECTED, picture)),
        },
        _ => return Err(bad(name, EXPECTED, picture)),
    };
    base64(name, text)
}

/// The bytes of a picture's text; blanks and line ends in it do not count, nor does padding that
/// lacks.
///
/// # Errors
/// It is an address of something else, or no base64.
pub fn base64(name: &str, text: &str) -> Result<Vec<u8>, EdgeError> {
    let has_blanks = text.bytes().any(|byte| byte.is_ascii_whitespace());
    let compact: Option<String> =
        has_blanks.then(|| text.chars().filter(|c| !c.is_ascii_whitespace()).collect());
    keep::from_base64(compact.as_deref().unwrap_or(text)).map_err(|error| {
        let error = EdgeError::from(error);
        EdgeError { param: Some(name.to_owned()), ..error }
    })
}

/// What a picture is in a body.
const EXPECTED: &str = "a picture in base64 or as a data: URL";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: Value) -> Result<Vec<Vec<u8>>, EdgeError> {
        let mut body = Map::from_iter([("image".to_owned(), value)]);
        let taken = take(&mut body, "image");
        assert!(body.is_empty(), "it is taken out");
        taken
    }

    #[test]
    fn pictures_stand_alone_in_lists_and_in_references() {
        let hi = || vec![b"hi".to_vec()];
        for (value, pictures) in [
            (json!("aGk="), hi()),
            (json!("data:image/png;base64,aG\nk="), hi()),
            (json!(["aGk=", "aGk="]), [hi(), hi()].concat()),
            (json!([{"image_url": "data:image/png;base64,aGk="}]), hi()),
            (json!([{"type": "image_url", "image_url": {"url": "aGk="}}]), hi()),
            (json!(""), vec![]),
            (json!([]), vec![]),
            (json!(null), vec![]),
        ] {
            assert_eq!(of(value.clone()).unwrap(), pictures, "{value}");
        }
    }

    #[test]
    fn what_is_no_picture_names_its_field() {
        for value in [
            json!("http://example.com/a.png"),
            json!([{"file_id": "file-1"}]),
            json!([{"image_url": {"url": 1}}]),
            json!(7),
            json!(["~"]),
            json!(vec![""; 17]),
        ] {
            let error = of(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("image"), "{value}");
        }
    }
}
