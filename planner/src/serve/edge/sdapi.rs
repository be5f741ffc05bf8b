//! The routes of A1111's web UI: its requests are read to jobs, jobs are answered in its words.
//!
//! ```text
//! body ─► request::read ─► JobRequest ─► desk ─► JobView, pictures ─► info::answer
//!   └─ init_images ─► kept as a file       └─ queue ─► progress
//! ```
//! Its errors have a form of their own ([`errors`]), into which all answers of these routes are
//! brought.

mod choice;
pub mod errors;
pub mod info;
pub mod lists;
pub mod names;
pub mod networks;
pub mod options;
pub mod overrides;
pub mod png_info;
pub mod progress;
mod refusals;
pub mod request;

#[cfg(test)]
mod tests;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::asker::Caller;
use super::body::JsonBody;
use super::errors::EdgeError;
use super::json::answer;
use super::limits::{BODY_BYTES_MAX, PICTURE_BODY_BYTES_MAX};
use super::native::policy::JobPolicy;
use super::settings::EdgeSettings;
use super::state::Edge;
use super::submit::{self, Submission, beside};
use super::{body, embedded, encode};
use crate::media::PictureFormat;
use crate::serve::desk::action::{JobView, Reply};
use crate::serve::desk::event::{Ask, Asker, FiledPicture};
use crate::serve::desk::job::{Api, IdempotencyKey, JobState};
use request::{SdapiRequest, SdapiRoute};

/// Says what was done by something else than was asked for.
const SUBSTITUTED: HeaderName = HeaderName::from_static("berth-substituted");

/// The pictures that a request starts from.
const INIT_IMAGES: &str = "init_images";

/// The routes of this wire.
pub fn routes() -> Router<Edge> {
    let made = Router::new()
        .route("/sdapi/v1/txt2img", post(txt2img))
        .route("/sdapi/v1/img2img", post(img2img))
        .route("/sdapi/v1/progress", get(progress))
        .route("/sdapi/v1/interrupt", post(interrupt))
        .route("/sdapi/v1/skip", post(skip))
        .route("/sdapi/v1/options", get(options).post(set_options))
        .route("/sdapi/v1/png-info", post(png_info))
        .route("/sdapi/v1/memory", get(memory))
        .route("/sdapi/v1/refresh-checkpoints", post(refresh_checkpoints))
        .route("/sdapi/v1/unload-checkpoint", post(unload_checkpoint))
        .route("/sdapi/v1/reload-checkpoint", post(reload_checkpoint));
    listed(made)
}

/// Brings the errors of these routes, and of addresses that look like them, into their own form.
pub async fn in_its_words(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with("/sdapi/");
    let response = next.run(request).await;
    if is_ours { errors::translate(response) } else { response }
}

/// Adds what can only be looked at.
fn listed(routes: Router<Edge>) -> Router<Edge> {
    let empty = || list(|_| json!([]));
    routes
        .route("/sdapi/v1/sd-models", list(lists::models))
        .route("/sdapi/v1/samplers", list(lists::samplers))
        .route("/sdapi/v1/schedulers", list(lists::schedulers))
        .route("/sdapi/v1/upscalers", list(|_| lists::upscalers()))
        .route("/sdapi/v1/latent-upscale-modes", empty())
        .route("/sdapi/v1/sd-vae", empty())
        .route("/sdapi/v1/sd-modules", empty())
        .route("/sdapi/v1/loras", list(lists::loras))
        .route("/sdapi/v1/scripts", list(|_| lists::scripts()))
        .route("/sdapi/v1/cmd-flags", list(|_| json!({})))
        .route("/sdapi/v1/embeddings", list(|_| lists::embeddings()))
        .route("/sdapi/v1/hypernetworks", empty())
        .route("/sdapi/v1/face-restorers", empty())
        .route("/sdapi/v1/prompt-styles", empty())
}

fn list(document: fn(&EdgeSettings) -> Value) -> MethodRouter<Edge> {
    get(move |State(edge): State<Edge>| async move { found(&document(&edge.settings())) })
}

fn found(document: &Value) -> Response {
    answer(StatusCode::OK, document)
}

async fn txt2img(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let JsonBody { object, idempotency, .. } = body::json(&edge, request, BODY_BYTES_MAX).await?;
    let came = CameSdapi { fields: object, init_images: Value::Null, image: None, idempotency };
    make(edge, caller.asker, SdapiRoute::Txt2Img, came).await
}

async fn img2img(
    State(edge): State<Edge>,
    caller: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let came = with_picture(&edge, request).await?;
    make(edge, caller.asker, SdapiRoute::Img2Img, came).await
}

