//! Plans beside the one that was asked for: with integrated devices or without them, and what would
//! make a long job shorter. Each is really solved.

use protocol::profile::FewSteps;
use protocol::{DeviceId, Plan, StorageType};

use super::{PlanError, Request, Survey};
use crate::engine::session::{Session, SessionError};
use crate::solve::{Advice, Faster, Integrated};

/// A job that is predicted to take longer than this is warned of: longer than anybody waits for a
/// picture without having meant to.
pub const LONG_MS: f64 = 10.0 * 60_000.0;

/// What a change must save to be told, as a part of the job's time: less is within what predictions
/// are off by.
const SAVED_PART_MIN: f64 = 0.1;

/// A plan with a change may take so much longer than the best one with it, as a part of its time.
/// Only its time is told, in minutes, and it is solved three times as fast so.
const LONGER_MAX: f64 = 0.01;

/// Fewer steps than this are not proposed: models that are distilled for few take these.
const STEPS_MIN: u32 = 4;

/// A shorter side below this is not proposed, in pixels: models are trained on pictures from this
/// size on.
const SIDE_MIN: u32 = 256;

/// Parts of both sides that are proposed, the nearest first.
const SIDES: [(u32, u32); 2] = [(3, 4), (1, 2)];

/// What is told beside a plan.
pub fn of(session: &mut Session, request: &Request, plan: &Plan) -> Result<Advice, PlanError> {
    let is_long = plan.predicted_ms.total > LONG_MS;
    let mut advice = Advice::default();
    if request.compare_integrated || is_long {
        advice.integrated = integrated(session, request, plan)?;
    }
    if is_long {
        let named = advice.integrated.iter().filter(|entry| !entry.used);
        let named = named.filter_map(|entry| {
            let (what, total_ms) = (entry.arguments.clone()?, entry.other_total_ms?);
            Some(Faster { what, total_ms })
        });
        advice.faster = named.collect();
        for changes in [few_steps(request), steps(request), sizes(request), types(request)] {
            advice.faster.extend(nearest(session, changes)?);
        }
        let most = plan.predicted_ms.total * (1.0 - SAVED_PART_MIN);
        advice.faster.retain(|faster| faster.total_ms <= most);
    }
    Ok(advice)
}

/// A changed request, and what is changed as a clause.
type Change = (String, Request);

/// The least of some changes, the nearest first, that makes a job no longer take long; where none
/// does, the last one that fits. The last is solved first: a job that is long with it is long with
/// those before it, which change less.
fn nearest(session: &mut Session, mut changes: Vec<Change>) -> Result<Option<Faster>, PlanError> {
    let Some(last) = changes.pop() else { return Ok(None) };
    let Some(last) = solved(session, last)? else { return nearest(session, changes) };
    if last.total_ms <= LONG_MS {
        for change in changes {
            let nearer = solved(session, change)?.filter(|faster| faster.total_ms <= LONG_MS);
            if nearer.is_some() {
                return Ok(nearer);
            }
        }
    }
    Ok(Some(last))
}

/// What a job takes with a change, within [`LONGER_MAX`]; `None` where nothing fits, or where it
/// makes no sense.
fn solved(session: &mut Session, (what, request): Change) -> Result<Option<Faster>, PlanError> {
    let request = Request { longer_max: LONGER_MAX, ..request };
    Ok(total_ms(session, &request)?.map(|total_ms| Faster { what, total_ms }))
}

/// What a job takes from start to picture; `None` where nothing fits, or where it makes no sense.
fn total_ms(session: &mut Session, request: &Request) -> Result<Option<f64>, PlanError> {
    let solved = Survey::new(session, request);
    match solved.and_then(|mut survey| survey.plan(session, request, 1)) {
        Ok(solution) => Ok(Some(solution.plan.predicted_ms.total)),
        Err(
            PlanError::Infeasible(_)
            | PlanError::Pin(_)
            | PlanError::Session(SessionError::Failed(_)),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// For each integrated device, what the plan would take without it, or with it where it is not
/// used.
fn integrated(
    session: &mut Session,
    request: &Request,
    plan: &Plan,
) -> Result<Vec<Integrated>, PlanError> {
    let mut entries = Vec::new();
    let devices = request.inventory.devices.iter().zip(&plan.devices).enumerate();
    for (index, (device, planned)) in devices.filter(|(_, (device, _))| device.integrated) {
        let id = DeviceId(device.id.clone());
        let used = planned.peak_bytes.0 > 0;
        let (arguments, other) = if used {
            let pins = request.pins.without(index, &request.inventory)?;
            let left_out = vec![id.clone()];
            (None, Request { pins, left_out, ..other_of(request) })
        } else {
            let Some(backend) = request.pins.with_rest_on(&device.id) else { continue };
            let pins = request.pins.with_backend(&backend)?;
            (Some(format!("--backend {backend}")), Request { pins, ..other_of(request) })
        };
        let other_total_ms = total_ms(session, &other)?;
        entries.push(Integrated { device: id, used, arguments, other_total_ms });
    }
    Ok(entries)
}

/// A request without what only its own plan is asked for.
fn other_of(request: &Request) -> Request {
    Request { explain: false, compare_integrated: false, ..request.clone() }
}

/// The model's own way to fewer steps.
fn few_steps(request: &Request) -> Vec<Change> {
    let is_free = request.options.loras.is_empty() && !request.job.init_image;
    let few = request.few_steps.as_ref().filter(|few| is_free && few.steps < request.job.steps);
    let change = |few: &FewSteps| {
        (format!("--steps {} {}", few.steps, few.by), with_steps(request, few.steps))
    };
    few.map(change).into_iter().collect()
}

/// Half of the steps, or a quarter. From a picture only a part of them runs, and that is asked for
/// by the strength.
fn steps(request: &Request) -> Vec<Change> {
    let steps = request.job.steps;
    let fewer = [steps.div_ceil(2), steps.div_ceil(4)].into_iter();
    let fewer = fewer.filter(|fewer| !request.job.init_image && *fewer >= STEPS_MIN);
    fewer.map(|fewer| (format!("--steps {fewer}"), with_steps(request, fewer))).collect()
}

fn with_steps(request: &Request, steps: u32) -> Request {
    let mut other = other_of(request);
    other.job.steps = steps;
    other
}

/// Smaller pictures of about the same shape.
fn sizes(request: &Request) -> Vec<Change> {
    let multiple = request.side_multiple_pixels;
    let changes = SIDES.into_iter().map(|(part, of)| {
        let side = |side: u32| (u64::from(side) * u64::from(part) / u64::from(of)) as u32;
        let [width, height] =
            [request.job.width, request.job.height].map(|s| side(s) / multiple * multiple);
        let mut other = other_of(request);
        (other.job.width, other.job.height) = (width, height);
        (format!("--width {width} --height {height}"), other)
    });
    changes.filter(|(_, other)| other.job.width.min(other.job.height) >= SIDE_MIN).collect()
}

/// Weights of 8 bits.
fn types(request: &Request) -> Vec<Change> {
    if request.options.weights_as.is_some() || !request.options.loras.is_empty() {
        return Vec::new();
    }
    let mut other = other_of(request);
    other.options.weights_as = Some(StorageType::Q8_0);
    let what = "the same model in q8_0 (`berth plan --dry-run --weights-as q8_0` shows its plan)";
    vec![(what.to_owned(), other)]
}
