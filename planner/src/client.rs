//! A daemon as its clients see it: `berth generate --server` and `berth jobs`.
//!
//! Everything goes over the daemon's native routes. A job's events come on a thread of their own
//! ([`events`]), so that every wait has an end and a signal is heard.
//!
//! Not here: TLS, which a proxy before the daemon speaks, and whoever asks from elsewhere goes
//! through a tunnel.

pub mod events;
pub mod job;

use std::io::Read;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, header};
use ureq::{Agent, Body};

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How long the daemon may take to begin its answer: a quote of a model that it has not looked at
/// yet takes seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// Largest document that is read: a list of 500 jobs with their plans.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;

/// Largest picture that is read: 64 million pixels of 3 bytes, uncompressed.
const PICTURE_BYTES_MAX: u64 = 192 << 20;

/// Bytes of a daemon's message that are shown.
const SHOWN_BYTES_MAX: usize = 4096;

/// Why a daemon does not do what is asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error(
        "{url} is no address of a daemon; hint: http://127.0.0.1:8642, as `berth serve` prints"
    )]
    Address {
        /// As it was written.
        url: String,
    },
    /// It does not answer.
    #[error("no daemon answers at {url}: {cause}; hint: is `berth serve` running?")]
    Unreachable {
        /// Where.
        url: String,
        /// Why not.
        cause: String,
    },
    /// It refuses.
    #[error("{message}")]
    Refused {
        /// HTTP's number.
        status: u16,
        /// For programs: a code of serve.md's table.
        code: String,
        /// A sentence with hints.
        message: String,
    },
    /// It answers what is no answer to the question.
    #[error("{url} answers what no daemon of Berth would: {what}; hint: is it `berth serve`?")]
    Strange {
        /// Where.
        url: String,
        /// What of it, as a clause.
        what: String,
    },
    /// The connection broke while a job ran, and did not come back.
    #[error(
        "the daemon at {url} has not been heard of for {seconds} s; hint: `berth jobs` tells whether the job goes on"
    )]
    Lost {
        /// Where.
        url: String,
        /// For how long.
        seconds: u64,
    },
    /// The user asked for the end.
    #[error("cancelled")]
    Cancelled,
}

/// A way to ask one daemon, as one of its clients; clones share connections.
#[derive(Debug, Clone)]
pub struct DaemonClient {
    agent: Agent,
    base: String,
    token: Option<String>,
}

impl DaemonClient {
    /// The daemon at an address, with a token where it wants one.
    ///
    /// # Errors
    /// It is no address of plain HTTP.
    pub fn at(url: &str, token: Option<String>) -> Result<DaemonClient, ClientError> {
        let base = url.trim_end_matches('/').to_owned();
        let is_http = base.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
        let has_path = base.matches('/').count() > 2;
        if !is_http || has_path {
            return Err(ClientError::Address { url: url.to_owned() });
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(ANSWER_LIMIT))
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(DaemonClient { agent: config.into(), base, token })
    }

    /// Where it is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// `GET` of a document.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        let request = self.agent.get(self.url(path));
        let request = request.header(header::AUTHORIZATION, self.authorization());
        self.document(request.call())
    }

    /// `POST` of a document.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let request = self.agent.post(self.url(path));
        let request = request.header(header::AUTHORIZATION, self.authorization());
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.document(request.send(body.to_string()))
    }

    /// `GET` of a picture's file.
    pub fn picture(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let request = self.agent.get(self.url(path));
        let request = request.header(header::AUTHORIZATION, self.authorization());
        let mut response = self.answered(request.call())?;
        self.refusal(&mut response)?;
        self.bytes(&mut response, PICTURE_BYTES_MAX)
    }

    /// `GET` of a stream of events, from behind the one that was seen last.
    fn stream(&self, path: &str, seen: Option<&str>) -> Result<impl Read + use<>, ClientError> {
        let request = self.agent.get(self.url(path));
        let mut request = request.header(header::AUTHORIZATION, self.authorization());
        if let Some(seen) = seen {
            request = request.header("Last-Event-ID", seen);
        }
        let mut response = self.answered(request.call())?;
        self.refusal(&mut response)?;
        Ok(response.into_body().into_reader())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A daemon without tokens ignores it.
    fn authorization(&self) -> String {
        format!("Bearer {}", self.token.as_deref().unwrap_or("none"))
    }

    fn answered(
        &self,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ClientError> {
        let unreachable = |cause: ureq::Error| ClientError::Unreachable {
            url: self.base.clone(),
            cause: cause.to_string(),
        };
        result.map_err(unreachable)
    }

    fn document(&self, result: Result<Response<Body>, ureq::Error>) -> Result<Value, ClientError> {
        let mut response = self.answered(result)?;
        self.refusal(&mut response)?;
        let bytes = self.bytes(&mut response, DOCUMENT_BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|error| self.strange(error.to_string()))
    }

    fn bytes(&self, response: &mut Response<Body>, limit: u64) -> Result<Vec<u8>, ClientError> {
        let body = response.body_mut().with_config().limit(limit);
        body.read_to_vec().map_err(|error| self.strange(error.to_string()))
    }

    /// An error where the daemon refuses.
    fn refusal(&self, response: &mut Response<Body>) -> Result<(), ClientError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let bytes = self.bytes(response, DOCUMENT_BYTES_MAX)?;
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let Some(message) = document["error"]["message"].as_str() else {
            return Err(self.strange(format!("status {status} without a message")));
        };
        let message: String = message.chars().take(SHOWN_BYTES_MAX).collect();
        let code = document["error"]["code"].as_str().unwrap_or_default().to_owned();
        Err(ClientError::Refused { status: status.as_u16(), code, message })
    }

    fn strange(&self, what: String) -> ClientError {
        ClientError::Strange { url: self.base.clone(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_plain_http_are_taken() {
        for good in ["http://127.0.0.1:8642", "http://localhost/", "http://[::1]:1"] {
            assert!(DaemonClient::at(good, None).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:8642", "https://a", "http://", "http://a/b", "unix:/a"] {
            let error = DaemonClient::at(bad, None).expect_err(bad).to_string();
            assert!(error.contains("hint: http://127.0.0.1:8642"), "{error}");
        }
    }

    #[test]
    fn nobody_there_is_an_error_with_a_hint() {
        // A port that was free just now.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        drop(listener);
        let error = DaemonClient::at(&url, None).expect("an address").get("/v1/jobs").unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("is `berth serve` running?"), "{error}");
    }
}
