//! OpenAI's streams: pictures on the way, then each that is done, as server-sent events.
//!
//! Until the desk has accepted the job nothing is sent, so that a refusal is still a status.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::response::Response;
use serde_json::json;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::answer;
use super::delivery::Delivery;
use crate::serve::desk::action::{JobView, Note, Reply};
use crate::serve::desk::event::{Ask, Asker, FiledPicture, PreviewImage};
use crate::serve::desk::job::{JobId, JobOrder, JobState};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::sse::{self, EventWriter, StreamEnded};
use crate::serve::edge::state::Edge;
use crate::serve::edge::{encode, submit};

/// A job that is streamed.
pub struct StreamedJob {
    /// Its name.
    pub id: JobId,
    /// What the desk is asked for.
    pub order: JobOrder,
    /// How its pictures are wanted.
    pub delivery: Delivery,
    /// What was told when it was read.
    pub notices: Vec<String>,
}

/// The desk's reply on its way; dropped, the desk is told that nobody waits.
type Awaited = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Submits a job and answers with its stream.
///
/// # Errors
/// There are too many streams, or the desk refuses the job.
pub async fn answer(edge: Edge, asker: Asker, job: StreamedJob) -> Result<Response, EdgeError> {
    let (writer, response) = sse::channel(&edge)?;
    let mut notes = edge.watch();
    let order = Box::new(job.order);
    let ask = Ask::Submit { id: job.id.clone(), order, wait: true };
    let asking = edge.clone();
    let mut reply: Awaited = Box::pin(async move { asking.ask(asker, ask).await });
    let first = loop {
        tokio::select! {
            reply = &mut reply => break First::Reply(reply),
            note = notes.recv() => match note {
                Ok(note) if is_of(&note, &job.id) => break First::Note(note),
                Ok(_) => {}
                // What was lost may have been the sign.
                Err(_) => break First::Nothing,
            },
        }
    };
    if let First::Reply(refused @ Reply::Refused { .. }) = first {
        return Err(EdgeError::refused(refused));
    }
    let teller = Teller {
        edge,
        writer,
        id: job.id,
        delivery: job.delivery,
        notices: job.notices,
        partials: 0,
    };
    // A client that leaves drops the stream, which the writer notices: the task ends with it.
    tokio::spawn(teller.run(first, reply, notes));
    Ok(response)
}

/// The first sign of a job: its end, that it was accepted, or that signs were lost.
enum First {
    Reply(Reply),
    Note(Arc<Note>),
    Nothing,
}

/// Writes the events of one job.
struct Teller {
    edge: Edge,
    writer: EventWriter,
    id: JobId,
    delivery: Delivery,
    notices: Vec<String>,
    partials: u32,
}

impl Teller {
    async fn run(mut self, first: First, reply: Awaited, notes: broadcast::Receiver<Arc<Note>>) {
        // An error is that of the client, which has gone or does not read.
        let _ = match first {
            First::Reply(reply) => self.tell_end(reply, notes).await,
            First::Note(note) => match self.tell_note(&note).await {
                Ok(()) => self.tell_all(reply, notes).await,
                gone => gone,
            },
            First::Nothing => self.tell_all(reply, notes).await,
        };
    }

