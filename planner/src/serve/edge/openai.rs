//! OpenAI's image routes: their requests are read to jobs, jobs are answered in their words.
//!
//! ```text
//! body ─► request::read ─► JobRequest ─► desk ─► JobView, pictures ─► answer::document
//!   └─ pictures ─► kept as files          └─ notes ─► stream
//! ```
//! Not here: the list of models, which is one with our own.

pub mod answer;
pub mod delivery;
pub mod form;
pub mod quality;
pub mod request;
pub mod stream;

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{any, post};
use serde_json::{Map, Value};

use super::asker::Caller;
use super::body::JsonBody;
use super::errors::EdgeError;
use super::limits::{BODY_BYTES_MAX, PICTURE_BODY_BYTES_MAX};
use super::settings::EdgeSettings;
use super::state::Edge;
use super::submit::{self, Submission, beside};
use super::{body, embedded, encode, json};
use crate::media::PictureFormat;
use crate::serve::desk::action::{JobView, Reply};
use crate::serve::desk::event::{Ask, FiledPicture};
use crate::serve::desk::job::{Api, IdempotencyKey, JobState};
use answer::AnsweredPicture;
use delivery::{Delivery, ImagesRoute};
use request::ImagesRequest;
use stream::StreamedJob;

/// Where pictures stand in JSON bodies of edits: one or several, or OpenAI's references.
const PICTURE_FIELDS: [&str; 3] = ["image", "image[]", "images"];

/// The routes of this wire.
pub fn routes() -> Router<Edge> {
    Router::new()
        .route("/v1/images/generations", post(generations))
        .route("/v1/images/edits", post(edits))
        .route("/v1/images/variations", any(variations))
}

/// A request that came whole.
struct CameWhole {
    fields: Map<String, Value>,
    pictures: Vec<Bytes>,
    idempotency: Option<IdempotencyKey>,
    /// How the client calls this server.
    host: Option<String>,
}

async fn generations(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let host = host(request.headers());
    let body = body::json(&edge, request, BODY_BYTES_MAX).await;
    let JsonBody { object, idempotency, .. } = body?;
    let came = CameWhole { fields: object, pictures: Vec::new(), idempotency, host };
    make(edge, caller, ImagesRoute::Generations, came).await
}

async fn edits(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let came = match body::is_form(request.headers()) {
        true => form_with_pictures(&edge, request).await?,
        false => json_with_pictures(&edge, request).await?,
    };
    if came.pictures.is_empty() {
        let message =
            "image is missing; hint: send the picture to change, or use /v1/images/generations";
        return Err(EdgeError::bad_value("image", message));
    }
    make(edge, caller, ImagesRoute::Edits, came).await
}

/// Reads a form. The room for its body is given back before the job is waited for.
async fn form_with_pictures(edge: &Edge, request: Request) -> Result<CameWhole, EdgeError> {
    let host = host(request.headers());
    let form = body::form(edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let (fields, pictures) = form::read(form.fields)?;
    Ok(CameWhole { fields, pictures, idempotency: form.idempotency, host })
}

/// Reads JSON with pictures, likewise.
async fn json_with_pictures(edge: &Edge, request: Request) -> Result<CameWhole, EdgeError> {
    let host = host(request.headers());
    let body = body::json(edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let JsonBody { mut object, idempotency, .. } = body;
    let (fields, pictures) = beside(move || {
        let pictures = take_pictures(&mut object)?;
        Ok((object, pictures))
    })
    .await?;
    Ok(CameWhole { fields, pictures, idempotency, host })
}

/// Takes the pictures out of a JSON body of edits.
///
/// # Errors
/// One of them is none, or there are too many.
pub fn take_pictures(object: &mut Map<String, Value>) -> Result<Vec<Bytes>, EdgeError> {
    let mut pictures = Vec::new();
    for name in PICTURE_FIELDS {
        pictures.extend(embedded::take(object, name)?.into_iter().map(Bytes::from));
    }
    Ok(pictures)
}

async fn variations() -> EdgeError {
    let message = "variations are retired; hint: use /v1/images/edits";
    EdgeError::no_route(message)
}

async fn make(
    edge: Edge,
    caller: Caller,
    route: ImagesRoute,
    came: CameWhole,
) -> Result<Response, EdgeError> {
    let settings = edge.settings();
    let mut read = request::read(route, came.fields.clone(), &settings)?;
    if came.pictures.len() > 1 {
        read.notices.push("only the first picture is started from".to_owned());
    }
    let image = match came.pictures.into_iter().next() {
        Some(bytes) => Some(submit::keep(&edge, "image", bytes).await?),
        None => None,
    };
    let ImagesRequest { job, model, seed, policy, user, delivery, mut notices } = read;
    let asker = caller.named(user.as_deref());
    let submission = Submission {
        job,
        model,
        seed,
        policy,
        api: Api::OpenAi,
        client: asker.client.clone(),
        label: None,
        idempotency: came.idempotency,
        image,
        body: Value::Object(came.fields),
    };
    let (id, order) = (edge.new_job_id(), submission.order(&edge)?);
    if delivery.stream {
        return stream::answer(edge, asker, StreamedJob { id, order, delivery, notices }).await;
    }
    let ask = Ask::Submit { id, order: Box::new(order), wait: true };
    match edge.ask(asker, ask).await {
        // Without a file there is no address of a picture.
        Reply::Ended(view, made)
            if view.state == JobState::Done
                || !delivery.as_url && submit::is_made(&view, &made) =>
        {
            notices.extend(view.record.error.iter().map(|error| error.message.clone()));
            let pictures = submit::pictures(&edge, &view, made).await?;
            let base = base_url(&settings, came.host.as_deref());
            let pictures = answered(&view, pictures, delivery.clone(), base).await?;
            let document = answer::document(&view, &pictures, &delivery, &notices);
            Ok(json::answer(StatusCode::OK, &document))
        }
        Reply::Ended(view, _) => Err(submit::unmade(&view)),
        other => Err(EdgeError::refused(other)),
    }
}

/// The pictures of an answer: addresses, or files in the format that is wanted.
async fn answered(
    view: &JobView,
    pictures: Vec<FiledPicture>,
    delivery: Delivery,
    base: String,
) -> Result<Vec<AnsweredPicture>, EdgeError> {
    if delivery.as_url {
        let format = match delivery.format {
            PictureFormat::Png => String::new(),
            _ => format!("?format={}", delivery.format_name()),
        };
        let id = &view.record.id;
        let url = |picture: &FiledPicture| {
            format!("{base}/v1/jobs/{id}/pictures/{}{format}", picture.record.index)
        };
        return Ok(pictures.iter().map(url).map(AnsweredPicture::At).collect());
    }
    beside(move || {
        let held = |picture: &FiledPicture| {
            let file = encode::picture(picture, delivery.format, delivery.compression)?;
            Ok(AnsweredPicture::Held(base64::encode(file)))
        };
        pictures.iter().map(held).collect()
    })
    .await
}

/// What addresses of pictures begin with: as configured, else as the client called this server.
fn base_url(settings: &EdgeSettings, host: Option<&str>) -> String {
    match (&settings.public_url, host) {
        (Some(url), _) => url.trim_end_matches('/').to_owned(),
        (None, Some(host)) => format!("http://{host}"),
        (None, None) => String::new(),
    }
}

fn host(headers: &HeaderMap) -> Option<String> {
    headers.get(HOST)?.to_str().ok().map(str::to_owned)
}
