//! Measuring: the exact needs of a model for one job shape, from the schedules that a run would
//! have.
//!
//! Nothing is allocated. The planner composes every candidate from the answers.

mod known;

use std::sync::{Arc, OnceLock};

use protocol::profile::{
    BackendBytes, ComponentProfile, Lane, Layout, LayoutBytes, LayoutPart, ModelProfile, WorkKind,
};
use protocol::{
    BackendKind, Bytes, Failure, GraphOptions, JobShape, Phase, Residency, StorageType,
};
use rayon::prelude::*;

use crate::failure::bad_request;
use crate::graph::Graph;
use crate::models::cut::{Cuts, summands};
use crate::models::dealt::SharedGraph;
use crate::models::{Model, ModelError, VaeGraphs};
use crate::ops::OperationNeeds;
use crate::schedule::assignment::splits_rows;
use crate::schedule::{
    Assignment, Elements, Footprint, Known, Schedule, Variants, arena_bytes, variants,
};
pub use known::{FRESH, KnownComponents, LastModel};
use known::{KnownGraphs, is_tiled};

/// Every kind of backend that a profile states sizes for.
const KINDS: [BackendKind; 3] = [BackendKind::Host, BackendKind::Virtual, BackendKind::Cuda];

/// The profiles of a model for a job shape and a number of worker threads, with each of these
/// options. `known` has what was found out lately of its components, and gets what is found out
/// now.
pub fn profiles(
    model: &dyn Model,
    job: &JobShape,
    options: &[GraphOptions],
    threads: usize,
    known: &mut KnownComponents,
) -> Result<Vec<ModelProfile>, ModelError> {
    let mut profiles = Vec::new();
    // Most of what is found out first holds for the others, which are looked at beside each other.
    let (first, others) = options.split_at(options.len().min(1));
    for options in [first, others] {
        let profile = |options| profile(model, job, options, threads, known);
        let found: Vec<_> = options.par_iter().with_max_len(1).map(profile).collect();
        for found in found {
            let (profile, new) = found?;
            profiles.push(profile);
            known.take_in(new);
        }
    }
    Ok(profiles)
}

/// A profile with these options, and what was not known for it.
fn profile(
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
    threads: usize,
    known: &KnownComponents,
) -> Result<(ModelProfile, KnownComponents), ModelError> {
    let mut new = KnownComponents::default();
    let whole = known.profiles(job, options, threads);
    let graphs = match (whole, known.graphs_of(job, options)) {
        (Some(_), _) => {
            let VaeGraphs { encoder, decoder } = model.vae_graphs(job, options)?;
            let all = encoder.into_iter().chain([decoder]);
            all.map(|component| component.stored_as(options.weights_as).shared()).collect()
        }
        (None, Some(graphs)) => graphs.components().to_vec(),
        (None, None) => new.graphs(model, job, options)?.batches.components().to_vec(),
    };
    let mut cached_bytes = |component: &SharedGraph| {
        let name = component.name;
        let weights = component.variants[0].weights.iter().map(|weight| &weight.tensor);
        match (options.weights_as, known.cached_bytes.get(name)) {
            // Files that are not there are nowhere.
            (Some(_), _) => Bytes::ZERO,
            (None, Some(bytes)) => *bytes,
            (None, None) => {
                let bytes = model.files(name).cached_weight_bytes(weights);
                new.cached_bytes.insert(name.to_owned(), bytes);
                bytes
            }
        }
    };
    let cached: Vec<Bytes> = graphs.iter().map(&mut cached_bytes).collect();
    let measured = graphs.par_iter().zip(cached).map(|(component, cached_bytes)| {
        let profile = component_profile(component, options, threads);
        ComponentProfile { cached_bytes: cached_bytes.min(profile.tensor_bytes), ..profile }
    });
    let measured: Vec<ComponentProfile> = measured.collect();
    let components = match whole {
        None => {
            let whole = measured.iter().filter(|component| !is_tiled(component.phase));
            new.add_profiles(job, options, threads, whole.cloned().collect());
            measured
        }
        Some(whole) => {
            let (encoder, decoder): (Vec<_>, Vec<_>) =
                measured.into_iter().partition(|component| component.phase == Phase::Encode);
            [&encoder, whole, &decoder].concat()
        }
    };
    let profile = ModelProfile {
        family: model.family().to_owned(),
        components,
        job_bytes: model.buffers(job, options)?.bytes(),
        changed_bytes: model.changed_bytes(),
        notices: Vec::new(),
    };
    Ok((profile, new))
}

