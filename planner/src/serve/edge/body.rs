//! Bodies of requests: read whole under limits, then taken for JSON or a form.
//!
//! Invariant: what all bodies hold together is bounded, and room is taken as bytes come, not as
//! they are announced.

use std::future::poll_fn;
use std::pin::pin;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use futures_core::Stream;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::errors::EdgeError;
use super::json;
use super::limits::FORM_FIELDS_MAX;
use super::state::Edge;
use crate::fingerprint::sha256_of;
use crate::serve::desk::job::IdempotencyKey;

/// The header of a client's own name for a request.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest such name, in bytes.
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Room that is taken at a time while a body comes.
const STEP_BYTES: usize = 64 << 10;

/// Bodies larger than this are parsed beside the thread that serves everybody.
const PARSED_HERE_BYTES_MAX: usize = 1 << 20;

/// A body that was read whole. Its room is given back when this is dropped.
pub struct ReadBody {
    /// All of it.
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// A JSON object that was sent, and what it was sent with.
pub struct JsonBody {
    /// Its members.
    pub object: Map<String, Value>,
    /// The client's own name for it.
    pub idempotency: Option<IdempotencyKey>,
    _room: Option<OwnedSemaphorePermit>,
}

/// A part of a form.
pub struct FormField {
    /// Of the field; empty where it has none.
    pub name: String,
    /// Of the file, where it is one.
    pub file_name: Option<String>,
    /// Its content.
    pub bytes: Bytes,
}

/// A form that was sent, and what it was sent with.
pub struct FormBody {
    /// Its parts in order.
    pub fields: Vec<FormField>,
    /// The client's own name for it.
    pub idempotency: Option<IdempotencyKey>,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `bytes_max`.
///
/// # Errors
/// It is larger (413), comes too slowly (408), ends early (400), or there is no room (503).
pub async fn read(edge: &Edge, body: Body, bytes_max: usize) -> Result<ReadBody, EdgeError> {
    let all = read_unhurried(edge, body, bytes_max);
    timeout(edge.limits().body_timeout, all).await.unwrap_or_else(|_| {
        let message = "the request's body did not come in time";
        Err(EdgeError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
    })
}

async fn read_unhurried(edge: &Edge, body: Body, bytes_max: usize) -> Result<ReadBody, EdgeError> {
    let too_large = || {
        let message = format!("the body is larger than {bytes_max} B; hint: send less at once");
        EdgeError::too_large(message)
    };
    if axum::body::HttpBody::size_hint(&body).lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut stream = pin!(body.into_data_stream());
    let mut bytes = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    let mut room_bytes = 0;
    while let Some(chunk) = poll_fn(|context| stream.as_mut().poll_next(context)).await {
        let chunk = chunk.map_err(|_| {
            EdgeError::new(StatusCode::BAD_REQUEST, "bad_value", "the request's body ends early")
        })?;
        if bytes.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        while room_bytes < bytes.len() + chunk.len() {
            let more = edge.body_room(STEP_BYTES).ok_or_else(busy)?;
            room_bytes += STEP_BYTES;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(ReadBody { bytes: bytes.into(), _room: room })
}

fn busy() -> EdgeError {
    let message = "too many large requests at a time; hint: ask again soon";
    EdgeError::new(StatusCode::SERVICE_UNAVAILABLE, "queue_full", message)
}

/// Reads a JSON object of at most `bytes_max`; an empty body is an empty object.
///
/// # Errors
/// As [`read`]; it is said to be of another kind (415), or is no JSON object (400).
pub async fn json(edge: &Edge, request: Request, bytes_max: usize) -> Result<JsonBody, EdgeError> {
    let (parts, body) = request.into_parts();
    if !may_be_json(&parts) {
        let message = "the body must be JSON; hint: send Content-Type: application/json";
        return Err(EdgeError::bad_media(message));
    }
    let ReadBody { bytes, _room } = read(edge, body, bytes_max).await?;
    let idempotency = idempotency(&parts.headers, &bytes)?;
    let object = if bytes.len() <= PARSED_HERE_BYTES_MAX {
        json::object(&bytes)?
    } else {
        let parsed = tokio::task::spawn_blocking(move || json::object(&bytes)).await;
        parsed.unwrap_or_else(|_| Err(EdgeError::internal("a parser has panicked")))?
    };
    Ok(JsonBody { object, idempotency, _room })
}

/// Reads a form of at most `bytes_max`, as browsers and OpenAI's clients send files.
///
/// # Errors
/// As [`read`]; it is no form (415), or a damaged one (400).
pub async fn form(edge: &Edge, request: Request, bytes_max: usize) -> Result<FormBody, EdgeError> {
    let (parts, body) = request.into_parts();
    let ReadBody { bytes, _room } = read(edge, body, bytes_max).await?;
    let idempotency = idempotency(&parts.headers, &bytes)?;
    let fields = form_fields(Request::from_parts(parts, Body::from(bytes))).await?;
    Ok(FormBody { fields, idempotency, _room })
}

/// The parts of a form that came whole.
///
/// # Errors
/// It is no form (415), a damaged one (400), or has too many parts (413).
pub async fn form_fields(whole: Request) -> Result<Vec<FormField>, EdgeError> {
    let not_form = |_| EdgeError::bad_media("the body must be multipart/form-data with a boundary");
    let mut form = Multipart::from_request(whole, &()).await.map_err(not_form)?;
    let damaged = |_| EdgeError::bad_value("body", "the form is damaged or ends early");
    let mut fields = Vec::new();
    while let Some(field) = form.next_field().await.map_err(damaged)? {
        if fields.len() == FORM_FIELDS_MAX {
            let message = format!("the form has more than {FORM_FIELDS_MAX} parts");
            return Err(EdgeError::too_large(message));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let file_name = field.file_name().map(str::to_owned);
        fields.push(FormField { name, file_name, bytes: field.bytes().await.map_err(damaged)? });
    }
    Ok(fields)
}

/// Whether a request is a form with files.
pub fn is_form(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| kind == "multipart/form-data")
}

fn may_be_json(parts: &Parts) -> bool {
    let is_json = |kind: &str| kind == "application/json" || kind.ends_with("+json");
    media_type(&parts.headers).is_none_or(|kind| is_json(&kind))
}

/// What the body is said to be, without parameters; `None` where nothing is said.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().unwrap_or("unreadable");
    Some(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// The client's own name for a request with this body.
fn idempotency(headers: &HeaderMap, body: &[u8]) -> Result<Option<IdempotencyKey>, EdgeError> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let readable = key.to_str().ok().filter(|key| {
        (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) && !key.trim().is_empty()
    });
    let Some(key) = readable else {
        let message = format!(
            "the header Idempotency-Key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} letters, \
             digits or signs; hint: send a UUID"
        );
        return Err(EdgeError::bad_value("Idempotency-Key", message));
    };
    Ok(Some(IdempotencyKey { key: key.to_owned(), body_sha256: sha256_of(body) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_key_is_kept_with_the_hash_of_the_body() {
        let key = idempotency(&with(IDEMPOTENCY_KEY, "k"), b"{}").unwrap().unwrap();
        assert_eq!((key.key.as_str(), key.body_sha256.len()), ("k", 64));
        let other = idempotency(&with(IDEMPOTENCY_KEY, "k"), b"{ }").unwrap().unwrap();
        assert_ne!(key.body_sha256, other.body_sha256);
        assert_eq!(idempotency(&HeaderMap::new(), b"{}").unwrap(), None);
        for bad in [String::new(), " ".to_owned(), "x".repeat(256)] {
            let error = idempotency(&with(IDEMPOTENCY_KEY, &bad), b"{}").unwrap_err();
            assert_eq!(error.param.as_deref(), Some("Idempotency-Key"), "{bad:?}");
        }
    }

    #[test]
    fn a_kind_is_compared_without_its_parameters() {
        assert!(is_form(&with(CONTENT_TYPE, "Multipart/Form-Data; boundary=x")));
        assert!(!is_form(&with(CONTENT_TYPE, "application/json")));
        assert_eq!(
            media_type(&with(CONTENT_TYPE, "application/json; charset=utf-8")).as_deref(),
            Some("application/json")
        );
    }
}
