//! Jobs and settings for the tests of the edge.

use std::path::PathBuf;

use serde_json::json;

use super::settings::{EdgeModel, EdgeSettings};
use crate::job::JobRequest;
use crate::job::request::Prompts;
use crate::serve::desk::action::JobView;
use crate::serve::desk::job::{
    Api, Class, JobOrder, JobRecord, JobState, KeptJson, Offer, OnDisconnect, PictureRecord,
};
use crate::serve::testing;

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
        body: KeptJson::of(&json!({"prompt": "a house"})),
    };
    view_of(id, order, state)
}

/// A job of an order.
pub fn view_of(id: &str, order: JobOrder, state: JobState) -> JobView {
    let offer = Offer { load_ms: 1000.0, run_ms: 2000.0, ..testing::record(id).offer };
    let offer = Offer { peak_bytes: Vec::new(), ..offer };
    let created_at = CREATED_AT;
    let predicted_wait_ms = 500.0;
    testing::view(JobRecord {
        order,
        state,
        created_at,
        offer,
        predicted_wait_ms,
        ..testing::record(id)
    })
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
