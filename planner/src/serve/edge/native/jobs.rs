//! `/v1/jobs`: jobs are accepted, shown, listed, moved, ended and forgotten.

use std::time::Instant;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use ulid::Ulid;

use super::{QueryPairs, order, policy, request, show, whole_of_query};
use crate::serve::desk::action::{JobView, Reply};
use crate::serve::desk::event::{Ask, JobFilter};
use crate::serve::desk::job::{ErrorCode, JobError, JobId, JobState};
use crate::serve::edge::asker::Caller;
use crate::serve::edge::body;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::{self, Members};
use crate::serve::edge::limits::{BODY_BYTES_MAX, PICTURE_BODY_BYTES_MAX};
use crate::serve::edge::state::Edge;
use crate::serve::edge::submit::whole;

/// Jobs of a page where nobody says.
const PAGE_JOBS: u64 = 50;

/// Most jobs of a page.
const PAGE_JOBS_MAX: u64 = 500;

/// What a list may be asked for.
pub const FILTERS: [(&str, &str); 5] = [
    ("state", "only jobs in this state"),
    ("model", "only jobs of this model"),
    ("label", "only jobs with this label of their client's"),
    ("before", "only jobs that are older than this one"),
    ("limit", "at most so many, 1 to 500; 50 where nobody says"),
];