fn component_profile(
    component: &SharedGraph,
    options: &GraphOptions,
    threads: usize,
) -> ComponentProfile {
    let graphs = component.deciding();
    let of_kind = |kind| -> Variants {
        let attention_chunk = options.attention_chunk as usize;
        let exact_matmul = options.exact_matmul;
        let one = Assignment::on_one(&graphs[0], kind, threads);
        let one = Assignment { attention_chunk, exact_matmul, ..one };
        variants(graphs, false, &one, &OperationNeeds).expect("one device can have any graph")
    };
    let kinds: Vec<Variants> = KINDS.into_par_iter().map(of_kind).collect();
    let compute = KINDS.into_iter().zip(&kinds);
    let compute = compute
        .map(|(backend, variants)| BackendBytes { backend, bytes: arena_bytes(variants, 0) });
    let firsts: Vec<&Schedule> = kinds.iter().map(|variants| &*variants[0]).collect();
    let (host, others) = firsts.split_first().expect("there are kinds");
    let cuts = Cuts::of(&host.graph);
    let mut segments = host.segments(others);
    let mut summands = summands(&host.graph, &cuts);
    if options.exact_matmul {
        // What is decoded or widened is multiplied at the speed of f32.
        let of_segments = segments.iter_mut().flat_map(|segment| &mut segment.work);
        for work in of_segments.chain(&mut summands.products) {
            if matches!(work.kind, WorkKind::Matmul(storage) if storage.has_rounded_products()) {
                work.kind = WorkKind::Matmul(StorageType::F32);
            }
        }
    }
    ComponentProfile {
        name: component.name.to_owned(),
        phase: component.phase,
        calls: component.calls,
        tensor_bytes: host.tensor_bytes(),
        cached_bytes: Bytes::ZERO,
        weights_bytes: host.lanes[0].weights.resident_bytes,
        compute: compute.collect(),
        boundary_bytes: host.graph.boundary_bytes(),
        splits_rows: splits_rows(&host.graph),
        heads_max: cuts.parts_max() as u32,
        summands,
        items: component.items,
        segments,
    }
}

/// The exact bytes of layouts. `known` may have the job's graphs, and gets them.
///
/// # Errors
/// `BadRequest` for a layout that its component cannot have.
pub fn sizes(
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
    threads: usize,
    layouts: &[Layout],
    known: &mut KnownComponents,
) -> Result<Vec<LayoutBytes>, Failure> {
    let KnownGraphs { batches, cut_outlines } = known.graphs(model, job, options)?;
    batches.add_parts(model, layouts.iter().map(|layout| &layout.division))?;
    // What values are made of is the same in all divisions of a graph over GPUs that do all of it.
    let on_gpus: Vec<OnceLock<Vec<Elements>>> =
        batches.components().iter().map(|_| OnceLock::new()).collect();
    // On all cores, one by one: what a layout over many devices takes is that of a hundred others.
    let sized = layouts.par_iter().with_max_len(1).map(|layout| {
        let name = layout.component.as_str();
        let at = batches.components().iter().position(|component| component.name == name);
        let at = at.ok_or_else(|| bad_request(format!("the model has no component {name}")))?;
        let component = &batches.components()[at];
        let graphs = batches.for_layout(component, component.deciding(), &layout.division);
        let graphs = graphs.map_err(|why| bad_request(format!("{name}: {why}")))?;
        let assignment = Assignment {
            lanes: layout.lanes.clone(),
            division: layout.division.clone(),
            residencies: vec![
                vec![Residency::Resident; graphs[0].segments.len()];
                layout.lanes.len()
            ],
            threads,
            attention_chunk: options.attention_chunk as usize,
            exact_matmul: options.exact_matmul,
        };
        // A graph that was cut or joined is another one.
        let is_whole = Arc::ptr_eq(&graphs[0], &component.deciding()[0]);
        let does_all =
            |lane: &Lane| lane.backend == BackendKind::Cuda && lane.unsupported.is_empty();
        let on_gpus_alone = layout.lanes.iter().all(does_all);
        let elements = (is_whole && on_gpus_alone).then(|| {
            on_gpus[at].get_or_init(|| {
                let of =
                    |graph: &Arc<Graph>| Elements::on_gpus(graph, &assignment, &OperationNeeds);
                graphs.iter().map(of).collect()
            })
        });
        let is_cut = layout.division.tensor_shares().is_some();
        let each = graphs.iter().enumerate().map(|(size, graph)| {
            let known = match elements {
                Some(elements) => Known::Elements(&elements[size]),
                None if is_cut && on_gpus_alone => {
                    Known::Outline(&cut_outlines[at][layout.lanes.len()][size])
                }
                None => Known::Nothing,
            };
            Footprint::of(graph, &assignment, &OperationNeeds, known)
        });
        let each: Result<Vec<Footprint>, String> = each.collect();
        let each = each.map_err(|why| bad_request(format!("{name}: {why}")))?;
        Ok(layout_bytes(&each))
    });
    // The first failure of several is the answer, whichever was there first.
    sized.collect::<Vec<_>>().into_iter().collect()
}

/// The bytes that suffice for every size of a component's inputs. The first is the largest; all lay
/// weights out alike.
fn layout_bytes(each: &[Footprint]) -> LayoutBytes {
    let first = &each[0];
    let parts = first.lanes.iter().enumerate().map(|(index, lane)| {
        let arenas = each.iter().map(|other| other.lanes[index].arena_bytes);
        LayoutPart {
            compute_bytes: arenas.max().unwrap_or_default(),
            segment_bytes: lane.segment_bytes.clone(),
        }
    });
    LayoutBytes { parts: parts.collect(), crossing_bytes: first.crossing_bytes }
}

#[cfg(test)]
mod tests;
