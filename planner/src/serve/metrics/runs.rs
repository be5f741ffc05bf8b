//! What runs tell: times, bytes, and how good predictions were.

use std::time::Instant;

use protocol::{Phase, UsageReport};

use super::registry::{Figures, Labelled};
use crate::job::FailedAttempt;
use crate::serve::desk::event::{FinishedWork, Said};

/// What a slot's executor does.
#[derive(Default)]
pub struct SlotRuns {
    /// The model that it was last asked for.
    pub model: String,
    /// Since when weights are on their way.
    pub loads: Option<Instant>,
    /// Whether it is to end.
    pub is_to_end: bool,
}

impl SlotRuns {
    /// A run is about to begin.
    pub fn begins(&mut self, model: &str) {
        *self = SlotRuns { model: model.to_owned(), loads: None, is_to_end: false };
    }

    /// Whether the load is over by this.
    pub fn computes(&self, said: &Said) -> bool {
        matches!(said, Said::Progress(progress) if progress.phase != Phase::Load)
    }
}

/// Counts a run that made its pictures.
pub fn observe_work(figures: &Figures, model: &str, work: &FinishedWork) {
    let by_model = [("model", model)];
    let count = work.pictures.len() as u64;
    figures.images.with(&by_model).inc_by(count);
    figures.batch_size.with(&by_model).observe(count as f64);
    ratio(figures, "total", work.measured_ms, work.predicted_ms);
    observe_failures(figures, &work.failures);
    let steps = steps(work);
    figures.steps.with(&by_model).inc_by(steps.into());
    observe_times(figures, model, &work.usage, steps);
    observe_devices(figures, model, &work.usage);
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

fn observe_devices(figures: &Figures, model: &str, usage: &UsageReport) {
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
                let device = device.id.to_string();
                let by = [("device", &*device), ("what", what)];
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
