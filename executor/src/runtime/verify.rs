//! A plan against its own schedule: what it will really use, and whether it says so.

use protocol::message::VerifiedBytes;
use protocol::plan::DeviceBackend;
use protocol::{BackendKind, Bytes, DeviceId, Failure, Phase, Placement, Plan, Residency};

use crate::failure::refused;
use crate::models::Model;
use crate::schedule::Schedule;

/// The exact bytes of a plan on each device in each phase, everything but overheads. Nothing is allocated.
pub fn verify(plan: &Plan, model: &Model) -> Result<Vec<VerifiedBytes>, Failure> {
    let schedules = schedules(plan, model)?;
    let job_bytes = model.job_layout(&plan.job).bytes();
    let mut verified = Vec::new();
    let devices = plan.devices.iter().map(|device| device.id.clone()).chain([DeviceId::host()]);
    for device in devices {
        let fixed = if device.is_host() { job_bytes } else { Bytes::ZERO };
        for phase in Phase::TIMELINE {
            let bytes = fixed + bytes_in_phase(plan, &schedules, &device, phase);
            verified.push(VerifiedBytes { device: device.clone(), phase, bytes });
        }
    }
    Ok(verified)
}

fn bytes_in_phase(plan: &Plan, schedules: &[Schedule], device: &DeviceId, phase: Phase) -> Bytes {
    let mut weights = Bytes::ZERO;
    let mut arena = Bytes::ZERO;
    for (component, schedule) in plan.components.iter().zip(schedules) {
        if component.devices[0] != *device {
            continue;
        }
        let held = match component.residency {
            Residency::Resident => true,
            Residency::Lazy => component.phase == phase,
            Residency::Mapped => false,
        };
        if held {
            weights += schedule.weights_bytes;
        }
        if component.phase == phase {
            arena = arena.max(schedule.arena_bytes);
        }
    }
    weights + arena
}

/// The schedule of each component of the plan, for the backend that the plan puts it on.
pub fn schedules(plan: &Plan, model: &Model) -> Result<Vec<Schedule>, Failure> {
    if plan.family != model.family() {
        return Err(refused(format!(
            "the plan is for the family {}, the model is of {}",
            plan.family,
            model.family()
        )));
    }
    let graphs = model.graphs(&plan.job)?;
    let names: Vec<&str> = graphs.iter().map(|graph| graph.name).collect();
    let planned: Vec<&str> = plan.components.iter().map(|c| c.name.as_str()).collect();
    if names != planned {
        return Err(refused(format!(
            "the plan has the components {}, the model has {}",
            planned.join(", "),
            names.join(", ")
        )));
    }
    let mut schedules = Vec::with_capacity(graphs.len());
    for (component, graph) in plan.components.iter().zip(graphs) {
        if component.phase != graph.phase {
            return Err(refused(format!("{} is planned for the wrong phase", component.name)));
        }
        let kind = match component.placement {
            Placement::Host => BackendKind::Host,
            Placement::One => match plan.devices.iter().find(|d| component.devices.contains(&d.id))
            {
                Some(device) => match device.backend {
                    DeviceBackend::Virtual { .. } => BackendKind::Virtual,
                    DeviceBackend::Cuda { .. } => BackendKind::Cuda,
                },
                None => return Err(refused(format!("{} is on an unknown device", component.name))),
            },
        };
        schedules.push(Schedule::new(graph.graph, kind, plan.host.threads as usize));
    }
    Ok(schedules)
}

/// Refuses a plan that states other sizes than its schedule has.
pub fn compare(plan: &Plan, model: &Model, schedules: &[Schedule]) -> Result<(), Failure> {
    for (component, schedule) in plan.components.iter().zip(schedules) {
        let segments = schedule.segments(&[]);
        let planned = component.segments.iter().map(|segment| segment.weights_bytes);
        let same = segments.len() == component.segments.len()
            && segments.iter().map(|segment| segment.weights_bytes).eq(planned);
        let (arena, stated) = (schedule.arena_bytes, component.compute_bytes);
        if !same || schedule.weights_bytes != component.weights_bytes || arena != stated {
            return Err(refused(format!(
                "{}: the plan states {} B of weights and {} B of compute, its schedule has {} B and {} B",
                component.name,
                component.weights_bytes.0,
                stated.0,
                schedule.weights_bytes.0,
                arena.0
            )));
        }
    }
    let job_bytes = model.job_layout(&plan.job).bytes();
    if job_bytes != plan.host.job_bytes {
        return Err(refused(format!(
            "the plan states {} B for the job's buffers, they take {} B",
            plan.host.job_bytes.0, job_bytes.0
        )));
    }
    Ok(())
}
