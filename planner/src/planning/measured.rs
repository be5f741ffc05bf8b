//! What the executor says of a model for a job: its profile, and the bytes of every layout that may be chosen.

use std::sync::Arc;

use protocol::limits::LAYOUTS_MAX;
use protocol::{BackendKind, Command, Event, GraphOptions, JobShape, LayoutBytes, ModelProfile};

use super::{PlanError, Request};
use crate::inventory::{Device, DeviceKind};
use crate::policy::pins::Pin;
use crate::session::{Session, SessionError};
use crate::solve::{Problem, Wanted, places, wanted};

/// What the executor says of a model for a job, and what is pinned of it.
pub struct Measured {
    profile: ModelProfile,
    pins: Vec<Pin>,
    unusable: Vec<Option<String>>,
    wanted: Vec<Wanted>,
    bytes: Vec<LayoutBytes>,
}

impl Measured {
    /// Asks for the model's profile, and for the bytes of every layout that may be chosen. Adds to the options which
    /// components' LoRA products are added while they run.
    pub fn ask(
        session: &mut Session,
        request: &Request,
        job: &JobShape,
        options: &mut GraphOptions,
    ) -> Result<Measured, PlanError> {
        let mut profile = measure(session, request, job, options)?;
        let broken = broken(session, request);
        let inventory = &request.inventory;
        let pins = request.pins.resolve(&profile.components, inventory, &broken)?;
        check_failed(request, &profile, &pins)?;
        let fixed = profile.components.iter().zip(&pins);
        let fixed = fixed.filter(|(_, pin)| pin.forbids_changes()).map(|(c, _)| &c.name);
        if add_runtime(options, fixed) {
            profile = measure(session, request, job, options)?;
        }
        let unusable = unusable(request, broken);
        let mut measured =
            Measured { profile, pins, unusable, wanted: Vec::new(), bytes: Vec::new() };
        measured.wanted = wanted(&measured.unplaced(request, job, options));
        measured.bytes = sizes(session, request, job, options, &measured)?;
        Ok(measured)
    }

    /// The problem without its places.
    fn unplaced<'a>(
        &'a self,
        request: &'a Request,
        job: &'a JobShape,
        options: &'a GraphOptions,
    ) -> Problem<'a> {
        Problem {
            inventory: &request.inventory,
            budgets: request.budgets.clone(),
            unusable: self.unusable.clone(),
            model: &request.model,
            profile: &self.profile,
            job,
            objective: request.objective,
            options,
            mapping_policy: request.mapping_policy,
            pins: self.pins.clone(),
            prefetch: request.prefetch,
            places: Arc::new([]),
        }
    }

    /// The problem that the solver is given.
    pub fn problem<'a>(
        &'a self,
        request: &'a Request,
        job: &'a JobShape,
        options: &'a GraphOptions,
    ) -> Problem<'a> {
        let mut problem = self.unplaced(request, job, options);
        problem.places = places(&problem, &self.wanted, &self.bytes);
        problem
    }
}

/// Adds components whose LoRA products are added while they run; whether any is new. Without a LoRA there is nothing to
/// add.
pub fn add_runtime<'n>(
    options: &mut GraphOptions,
    names: impl Iterator<Item = &'n String>,
) -> bool {
    let runtime = &mut options.lora_runtime;
    let new: Vec<String> = match options.loras.is_empty() {
        true => Vec::new(),
        false => names.filter(|name| !runtime.contains(name)).cloned().collect(),
    };
    runtime.extend_from_slice(&new);
    !new.is_empty()
}

fn measure(
    session: &mut Session,
    request: &Request,
    job: &JobShape,
    options: &GraphOptions,
) -> Result<ModelProfile, SessionError> {
    let command = Command::Measure {
        model: request.model.clone(),
        job: job.clone(),
        options: options.clone(),
        threads: request.inventory.host.cores as u32,
    };
    session.ask("Measure", command, |event| match event {
        Event::Measured(profile) => Ok(*profile),
        other => Err(other),
    })
}

/// The exact bytes of all layouts that are wanted, in their order.
fn sizes(
    session: &mut Session,
    request: &Request,
    job: &JobShape,
    options: &GraphOptions,
    measured: &Measured,
) -> Result<Vec<LayoutBytes>, PlanError> {
    let mut bytes = Vec::new();
    for wanted in measured.wanted.chunks(LAYOUTS_MAX) {
        let command = Command::Size {
            model: request.model.clone(),
            job: job.clone(),
            options: options.clone(),
            threads: request.inventory.host.cores as u32,
            layouts: wanted.iter().map(|wanted| wanted.layout.clone()).collect(),
        };
        let sized = session.ask("Size", command, |event| match event {
            Event::Sized(bytes) => Ok(bytes),
            other => Err(other),
        })?;
        let answers = |(wanted, bytes): (&Wanted, &LayoutBytes)| {
            let lanes = wanted.devices.len();
            let segments = wanted.layout.segments.len();
            (lanes..=lanes + 1).contains(&bytes.parts.len())
                && bytes.parts.iter().all(|part| part.segment_bytes.len() == segments)
        };
        if sized.len() != wanted.len() || !wanted.iter().zip(&sized).all(answers) {
            return Err(PlanError::Unsettled("the sizes are of other layouts".to_owned()));
        }
        bytes.extend(sized);
    }
    Ok(bytes)
}

/// For each device, why nothing can be computed there, if so.
fn broken(session: &Session, request: &Request) -> Vec<Option<String>> {
    let why = |device: &Device| {
        let kind = match device.kind {
            DeviceKind::Cuda => BackendKind::Cuda,
            DeviceKind::Virtual => BackendKind::Virtual,
        };
        let computes = session.backends.contains(&kind) || request.imagined;
        (!computes).then(|| format!("{}: this executor has no backend for CUDA devices", device.id))
    };
    request.inventory.devices.iter().map(why).collect()
}

/// For each device, why it is not used unless it is named, if so.
fn unusable(request: &Request, broken: Vec<Option<String>>) -> Vec<Option<String>> {
    let devices = request.inventory.devices.iter().zip(broken);
    let why = |(device, broken): (&Device, Option<String>)| {
        let failed = request.failed.iter().find(|failed| failed.device.0 == device.id);
        let failed = failed.map(|failed| format!("{}: it failed: {}", device.id, failed.message));
        let integrated = device.integrated.then(|| {
            format!("{} is integrated: its memory is the host's, and it is not named", device.id)
        });
        broken.or(failed).or(integrated)
    };
    devices.map(why).collect()
}

/// A device that failed is not used again, not even where it is named.
fn check_failed(request: &Request, profile: &ModelProfile, pins: &[Pin]) -> Result<(), PlanError> {
    for (component, pin) in profile.components.iter().zip(pins) {
        for index in pin.devices.iter().flatten() {
            let id = &request.inventory.devices[*index].id;
            if let Some(failed) = request.failed.iter().find(|failed| failed.device.0 == *id) {
                return Err(PlanError::PinnedToFailed {
                    component: component.name.clone(),
                    device: failed.device.clone(),
                    message: failed.message.clone(),
                });
            }
        }
    }
    Ok(())
}
