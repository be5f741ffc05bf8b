//! Signs of life, and figures.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::timeout;

use crate::serve::desk::action::Reply;
use crate::serve::desk::event::{Ask, Asker};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json;
use crate::serve::edge::state::Edge;

/// For so long the main loop may be busy (serve.md §9).
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The kind of text that the figures are (OpenMetrics 1.0).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `GET /healthz`: whether the main loop answers at all.
pub async fn live(State(edge): State<Edge>) -> Result<Response, EdgeError> {
    reply(&edge).await?;
    Ok(json::answer(StatusCode::OK, &json!({"live": true})))
}

/// `GET /readyz`: whether jobs can be taken, and why not. A warning alone is no reason against it.
pub async fn ready(State(edge): State<Edge>) -> Result<Response, EdgeError> {
    match reply(&edge).await? {
        Reply::Ready { reasons, warnings } => {
            let is_ready = reasons.is_empty();
            let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let document = json!({"ready": is_ready, "reasons": reasons, "warnings": warnings});
            Ok(json::answer(status, &document))
        }
        reply => Err(EdgeError::refused(reply)),
    }
}

async fn reply(edge: &Edge) -> Result<Reply, EdgeError> {
    let asker = Asker { client: "health".to_owned(), admin: false };
    timeout(ANSWER_MAX, edge.ask(asker, Ask::Ready)).await.map_err(|_| {
        let message = "the main loop has not answered within a second";
        EdgeError::new(StatusCode::SERVICE_UNAVAILABLE, "not_live", message)
    })
}

/// Answers `GET /metrics` with all figures.
pub async fn metrics(State(edge): State<Edge>) -> Response {
    ([(CONTENT_TYPE, OPEN_METRICS)], edge.metrics().text()).into_response()
}
