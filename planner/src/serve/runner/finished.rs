//! From a run's outcome to what the desk is told of it.

use std::ops::Range;
use std::sync::Arc;

use protocol::notice::Notice;
use protocol::{Bytes, DeviceId, Phase, Plan};

use super::super::desk::event::{FinishedWork, MadePicture};
use crate::engine::supervise::{Outcome, Work};
use crate::job::record::{FinishedRun, on_gpu};
use crate::render::notices::sentence;

/// One job's pictures, copied once out of the memory that the executor shares.
pub fn pictures(outcome: &Outcome, made: &FinishedRun<'_>) -> Vec<MadePicture> {
    let picture = |image: &protocol::message::Image| MadePicture {
        index: image.index - made.pictures.start,
        seed: image.seed,
        width: image.width,
        height: image.height,
        pixels: Arc::new(image.pixels.to_vec()),
        settings: made.settings(image, None),
    };
    let own = outcome.images.iter().filter(|image| made.pictures.contains(&image.index));
    own.map(picture).collect()
}

/// What the user of one job of a run should know.
pub struct JobNotices {
    /// The places of its pictures in the batch.
    pub pictures: Range<u32>,
    /// What was known before it ran.
    pub resolved: Vec<String>,
}

impl JobNotices {
    /// With what the plan and the run told: of a prompt only where it is of its own pictures.
    fn sentences(&self, of_plan: &[String], of_run: &[Notice]) -> Vec<String> {
        let is_own = |notice: &&Notice| match notice {
            Notice::PromptCut { pictures, .. } => {
                pictures.iter().any(|picture| self.pictures.contains(picture))
            }
            Notice::SelfTest { .. } | Notice::FileChanged { .. } => true,
        };
        let of_run = of_run.iter().filter(is_own).map(sentence);
        self.resolved.iter().chain(of_plan).cloned().chain(of_run).collect()
    }
}

/// What an order took beside what it was predicted to: from the load on where there was one, which
/// then took so long with all that followed.
pub fn finished(
    outcome: Outcome,
    pictures: Vec<MadePicture>,
    since_load_ms: Option<f64>,
    work: &Work,
    joined: &[JobNotices],
) -> FinishedWork {
    let Outcome { plan, report, usage, failures, next_ms, .. } = outcome;
    let ms = &plan.predicted_ms;
    let load_ms = (ms.total - ms.next_total).max(0.0);
    let (predicted_ms, measured_ms) = match (work, since_load_ms) {
        (Work::Generate(_), Some(measured_ms)) => (load_ms + next_ms, measured_ms),
        (Work::Generate(_), None) => (next_ms, usage.measured_ms.total),
        (_, Some(measured_ms)) => (load_ms, measured_ms),
        (_, None) => (0.0, 0.0),
    };
    let notices = joined.iter().map(|job| job.sentences(&report.notices, &outcome.notices));
    let notices = notices.collect();
    let idle_bytes = idle_bytes(&plan);
    FinishedWork { pictures, usage, predicted_ms, measured_ms, idle_bytes, failures, notices }
}

/// The text encoders of a plan that GPUs compute.
pub fn encoders_on_gpu(plan: &Plan) -> Vec<String> {
    let is_encoder = |name: &String| {
        let mut encoders = plan.components.iter().filter(|c| c.phase == Phase::Condition);
        encoders.any(|encoder| encoder.name == *name)
    };
    on_gpu(plan).into_iter().filter(is_encoder).collect()
}

/// What a plan keeps between two jobs, of each device where that is anything.
fn idle_bytes(plan: &Plan) -> Vec<(String, Bytes)> {
    let devices = plan.devices.iter().map(|device| (device.id.0.clone(), device.idle_bytes));
    let host = (DeviceId::host().0, plan.host.idle_bytes);
    devices.chain([host]).filter(|(_, bytes)| *bytes > Bytes::ZERO).collect()
}
