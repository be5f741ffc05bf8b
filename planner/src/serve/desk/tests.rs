//! The desk by hand and in a made-up world.

mod batch_scripts;
mod chance;
mod lane_scripts;
mod regain_scripts;
mod room_scripts;
mod script;
mod scripts;
mod simulation;
mod world;

use protocol::Bytes;

use super::config::DeskConfig;
use super::event::{Asker, ServedModel};
use super::job::{Api, Class, Confidence, JobId, JobOrder, KeptJson, Offer, OnDisconnect};
use crate::engine::lanes::Lanes;
use crate::job::JobRequest;
use crate::job::model::ModelName;
use crate::job::request::ShapeRequest;
use crate::job::seed::Seed;

/// What an operator who sets nothing gets.
fn config() -> DeskConfig {
    DeskConfig {
        queue_max: 64,
        keep_alive_ms: Some(600_000),
        several_loaded: true,
        join_jobs: false,
        room_wait_ms: 60_000,
        drain_ms: 120_000,
        client_queued_max: 16,
        client_running_max: 2,
        client_queued_s_max: 600.0,
        keep_jobs: 1000,
        keep_bytes: 10 << 30,
        min_free: Bytes::mib(512),
    }
}

/// A job's name from a number.
fn job_id(number: u64) -> JobId {
    JobId(format!("{number:026}"))
}

/// A job of `count` pictures.
fn order(model: &str, client: &str, count: u32) -> JobOrder {
    let shape = ShapeRequest { batch: Some(count), ..ShapeRequest::default() };
    JobOrder {
        request: JobRequest {
            model: ModelName::Name(model.to_owned()),
            shape,
            seed: Some(Seed::Given(7)),
            ..JobRequest::default()
        },
        model: model.to_owned(),
        class: Class::Batch,
        api: Api::Native,
        client: client.to_owned(),
        label: None,
        deadline_ms: None,
        on_disconnect: OnDisconnect::Cancel,
        keep_alive: None,
        idempotency: None,
        body: KeptJson::of(&serde_json::Value::Null),
    }
}

fn offer(load_ms: f64, run_ms: f64, batch: u32) -> Offer {
    Offer {
        warm: load_ms == 0.0,
        load_ms,
        run_ms,
        batch,
        peak_bytes: vec![("virtual0".to_owned(), Bytes(1 << 20))],
        lanes: Lanes::named(["host"]),
        confidence: Confidence::Predicted,
        notices: Vec::new(),
    }
}

fn served(name: &str) -> ServedModel {
    ServedModel {
        name: name.to_owned(),
        files_bytes: Bytes(1 << 20),
        modified_ms: 1,
        keep_alive: None,
        class: None,
        preload: false,
    }
}

fn asker(client: &str) -> Asker {
    Asker { client: client.to_owned(), admin: false }
}
