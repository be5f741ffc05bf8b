//! JSON as it comes from outside: looked through for its size before anything is made of it, and
//! its members taken with their types.

use std::fmt::Display;
use std::str::FromStr;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

use super::errors::EdgeError;
use super::limits::{JSON_DEPTH_MAX, JSON_VALUES_MAX};

/// The object that a body is; an empty body is an empty one.
///
/// # Errors
/// It is no JSON, no object, too deep, or has too many values.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, EdgeError> {
    let bad = |message: String| EdgeError::bad_value("body", message);
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    check(bytes)?;
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("the body must be a JSON object".to_owned())),
        Err(error) => Err(bad(format!("the body is no JSON: {error}"))),
    }
}

/// Looks at brackets and commas alone, so it needs no memory; of damaged JSON it may count wrong,
/// but what it lets through has no more depth and values than it counted.
fn check(bytes: &[u8]) -> Result<(), EdgeError> {
    let (mut depth, mut values) = (0_usize, 1_usize);
    let mut in_string = false;
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_string => {
                bytes.next();
            }
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                values += 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > JSON_DEPTH_MAX {
            let message = format!("the body is deeper than {JSON_DEPTH_MAX} arrays and objects");
            return Err(EdgeError::bad_value("body", message));
        }
        if values > JSON_VALUES_MAX {
            let message = format!("the body has more than {JSON_VALUES_MAX} values");
            return Err(EdgeError::too_large(message));
        }
    }
    Ok(())
}

/// An answer in JSON.
pub fn answer(status: StatusCode, document: &impl Serialize) -> Response {
    match body(document) {
        Ok(bytes) => of_body(status, bytes),
        Err(error) => error.into_response(),
    }
}

/// A document as it is sent.
///
/// # Errors
/// It cannot be written as JSON.
pub fn body(document: &impl Serialize) -> Result<Bytes, EdgeError> {
    let bytes = serde_json::to_vec(document);
    let internal = |error| EdgeError::internal(format!("an answer is no JSON: {error}"));
    bytes.map(Bytes::from).map_err(internal)
}

/// An answer of a [`body`].
pub fn of_body(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// The members of an object, taken one after the other; what is left was not known.
///
/// `null` is as good as absent. Numbers may be written as text, as forms have them.
pub struct Members(pub Map<String, Value>);

impl Members {
    /// Takes a member as it is.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, EdgeError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(EdgeError::bad_value(name, format!("{name} must be a text"))),
        }
    }

    /// Takes a yes or no.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, EdgeError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(Value::String(text)) if text.parse::<bool>().is_ok() => Ok(text.parse().ok()),
            Some(_) => Err(EdgeError::bad_value(name, format!("{name} must be true or false"))),
        }
    }

    /// Takes a whole number of a range.
    ///
    /// # Errors
    /// It is something else, or outside of the range.
    pub fn whole<T>(&mut self, name: &str, min: T, max: T) -> Result<Option<T>, EdgeError>
    where
        T: TryFrom<u64> + FromStr + PartialOrd + Display + Copy,
    {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::Number(number) => whole_of(number).and_then(|number| T::try_from(number).ok()),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match number.filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_number(name, &format!("a whole number from {min} to {max}"), &value)),
        }
    }

    /// Takes a number of a range.
    ///
    /// # Errors
    /// It is something else, or outside of the range.
    pub fn number(&mut self, name: &str, min: f64, max: f64) -> Result<Option<f64>, EdgeError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match &value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        match number.filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_number(name, &format!("a number from {min} to {max}"), &value)),
        }
    }

    /// A sentence for each member that nobody took.
    pub fn notices(&self) -> Vec<String> {
        let mut names: Vec<&String> = self.0.keys().collect();
        let more = names.len().saturating_sub(NOTICES_MAX);
        names.truncate(NOTICES_MAX);
        let shown = |name: &&String| -> String { name.chars().take(NAME_CHARACTERS).collect() };
        let mut notices: Vec<String> = names
            .iter()
            .map(|name| format!("{:?} is not known, and has no effect", shown(name)))
            .collect();
        if more > 0 {
            notices.push(format!("{more} more fields are not known, and have no effect"));
        }
        notices
    }
}

