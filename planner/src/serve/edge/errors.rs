//! Errors as answers: serve.md's table of statuses, types and headers (§9).
//!
//! An [`EdgeError`] answers in the form of OpenAI's and our own routes, and leaves itself in the
//! answer's extensions, so that a router of another form can write it anew.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::serve::desk::action::Reply;
use crate::serve::desk::job::{ErrorCode, JobError, JobId};

/// Longest wait that a client is told, in seconds (serve.md §5).
const RETRY_AFTER_MAX_S: u64 = 120;

/// What a client is told of a busy server that does not know better, in seconds.
const RETRY_AFTER_S: u64 = 5;

/// Tells OpenAI's clients whether to ask again by themselves.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Why a request is not answered as it wished.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeError {
    /// As the table says.
    pub status: StatusCode,
    /// For programs, as the table says.
    pub code: &'static str,
    /// A sentence with hints.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// What would fit, as `plan --json` has it.
    pub nearest: Option<Box<Value>>,
    /// The job that failed.
    pub job: Option<JobId>,
    /// When it may be asked again, in seconds.
    pub retry_after_s: Option<u64>,
}

impl EdgeError {
    /// An error of the edge itself, with a code that no job has.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> EdgeError {
        let message = message.into();
        let (param, nearest, job, retry_after_s) = (None, None, None, None);
        EdgeError { status, code, message, param, nearest, job, retry_after_s }
    }

    /// A field's value that is wrong.
    pub fn bad_value(param: &str, message: impl Into<String>) -> EdgeError {
        let mut error = EdgeError::new(StatusCode::BAD_REQUEST, "bad_value", message);
        error.param = Some(param.to_owned());
        error
    }

    /// A field's value that nothing here makes.
    pub fn unsupported(param: &str, message: impl Into<String>) -> EdgeError {
        EdgeError { code: "unsupported_value", ..EdgeError::bad_value(param, message) }
    }

    /// More than a limit.
    pub fn too_large(message: impl Into<String>) -> EdgeError {
        EdgeError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// A body or a picture of a kind that is not taken.
    pub fn bad_media(message: impl Into<String>) -> EdgeError {
        EdgeError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad_media", message)
    }

    /// Nothing is at this address.
    pub fn no_route(message: impl Into<String>) -> EdgeError {
        EdgeError::new(StatusCode::NOT_FOUND, "no_route", message)
    }

    /// What is asked is for those only who administer this host.
    pub fn not_admin() -> EdgeError {
        let message = "this token must not do that; hint: use one whose line ends with :admin";
        EdgeError::new(StatusCode::FORBIDDEN, "not_admin", message)
    }

    /// A fault of ours: an answer that is none to the question.
    pub fn internal(message: impl Into<String>) -> EdgeError {
        EdgeError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    /// The desk's refusal; an answer of another kind than was asked for is a fault of ours.
    pub fn refused(reply: Reply) -> EdgeError {
        match reply {
            Reply::Refused { error, retry_after_s } => {
                EdgeError { retry_after_s, ..EdgeError::from(*error) }
            }
            _ => EdgeError::internal("the desk answered another question"),
        }
    }

    /// What the waiting client of a job is told that failed: as a refusal, but for its deadline.
    pub fn failed(job: &JobId, error: &JobError) -> EdgeError {
        let mut answer = EdgeError::from(error.clone());
        if error.code == ErrorCode::Deadline {
            answer.status = StatusCode::GATEWAY_TIMEOUT;
        }
        answer.job = Some(job.clone());
        answer
    }

    /// The `type` of OpenAI's errors.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500 | 504 => "server_error",
            503 => "unavailable",
            _ => "invalid_request_error",
        }
    }

    /// The body of OpenAI's and our own routes.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message.replace("; hint: ", "\nhint: "),
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        });
        if self.nearest.is_some() || self.job.is_some() {
            error["berth"] = json!({ "nearest": self.nearest, "job": self.job });
        }
        json!({ "error": error })
    }

    /// The headers of the table.
    pub fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        match self.status.as_u16() {
            401 => {
                headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
                let basic = HeaderValue::from_static("Basic realm=\"berth\", charset=\"UTF-8\"");
                headers.push((WWW_AUTHENTICATE, basic));
            }
            429 | 503 => {
                let after = self.retry_after_s.unwrap_or(RETRY_AFTER_S);
                headers.push((RETRY_AFTER, after.clamp(1, RETRY_AFTER_MAX_S).into()));
            }
            409 | 500 | 504 => headers.push((SHOULD_RETRY, HeaderValue::from_static("false"))),
            _ => {}
        }
        headers
    }
}

impl From<JobError> for EdgeError {
    fn from(error: JobError) -> EdgeError {
        let JobError { code, message, param, nearest } = error;
        let (status, name) = row(code);
        let nearest = nearest.map(Box::new);
        EdgeError { param, nearest, ..EdgeError::new(status, name, message) }
    }
}

