//! A1111's `progress`: how far the oldest job is that runs, as a part of 1. Pure.

use serde_json::{Value, json};

use super::info::timestamp;
use crate::serve::desk::action::{JobView, ModelView, SlotState};
use crate::serve::desk::job::{Api, JobState};

/// What a job has done as soon as it runs, so that it is never taken for none (as A1111 has it).
const BEGUN: f64 = 0.01;

/// The job that `progress` tells of: the one of this label, else the oldest that runs, of those
/// that came over these routes.
pub fn told<'a>(jobs: &'a [JobView], label: Option<&str>) -> Option<&'a JobView> {
    let mut ours =
        jobs.iter().filter(|view| view.record.order.api == Api::Sdapi && !view.state.is_ended());
    match label.filter(|label| !label.is_empty()) {
        Some(label) => ours.find(|view| view.record.order.label.as_deref() == Some(label)),
        None => ours.filter(|view| is_running(view)).min_by_key(|view| &view.record.id),
    }
}

/// The answer for a job; `preview` is its picture so far, in base64.
pub fn of_job(view: &JobView, preview: Option<String>) -> Value {
    let record = &view.record;
    let (done, wanted) = (record.pictures.len() as u32, record.wanted().max(1));
    let (step, of) = view.progress.as_ref().map_or((0, 0), |progress| (progress.step, progress.of));
    // Only denoising goes step by step over most of the time.
    let denoises = view.progress.as_ref().is_some_and(|progress| progress.phase == "denoise");
    let of_run = match view.state {
        JobState::Filing => 1.0,
        JobState::Running if denoises && of > 0 => f64::from(step) / f64::from(of),
        _ => 0.0,
    };
    let part = (f64::from(done) + of_run) / f64::from(wanted);
    let waits = !is_running(view);
    let eta_ms = view.ends_in_ms.or(view.progress.as_ref().and_then(|progress| progress.eta_ms));
    json!({
        "progress": if waits { 0.0 } else { (BEGUN + part).min(1.0) },
        "eta_relative": eta_ms.unwrap_or_default() / 1000.0,
        "state": {
            "skipped": false,
            "interrupted": false,
            "stopping_generation": false,
            "job": record.id,
            "job_count": wanted,
            "job_timestamp": timestamp(record.created_at),
            "job_no": done,
            "sampling_step": if denoises { step } else { 0 },
            "sampling_steps": if denoises { of } else { 0 },
        },
        "current_image": preview,
        "textinfo": view.waiting,
    })
}

/// The answer where no job runs: a model that is being loaded counts as one.
pub fn of_models(models: &[ModelView]) -> Value {
    let loading = models.iter().find(|view| view.state == SlotState::Loading);
    let textinfo = loading.map(|view| format!("loading {}", view.model.name));
    json!({
        "progress": if loading.is_some() { BEGUN } else { 0.0 },
        "eta_relative": 0.0,
        "state": {
            "skipped": false,
            "interrupted": false,
            "stopping_generation": false,
            "job": if loading.is_some() { "load" } else { "" },
            "job_count": u32::from(loading.is_some()),
            "job_timestamp": "0",
            "job_no": 0,
            "sampling_step": 0,
            "sampling_steps": 0,
        },
        "current_image": null,
        "textinfo": textinfo,
    })
}

fn is_running(view: &JobView) -> bool {
    matches!(view.state, JobState::Loading | JobState::Running | JobState::Filing)
}