/// `POST /v1/jobs`: accepted means kept, so it is not lost whatever happens.
pub async fn submit(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let body = body::json(&edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let shown = order::shown(&body.object);
    let mut members = Members(body.object);
    let shape = request::read(&edge.settings(), &mut members)?;
    let mut policy = policy::read(&mut members)?;
    let asker = caller.named(members.text("user")?.as_deref());
    let mut notices = members.notices();
    notices.append(&mut policy.notices);
    let client = asker.client.clone();
    let order = order::native(&edge, shape, &policy, client, shown, body.idempotency).await?;
    let id = edge.new_job_id();
    let ask = Ask::Submit { id, order: Box::new(order), wait: false };
    let view = job_of(edge.ask(asker, ask).await)?;
    // Asked for again by its key, it may have ended.
    Ok(accepted(&*whole(&edge, view).await?, &notices))
}

fn accepted(view: &JobView, notices: &[String]) -> Response {
    let mut shown = show::job(view);
    shown.notices.extend(notices.iter().map(String::as_str));
    let mut response = json::answer(StatusCode::ACCEPTED, &shown);
    let location = HeaderValue::from_str(&format!("/v1/jobs/{}", view.record.id));
    response.headers_mut().extend(location.ok().map(|location| (LOCATION, location)));
    response
}

/// `GET /v1/jobs`.
pub async fn list(
    State(edge): State<Edge>,
    caller: Caller,
    Query(query): QueryPairs,
) -> Result<Response, EdgeError> {
    let limit = whole_of_query(&query, "limit", [1, PAGE_JOBS_MAX])?.unwrap_or(PAGE_JOBS);
    let filter = JobFilter {
        state: query.get("state").map(|name| state(name)).transpose()?,
        model: query.get("model").cloned(),
        before: query.get("before").map(|id| job_id(id)).transpose()?,
        limit: limit as usize,
        label: query.get("label").cloned(),
    };
    match edge.ask(caller.asker, Ask::List(Box::new(filter))).await {
        Reply::Jobs(jobs) => {
            let next = (jobs.len() as u64 == limit)
                .then(|| jobs.last().map(|view| view.record.id.clone()))
                .flatten();
            let data: Vec<_> = jobs.iter().map(show::summary).collect();
            let document = json!({"object": "list", "data": data, "before": next});
            Ok(json::answer(StatusCode::OK, &document))
        }
        reply => Err(EdgeError::refused(reply)),
    }
}

fn state(name: &str) -> Result<JobState, EdgeError> {
    serde_json::from_value(Value::String(name.to_owned())).map_err(|_| {
        let message = "state must be queued, waiting, loading, running, filing, done, failed or \
                       cancelled";
        EdgeError::bad_value("state", message)
    })
}

/// `GET /v1/jobs/{id}`.
pub async fn one(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    let id = job_id(&id)?;
    let asked = match edge.shown().find(&id, &caller.asker, Instant::now()) {
        Ok(body) => return Ok(json::of_body(StatusCode::OK, body)),
        Err(asked) => asked,
    };
    let view = job_of(edge.ask(caller.asker, Ask::Show(id)).await)?;
    let view = whole(&edge, view).await?;
    let body = json::body(&show::job(&view))?;
    if view.state == JobState::Running {
        edge.shown().keep(asked, body.clone());
    }
    Ok(json::of_body(StatusCode::OK, body))
}

/// `POST /v1/jobs/{id}/cancel`.
pub async fn cancel(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    let id = job_id(&id)?;
    match edge.ask(caller.asker.clone(), Ask::Cancel(id.clone())).await {
        Reply::Accepted => {
            let view = job_of(edge.ask(caller.asker, Ask::Show(id)).await)?;
            Ok(json::answer(StatusCode::OK, &show::job(&view)))
        }
        reply => Ok(json::answer(StatusCode::OK, &show::job(&*job_of(reply)?))),
    }
}

/// `POST /v1/jobs/{id}/retry`.
pub async fn retry(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    let ask = Ask::Retry { id: job_id(&id)?, new: edge.new_job_id() };
    let view = job_of(edge.ask(caller.asker, ask).await)?;
    Ok(accepted(&view, &[]))
}

/// `PATCH /v1/jobs/{id}`.
pub async fn reorder(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, EdgeError> {
    let id = job_id(&id)?;
    let body = body::json(&edge, request, BODY_BYTES_MAX).await?;
    let mut members = Members(body.object);
    let (class, front) = (policy::class(&mut members)?, members.flag("front")?);
    if class.is_none() && front.is_none() {
        let message = "nothing is to be changed; hint: give priority or front";
        return Err(EdgeError::bad_value("priority", message));
    }
    let ask = Ask::Reorder { id: id.clone(), class, front };
    let view = match edge.ask(caller.asker.clone(), ask).await {
        Reply::Accepted => job_of(edge.ask(caller.asker, Ask::Show(id)).await)?,
        reply => job_of(reply)?,
    };
    Ok(json::answer(StatusCode::OK, &show::job(&view)))
}

/// `DELETE /v1/jobs/{id}`.
pub async fn delete(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    match edge.ask(caller.asker, Ask::Delete(job_id(&id)?)).await {
        Reply::Accepted => Ok(StatusCode::NO_CONTENT.into_response()),
        reply => Err(EdgeError::refused(reply)),
    }
}

/// The job that is named by an address. What is no name of a job names none.
///
/// # Errors
/// 404.
pub fn job_id(text: &str) -> Result<JobId, EdgeError> {
    match Ulid::from_string(text) {
        Ok(id) => Ok(JobId(id.to_string())),
        Err(_) => Err(JobError::new(ErrorCode::NoJob, "there is no job of that name").into()),
    }
}

/// The job of a reply.
///
/// # Errors
/// The reply is a refusal.
pub fn job_of(reply: Reply) -> Result<Box<JobView>, EdgeError> {
    match reply {
        Reply::Job(view) | Reply::Ended(view, _) => Ok(view),
        reply => Err(EdgeError::refused(reply)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_job_is_a_ulid() {
        let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        assert_eq!(job_id(id).unwrap(), JobId(id.to_owned()));
        assert_eq!(job_id(&id.to_lowercase()).unwrap(), JobId(id.to_owned()));
        for bad in ["", "..", "a\0b", &"0".repeat(10_000), "01ARZ3NDEKTSV4RRFFQ69G5FA/"] {
            assert_eq!(job_id(bad).unwrap_err().code, "no_job");
        }
    }
}
