//! Measuring: the exact needs of a model for one job shape, from the schedules that a run would have.
//!
//! Nothing is allocated. The planner composes every candidate from the answer.

use protocol::profile::{BackendBytes, ComponentProfile, ModelProfile};
use protocol::{BackendKind, JobShape};

use crate::models::{ComponentGraph, Model, ModelError};
use crate::schedule::Schedule;

/// Every kind of backend that a profile states sizes for.
const KINDS: [BackendKind; 3] = [BackendKind::Host, BackendKind::Virtual, BackendKind::Cuda];

/// The profile of a model for a job shape and a number of worker threads.
pub fn profile(model: &Model, job: &JobShape, threads: usize) -> Result<ModelProfile, ModelError> {
    let components =
        model.graphs(job)?.into_iter().map(|c| component_profile(c, threads)).collect();
    let job_bytes = model.job_layout(job).bytes();
    Ok(ModelProfile { family: model.family().to_owned(), components, job_bytes })
}

fn component_profile(component: ComponentGraph, threads: usize) -> ComponentProfile {
    let schedules: Vec<Schedule> =
        KINDS.iter().map(|&kind| Schedule::new(component.graph.clone(), kind, threads)).collect();
    let (host, others) = schedules.split_first().expect("there are kinds");
    let compute = schedules
        .iter()
        .map(|schedule| BackendBytes { backend: schedule.backend, bytes: schedule.arena_bytes });
    ComponentProfile {
        name: component.name.to_owned(),
        phase: component.phase,
        calls: component.calls,
        tensor_bytes: host.tensor_bytes(),
        weights_bytes: host.weights_bytes,
        compute: compute.collect(),
        boundary_bytes: host.graph.boundary_bytes(),
        segments: host.segments(&others.iter().collect::<Vec<_>>()),
    }
}
