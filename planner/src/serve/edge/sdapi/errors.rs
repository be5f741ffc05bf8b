//! Errors as A1111's clients know them, with its statuses where they differ from ours.

use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::serve::edge::errors::EdgeError;

/// Wherever a sentence's hint begins.
const HINT: &str = "; hint: ";

/// The body: `detail` is what clients show, `errors` has the hints too.
pub fn document(error: &EdgeError) -> Value {
    let message = &error.message;
    let detail = message.split_once(HINT).map_or(message.as_str(), |(detail, _)| detail);
    let mut document = json!({
        "error": error.code,
        "detail": detail,
        "body": error.param.as_deref().unwrap_or_default(),
        "errors": message,
    });
    if error.nearest.is_some() || error.job.is_some() {
        document["berth"] = json!({ "nearest": error.nearest, "job": error.job });
    }
    document
}

/// What is wrong in a body is 422, as FastAPI has it; so is a model that there is not.
pub fn status(error: &EdgeError) -> StatusCode {
    match (error.status, error.code) {
        (StatusCode::BAD_REQUEST, _) | (_, "no_model") => StatusCode::UNPROCESSABLE_ENTITY,
        (status, _) => status,
    }
}

/// Writes an answer of ours anew, where it is an error.
pub fn translate(response: Response) -> Response {
    let Some(error) = response.extensions().get::<EdgeError>() else { return response };
    let (status, document) = (status(error), document(error));
    let (mut parts, _) = response.into_parts();
    parts.status = status;
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (parts, document.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_four_keys_are_there() {
        let error = EdgeError::bad_value("steps", "steps must be more; hint: send 4");
        assert_eq!(
            document(&error),
            json!({
                "error": "bad_value",
                "detail": "steps must be more",
                "body": "steps",
                "errors": "steps must be more; hint: send 4",
            })
        );
    }

    #[test]
    fn statuses_are_those_of_the_web_ui() {
        let other = EdgeError::new(StatusCode::NOT_FOUND, "unsupported_value", "Sampler not found");
        let model = EdgeError::new(StatusCode::NOT_FOUND, "no_model", "there is none");
        for (error, expected) in [
            (EdgeError::bad_value("steps", ""), 422),
            (EdgeError::unsupported("mask", ""), 422),
            (model, 422),
            (other, 404),
            (EdgeError::internal(""), 500),
        ] {
            assert_eq!(status(&error).as_u16(), expected);
        }
    }
}
