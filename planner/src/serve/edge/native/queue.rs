//! The queue and the host: what runs next, what devices hold, and whether anything starts.

use std::time::{Duration, Instant};

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use super::models::{accepted, admin};
use super::{QueryPairs, show, whole_of_query};
use crate::serve::desk::action::Reply;
use crate::serve::desk::event::Ask;
use crate::serve::edge::asker::Caller;
use crate::serve::edge::body;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::{self, Members};
use crate::serve::edge::limits::BODY_BYTES_MAX;
use crate::serve::edge::state::Edge;
use crate::serve::edge::timeline::READINGS_KEPT;

/// What the timeline may be asked for.
pub const TIMELINE_QUERY: [(&str, &str); 1] = [("seconds", "of the last so many, 1 to 1200")];

/// Seconds of the timeline where nobody says.
const TIMELINE_S: u64 = 600;

/// `GET /v1/devices`: the newest reading.
pub async fn devices(State(edge): State<Edge>, _: Caller) -> Result<Response, EdgeError> {
    match edge.timeline().newest() {
        Some(reading) => Ok(json::answer(StatusCode::OK, &*reading)),
        None => {
            let message = "the devices have not been read yet; hint: ask again soon";
            Err(EdgeError::new(StatusCode::SERVICE_UNAVAILABLE, "not_read", message))
        }
    }
}

/// Answers `GET /v1/timeline`: readings, the oldest first.
pub async fn timeline(
    State(edge): State<Edge>,
    _: Caller,
    Query(query): QueryPairs,
) -> Result<Response, EdgeError> {
    let seconds = whole_of_query(&query, "seconds", [1, READINGS_KEPT as u64])?;
    let age = Duration::from_secs(seconds.unwrap_or(TIMELINE_S));
    let readings = edge.timeline().of_the_last(age, Instant::now());
    Ok(json::answer(StatusCode::OK, &json!({"readings": readings})))
}

/// Answers `GET /v1/queue`: what runs is first.
pub async fn queue(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    match edge.ask(caller.asker, Ask::Queue).await {
        Reply::Queue { jobs, paused } => {
            let jobs: Vec<_> = jobs.iter().map(show::summary).collect();
            Ok(json::answer(StatusCode::OK, &json!({"paused": paused, "jobs": jobs})))
        }
        reply => Err(EdgeError::refused(reply)),
    }
}

/// `POST /v1/queue/pause`.
pub async fn pause(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let asker = admin(caller)?;
    let body = body::json(&edge, request, BODY_BYTES_MAX).await?;
    let unload = Members(body.object).flag("unload")?.unwrap_or(false);
    accepted(&edge, asker, Ask::Pause { unload }).await?;
    Ok(json::answer(StatusCode::OK, &json!({"paused": true})))
}

/// `POST /v1/queue/resume`.
pub async fn resume(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    accepted(&edge, admin(caller)?, Ask::Resume).await?;
    Ok(json::answer(StatusCode::OK, &json!({"paused": false})))
}

/// `POST /v1/warnings/acknowledge`.
pub async fn acknowledge(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    accepted(&edge, admin(caller)?, Ask::Acknowledge).await?;
    Ok(json::answer(StatusCode::OK, &json!({"warnings": []})))
}

/// Answers `POST /v1/drain` as soon as no more jobs are taken.
pub async fn drain(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    accepted(&edge, admin(caller)?, Ask::Drain).await?;
    Ok(json::answer(StatusCode::ACCEPTED, &json!({"draining": true})))
}
