//! The JSON document of `berth tune`.

use protocol::{Bytes, DeviceId, JobShape, ModelSource, Placement, Plan, PredictedMs, Residency};
use serde::Serialize;

use crate::policy::Objective;
use crate::tune::{Mark, Tuning};

/// Version of the document. Raised when a field changes its meaning or goes away.
const SCHEMA: u32 = 1;

/// What `tune --json` prints.
#[derive(Debug, Serialize)]
pub struct TuneDocument<'a> {
    schema: u32,
    feasible: bool,
    model: &'a ModelSource,
    family: &'a str,
    job: &'a JobShape,
    objective: Objective,
    host: &'a str,
    /// The budgets that were looked at.
    range: RangeBytes,
    /// The steps of the curve: budgets rise, times fall.
    points: Vec<PointDocument<'a>>,
    /// The budgets of the points that are knees.
    knees: Vec<Bytes>,
    /// Plans that were made.
    plans: usize,
    /// Whether every step was found; else there are more between those that were.
    complete: bool,
}

#[derive(Debug, Serialize)]
struct RangeBytes {
    low_bytes: Bytes,
    high_bytes: Bytes,
}

#[derive(Debug, Serialize)]
struct PointDocument<'a> {
    budget_bytes: Bytes,
    /// The largest budget that is known not to give this time; `null` at the start of the range.
    slower_at_bytes: Option<Bytes>,
    mark: Option<Mark>,
    /// What the objective counts of `predicted_ms`.
    counted_ms: f64,
    predicted_ms: &'a PredictedMs,
    measured_ms: Option<MeasuredDocument>,
    components: Vec<ComponentDocument<'a>>,
    devices: Vec<DeviceDocument<'a>>,
    host_peak_bytes: Bytes,
}

#[derive(Debug, Serialize)]
struct MeasuredDocument {
    denoise_step: f64,
    total: f64,
}

#[derive(Debug, Serialize)]
struct ComponentDocument<'a> {
    name: &'a str,
    placement: Placement,
    devices: &'a [DeviceId],
    residency: Residency,
    segments: usize,
    segments_streamed: usize,
    /// Stream slots on each device; 0 where nothing is streamed.
    slots: u32,
}

#[derive(Debug, Serialize)]
struct DeviceDocument<'a> {
    id: &'a DeviceId,
    peak_bytes: Bytes,
}

impl<'a> TuneDocument<'a> {
    /// The document of a curve.
    pub fn new(tuning: &'a Tuning) -> TuneDocument<'a> {
        let steps = &tuning.curve.steps;
        let point = |(index, step): (usize, &'a crate::tune::Step<Plan>)| {
            let plan = &step.point.plan;
            let measured = tuning.measured[index];
            PointDocument {
                budget_bytes: step.point.budget,
                slower_at_bytes: step.slower_at,
                mark: tuning.mark(index),
                counted_ms: step.point.ms,
                predicted_ms: &plan.predicted_ms,
                measured_ms: measured.map(|run| MeasuredDocument {
                    denoise_step: run.denoise_step_ms,
                    total: run.total_ms,
                }),
                components: plan.components.iter().map(ComponentDocument::new).collect(),
                devices: plan
                    .devices
                    .iter()
                    .map(|device| DeviceDocument { id: &device.id, peak_bytes: device.peak_bytes })
                    .collect(),
                host_peak_bytes: plan.host.peak_bytes,
            }
        };
        TuneDocument {
            schema: SCHEMA,
            feasible: true,
            model: &tuning.model,
            family: &tuning.family,
            job: &tuning.job,
            objective: tuning.objective,
            host: &tuning.host,
            range: RangeBytes { low_bytes: tuning.range.low, high_bytes: tuning.range.high },
            points: steps.iter().enumerate().map(point).collect(),
            knees: tuning.knees.iter().map(|index| steps[*index].point.budget).collect(),
            plans: tuning.curve.plans,
            complete: tuning.curve.complete,
        }
    }
}

impl<'a> ComponentDocument<'a> {
    fn new(component: &'a protocol::plan::ComponentPlan) -> ComponentDocument<'a> {
        let streamed = component.segments.iter().filter(|s| s.is_streamed());
        ComponentDocument {
            name: &component.name,
            placement: component.placement(),
            devices: &component.devices,
            residency: component.residency,
            segments: component.segments.len(),
            segments_streamed: streamed.count(),
            slots: component.lookahead,
        }
    }
}
