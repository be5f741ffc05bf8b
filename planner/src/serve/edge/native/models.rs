//! `/v1/models`: what can be asked for, and what is loaded.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{policy, show};
use crate::serve::desk::action::{ModelView, Reply};
use crate::serve::desk::event::{Ask, Asker};
use crate::serve::desk::job::{ErrorCode, JobError};
use crate::serve::edge::asker::Caller;
use crate::serve::edge::body;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::{self, Members};
use crate::serve::edge::limits::BODY_BYTES_MAX;
use crate::serve::edge::settings::EdgeSettings;
use crate::serve::edge::state::Edge;

/// `GET /v1/models`.
pub async fn list(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    let (views, settings) = (views(&edge, caller.asker).await?, edge.settings());
    let data: Vec<Value> = views.iter().map(|view| model(view, &settings)).collect();
    Ok(json::answer(StatusCode::OK, &json!({"object": "list", "data": data})))
}

/// `GET /v1/models/{id}`.
pub async fn one(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    let settings = edge.settings();
    let name = named(&settings, &id)?;
    let views = views(&edge, caller.asker).await?;
    match views.iter().find(|view| view.model.name == name) {
        Some(view) => Ok(json::answer(StatusCode::OK, &model(view, &settings))),
        // The settings know it, and the desk not any more.
        None => Err(JobError::new(ErrorCode::NoModel, "the model is gone").into()),
    }
}

/// `POST /v1/models/{id}/load`.
pub async fn load(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, EdgeError> {
    let model = named(&edge.settings(), &id)?;
    let body = body::json(&edge, request, BODY_BYTES_MAX).await?;
    let mut members = Members(body.object);
    let keep_alive = policy::keep_alive(&mut members)?;
    let notices = members.notices();
    let ask = Ask::LoadModel { model: model.clone(), keep_alive };
    accepted(&edge, caller.asker, ask).await?;
    let document = json!({"model": model, "state": "loading", "notices": notices});
    Ok(json::answer(StatusCode::ACCEPTED, &document))
}

/// `POST /v1/models/{id}/unload`.
pub async fn unload(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, EdgeError> {
    let asker = admin(caller)?;
    let model = named(&edge.settings(), &id)?;
    accepted(&edge, asker, Ask::UnloadModel { model: model.clone() }).await?;
    Ok(json::answer(StatusCode::OK, &json!({"model": model})))
}

/// `POST /v1/models/rescan`.
pub async fn rescan(State(edge): State<Edge>, caller: Caller) -> Result<Response, EdgeError> {
    admin(caller)?;
    let found = tokio::task::spawn_blocking(move || edge.rescan()).await;
    let found = found.map_err(|_| EdgeError::internal("the search for models has panicked"))?;
    let found = found.map_err(EdgeError::internal)?;
    Ok(json::answer(StatusCode::OK, &found))
}

/// The asker, where it administers this host.
///
/// # Errors
/// 403.
pub fn admin(caller: Caller) -> Result<Asker, EdgeError> {
    match caller.asker.admin {
        true => Ok(caller.asker),
        false => Err(EdgeError::not_admin()),
    }
}

/// Asks for what is only done or refused.
///
/// # Errors
/// The refusal.
pub async fn accepted(edge: &Edge, asker: Asker, ask: Ask) -> Result<(), EdgeError> {
    match edge.ask(asker, ask).await {
        Reply::Accepted | Reply::Job(_) => Ok(()),
        reply => Err(EdgeError::refused(reply)),
    }
}

/// A name in an address is never empty, so it never means the default model.
fn named(settings: &EdgeSettings, id: &str) -> Result<String, EdgeError> {
    settings.model_name(Some(id))
}

async fn views(edge: &Edge, asker: Asker) -> Result<Vec<ModelView>, EdgeError> {
    match edge.ask(asker, Ask::Models).await {
        Reply::Models(views) => Ok(views),
        reply => Err(EdgeError::refused(reply)),
    }
}

fn model(view: &ModelView, settings: &EdgeSettings) -> Value {
    let served = &view.model;
    let known = settings.model(&served.name).and_then(|model| model.description.as_deref());
    let idle: Map<String, Value> =
        view.idle_bytes.iter().map(|(device, bytes)| (device.clone(), json!(bytes))).collect();
    let mut problems: Vec<&str> = view.problem.as_deref().into_iter().collect();
    problems.extend(known.into_iter().flat_map(|known| &known.problems).map(String::as_str));
    let aliases: Vec<&String> = (settings.aliases.iter())
        .filter(|(_, name)| **name == served.name)
        .map(|(alias, _)| alias)
        .collect();
    json!({
        "id": served.name,
        "object": "model",
        "created": served.modified_ms / 1000,
        "owned_by": "berth",
        "berth": {
            "family": known.map(|known| &known.family),
            "state": view.state,
            "idle_bytes": idle,
            "expires_at": view.expires_in_ms.map(|ms| show::in_ms(ms as f64)),
            "files_bytes": served.files_bytes,
            "defaults": known.map(|known| &known.defaults),
            "side_multiple_pixels": known.map(|known| known.side_multiple_pixels),
            "samplers": known.map(|known| &known.samplers),
            "schedulers": known.map(|known| &known.schedulers),
            "aliases": aliases,
            "default": served.name == settings.default_model,
            "problems": problems,
        },
    })
}