/// Fields that are told by name.
const NOTICES_MAX: usize = 16;

/// Characters of a field's name that are told.
const NAME_CHARACTERS: usize = 64;

/// A number without fraction, also if it is written with one: `4.0`.
fn whole_of(number: &serde_json::Number) -> Option<u64> {
    /// The whole numbers up to here are exact as f64.
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    number.as_u64().or_else(|| {
        let number = number.as_f64()?;
        ((0.0..=EXACT_MAX).contains(&number) && number.fract() == 0.0).then_some(number as u64)
    })
}

fn wrong_number(name: &str, expected: &str, got: &Value) -> EdgeError {
    let got: String = got.to_string().chars().take(NAME_CHARACTERS).collect();
    EdgeError::bad_value(name, format!("{name} must be {expected}, got {got}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members(value: Value) -> Members {
        let Value::Object(object) = value else { panic!("an object") };
        Members(object)
    }

    #[test]
    fn depth_and_number_of_values_are_bounded_before_parsing() {
        let nested = |depth: usize| {
            format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth)).into_bytes()
        };
        assert!(object(&nested(JSON_DEPTH_MAX - 1)).is_ok());
        assert_eq!(object(&nested(JSON_DEPTH_MAX)).unwrap_err().code, "bad_value");
        assert_eq!(object(&nested(1_000_000)).unwrap_err().code, "bad_value");
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(JSON_VALUES_MAX));
        assert_eq!(object(many.as_bytes()).unwrap_err().code, "too_large");
        let text = format!("{{\"a\":\"{}\"}}", "[,\\\"".repeat(JSON_VALUES_MAX));
        assert!(object(text.as_bytes()).is_ok(), "a text holds what it likes");
    }

    #[test]
    fn what_is_no_object_is_refused_and_nothing_is_an_empty_one() {
        assert!(object(b" \n").unwrap().is_empty());
        for bad in [&b"[]"[..], b"1", b"{", b"{\"a\":}", b"\xff", b"{}{}"] {
            assert_eq!(object(bad).unwrap_err().param.as_deref(), Some("body"));
        }
    }

    #[test]
    fn numbers_are_taken_within_their_range() {
        let mut all = members(json!({
            "a": 4, "b": "4", "c": 4.0, "d": 4.5, "e": -1, "f": 65, "g": null, "h": [], "i": "x",
        }));
        for name in ["a", "b", "c"] {
            assert_eq!(all.whole(name, 1_u32, 64).unwrap(), Some(4), "{name}");
        }
        for name in ["d", "e", "f", "h", "i"] {
            let error = all.whole(name, 1_u32, 64).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
            assert!(error.message.contains("from 1 to 64"), "{}", error.message);
        }
        assert_eq!(all.whole("g", 1_u32, 64).unwrap(), None);
        let mut scales = members(json!({"a": 1, "b": "0.5", "c": "nan", "d": 1e300}));
        assert_eq!(scales.number("a", 0.0, 1.0).unwrap(), Some(1.0));
        assert_eq!(scales.number("b", 0.0, 1.0).unwrap(), Some(0.5));
        assert!(scales.number("c", 0.0, 1.0).is_err() && scales.number("d", 0.0, 1.0).is_err());
    }

    #[test]
    fn what_nobody_took_is_told_by_name_but_not_without_end() {
        let mut all = members(json!({"prompt": "x", "other": 1}));
        assert_eq!(all.text("prompt").unwrap().as_deref(), Some("x"));
        assert_eq!(all.notices(), ["\"other\" is not known, and has no effect"]);
        let many = (0..100).map(|index| (index.to_string(), Value::Bool(true))).collect();
        assert_eq!(Members(many).notices().len(), NOTICES_MAX + 1);
    }
}
