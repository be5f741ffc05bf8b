//! The configuration's file: where in it an error is, and what may have been meant.

use std::ops::Range;

use super::{ConfigError, ConfigLayer};
use crate::serve::nearest;

/// As much of a line's key, and of a message, as an error repeats: the TOML reader repeats wrong
/// values whole.
const KEY_CHARS_MAX: usize = 80;
const MESSAGE_CHARS_MAX: usize = 1000;

/// How serde begins what it says of keys and names that there are not.
const UNKNOWN: [&str; 2] = ["unknown field ", "unknown variant "];

/// What serde says where a section stands in place of the list of directories.
const SECTION_FOR_LIST: &str = "invalid type: map, expected a sequence";

/// Reads a layer.
pub fn parse(text: &str, origin: &str) -> Result<ConfigLayer, ConfigError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = with_hint(error.message());
        at(text, origin, error.span().unwrap_or(0..0), &message)
    })
}

/// What is wrong, with what may have been meant.
fn with_hint(message: &str) -> String {
    if message.starts_with(SECTION_FOR_LIST) {
        return format!("{message}; hint: a section for one model is called [model.NAME]");
    }
    if !UNKNOWN.iter().any(|unknown| message.starts_with(unknown)) {
        return message.to_owned();
    }
    // "unknown field `a`, expected one of `b`, `c`": every other piece is a name.
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(unknown) = names.next() else { return message.to_owned() };
    let what = if message.starts_with(UNKNOWN[0]) { "key" } else { "value" };
    let unknown: String = unknown.chars().take(KEY_CHARS_MAX).collect();
    format!("there is no {what} `{unknown}`{}", nearest::hint(&unknown, names))
}

fn at(text: &str, origin: &str, span: Range<usize>, message: &str) -> ConfigError {
    let line = text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
    let key = text.lines().nth(line - 1).and_then(|line| {
        let (key, _) = line.split_once('=')?;
        let key: String = key.trim().chars().take(KEY_CHARS_MAX).collect();
        Some(key).filter(|key| !key.is_empty() && !key.starts_with('#'))
    });
    let message = message.chars().take(MESSAGE_CHARS_MAX).collect();
    ConfigError::Invalid { origin: origin.to_owned(), line, key, message }
}