/// Reads a request with pictures. The room for its body is given back before the job is waited for.
async fn with_picture(edge: &Edge, request: Request) -> Result<CameSdapi, EdgeError> {
    let body = body::json(edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let JsonBody { mut object, idempotency, .. } = body;
    let init_images = object.remove(INIT_IMAGES).unwrap_or_default();
    let (init_images, pictures) = beside(move || {
        let pictures = embedded::decode(INIT_IMAGES, &init_images)?;
        Ok((init_images, pictures))
    })
    .await?;
    let Some(picture) = pictures.into_iter().next() else {
        let message = "Init image not found; hint: send init_images with a picture in base64";
        let mut error = EdgeError::new(StatusCode::NOT_FOUND, "bad_value", message);
        error.param = Some(INIT_IMAGES.to_owned());
        return Err(error);
    };
    let image = Some(Bytes::from(picture));
    Ok(CameSdapi { fields: object, init_images, image, idempotency })
}

/// A request that came whole.
struct CameSdapi {
    fields: Map<String, Value>,
    /// As they came.
    init_images: Value,
    image: Option<Bytes>,
    idempotency: Option<IdempotencyKey>,
}

async fn make(
    edge: Edge,
    asker: Asker,
    route: SdapiRoute,
    came: CameSdapi,
) -> Result<Response, EdgeError> {
    let checkpoint = checkpoint(&edge, &asker, None).await?;
    let settings = edge.settings();
    let mut read = request::read(route, came.fields.clone(), &settings, checkpoint.as_deref())?;
    let several = came.init_images.as_array().is_some_and(|pictures| pictures.len() > 1);
    if several {
        read.notices.push("only the first of init_images is started from".to_owned());
    }
    let image = match came.image {
        Some(bytes) => Some(submit::keep(&edge, INIT_IMAGES, bytes).await?),
        None => None,
    };
    let parameters = parameters(route, &came.fields, came.init_images, read.include_init_images);
    let submission = Submission {
        job: read.job.clone(),
        model: read.model.clone(),
        seed: read.seed,
        policy: JobPolicy::default(),
        api: Api::Sdapi,
        client: asker.client.clone(),
        label: read.label.clone(),
        idempotency: came.idempotency,
        image,
        body: Value::Object(came.fields),
    };
    let order = Box::new(submission.order(&edge)?);
    let ask = Ask::Submit { id: edge.new_job_id(), order, wait: true };
    match edge.ask(asker, ask).await {
        // An interrupted job is answered with what it made.
        Reply::Ended(view, made)
            if view.state == JobState::Cancelled || submit::is_made(&view, &made) =>
        {
            answered(&edge, &view, made, &read, parameters).await
        }
        Reply::Ended(view, _) => Err(submit::unmade(&view)),
        other => Err(EdgeError::refused(other)),
    }
}

async fn answered(
    edge: &Edge,
    view: &JobView,
    made: Vec<FiledPicture>,
    read: &SdapiRequest,
    parameters: Map<String, Value>,
) -> Result<Response, EdgeError> {
    let images = match read.send_images {
        false => Vec::new(),
        true => {
            let pictures = submit::pictures(edge, view, made).await?;
            let encode = |picture: &FiledPicture| base64::encode(picture.png.as_slice());
            beside(move || Ok(pictures.iter().map(encode).collect())).await?
        }
    };
    let mut response = found(&info::answer(view, read, parameters, images));
    if !read.substituted.is_empty() {
        // The names are known ones, which headers can hold; another spelling cannot be one.
        if let Ok(value) = HeaderValue::from_str(&read.substituted.join("; ")) {
            response.headers_mut().insert(SUBSTITUTED, value);
        }
    }
    Ok(response)
}

/// The request as the answer repeats it: with its pictures only where that is asked for.
fn parameters(
    route: SdapiRoute,
    fields: &Map<String, Value>,
    init_images: Value,
    with_pictures: bool,
) -> Map<String, Value> {
    let mut parameters = fields.clone();
    if route == SdapiRoute::Img2Img {
        let pictures = if with_pictures { init_images } else { Value::Null };
        parameters.insert(INIT_IMAGES.to_owned(), pictures);
    }
    parameters
}

/// The model that is asked for by default; set where one is given.
async fn checkpoint(
    edge: &Edge,
    asker: &Asker,
    new: Option<String>,
) -> Result<Option<String>, EdgeError> {
    match edge.ask(asker.clone(), Ask::Checkpoint(new)).await {
        Reply::Checkpoint(checkpoint) => Ok(checkpoint),
        other => Err(EdgeError::refused(other)),
    }
}

/// Of which job `progress` is asked, and whether its picture is wanted.
#[derive(Deserialize)]
struct ProgressQuery {
    id_task: Option<String>,
    #[serde(default)]
    skip_current_image: Option<String>,
}

async fn progress(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
    Query(query): Query<ProgressQuery>,
) -> Result<Response, EdgeError> {
    let Reply::Queue { mut jobs, .. } = ask(&edge, &asker, Ask::Queue).await? else {
        return Err(EdgeError::internal("the desk answered another question"));
    };
    jobs.retain(|view| asker.admin || view.record.order.client == asker.client);
    if let Some(view) = progress::told(&jobs, query.id_task.as_deref()) {
        let skips = query
            .skip_current_image
            .is_some_and(|text| ["1", "true", "True"].contains(&text.as_str()));
        let preview = match view.preview.clone().filter(|_| !skips) {
            Some(preview) => {
                let file = beside(move || encode::preview(&preview, PictureFormat::Png, 100));
                file.await.ok().map(base64::encode)
            }
            None => None,
        };
        return Ok(found(&progress::of_job(view, preview)));
    }
    match ask(&edge, &asker, Ask::Models).await? {
        Reply::Models(models) => Ok(found(&progress::of_models(&models))),
        _ => Err(EdgeError::internal("the desk answered another question")),
    }
}

async fn interrupt(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
) -> Result<Response, EdgeError> {
    ask(&edge, &asker, Ask::InterruptSdapi).await?;
    Ok(found(&json!({})))
}

/// A job is not cut into pictures of which one could be left out: it ends.
async fn skip(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
) -> Result<Response, EdgeError> {
    ask(&edge, &asker, Ask::InterruptSdapi).await?;
    Ok(found(&Value::Null))
}

async fn options(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
) -> Result<Response, EdgeError> {
    let model = current_model(&edge, &asker).await?;
    Ok(found(&options::document(&model)))
}

async fn set_options(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
    request: Request,
) -> Result<Response, EdgeError> {
    let JsonBody { object, .. } = body::json(&edge, request, BODY_BYTES_MAX).await?;
    if let Some(model) = options::read(object, &edge.settings())?
        && model != current_model(&edge, &asker).await?
    {
        checkpoint(&edge, &asker, Some(model.clone())).await?;
        ask(&edge, &asker, Ask::LoadModel { model, keep_alive: None }).await?;
    }
    Ok(found(&Value::Null))
}

async fn unload_checkpoint(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
) -> Result<Response, EdgeError> {
    let model = current_model(&edge, &asker).await?;
    ask(&edge, &asker, Ask::UnloadModel { model }).await?;
    Ok(found(&json!({})))
}

async fn reload_checkpoint(
    State(edge): State<Edge>,
    Caller { asker, .. }: Caller,
) -> Result<Response, EdgeError> {
    let model = current_model(&edge, &asker).await?;
    ask(&edge, &asker, Ask::LoadModel { model, keep_alive: None }).await?;
    Ok(found(&json!({})))
}

async fn refresh_checkpoints(State(edge): State<Edge>) -> Result<Response, EdgeError> {
    beside(move || edge.rescan().map_err(EdgeError::internal)).await?;
    Ok(found(&Value::Null))
}

async fn png_info(State(edge): State<Edge>, request: Request) -> Result<Response, EdgeError> {
    let body = body::json(&edge, request, PICTURE_BODY_BYTES_MAX).await?;
    let JsonBody { mut object, .. } = body;
    let document = beside(move || {
        let picture = embedded::take(&mut object, "image")?.into_iter().next();
        let missing = || EdgeError::bad_value("image", "image is missing; hint: send a picture");
        png_info::document(&picture.ok_or_else(missing)?)
    });
    Ok(found(&document.await?))
}

async fn memory() -> Result<Response, EdgeError> {
    let read = || lists::memory().map_err(|error| EdgeError::internal(error.to_string()));
    Ok(found(&beside(read).await?))
}

/// The model that a request without one is for.
async fn current_model(edge: &Edge, asker: &Asker) -> Result<String, EdgeError> {
    let checkpoint = checkpoint(edge, asker, None).await?;
    overrides::model(checkpoint.as_deref(), &edge.settings())
}

async fn ask(edge: &Edge, asker: &Asker, ask: Ask) -> Result<Reply, EdgeError> {
    match edge.ask(asker.clone(), ask).await {
        refused @ Reply::Refused { .. } => Err(EdgeError::refused(refused)),
        reply => Ok(reply),
    }
}
