//! A plan against its own schedule: what it will really use, and whether it says so.

use std::sync::Arc;

use protocol::message::VerifiedBytes;
use protocol::plan::{ComponentPlan, DeviceBackend, PartPlan};
use protocol::profile::Lane;
use protocol::{BackendKind, Bytes, DeviceId, Failure, Phase, Plan};
use rayon::prelude::*;

use crate::backend::cuda;
use crate::failure::{bad_model, refused};
use crate::graph::Graph;
use crate::models::Model;
use crate::models::dealt::BatchGraphs;
use crate::ops::OperationNeeds;
use crate::schedule::{Assignment, Schedule, Variants, arena_bytes, variants};

/// The exact bytes of a plan on each device in each phase, everything but overheads. Nothing is
/// allocated.
pub fn verify(plan: &Plan, model: &dyn Model) -> Result<Vec<VerifiedBytes>, Failure> {
    let schedules = schedules(plan, model)?;
    let parts: Vec<Vec<PartPlan>> =
        plan.components.iter().zip(&schedules).map(|(c, s)| parts(c, &s.variants)).collect();
    let pinned = plan.devices.iter().filter(|device| plan.uses(&device.id));
    let pinned: Bytes = pinned.map(|device| device.pinned_bytes).sum();
    let job_bytes = model.buffers(&plan.job, &plan.options)?.bytes();
    let lanes = schedules.iter().flat_map(|scheduled| &scheduled.variants[0].lanes);
    let locked: Bytes = lanes.map(|lane| lane.weights.locked_bytes()).sum();
    let on_host = job_bytes + pinned + locked + model.changed_bytes();
    let mut verified = Vec::new();
    let devices = plan.devices.iter().map(|device| device.id.clone()).chain([DeviceId::host()]);
    for device in devices {
        let fixed = if device.is_host() { on_host } else { Bytes::ZERO };
        for &phase in plan.job.timeline() {
            let bytes = fixed + bytes_in_phase(plan, &parts, &device, phase);
            verified.push(VerifiedBytes { device: device.clone(), phase, bytes });
        }
    }
    Ok(verified)
}

fn bytes_in_phase(plan: &Plan, parts: &[Vec<PartPlan>], device: &DeviceId, phase: Phase) -> Bytes {
    let mut held = Bytes::ZERO;
    let mut arena = Bytes::ZERO;
    for (component, parts) in plan.components.iter().zip(parts) {
        let now = component.phase == phase;
        let soon = component.prefetch && plan.job.phase_after(phase) == Some(component.phase);
        for part in parts.iter().filter(|part| part.device == *device) {
            held += part.resident_bytes;
            if now || soon {
                held += part.lazy_bytes;
            }
            if now {
                held += part.staging_bytes();
                arena = arena.max(part.compute_bytes);
            }
        }
    }
    held + arena
}

/// A component of a plan as it will run.
pub struct Scheduled {
    /// How often it runs in its phase.
    pub calls: u32,
    /// Its schedules.
    pub variants: Variants,
}

/// The schedules of each component of the plan, as the plan lays it out.
pub fn schedules(plan: &Plan, model: &dyn Model) -> Result<Vec<Scheduled>, Failure> {
    if plan.family != model.family() {
        return Err(refused(format!(
            "the plan is for the family {}, the model is of {}",
            plan.family,
            model.family()
        )));
    }
    let divisions = plan.components.iter().map(|component| &component.division);
    let mut batches = BatchGraphs::new(model, &plan.job, &plan.options)?;
    batches.add_parts(model, divisions)?;
    let graphs = batches.components();
    let names: Vec<&str> = graphs.iter().map(|graph| graph.name).collect();
    let planned: Vec<&str> = plan.components.iter().map(|c| c.name.as_str()).collect();
    if names != planned {
        return Err(refused(format!(
            "the plan has the components {}, the model has {}",
            planned.join(", "),
            names.join(", ")
        )));
    }
    let each = plan.components.par_iter().zip(graphs).with_max_len(1);
    let each = each.map(|(component, graph)| {
        if component.phase != graph.phase {
            return Err(refused(format!("{} is planned for the wrong phase", component.name)));
        }
        let assignment = assignment(plan, component)?;
        let graphs = batches.for_layout(graph, &graph.variants, &component.division);
        let graphs = graphs.map_err(|why| refused(format!("{}: {why}", component.name)))?;
        // A joined graph makes all passes of a step in a call.
        let passes = component.division.item_counts().map_or(1, |_| graph.items.passes);
        let (calls, nested) = (graph.calls / passes, graph.nested);
        readable(component, &assignment, &graphs[0])?;
        let variants = variants(&graphs, nested, &assignment, &OperationNeeds)
            .map_err(|why| refused(format!("{}: {why}", component.name)))?;
        Ok(Scheduled { calls, variants })
    });
    // The first failure of several is the answer, whichever was there first.
    each.collect::<Vec<_>>().into_iter().collect()
}

