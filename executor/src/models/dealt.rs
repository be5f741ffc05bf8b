//! The graphs by which a component computes as a layout says. Where several devices have its items,
//! or groups of them follow one another: the graphs of each part of the items, joined to one that
//! computes all passes of a step in a call. Where they have its heads: the graph cut over them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, OnceLock};

use protocol::{Division, GraphOptions, JobShape, item_runs};

use super::cut::{Cuts, cut};
use super::{ComponentGraph, Model, ModelError};
use crate::graph::Graph;

/// The graphs of a job, and of jobs of fewer pictures.
#[derive(Debug)]
pub struct BatchGraphs {
    job: JobShape,
    options: GraphOptions,
    /// By pictures.
    batches: BTreeMap<u32, Vec<SharedGraph>>,
    /// What can be cut of the whole job's graphs, by component: it is asked for again and again.
    cuts: BTreeMap<&'static str, Vec<OnceLock<Cuts>>>,
}

/// A component's graphs, which schedules of several layouts have in common.
pub type SharedGraph = ComponentGraph<Arc<Graph>>;

impl BatchGraphs {
    /// The graphs of a job.
    ///
    /// # Errors
    /// As the model's.
    pub fn new(
        model: &dyn Model,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<BatchGraphs, ModelError> {
        let graphs = graphs(model, job, options)?;
        let unknown = |component: &SharedGraph| {
            let cuts = component.variants.iter().map(|_| OnceLock::new());
            (component.name, cuts.collect())
        };
        let cuts = graphs.iter().map(unknown).collect();
        let batches = BTreeMap::from([(job.batch, graphs)]);
        Ok(BatchGraphs { job: job.clone(), options: options.clone(), batches, cuts })
    }

    /// Adds the graphs of those parts of the job's batch that some layouts need. It is the same
    /// model's.
    ///
    /// # Errors
    /// As the model's.
    pub fn add_parts<'d>(
        &mut self,
        model: &dyn Model,
        divisions: impl Iterator<Item = &'d Division>,
    ) -> Result<(), ModelError> {
        let counts = divisions.filter_map(Division::item_counts);
        for run in counts.flat_map(|counts| item_runs(counts, self.job.batch as usize)) {
            let batch = run.items.len() as u32;
            if let Entry::Vacant(free) = self.batches.entry(batch) {
                let job = JobShape { batch, more_prompts: 0, ..self.job.clone() };
                free.insert(graphs(model, &job, &self.options)?);
            }
        }
        Ok(())
    }

    /// Whether they are of this job, with these options. How many queries are attended with at a
    /// time is said by schedules, not by graphs.
    pub fn are_of(&self, job: &JobShape, options: &GraphOptions) -> bool {
        let attention_chunk = self.options.attention_chunk;
        let options = GraphOptions { attention_chunk, ..options.clone() };
        self.job == *job && self.options == options
    }

    /// The components of the whole job, in the order in which they run.
    pub fn components(&self) -> &[SharedGraph] {
        &self.batches[&self.job.batch]
    }

    /// Some of a component's graphs for a layout: themselves, or, where several devices have its
    /// heads, cut, or, where they have its items or these go in groups, for each size of its inputs
    /// one of all passes of a step.
    ///
    /// # Errors
    /// The component has too few heads, or other items, or they would differ from those of a whole
    /// batch.
    pub fn for_layout(
        &self,
        component: &SharedGraph,
        whole: &[Arc<Graph>],
        division: &Division,
    ) -> Result<Vec<Arc<Graph>>, String> {
        if let Some(shares) = division.tensor_shares() {
            let each = whole.iter().zip(&self.cuts[component.name]);
            let cut = each.map(|(graph, cuts)| {
                let cuts = cuts.get_or_init(|| Cuts::of(graph));
                cut(graph, &whole[0], cuts, shares).map(Arc::new)
            });
            return cut.collect();
        }
        let Some(counts) = division.item_counts() else { return Ok(whole.to_vec()) };
        let items = component.items.count();
        let dealt: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if items < 2 || dealt != u64::from(items) || counts.contains(&0) {
            let counts = counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
            return Err(format!("its {items} items cannot be dealt out as {counts}"));
        }
        let runs = item_runs(counts, self.job.batch as usize);
        let joined = whole.iter().enumerate().map(|(size, whole)| {
            let graph = |batch: usize| {
                let mut graphs = self.batches[&(batch as u32)].iter();
                let own = graphs.find(|graph| graph.name == component.name);
                &*own.expect("jobs of fewer pictures have the same components").variants[size]
            };
            let runs = runs.iter().map(|run| (run.clone(), graph(run.items.len()))).collect();
            Graph::joined(whole, runs, division.segments()).map(Arc::new)
        });
        joined.collect()
    }
}

fn graphs(
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
) -> Result<Vec<SharedGraph>, ModelError> {
    Ok(model.graphs(job, options)?.into_iter().map(ComponentGraph::shared).collect())
}
