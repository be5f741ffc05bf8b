//! Our own routes: everything that the daemon can do, without another protocol's bounds.

pub mod events;
pub mod health;
pub mod jobs;
pub mod login;
pub mod models;
pub mod order;
pub mod pictures;
pub mod plan;
pub mod policy;
pub mod queue;
pub mod request;
pub mod show;

use std::collections::HashMap;

use axum::http::Method;
use axum::routing::{delete, get, patch, post};

use super::errors::EdgeError;
use super::openapi::Operation;
use super::table::RouteTable;

/// What stands behind the `?` of an address.
pub type QueryPairs = axum::extract::Query<HashMap<String, String>>;

const EVENTS: &str = "text/event-stream";
const METRICS: &str = "application/openmetrics-text";

/// Adds all of them.
pub fn add_routes(table: RouteTable) -> RouteTable {
    host(models(jobs(table)))
}

fn jobs(table: RouteTable) -> RouteTable {
    let (get_, post_) = (
        |path, summary| Operation::new(Method::GET, path, summary),
        |path, summary| Operation::new(Method::POST, path, summary),
    );
    table
        .add(post_("/v1/plan", "What a job would take").body("PlanQuestion"), post(plan::plan))
        .add(post_("/v1/jobs", "A new job").body("Job").status(202), post(jobs::submit))
        .add(get_("/v1/jobs", "Jobs, the newest first").query(&jobs::FILTERS), get(jobs::list))
        .add(get_("/v1/jobs/{id}", "A job"), get(jobs::one))
        .add(
            Operation::new(Method::PATCH, "/v1/jobs/{id}", "Another place in the queue")
                .body("Place"),
            patch(jobs::reorder),
        )
        .add(
            Operation::new(Method::DELETE, "/v1/jobs/{id}", "Forget an ended job and its files")
                .status(204),
            delete(jobs::delete),
        )
        .add(post_("/v1/jobs/{id}/cancel", "End a job"), post(jobs::cancel))
        .add(post_("/v1/jobs/{id}/retry", "The same job again").status(202), post(jobs::retry))
        .add(
            get_("/v1/jobs/{id}/events", "What becomes of a job").media(EVENTS),
            get(events::of_job),
        )
        .add(get_("/v1/events", "What happens").media(EVENTS), get(events::all))
        .add(
            get_("/v1/jobs/{id}/pictures/{n}", "A picture")
                .query(&pictures::QUERY)
                .media("image/png"),
            get(pictures::picture),
        )
}

fn models(table: RouteTable) -> RouteTable {
    let post_ = |path, summary| Operation::new(Method::POST, path, summary);
    table
        .add(Operation::new(Method::GET, "/v1/models", "The models"), get(models::list))
        .add(Operation::new(Method::GET, "/v1/models/{id}", "A model"), get(models::one))
        .add(
            post_("/v1/models/{id}/load", "Load a model").body("Load").status(202),
            post(models::load),
        )
        .add(post_("/v1/models/{id}/unload", "Free a model's memory"), post(models::unload))
        .add(post_("/v1/models/rescan", "Look for models anew"), post(models::rescan))
}

fn host(table: RouteTable) -> RouteTable {
    let (get_, post_) = (
        |path, summary| Operation::new(Method::GET, path, summary),
        |path, summary| Operation::new(Method::POST, path, summary),
    );
    table
        .add(get_("/v1/devices", "What devices hold now"), get(queue::devices))
        .add(
            get_("/v1/timeline", "What devices held of late").query(&queue::TIMELINE_QUERY),
            get(queue::timeline),
        )
        .add(get_("/v1/queue", "The order in which jobs run"), get(queue::queue))
        .add(post_("/v1/queue/pause", "Start no more jobs").body("Pause"), post(queue::pause))
        .add(post_("/v1/queue/resume", "Go on"), post(queue::resume))
        .add(
            post_("/v1/warnings/acknowledge", "Show what /readyz warns of no more"),
            post(queue::acknowledge),
        )
        .add(post_("/v1/drain", "Take no more jobs and end").status(202), post(queue::drain))
        .add(get_("/healthz", "Whether the server lives"), get(health::live))
        .add(get_("/readyz", "Whether jobs can be taken"), get(health::ready))
        .add(get_("/metrics", "Figures for Prometheus").media(METRICS), get(health::metrics))
        .add(post_("/login", "A cookie for a token").body("Login").status(204), post(login::login))
}

/// A whole number behind the `?`.
fn whole_of_query(
    query: &HashMap<String, String>,
    name: &str,
    [min, max]: [u64; 2],
) -> Result<Option<u64>, EdgeError> {
    let Some(text) = query.get(name) else { return Ok(None) };
    match text.parse().ok().filter(|number| (min..=max).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let message = format!("{name} must be a whole number from {min} to {max}");
            Err(EdgeError::bad_value(name, message))
        }
    }
}
