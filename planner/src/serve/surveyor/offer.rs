//! From a plan to what the desk is told of it.

use std::sync::Arc;

use protocol::{Bytes, DeviceId, Plan};

use super::super::desk::event::Quoted;
use super::super::desk::job::{Confidence, JobError, Offer};
use super::super::failures::internal;
use crate::engine::lanes::Lanes;
use crate::engine::warm::{Loaded, next_ms};
use crate::inventory::{Inventory, Speeds};
use crate::planning::Request;
use crate::render::document::PlanDocument;
use crate::solve::{PlanReport, Solution};

/// The plan that a job would run by.
pub enum ChosenPlan {
    /// The one that is loaded.
    Loaded(Arc<Loaded>),
    /// Another one, which may leave its weights where they lie.
    New(Box<Solution>),
}

/// What some pictures take by a plan, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct PlannedMs {
    /// Until the model's weights are in their places.
    pub load_ms: f64,
    /// From then to the last picture.
    pub run_ms: f64,
}

impl ChosenPlan {
    /// It.
    pub fn plan(&self) -> &Plan {
        match self {
            ChosenPlan::Loaded(loaded) => &loaded.plan,
            ChosenPlan::New(solution) => &solution.plan,
        }
    }

    /// What so many pictures take, in as many runs as it needs.
    pub fn ms(&self, request: &Request, pictures: u32) -> PlannedMs {
        let plan = self.plan();
        let ms = &plan.predicted_ms;
        let runs = pictures.div_ceil(plan.job.batch.max(1));
        let load_ms = match self {
            ChosenPlan::Loaded(_) => 0.0,
            // Whatever part of a first run the next one does not have again.
            ChosenPlan::New(_) => (ms.total - ms.next_total).max(0.0),
        };
        let run_ms = match self {
            ChosenPlan::Loaded(loaded) => loaded.next_ms(request),
            ChosenPlan::New(_) => next_ms(plan, &request.job),
        };
        PlannedMs { load_ms, run_ms: run_ms * f64::from(runs) }
    }

    fn parts<'a>(&'a self, request: &'a Request) -> (&'a Plan, &'a PlanReport, &'a Inventory) {
        match self {
            ChosenPlan::Loaded(loaded) => (&loaded.plan, &loaded.report, &loaded.inventory),
            ChosenPlan::New(solution) => (&solution.plan, &solution.report, &request.inventory),
        }
    }
}

/// What so many pictures take by a plan, which may be for fewer at a time.
///
/// # Errors
/// The plan has no document: a fault of Berth.
pub fn quoted(
    planned: &ChosenPlan,
    request: &Request,
    pictures: u32,
    notices: &[String],
) -> Result<Quoted, JobError> {
    let (plan, report, inventory) = planned.parts(request);
    let PlannedMs { load_ms, run_ms } = planned.ms(request, pictures);
    let document = serde_json::to_value(PlanDocument::new(plan, report, inventory));
    let document = document.map_err(|error| internal(error.to_string()))?;
    let notices = notices.iter().chain(&report.notices).cloned().collect();
    let offer = Offer {
        warm: matches!(planned, ChosenPlan::Loaded(_)) || plan.keeps_weights_of.is_some(),
        load_ms,
        run_ms,
        batch: plan.job.batch.max(1),
        peak_bytes: peak_bytes(plan),
        lanes: Lanes::of(plan),
        confidence: confidence(plan, inventory),
        notices,
    };
    Ok(Quoted { offer, plan: Arc::new(document) })
}

/// What a plan takes at most of each device that it uses, and of the host.
fn peak_bytes(plan: &Plan) -> Vec<(String, Bytes)> {
    let devices = plan.devices.iter().map(|device| (device.id.0.clone(), device.peak_bytes));
    let host = (DeviceId::host().0, plan.host.peak_bytes);
    devices.filter(|(_, bytes)| *bytes > Bytes::ZERO).chain([host]).collect()
}

/// Measured where runs of this very model have corrected the times of every component, wherever
/// that computes.
fn confidence(plan: &Plan, inventory: &Inventory) -> Confidence {
    let speeds = |id: &DeviceId| -> Option<&Speeds> {
        match id.is_host() {
            true => Some(&inventory.host.speeds),
            false => inventory.device(&id.0).map(|device| &device.speeds),
        }
    };
    let corrected = |name: &str, id: &DeviceId| {
        speeds(id).is_some_and(|speeds| speeds.corrections.contains_key(name))
    };
    let measured = plan
        .components
        .iter()
        .all(|component| component.devices.iter().all(|device| corrected(&component.name, device)));
    if measured { Confidence::Measured } else { Confidence::Predicted }
}
