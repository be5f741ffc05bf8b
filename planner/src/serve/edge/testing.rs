//! Jobs and settings for the tests of the edge.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::settings::{EdgeModel, EdgeSettings};
use crate::job::JobRequest;
use crate::job::request::Prompts;
use crate::serve::desk::action::JobView;
use crate::serve::desk::job::{
    Api, Class, Confidence, JobId, JobOrder, JobRecord, JobState, Offer, OnDisconnect,
    PictureRecord, RECORD_VERSION,
};

/// When all jobs of tests were accepted: 10⁹ seconds after 1970.
pub const CREATED_AT: u64 = 1_000_000_000_000;

/// A job that was accepted.
pub fn view(id: &str, client: &str, state: JobState) -> JobView {
    let prompts = Prompts { prompt: Some("a house".to_owned()), ..Prompts::default() };
    let order = JobOrder {
        request: JobRequest { prompts, ..JobRequest::default() },
        model: "demo".to_owned(),
        class: Class::Batch,
        api: Api::Native,
        client: client.to_owned(),
        label: None,
        deadline_ms: None,
        on_disconnect: OnDisconnect::Cancel,
        keep_alive: None,
        idempotency: None,
        body: json!({"prompt": "a house"}),
    };
    view_of(id, order, state)
}

/// A job of an order.
pub fn view_of(id: &str, order: JobOrder, state: JobState) -> JobView {
    let offer = Offer {
        warm: false,
        load_ms: 1000.0,
        run_ms: 2000.0,
        batch: 1,
        peak_bytes: Vec::new(),
        confidence: Confidence::Predicted,
        notices: Vec::new(),
    };
    let record = JobRecord {
        v: RECORD_VERSION,
        id: JobId(id.to_owned()),
        order,
        state,
        created_at: CREATED_AT,
        started_at: None,
        ended_at: None,
        offer,
        predicted_wait_ms: 500.0,
        synchronous: false,
        attempts: 0,
        daemon_deaths: 0,
        failures: Vec::new(),
        pictures: Vec::new(),
        plan: None,
        usage: None,
        notices: Vec::new(),
        error: None,
    };
    JobView {
        record: Arc::new(record),
        state,
        position: None,
        progress: None,
        waiting: None,
        starts_in_ms: None,
        ends_in_ms: None,
        preview: None,
    }
}

/// A picture that was filed.
pub fn picture(index: u32) -> PictureRecord {
    PictureRecord {
        index,
        seed: 7,
        width: 64,
        height: 32,
        size_bytes: 100,
        file: Some(format!("2001-09-09/x-{index}.png")),
        infotext: "a house".to_owned(),
    }
}

/// Two models, an alias and a LoRA.
pub fn settings() -> EdgeSettings {
    let mut settings = EdgeSettings { default_model: "demo".to_owned(), ..Default::default() };
    for name in ["demo", "large"] {
        settings.models.insert(name.to_owned(), EdgeModel::default());
    }
    settings.aliases.insert("other-name".to_owned(), "demo".to_owned());
    settings.loras.insert("style".to_owned(), PathBuf::from("/l/a:style.gguf"));
    settings
}