impl IntoResponse for EdgeError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in self.headers() {
            headers.append(name, value);
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The table: of each code its status, and how it is written.
fn row(code: ErrorCode) -> (StatusCode, &'static str) {
    use StatusCode as S;
    match code {
        ErrorCode::BadValue => (S::BAD_REQUEST, "bad_value"),
        ErrorCode::UnsupportedValue => (S::BAD_REQUEST, "unsupported_value"),
        ErrorCode::NoModel => (S::NOT_FOUND, "no_model"),
        ErrorCode::NoJob => (S::NOT_FOUND, "no_job"),
        ErrorCode::Expired => (S::GONE, "expired"),
        ErrorCode::Finished => (S::CONFLICT, "finished"),
        ErrorCode::DoesNotFit => (S::UNPROCESSABLE_ENTITY, "does_not_fit"),
        ErrorCode::Deadline => (S::UNPROCESSABLE_ENTITY, "deadline"),
        ErrorCode::IdempotencyMismatch => (S::UNPROCESSABLE_ENTITY, "idempotency_mismatch"),
        ErrorCode::BadModel => (S::UNPROCESSABLE_ENTITY, "bad_model"),
        ErrorCode::Quota => (S::TOO_MANY_REQUESTS, "quota"),
        ErrorCode::ExecutorDied => (S::INTERNAL_SERVER_ERROR, "executor_died"),
        ErrorCode::OutOfMemory => (S::INTERNAL_SERVER_ERROR, "out_of_memory"),
        ErrorCode::DeviceFailed => (S::INTERNAL_SERVER_ERROR, "device_failed"),
        ErrorCode::Internal => (S::INTERNAL_SERVER_ERROR, "internal"),
        ErrorCode::Interrupted => (S::INTERNAL_SERVER_ERROR, "interrupted"),
        ErrorCode::Disk => (S::INTERNAL_SERVER_ERROR, "disk"),
        ErrorCode::QueueFull => (S::SERVICE_UNAVAILABLE, "queue_full"),
        ErrorCode::Draining => (S::SERVICE_UNAVAILABLE, "draining"),
        ErrorCode::Paused => (S::SERVICE_UNAVAILABLE, "paused"),
        ErrorCode::Store => (S::SERVICE_UNAVAILABLE, "store"),
    }
}

/// A method that a known address does not take; the router adds those that it does.
pub fn wrong_method() -> EdgeError {
    let message = "this address does not take that method; hint: see /openapi.json";
    EdgeError::new(StatusCode::METHOD_NOT_ALLOWED, "no_route", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_written_as_the_desk_writes_it() {
        for code in [
            ErrorCode::BadValue,
            ErrorCode::NoModel,
            ErrorCode::IdempotencyMismatch,
            ErrorCode::QueueFull,
            ErrorCode::ExecutorDied,
            ErrorCode::Disk,
        ] {
            assert_eq!(serde_json::to_value(code).unwrap(), row(code).1);
        }
    }

    #[test]
    fn the_table_says_status_type_and_headers() {
        for (code, status, kind, header) in [
            (ErrorCode::BadValue, 400, "invalid_request_error", None),
            (ErrorCode::NoJob, 404, "invalid_request_error", None),
            (ErrorCode::Expired, 410, "invalid_request_error", None),
            (ErrorCode::Finished, 409, "invalid_request_error", Some(("x-should-retry", "false"))),
            (ErrorCode::DoesNotFit, 422, "invalid_request_error", None),
            (ErrorCode::Quota, 429, "rate_limit_error", Some(("retry-after", "5"))),
            (ErrorCode::Internal, 500, "server_error", Some(("x-should-retry", "false"))),
            (ErrorCode::QueueFull, 503, "unavailable", Some(("retry-after", "5"))),
        ] {
            let error = EdgeError::from(JobError::new(code, "why"));
            assert_eq!((error.status.as_u16(), error.kind()), (status, kind), "{code:?}");
            let headers = error.headers();
            let got = headers.first().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
            assert_eq!(got, header, "{code:?}");
        }
    }

    #[test]
    fn a_wait_is_told_within_bounds_and_a_missed_deadline_is_a_504() {
        let error = Box::new(JobError::new(ErrorCode::QueueFull, "full"));
        for (asked, told) in [(0, "1"), (7, "7"), (1000, "120")] {
            let refused = Reply::Refused { error: error.clone(), retry_after_s: Some(asked) };
            assert_eq!(EdgeError::refused(refused).headers()[0].1, told);
        }
        let late = JobError::new(ErrorCode::Deadline, "late");
        let answer = EdgeError::failed(&JobId("01".to_owned()), &late);
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(answer.body()["error"]["berth"]["job"], "01");
        assert_eq!(EdgeError::from(late).status, StatusCode::UNPROCESSABLE_ENTITY);
    }

    #[test]
    fn a_hint_stands_on_a_line_of_its_own() {
        let body = EdgeError::bad_value("size", "it is wrong; hint: mend it").body();
        assert_eq!(body["error"]["message"], "it is wrong\nhint: mend it");
        assert_eq!(body["error"]["param"], "size");
        assert!(body["error"].get("berth").is_none());
    }
}
