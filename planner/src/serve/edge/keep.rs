//! Pictures of requests: out of base64, and what is told of those that are wrong. Where they are
//! kept is [`crate::serve::files`]' business.
//!
//! Nothing is ever fetched: an address in place of a picture is an error.

use crate::serve::desk::job::{ErrorCode, JobError};

/// What errors call a picture of a request.
const NAME: &str = "image";

/// How a picture begins that is written as an address of itself.
const DATA_URL: &str = "data:";

/// What stands between an address's head and its content.
const BASE64: &str = ";base64,";

/// An error of keeping a picture, which names the picture's field where that is wrong.
pub fn of_the_picture(mut error: JobError) -> JobError {
    if error.code == ErrorCode::BadValue {
        error.param = Some(NAME.to_owned());
    }
    error
}

/// The bytes of a picture in base64, with or without `data:image/…;base64,` before it.
///
/// # Errors
/// It is an address of something else, or no base64.
pub fn from_base64(text: &str) -> Result<Vec<u8>, JobError> {
    let text = text.trim();
    let content = match strip_ignoring_case(text, DATA_URL) {
        Some(url) => url.split_once(BASE64).map(|(_, content)| content),
        None => Some(text),
    };
    let begins = |scheme| strip_ignoring_case(text, scheme).is_some();
    if begins("http:") || begins("https:") || begins("file:") {
        return Err(bad(
            "a picture must be sent as base64; hint: nothing is fetched from an address",
        ));
    }
    let content = content.ok_or_else(|| bad("the data URL must be in base64"))?;
    base64::decode(content).map_err(|error| bad(format!("the picture is no base64: {error}")))
}

fn strip_ignoring_case<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(beginning.len())?;
    head.eq_ignore_ascii_case(beginning).then_some(rest)
}

fn bad(message: impl Into<String>) -> JobError {
    of_the_picture(JobError::new(ErrorCode::BadValue, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_picture_that_is_wrong_is_a_wrong_field() {
        for (code, param) in [(ErrorCode::BadValue, Some("image")), (ErrorCode::Disk, None)] {
            let error = of_the_picture(JobError::new(code, "no"));
            assert_eq!(error.param.as_deref(), param, "{code:?}");
        }
    }

    #[test]
    fn base64_is_taken_with_and_without_its_head_and_addresses_are_not() {
        for text in ["AQI=", " AQI=\n", "data:image/png;base64,AQI=", "DATA:image/png;base64,AQI="]
        {
            assert_eq!(from_base64(text).unwrap(), [1, 2], "{text}");
        }
        for text in ["http://a/b.png", "HTTPS://a", "file:///etc/passwd", "data:text/plain,x", "é="]
        {
            assert_eq!(from_base64(text).unwrap_err().code, ErrorCode::BadValue, "{text}");
        }
    }
}
