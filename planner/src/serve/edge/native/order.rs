//! From a read request to the order that the desk takes.

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::policy::JobPolicy;
use super::request::ReadShape;
use crate::job::JobRequest;
use crate::serve::desk::job::{
    Api, Class, ErrorCode, IdempotencyKey, JobError, JobOrder, KeptJson,
};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::keep;
use crate::serve::edge::state::Edge;

/// What a body is shown as: without pictures, which are long and somebody's own.
const NOT_SHOWN: [&str; 1] = ["image"];

/// Makes the order of a native job. `body` is what is shown of its request.
///
/// # Errors
/// Its picture is none, or cannot be kept.
pub async fn native(
    edge: &Edge,
    shape: ReadShape,
    policy: &JobPolicy,
    client: String,
    body: Map<String, Value>,
    idempotency: Option<IdempotencyKey>,
) -> Result<JobOrder, EdgeError> {
    let model = shape.model.clone();
    let request = with_picture(edge, shape).await?;
    let of_model = edge.settings().model(&model).and_then(|model| model.class);
    Ok(JobOrder {
        request: JobRequest { preview_every: policy.preview_every, ..request },
        model,
        class: policy.class.or(of_model).unwrap_or(Class::Batch),
        api: Api::Native,
        client,
        label: None,
        deadline_ms: policy.deadline_ms,
        on_disconnect: policy.on_disconnect,
        keep_alive: policy.keep_alive,
        idempotency,
        body: KeptJson::of(&Value::Object(body)),
    })
}

/// The request with its picture kept as a file.
///
/// # Errors
/// The picture is none, or cannot be kept.
pub async fn with_picture(edge: &Edge, shape: ReadShape) -> Result<JobRequest, EdgeError> {
    let ReadShape { mut request, image, .. } = shape;
    if let Some(text) = image {
        let decoded = tokio::task::spawn_blocking(move || keep::from_base64(&text)).await;
        let panicked = |_| JobError::new(ErrorCode::Internal, "a decoder has panicked");
        let bytes = decoded.map_err(panicked)??;
        request.start.image = Some(edge.keep_picture(Bytes::from(bytes)).await?);
    }
    Ok(request)
}

/// A body as it is shown.
pub fn shown(body: &Map<String, Value>) -> Map<String, Value> {
    let short = |(name, value): (&String, &Value)| match NOT_SHOWN.contains(&name.as_str()) {
        true => (name.clone(), Value::Bool(true)),
        false => (name.clone(), value.clone()),
    };
    body.iter().map(short).collect()
}
