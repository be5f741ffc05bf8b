//! What runs tell: times, bytes, and how good predictions were.

use std::sync::Arc;
use std::time::Instant;

use protocol::{Phase, UsageReport};
use serde_json::Value;

use super::plans::{self, DeviceNames};
use super::registry::{Figures, Labelled};
use crate::job::FailedAttempt;
use crate::serve::desk::action::EvictReason;
use crate::serve::desk::event::{FinishedWork, FreeChange, Said};

/// What a slot's executor does.
#[derive(Default)]
pub struct SlotRuns {
    /// The model that it was last asked for.
    model: String,
    /// Whether that is for a job, and not ahead of one.
    for_job: bool,
    /// Whether its process is there.
    is_there: bool,
    /// What is loaded, as `plan --json` has it.
    pub plan: Option<Arc<Value>>,
    /// Whether this run loaded weights.
    loaded: bool,
    /// Since when weights are on their way.
    loads: Option<Instant>,
    /// Why it is to end.
    pub is_to_end: Option<EvictReason>,
}

impl SlotRuns {
    /// A run is about to begin.
    pub fn begins(&mut self, model: &str, for_job: bool) {
        let SlotRuns { is_there, plan, .. } = std::mem::take(self);
        *self =
            SlotRuns { model: model.to_owned(), for_job, is_there, plan, ..SlotRuns::default() };
    }
}

/// Counts what a slot's executor tells.
pub fn observe_said(figures: &Figures, names: &DeviceNames, run: &mut SlotRuns, said: &Said) {
    let model = run.model.clone();
    let by_model = [("model", &*model)];
    match said {
        Said::Started { .. } => started(figures, run),
        Said::Planned { plan, loads, because, .. } => {
            if *loads {
                run.loads = Some(Instant::now());
                run.loaded = true;
                let source = if run.for_job { "job" } else { "ahead" };
                let by = [("model", &*model), ("source", source)];
                figures.model_loads.with(&by).inc();
            }
            let is_other = run.plan.as_ref().is_some_and(|old| old["job"] != plan["job"]);
            let reason = match because {
                Some(FreeChange::Less) => Some("less_free"),
                Some(FreeChange::More) => Some("more_free"),
                None => is_other.then_some("shape"),
            };
            if let Some(reason) = reason {
                figures.replans.with(&[("reason", reason)]).inc();
            }
            run.plan = Some(plan.clone());
        }
        Said::Progress(progress) if progress.phase != Phase::Load => {
            if let Some(began) = run.loads.take() {
                let seconds = began.elapsed().as_secs_f64();
                figures.model_load_seconds.with(&by_model).observe(seconds);
            }
        }
        Said::Done(work) => observe_work(figures, names, run, work),
        Said::Failed { failures, .. } => {
            observe_failures(figures, failures);
            if std::mem::take(&mut run.is_there) {
                exited(figures, "failed");
            }
            if run.plan.take().is_some() {
                evicted(figures, &model, "failed");
            }
        }
        Said::Lost => {
            run.is_there = false;
            exited(figures, "died");
            if run.plan.take().is_some() {
                evicted(figures, &model, "failed");
            }
        }
        Said::Gone => {
            if run.is_there {
                exited(figures, if run.is_to_end.is_some() { "asked" } else { "died" });
            }
            if run.plan.is_some() {
                evicted(figures, &model, run.is_to_end.map_or("failed", reason));
            }
        }
        _ => {}
    }
}

/// A process where there was one already took its place.
fn started(figures: &Figures, run: &mut SlotRuns) {
    if std::mem::replace(&mut run.is_there, true) {
        exited(figures, "replaced");
        run.plan = None;
    }
}

fn exited(figures: &Figures, how: &str) {
    figures.executor_exits.with(&[("how", how)]).inc();
}

fn evicted(figures: &Figures, model: &str, reason: &str) {
    figures.model_evictions.with(&[("model", model), ("reason", reason)]).inc();
}

fn reason(reason: EvictReason) -> &'static str {
    match reason {
        EvictReason::Idle => "idle",
        EvictReason::Room => "room",
        EvictReason::Asked => "asked",
    }
}

