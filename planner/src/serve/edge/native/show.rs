//! Jobs as JSON, as serve.md §9 says. Times are RFC 3339, in UTC.

use jiff::Timestamp;
use protocol::UsageReport;
use serde::Serialize;
use serde_json::{Value, json};

use crate::job::FailedAttempt;
use crate::job::seed::Seed;
use crate::serve::desk::action::{JobView, ProgressView};
use crate::serve::desk::job::{
    Api, Class, JobError, JobId, JobRecord, JobState, KeptJson, Offer, OnDisconnect, PictureRecord,
};

/// All of a job.
#[derive(Serialize)]
pub struct ShownJob<'a> {
    #[serde(flatten)]
    summary: ShownSummary<'a>,
    request: &'a KeptJson,
    attempts: u32,
    failures: &'a [FailedAttempt],
    plan: &'a Option<KeptJson>,
    usage: &'a Option<UsageReport>,
    /// What is told beside.
    pub notices: Vec<&'a str>,
    on_disconnect: OnDisconnect,
    deadline_ms: Option<u64>,
}

/// What lists show of a job.
#[derive(Serialize)]
pub struct ShownSummary<'a> {
    id: &'a JobId,
    state: JobState,
    position: Option<usize>,
    waiting: &'a Option<String>,
    created_at: Value,
    started_at: Option<Value>,
    ended_at: Option<Value>,
    starts_at: Option<Value>,
    ends_at: Option<Value>,
    model: &'a str,
    prompt: &'a Option<String>,
    n: u32,
    seed: Option<Seed>,
    client: &'a str,
    priority: Class,
    api: Api,
    label: &'a Option<String>,
    quote: Value,
    progress: &'a Option<ProgressView>,
    pictures: Vec<Value>,
    error: Option<Value>,
}

/// All of a job.
pub fn job(view: &JobView) -> ShownJob<'_> {
    let record = &*view.record;
    ShownJob {
        summary: summary(view),
        request: &record.order.body,
        attempts: record.attempts,
        failures: &record.failures,
        plan: &record.plan,
        usage: &record.usage,
        notices: record.notices.iter().map(String::as_str).collect(),
        on_disconnect: record.order.on_disconnect,
        deadline_ms: record.order.deadline_ms,
    }
}

/// What lists show of a job.
pub fn summary(view: &JobView) -> ShownSummary<'_> {
    let record = &*view.record;
    ShownSummary {
        id: &record.id,
        state: view.state,
        position: view.position,
        waiting: &view.waiting,
        created_at: time(record.created_at),
        started_at: record.started_at.map(time),
        ended_at: record.ended_at.map(time),
        starts_at: view.starts_in_ms.map(in_ms),
        ends_at: view.ends_in_ms.map(in_ms),
        model: &record.order.model,
        prompt: &record.order.request.prompts.prompt,
        n: record.wanted(),
        seed: record.order.request.seed,
        client: &record.order.client,
        priority: record.order.class,
        api: record.order.api,
        label: &record.order.label,
        quote: quote(record),
        progress: &view.progress,
        pictures: pictures(record),
        error: record.error.as_ref().map(error),
    }
}

/// What a job was predicted to take when it was accepted.
fn quote(record: &JobRecord) -> Value {
    let mut quote = offer(&record.offer, record.predicted_wait_ms);
    let Offer { load_ms, run_ms, .. } = record.offer;
    let took = record.predicted_wait_ms + load_ms + run_ms;
    quote["ends_at"] = time(record.created_at.saturating_add(took.max(0.0) as u64));
    quote
}

/// What the surveyor offered, and how long it is waited for.
pub fn offer(offer: &Offer, wait_ms: f64) -> Value {
    let peaks: serde_json::Map<String, Value> =
        offer.peak_bytes.iter().map(|(device, bytes)| (device.clone(), json!(bytes))).collect();
    json!({
        "warm": offer.warm,
        "wait_ms": wait_ms,
        "load_ms": offer.load_ms,
        "run_ms": offer.run_ms,
        "batch": offer.batch,
        "peak_bytes": peaks,
        "confidence": offer.confidence,
    })
}

/// A job's pictures, each with its address below this server's.
pub fn pictures(record: &JobRecord) -> Vec<Value> {
    record.pictures.iter().map(|one| picture(&record.id, one)).collect()
}

/// A picture with its address.
pub fn picture(id: &JobId, picture: &PictureRecord) -> Value {
    json!({
        "index": picture.index,
        "url": picture.file.as_ref().map(|_| picture_path(id, picture.index)),
        "seed": picture.seed,
        "width": picture.width,
        "height": picture.height,
        "bytes": picture.size_bytes,
        "settings": picture.infotext,
    })
}

/// Where a picture is to be had, from this server's root.
pub fn picture_path(id: &JobId, index: u32) -> String {
    format!("/v1/jobs/{id}/pictures/{index}")
}

/// Why a job failed.
pub fn error(error: &JobError) -> Value {
    json!({
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "nearest": error.nearest,
    })
}

/// A time in milliseconds since 1970; `null` for one past the calendar's end.
pub fn time(unix_ms: u64) -> Value {
    let ms = i64::try_from(unix_ms).ok();
    let time = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or(Value::Null, |time| Value::String(time.to_string()))
}

/// The time in so many milliseconds from now.
pub fn in_ms(ms: f64) -> Value {
    let now = Timestamp::now().as_millisecond();
    time((now.max(0) as u64).saturating_add(ms.max(0.0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::desk::job::JobState;
    use crate::serve::edge::testing;

    #[test]
    fn a_job_is_shown_with_times_and_addresses() {
        let mut view = testing::view("01J", "ann", JobState::Done);
        std::sync::Arc::make_mut(&mut view.record).pictures = vec![testing::picture(0)];
        let shown = json!(job(&view));
        assert_eq!(shown["created_at"], "2001-09-09T01:46:40Z");
        assert_eq!(shown["started_at"], Value::Null);
        assert_eq!(shown["state"], "done");
        assert_eq!(shown["pictures"][0]["url"], "/v1/jobs/01J/pictures/0");
        assert_eq!(shown["quote"]["ends_at"], "2001-09-09T01:46:43.5Z");
        assert_eq!(shown["request"]["prompt"], "a house");
        assert_eq!(time(u64::MAX), Value::Null);
    }
}