/// Whether the devices' kernels read all weights of a component as they are stored.
fn readable(
    component: &ComponentPlan,
    assignment: &Assignment,
    graph: &Graph,
) -> Result<(), Failure> {
    let Some(gpu) = assignment.lanes.iter().position(|lane| lane.backend == BackendKind::Cuda)
    else {
        return Ok(());
    };
    match cuda::unread(graph) {
        None => Ok(()),
        Some(weight) => Err(bad_model(format!(
            "{}: {} is stored as {}, which {} does not read but in matrices; hint: --backend {}=cpu",
            component.name,
            weight.name,
            weight.tensor.storage(),
            component.devices[gpu],
            component.name
        ))),
    }
}

fn assignment(plan: &Plan, component: &ComponentPlan) -> Result<Assignment, Failure> {
    let lanes = component.devices.iter().map(|id| lane(plan, id)).collect::<Result<_, _>>()?;
    let residencies = (0..component.devices.len()).map(|lane| {
        let on_lane = component.segments.iter().map(|s| s.residencies.get(lane).copied());
        on_lane.collect::<Option<Vec<_>>>().ok_or_else(|| {
            refused(format!("{}: a segment without a residency on each device", component.name))
        })
    });
    Ok(Assignment {
        lanes,
        division: component.division.clone(),
        residencies: residencies.collect::<Result<_, _>>()?,
        threads: plan.host.threads as usize,
        attention_chunk: plan.options.attention_chunk as usize,
        exact_matmul: plan.options.exact_matmul,
    })
}

fn lane(plan: &Plan, id: &DeviceId) -> Result<Lane, Failure> {
    if id.is_host() {
        return Ok(Lane { backend: BackendKind::Host, unsupported: Vec::new() });
    }
    match plan.devices.iter().find(|device| device.id == *id) {
        Some(device) => {
            let backend = match &device.backend {
                DeviceBackend::Virtual { .. } => BackendKind::Virtual,
                DeviceBackend::Cuda { .. } => BackendKind::Cuda,
            };
            Ok(Lane { backend, unsupported: device.backend.unsupported().to_vec() })
        }
        None => Err(refused(format!("{id} is an unknown device"))),
    }
}

/// What a component takes on each of its devices, by its own schedules and with the plan's slots.
pub fn parts(component: &ComponentPlan, variants: &[Arc<Schedule>]) -> Vec<PartPlan> {
    let first = &variants[0];
    let host = DeviceId::host();
    let part = |index: usize| {
        let (weights, planned) = (&first.lanes[index].weights, component.parts.get(index));
        PartPlan {
            device: component.devices.get(index).unwrap_or(&host).clone(),
            resident_bytes: weights.resident_bytes,
            lazy_bytes: weights.lazy_bytes,
            slot_bytes: weights.slot_bytes,
            slots: weights.slots(planned.map_or(0, |part| part.slots)),
            compute_bytes: arena_bytes(variants, index),
        }
    };
    (0..first.lanes.len()).map(part).collect()
}

/// Refuses a plan that states other sizes than its schedule has.
pub fn compare(plan: &Plan, model: &dyn Model, schedules: &[Scheduled]) -> Result<(), Failure> {
    for (component, Scheduled { variants, .. }) in plan.components.iter().zip(schedules) {
        let parts = parts(component, variants);
        if parts != component.parts {
            let unlike = parts.iter().zip(&component.parts).find(|(own, planned)| own != planned);
            return Err(refused(match unlike {
                Some((own, planned)) => format!(
                    "{}: the plan states {planned:?}, its schedule has {own:?}",
                    component.name
                ),
                None => format!(
                    "{}: the plan has {} parts, its schedule has {}",
                    component.name,
                    component.parts.len(),
                    parts.len()
                ),
            }));
        }
        let lanes = &variants[0].lanes;
        let segment_bytes =
            |segment: usize| lanes.iter().map(move |lane| lane.weights.segment_bytes[segment]);
        for (index, segment) in component.segments.iter().enumerate() {
            if !segment_bytes(index).eq(segment.part_bytes.iter().copied()) {
                return Err(refused(format!(
                    "{}: segment {} has other weights in its schedule than in the plan",
                    component.name, segment.name
                )));
            }
        }
    }
    let job_bytes = model.buffers(&plan.job, &plan.options)?.bytes();
    for (what, stated, own) in [
        ("the job's buffers", plan.host.job_bytes, job_bytes),
        ("changed weights", plan.host.changed_bytes, model.changed_bytes()),
    ] {
        if stated != own {
            return Err(refused(format!(
                "the plan states {} B for {what}, they take {} B",
                stated.0, own.0
            )));
        }
    }
    Ok(())
}