/// Counts a run that made its pictures.
fn observe_work(figures: &Figures, names: &DeviceNames, run: &SlotRuns, work: &FinishedWork) {
    observe_failures(figures, &work.failures);
    // A model that is loaded ahead makes none.
    let count = work.pictures.len() as u64;
    if count == 0 {
        return;
    }
    let by_model = [("model", &*run.model)];
    figures.images.with(&by_model).inc_by(count);
    figures.batch_size.with(&by_model).observe(count as f64);
    let steps = steps(work);
    figures.steps.with(&by_model).inc_by(steps.into());
    ratio(figures, "total", work.measured_ms, work.predicted_ms);
    observe_phase_ratios(figures, run, &work.usage);
    observe_times(figures, &run.model, &work.usage, steps);
    observe_devices(figures, names, &run.model, &work.usage);
    plans::show_measured(figures, names, &work.usage);
}

/// Holds the times of phases against those of the plan.
fn observe_phase_ratios(figures: &Figures, run: &SlotRuns, usage: &UsageReport) {
    let Some(plan) = &run.plan else { return };
    for (of, phase, happened) in [
        ("load", Phase::Load, run.loaded),
        ("denoise_step", Phase::Denoise, true),
        ("decode", Phase::Decode, true),
    ] {
        let measured = usage.measured_ms.phases[phase];
        if happened && measured > 0.0 {
            let predicted = plan["predicted_ms"][of].as_f64().unwrap_or_default();
            ratio(figures, of, measured, predicted);
        }
    }
}

/// Denoising steps that a run did: a start from a picture leaves some out.
fn steps(work: &FinishedWork) -> u32 {
    let settings = work.pictures.first().map(|picture| &picture.settings);
    let all = settings.and_then(|settings| settings.steps).unwrap_or(0);
    let strength = settings.and_then(|settings| settings.strength).unwrap_or(1.0);
    (f64::from(all) * strength) as u32
}

fn observe_times(figures: &Figures, model: &str, usage: &UsageReport, steps: u32) {
    for phase in Phase::ALL {
        // Of this one the report has the time of a step.
        let times = if phase == Phase::Denoise { f64::from(steps) } else { 1.0 };
        let seconds = times * usage.measured_ms.phases[phase] / 1e3;
        let by = [("model", model), ("phase", phase.name())];
        figures.job_seconds.with(&by).observe(seconds);
    }
    let total = [("model", model), ("phase", "total")];
    figures.job_seconds.with(&total).observe(usage.measured_ms.total / 1e3);
    let step_seconds = usage.measured_ms.phases[Phase::Denoise] / 1e3;
    figures.denoise_step_seconds.with(&[("model", model)]).observe(step_seconds);
}

fn observe_devices(figures: &Figures, names: &DeviceNames, model: &str, usage: &UsageReport) {
    for device in &usage.devices {
        let (predicted, measured) = device.peaks();
        ratio(figures, "peak_bytes", measured.0 as f64, predicted.0 as f64);
        for busy in device.phases.iter().filter_map(|phase| phase.busy_ms) {
            let parts = [
                ("compute", busy.compute),
                ("weights", busy.weights),
                ("activations", busy.activations),
            ];
            for (what, ms) in parts {
                let device = device.id.0.as_str();
                let by = [("device", device), ("uuid", plans::uuid(names, device)), ("what", what)];
                figures.device_busy_seconds.with(&by).inc_by(ms.max(0.0) / 1e3);
            }
        }
    }
    let sent = usage.components.iter().map(|component| component.sent_bytes.0).sum();
    figures.streamed_bytes.with(&[("model", model)]).inc_by(sent);
}

/// Counts attempts that were followed by others, by why they failed.
pub fn observe_failures(figures: &Figures, failures: &[FailedAttempt]) {
    for failure in failures {
        let reason = match failure {
            FailedAttempt { requested_bytes: Some(_), .. } => "short",
            FailedAttempt { device: Some(_), .. } => "device",
            _ => "death",
        };
        figures.replans.with(&[("reason", reason)]).inc();
    }
}

/// Measured by predicted, where something was predicted.
pub fn ratio(figures: &Figures, of: &'static str, measured: f64, predicted: f64) {
    if predicted > 0.0 && measured.is_finite() {
        figures.prediction_ratio.with(&[("of", of)]).observe(measured / predicted);
    }
}