    async fn tell_all(
        &mut self,
        mut reply: Awaited,
        mut notes: broadcast::Receiver<Arc<Note>>,
    ) -> Result<(), StreamEnded> {
        let every = self.edge.limits().ping_every;
        let mut ping = interval_at(Instant::now() + every, every);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = self.edge.stopping();
        loop {
            let note = tokio::select! {
                () = self.writer.closed() => return Err(StreamEnded),
                note = notes.recv() => note,
                reply = &mut reply => return self.tell_end(reply, notes).await,
                () = async { _ = stopping.wait_for(Option::is_some).await } => return Ok(()),
                _ = ping.tick() => {
                    self.writer.comment("ping").await?;
                    continue;
                }
            };
            match note {
                Ok(note) if is_of(&note, &self.id) => self.tell_note(&note).await?,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }

    /// The end; what was told before it, and is not written yet, goes out before it.
    async fn tell_end(
        &mut self,
        reply: Reply,
        mut notes: broadcast::Receiver<Arc<Note>>,
    ) -> Result<(), StreamEnded> {
        loop {
            match notes.try_recv() {
                Ok(note) if is_of(&note, &self.id) => self.tell_note(&note).await?,
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.tell_reply(reply).await
    }

    async fn tell_note(&mut self, note: &Note) -> Result<(), StreamEnded> {
        match note {
            Note::State(view) if view.state == JobState::Queued => {
                let place = view.position.unwrap_or_default();
                self.writer.comment(&format!("queued {place}")).await
            }
            Note::Progress(_, progress) if self.delivery.progress => {
                let event = answer::progress(progress);
                self.writer.event(Some(answer::PROGRESS_EVENT), None, &event).await
            }
            Note::Preview(_, preview) if self.partials < self.delivery.partials => {
                self.tell_preview(preview.clone()).await
            }
            _ => Ok(()),
        }
    }

    async fn tell_preview(&mut self, preview: Arc<PreviewImage>) -> Result<(), StreamEnded> {
        let (format, quality) = (self.delivery.format, self.delivery.compression);
        let size = format!("{}x{}", preview.width, preview.height);
        let file =
            submit::beside(move || Ok(base64::encode(encode::preview(&preview, format, quality)?)));
        // The picture itself comes all the same.
        let Ok(file) = file.await else { return Ok(()) };
        let event = answer::partial(&self.delivery, self.partials, now_s(), &file, &size);
        self.partials += 1;
        let name = answer::event_name(self.delivery.route, "partial_image");
        self.writer.event(Some(&name), None, &event).await
    }

    async fn tell_reply(&mut self, reply: Reply) -> Result<(), StreamEnded> {
        match reply {
            Reply::Ended(view, made) if submit::is_made(&view, &made) => {
                match submit::pictures(&self.edge, &view, made).await {
                    Ok(pictures) => self.tell_pictures(&view, pictures).await,
                    Err(error) => self.tell_error(error).await,
                }
            }
            Reply::Ended(view, _) => self.tell_error(submit::unmade(&view)).await,
            other => self.tell_error(EdgeError::refused(other)).await,
        }
    }

    async fn tell_pictures(
        &mut self,
        view: &JobView,
        pictures: Vec<FiledPicture>,
    ) -> Result<(), StreamEnded> {
        let name = answer::event_name(self.delivery.route, "completed");
        let (format, quality) = (self.delivery.format, self.delivery.compression);
        for picture in pictures {
            let record = picture.record.clone();
            let file = submit::beside(move || {
                Ok(base64::encode(encode::picture(&picture, format, quality)?))
            });
            let file = match file.await {
                Ok(file) => file,
                Err(error) => return self.tell_error(error).await,
            };
            let (delivery, notices) = (&self.delivery, &self.notices);
            let event = answer::completed(delivery, &view.record, &record, &file, notices);
            self.writer.event(Some(&name), None, &event).await?;
        }
        Ok(())
    }

    /// OpenAI's clients raise what stands under `error`.
    async fn tell_error(&mut self, error: EdgeError) -> Result<(), StreamEnded> {
        let mut event = error.body();
        event["type"] = json!("error");
        self.writer.event(Some("error"), None, &event).await
    }
}

/// Whether a note is one of a job.
fn is_of(note: &Note, id: &JobId) -> bool {
    match note {
        Note::State(view) => view.record.id == *id,
        Note::Progress(of, _) | Note::Preview(of, _) | Note::Plan(of, _) => of == id,
        Note::Reordered(of, _) => of == id,
        Note::Model(..) => false,
    }
}

/// Seconds since 1970.
fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| since.as_secs()).unwrap_or_default()
}
