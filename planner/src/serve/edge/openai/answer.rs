//! OpenAI's answers as documents. Pure: pictures are files already, in the format that was asked.

use serde_json::{Value, json};

use super::delivery::{Delivery, ImagesRoute};
use crate::serve::desk::action::{JobView, ProgressView};
use crate::serve::desk::job::{JobRecord, PictureRecord};

/// A picture as it is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum AnsweredPicture {
    /// Its file, in base64.
    Held(String),
    /// Where its file is to be had.
    At(String),
}

/// The answer of a job that is done.
pub fn document(
    view: &JobView,
    pictures: &[AnsweredPicture],
    delivery: &Delivery,
    notices: &[String],
) -> Value {
    let record = &view.record;
    json!({
        "created": record.ended_at.unwrap_or(record.created_at) / 1000,
        "background": "opaque",
        "output_format": delivery.format_name(),
        "quality": delivery.quality.name(),
        "size": record.pictures.first().map_or_else(asked_size(record), size),
        "data": pictures.iter().map(datum).collect::<Vec<_>>(),
        "usage": usage(),
        "berth": berth(record, notices),
    })
}

/// The event of a picture that is on its way, which is file and size of a preview.
pub fn partial(delivery: &Delivery, index: u32, now_s: u64, file: &str, size: &str) -> Value {
    json!({
        "type": event_name(delivery.route, "partial_image"),
        "b64_json": file,
        "background": "opaque",
        "created_at": now_s,
        "output_format": delivery.format_name(),
        "partial_image_index": index,
        "quality": delivery.quality.name(),
        "size": size,
    })
}

/// The event of a picture that is done.
pub fn completed(
    delivery: &Delivery,
    record: &JobRecord,
    picture: &PictureRecord,
    file: &str,
    notices: &[String],
) -> Value {
    json!({
        "type": event_name(delivery.route, "completed"),
        "b64_json": file,
        "background": "opaque",
        "created_at": record.ended_at.unwrap_or(record.created_at) / 1000,
        "output_format": delivery.format_name(),
        "quality": delivery.quality.name(),
        "size": size(picture),
        "usage": usage(),
        "berth": berth(record, notices),
    })
}

/// The event that tells how far a job is.
pub fn progress(view: &ProgressView) -> Value {
    let mut event = json!(view);
    event["type"] = json!(PROGRESS_EVENT);
    event
}

/// What the event of [`progress`] is called; OpenAI has none.
pub const PROGRESS_EVENT: &str = "berth.progress";

/// What an event is called on a route.
pub fn event_name(route: ImagesRoute, what: &str) -> String {
    match route {
        ImagesRoute::Generations => format!("image_generation.{what}"),
        ImagesRoute::Edits => format!("image_edit.{what}"),
    }
}

fn datum(picture: &AnsweredPicture) -> Value {
    match picture {
        AnsweredPicture::Held(file) => json!({ "b64_json": file }),
        AnsweredPicture::At(url) => json!({ "url": url }),
    }
}

fn size(picture: &PictureRecord) -> String {
    format!("{}x{}", picture.width, picture.height)
}

/// What was asked for, where no picture says what it is; `auto` where nothing was.
fn asked_size(record: &JobRecord) -> impl FnOnce() -> String {
    let shape = &record.order.request.shape;
    let size = shape.width.zip(shape.height);
    move || size.map_or("auto".to_owned(), |(width, height)| format!("{width}x{height}"))
}

/// Tokens, which nobody counts here.
fn usage() -> Value {
    let none = json!({ "image_tokens": 0, "text_tokens": 0 });
    json!({
        "input_tokens": 0,
        "input_tokens_details": none,
        "output_tokens": 0,
        "output_tokens_details": none,
        "total_tokens": 0,
    })
}

/// What only Berth tells: predicted and measured times run from the job's start to its end.
pub fn berth(record: &JobRecord, notices: &[String]) -> Value {
    let measured_ms = record.ended_at.zip(record.started_at);
    let notices: Vec<&String> = notices.iter().chain(&record.notices).collect();
    json!({
        "job": record.id,
        "seeds": record.pictures.iter().map(|picture| picture.seed).collect::<Vec<_>>(),
        "notices": notices,
        "predicted_ms": record.offer.load_ms + record.offer.run_ms,
        "measured_ms": measured_ms.map(|(end, start)| end.saturating_sub(start)),
    })
}
