//! A request that was read, on its way to the desk; and the pictures of its job on their way back.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::Value;

use super::errors::EdgeError;
use super::native::policy::JobPolicy;
use super::state::Edge;
use crate::job::JobRequest;
use crate::job::seed::Seed;
use crate::media::picture::FILE_BYTES_MAX;
use crate::read;
use crate::serve::desk::action::JobView;
use crate::serve::desk::event::FiledPicture;
use crate::serve::desk::job::{
    Api, Class, ErrorCode, IdempotencyKey, JobError, JobOrder, JobState, KeptJson, PictureRecord,
};

/// A job of another program's request: all but what only a handler knows.
pub struct Submission {
    /// What is to be made.
    pub job: JobRequest,
    /// The model's own name.
    pub model: String,
    /// The seed; drawn where it is `None`.
    pub seed: Option<u64>,
    /// How it is to be treated.
    pub policy: JobPolicy,
    /// The wire that it came over.
    pub api: Api,
    /// Who asks.
    pub client: String,
    /// The client's own name for the job.
    pub label: Option<String>,
    /// So that it is not done twice.
    pub idempotency: Option<IdempotencyKey>,
    /// The picture to start from, as a file of the daemon's own.
    pub image: Option<PathBuf>,
    /// The request as it came, without its pictures.
    pub body: Value,
}

impl Submission {
    /// The order that the desk takes, with a seed.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn order(self, edge: &Edge) -> Result<JobOrder, EdgeError> {
        let seed = self.seed.map_or(Seed::Random, Seed::Given);
        let seed = seed.draw().map_err(|error| EdgeError::internal(error.to_string()))?;
        let own = edge.settings().model(&self.model).and_then(|model| model.class);
        let mut request = self.job;
        request.seed = Some(Seed::Given(seed));
        request.start.image = self.image;
        Ok(JobOrder {
            request,
            model: self.model,
            // Somebody waits at the other end of these routes.
            class: self.policy.class.or(own).unwrap_or(Class::Interactive),
            api: self.api,
            client: self.client,
            label: self.label,
            deadline_ms: self.policy.deadline_ms,
            on_disconnect: self.policy.on_disconnect,
            keep_alive: self.policy.keep_alive,
            idempotency: self.idempotency,
            body: KeptJson::of(&self.body),
        })
    }
}

/// Keeps the picture that a job starts from; `param` is its field.
///
/// # Errors
/// It is no picture that is taken, or cannot be kept.
pub async fn keep(edge: &Edge, param: &str, bytes: Bytes) -> Result<PathBuf, EdgeError> {
    edge.keep_picture(bytes).await.map_err(|error| {
        let error = EdgeError::from(error);
        EdgeError { param: error.param.as_ref().map(|_| param.to_owned()), ..error }
    })
}

/// Does blocking work beside the thread that serves everybody.
///
/// # Errors
/// Those of the work.
pub async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EdgeError> + Send + 'static,
) -> Result<T, EdgeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(EdgeError::internal("a worker has panicked")))
}

/// A job with all that is kept of it, where the desk has only what lists show.
///
/// # Errors
/// The store cannot be read, or the job was removed meanwhile.
pub async fn whole(edge: &Edge, mut view: Box<JobView>) -> Result<Box<JobView>, EdgeError> {
    if view.whole {
        return Ok(view);
    }
    let (records, id) = (edge.clone(), view.record.id.clone());
    let read = beside(move || Ok(records.record(&id)?)).await?;
    let removed = || JobError::new(ErrorCode::Expired, "the job was removed");
    view.record = Arc::new(read.ok_or_else(removed)?);
    view.whole = true;
    Ok(view)
}

/// All pictures of a job that has ended: those that were made just now, others from their files.
///
/// # Errors
/// A file is not there any more (410).
pub async fn pictures(
    edge: &Edge,
    view: &JobView,
    mut made: Vec<FiledPicture>,
) -> Result<Vec<FiledPicture>, EdgeError> {
    let of_others = |record: &&PictureRecord| made.iter().all(|p| p.record.index != record.index);
    let missing: Vec<(PictureRecord, Option<PathBuf>)> = view
        .record
        .pictures
        .iter()
        .filter(of_others)
        .map(|record| (record.clone(), edge.picture_path(record)))
        .collect();
    if !missing.is_empty() {
        let read = move || missing.into_iter().map(from_file).collect::<Result<Vec<_>, _>>();
        made.extend(beside(read).await?);
    }
    made.sort_by_key(|picture| picture.record.index);
    Ok(made)
}

fn from_file((record, path): (PictureRecord, Option<PathBuf>)) -> Result<FiledPicture, EdgeError> {
    let bytes = path.and_then(|path| read::bytes(&path, FILE_BYTES_MAX).ok());
    match bytes {
        Some(bytes) => Ok(FiledPicture { record, png: Arc::new(bytes) }),
        None => {
            let message = "a picture of this job is not there any more; hint: make it again";
            Err(EdgeError::new(StatusCode::GONE, "expired", message))
        }
    }
}

/// Whether all pictures of a job are there for who waited for it: it is done, or nothing was wrong
/// but that the disk had no room for their files.
pub fn is_made(view: &JobView, made: &[FiledPicture]) -> bool {
    let error = view.record.error.as_ref();
    let lacks_disk = error.is_some_and(|error| error.code == ErrorCode::Disk);
    view.state == JobState::Done || lacks_disk && made.len() >= view.record.wanted() as usize
}

/// What a client is told that waited for a job without pictures to show.
pub fn unmade(view: &JobView) -> EdgeError {
    let id = &view.record.id;
    match &view.record.error {
        Some(error) => EdgeError::failed(id, error),
        None => {
            let mut error =
                EdgeError::new(StatusCode::CONFLICT, "cancelled", "the job was cancelled");
            error.job = Some(id.clone());
            error
        }
    }
}
