//! What happens, as server-sent events: of one job, or of all that the client may see.
//!
//! A client that comes back with `Last-Event-ID` goes on where it was; what is too long ago is told
//! as `lost`, and it should ask for the state anew.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{jobs, show};
use crate::media::PictureFormat;
use crate::serve::desk::action::{JobView, Note, Reply};
use crate::serve::desk::event::{Ask, Asker, PreviewImage};
use crate::serve::desk::job::JobId;
use crate::serve::edge::asker::Caller;
use crate::serve::edge::encode;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::journal::{JournalEntry, Told};
use crate::serve::edge::sse::{self, EventWriter, StreamEnded};
use crate::serve::edge::state::Edge;
use crate::serve::edge::submit::whole;

/// The header by which a client says what it saw last.
const LAST_EVENT_ID: &str = "last-event-id";

/// `GET /v1/events`.
pub async fn all(
    State(edge): State<Edge>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, EdgeError> {
    let from = last_seen(&edge, &headers).unwrap_or_else(|| *edge.journal().last().borrow());
    let (writer, response) = sse::channel(&edge)?;
    let follower = Follower { edge, writer, asker: caller.asker, job: None, seen: from };
    tokio::spawn(follower.follow());
    Ok(response)
}

/// `GET /v1/jobs/{id}/events`: its state now, then what becomes of it, until it has ended. A client
/// that comes back to an ended job of which it saw all is told by 204 not to come again.
pub async fn of_job(
    State(edge): State<Edge>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, EdgeError> {
    let id = jobs::job_id(&id)?;
    let seen = last_seen(&edge, &headers);
    let now = *edge.journal().last().borrow();
    let reply = edge.ask(caller.asker.clone(), Ask::Show(id.clone())).await;
    let view = jobs::job_of(reply)?;
    if let Some(seen) = seen
        && view.state.is_ended()
        && !edge.journal().after(seen).0.iter().any(|entry| entry.told.job() == Some(&id))
    {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let view = whole(&edge, view).await?;
    let (writer, response) = sse::channel(&edge)?;
    let (asker, job) = (caller.asker, Some(id));
    let follower = Follower { edge, writer, asker, job, seen: seen.unwrap_or(now) };
    tokio::spawn(follower.of_job(view, seen.is_none(), now));
    Ok(response)
}

fn last_seen(edge: &Edge, headers: &HeaderMap) -> Option<u64> {
    let id = headers.get(LAST_EVENT_ID)?.to_str().ok()?;
    Some(edge.journal().number(id))
}

/// Writes to one client what it may see.
struct Follower {
    edge: Edge,
    writer: EventWriter,
    asker: Asker,
    job: Option<JobId>,
    /// The number of the last entry that was looked at.
    seen: u64,
}

impl Follower {
    async fn of_job(self, view: Box<JobView>, first: bool, now: u64) {
        if first {
            let id = self.edge.journal().id(now);
            let told = self.writer.event(Some("state"), Some(&id), &show::job(&view)).await;
            if told.is_err() || view.state.is_ended() {
                return;
            }
        }
        self.follow().await;
    }

    /// Until the client leaves, the job has ended, or the server is about to end.
    async fn follow(mut self) {
        let mut news = self.edge.journal().last();
        let mut stopping = self.edge.stopping();
        loop {
            match self.write_new().await {
                Ok(false) => {}
                Ok(true) | Err(StreamEnded) => return,
            }
            tokio::select! {
                () = self.writer.closed() => return,
                () = async { _ = stopping.wait_for(Option::is_some).await } => return,
                is_there = async { news.wait_for(|last| *last > self.seen).await.is_ok() } => {
                    if !is_there {
                        return;
                    }
                }
                () = sleep(self.edge.limits().ping_every) => {
                    if self.writer.comment("ping").await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes what is new; whether the job has ended by that.
    async fn write_new(&mut self) -> Result<bool, StreamEnded> {
        let (entries, lost) = self.edge.journal().after(self.seen);
        if lost > 0 {
            let told = json!({"events": lost, "hint": "ask for the state anew"});
            self.writer.event(Some("lost"), None, &told).await?;
        }
        for entry in entries {
            self.seen = entry.number;
            if self.concerns(&entry) {
                let id = self.edge.journal().id(entry.number);
                self.write(&id, &entry.told).await?;
                if self.job.is_some() && ends(&entry.told) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn concerns(&self, entry: &JournalEntry) -> bool {
        match &self.job {
            // Whoever may see the job may hear of it.
            Some(job) => entry.told.job() == Some(job),
            None => entry.audience.has(&self.asker),
        }
    }

    async fn write(&self, id: &str, told: &Told) -> Result<(), StreamEnded> {
        let event = |name, data| self.writer.event(Some(name), Some(id), data);
        match told {
            Told::Note(note) => match &**note {
                Note::State(view) => {
                    self.writer.event(Some("state"), Some(id), &show::job(view)).await
                }
                Note::Progress(job, progress) => {
                    event("progress", &json!({"job": job, "progress": progress})).await
                }
                Note::Preview(job, image) => event("preview", &preview(job, image).await).await,
                Note::Plan(job, plan) => event("plan", &json!({"job": job, "plan": **plan})).await,
                Note::Model(name, state) => {
                    event("model", &json!({"model": name, "state": state})).await
                }
                Note::Reordered(job, class) => {
                    self.write_now(id, job, &json!({"id": job, "priority": class})).await
                }
            },
            Told::Ended(job, state) => {
                self.write_now(id, job, &json!({"id": job, "state": state})).await
            }
            Told::Picture(job, picture) => {
                let picture = show::picture(job, picture);
                event("picture", &json!({"job": job, "picture": picture})).await
            }
            Told::Reading(reading) => event("reading", reading).await,
        }
    }

    /// Writes a job as it is now; of one that has gone only what was told.
    async fn write_now(&self, id: &str, job: &JobId, told: &Value) -> Result<(), StreamEnded> {
        if let Reply::Job(view) = self.edge.ask(self.asker.clone(), Ask::Show(job.clone())).await
            && let Ok(view) = whole(&self.edge, view).await
        {
            return self.writer.event(Some("state"), Some(id), &show::job(&view)).await;
        }
        self.writer.event(Some("state"), Some(id), told).await
    }
}

fn ends(told: &Told) -> bool {
    match told {
        Told::Note(note) => matches!(&**note, Note::State(view) if view.state.is_ended()),
        Told::Ended(..) => true,
        _ => false,
    }
}

/// A preview with its pixels as a PNG in base64.
async fn preview(id: &JobId, image: &std::sync::Arc<PreviewImage>) -> Value {
    let (width, height) = (image.width, image.height);
    let image = image.clone();
    let png = move || encode::preview(&image, PictureFormat::Png, 1).ok();
    let png = tokio::task::spawn_blocking(png).await.ok().flatten().map(base64::encode);
    json!({"job": id, "width": width, "height": height, "png": png})
}
