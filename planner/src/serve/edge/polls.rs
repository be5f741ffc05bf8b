//! `GET /v1/jobs/{id}`, which many clients ask again and again, goes to its handler without the
//! router. On the host's own cores an answer takes the time of a job's step, and the router and its
//! layers would be a third of it (`scripts/bench_serve.py --only polls`).

use axum::body::HttpBody;
use axum::extract::{Path, Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};

use super::asker::Caller;
use super::guard::guarded;
use super::native::jobs;
use super::state::Edge;

/// The route of these questions, as the router has it.
const ROUTE: &str = "/v1/jobs/{id}";

/// What [`ROUTE`] begins with.
const BEFORE_ID: &str = "/v1/jobs/";

/// The job that a request asks for, if it asks for one and for nothing else, and has no body.
pub fn job_of(request: &Request) -> Option<&str> {
    let id = request.uri().path().strip_prefix(BEFORE_ID)?;
    let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_poll = is_name && request.method() == Method::GET && request.body().is_end_stream();
    is_poll.then_some(id)
}

/// Answers a request for a job as the router would.
pub async fn answer(edge: &Edge, request: Request, id: String) -> Response {
    let handle = |request: Request| {
        let caller = Caller::of(request.extensions());
        async { jobs::one(State(edge.clone()), caller, Path(id)).await.into_response() }
    };
    guarded(edge, request, Some(ROUTE), handle).await
}
