//! Plans beside the one that was asked for: with integrated devices or without them, and what would
//! make a long job shorter. Each is really solved, but for fewer steps.

use protocol::{DeviceId, Phase, Plan, StorageType};

use super::{PlanError, Request, Survey};
use crate::engine::session::{Session, SessionError};
use crate::solve::{Advice, Faster, Integrated, Solution};

/// A job that is predicted to take longer than this is warned of: longer than anybody waits for a
/// picture without having meant to.
pub const LONG_MS: f64 = 10.0 * 60_000.0;

/// What a change must save to be told, as a part of the job's time: less is within what predictions
/// are off by.
const SAVED_PART_MIN: f64 = 0.1;

/// A plan with a change may take so much longer than the best one with it, as a part of its time,
/// and what a split streams is not arranged by trial in it. Only its time is told, in minutes.
const LONGER_MAX: f64 = 0.01;

/// Fewer steps than this are not proposed: models that are distilled for few take these.
const STEPS_MIN: u32 = 4;

/// A shorter side below this is not proposed, in pixels: models are trained on pictures from this
/// size on.
const SIDE_MIN: u32 = 256;

/// Parts of both sides that are proposed, the nearest first.
const SIDES: [(u32, u32); 2] = [(3, 4), (1, 2)];

/// What is told beside a plan.
pub fn of(
    session: &mut Session,
    request: &Request,
    solution: &Solution,
) -> Result<Advice, PlanError> {
    let plan = &solution.plan;
    let is_long = plan.predicted_ms.total > LONG_MS;
    let mut advice = Advice::default();
    if request.compare_integrated || is_long {
        advice.integrated = integrated(session, request, plan)?;
    }
    if is_long {
        let most_ms = plan.predicted_ms.total * (1.0 - SAVED_PART_MIN);
        let named = advice.integrated.iter().filter(|entry| !entry.used);
        let named = named.filter_map(|entry| {
            let (what, total_ms) = (entry.arguments.clone()?, entry.other_total_ms?);
            Some(Faster { what, total_ms })
        });
        advice.faster = named.collect();
        advice.faster.extend(fewer_steps(request, plan));
        // What is read takes as long for a smaller picture.
        if solution.reading_ms() <= most_ms {
            advice.faster.extend(smaller(session, request)?);
        }
        advice.faster.extend(fewer_bits(session, request)?);
        advice.faster.retain(|faster| faster.total_ms <= most_ms);
    }
    Ok(advice)
}

/// What a job takes with a change, within [`LONGER_MAX`] and in milliseconds; `None` where nothing
/// fits, or where it makes no sense.
fn changed_ms(session: &mut Session, request: Request) -> Result<Option<f64>, PlanError> {
    total_ms(session, &Request { longer_max: LONGER_MAX, ..request })
}

/// What a job takes, in milliseconds; `None` where nothing fits, or where it makes no sense.
fn total_ms(session: &mut Session, request: &Request) -> Result<Option<f64>, PlanError> {
    let survey = Survey::new(session, request);
    match survey.and_then(|mut survey| survey.solve(session, request, 1)) {
        Ok(solved) => Ok(solved.ok().map(|solution| solution.plan.predicted_ms.total)),
        Err(PlanError::Pin(_) | PlanError::Session(SessionError::Failed(_))) => Ok(None),
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

/// The model's own way to fewer steps; and half of the steps, or a quarter where the job would
/// still take long with half. From a picture only a part of them runs, and that is asked for by the
/// strength.
///
/// What they take is told of the job's own plan. Where a job takes long, steps are most of it, so
/// that a plan which is made for fewer is about the same one: of 50 such jobs on shipped hosts and
/// drawn ones what is told was within 0.05 % of its time for 14 steps, and 0.35 % for 4.
fn fewer_steps(request: &Request, plan: &Plan) -> Vec<Faster> {
    let steps = request.job.steps;
    if request.job.init_image {
        return Vec::new();
    }
    let total_ms = |fewer: u32| {
        plan.predicted_ms.total
            - f64::from(steps - fewer) * plan.predicted_ms.phases[Phase::Denoise]
    };
    let is_free = request.options.loras.is_empty();
    let few = request.few_steps.as_ref().filter(|few| is_free && few.steps < steps);
    let of_few = few.map(|few| (few.steps, format!("--steps {} {}", few.steps, few.by)));
    let (half, quarter) = (steps.div_ceil(2), steps.div_ceil(4));
    let half_is_enough = total_ms(half) <= LONG_MS;
    let fewer = if half_is_enough || quarter < STEPS_MIN { half } else { quarter };
    let of_fewer = (fewer >= STEPS_MIN).then(|| (fewer, format!("--steps {fewer}")));
    let changes = of_few.into_iter().chain(of_fewer);
    changes.map(|(steps, what)| Faster { what, total_ms: total_ms(steps) }).collect()
}

/// Smaller pictures of about the same shape: the largest with which the job no longer takes long;
/// where none is, the smallest that fits. That is solved first: a job that is long with it is long
/// with larger ones.
fn smaller(session: &mut Session, request: &Request) -> Result<Option<Faster>, PlanError> {
    let multiple = request.side_multiple_pixels;
    let sizes = SIDES.into_iter().map(|(part, of)| {
        let side = |side: u32| (u64::from(side) * u64::from(part) / u64::from(of)) as u32;
        [request.job.width, request.job.height].map(|s| side(s) / multiple * multiple)
    });
    let mut sizes: Vec<[u32; 2]> =
        sizes.filter(|sides| sides.iter().min() >= Some(&SIDE_MIN)).collect();
    let mut with = |[width, height]: [u32; 2]| -> Result<Option<Faster>, PlanError> {
        let mut other = other_of(request);
        (other.job.width, other.job.height) = (width, height);
        let what = format!("--width {width} --height {height}");
        Ok(changed_ms(session, other)?.map(|total_ms| Faster { what, total_ms }))
    };
    let smallest = loop {
        let Some(sides) = sizes.pop() else { return Ok(None) };
        if let Some(faster) = with(sides)? {
            break faster;
        }
    };
    if smallest.total_ms <= LONG_MS {
        for sides in sizes {
            let faster = with(sides)?.filter(|faster| faster.total_ms <= LONG_MS);
            if faster.is_some() {
                return Ok(faster);
            }
        }
    }
    Ok(Some(smallest))
}

/// Weights of 8 bits.
fn fewer_bits(session: &mut Session, request: &Request) -> Result<Option<Faster>, PlanError> {
    if request.options.weights_as.is_some() || !request.options.loras.is_empty() {
        return Ok(None);
    }
    let mut other = other_of(request);
    other.options.weights_as = Some(StorageType::Q8_0);
    let what = "the same model in q8_0 (`berth plan --dry-run --weights-as q8_0` shows its plan)";
    let total_ms = changed_ms(session, other)?;
    Ok(total_ms.map(|total_ms| Faster { what: what.to_owned(), total_ms }))
}
