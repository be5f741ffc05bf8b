//! Components whose items several devices have: the graphs of each device's items, joined to one
//! that computes all passes of a step in a call.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use protocol::{GraphOptions, JobShape, item_runs};

use super::{ComponentGraph, Model, ModelError};
use crate::graph::Graph;

/// The graphs of a job, and of jobs of fewer pictures.
pub struct BatchGraphs {
    job: JobShape,
    /// By pictures.
    batches: BTreeMap<u32, Vec<ComponentGraph>>,
}

/// Why items cannot be dealt out so.
#[derive(Debug, thiserror::Error)]
pub enum DealError {
    /// The component, or the counts.
    #[error("{0}")]
    Refused(String),
}

impl BatchGraphs {
    /// The graphs that devices need which have so many items each.
    ///
    /// # Errors
    /// As [`Model::stored_graphs`].
    pub fn new<'c>(
        model: &dyn Model,
        job: &JobShape,
        options: &GraphOptions,
        counts: impl Iterator<Item = &'c [u32]>,
    ) -> Result<BatchGraphs, ModelError> {
        let mut batches = BTreeMap::from([(job.batch, model.graphs(job, options)?)]);
        for run in counts.flat_map(|counts| item_runs(counts, job.batch as usize)) {
            let batch = run.items.len() as u32;
            if let Entry::Vacant(free) = batches.entry(batch) {
                let fewer = JobShape { batch, more_prompts: 0, ..job.clone() };
                free.insert(model.graphs(&fewer, options)?);
            }
        }
        Ok(BatchGraphs { job: job.clone(), batches })
    }

    /// The components of the whole job, in the order in which they run.
    pub fn components(&self) -> &[ComponentGraph] {
        &self.batches[&self.job.batch]
    }

    /// The graphs of a component, for each size of its inputs, whose devices have so many items
    /// each; of the sizes, the first `sizes`. All passes of a step go in one call.
    ///
    /// # Errors
    /// The component has other items, or they would differ from those of a whole batch.
    pub fn dealt(
        &self,
        component: &ComponentGraph,
        counts: &[u32],
        sizes: usize,
    ) -> Result<Vec<Graph>, DealError> {
        let items = component.items.count();
        let dealt: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if items < 2 || dealt != u64::from(items) || counts.contains(&0) {
            let counts = counts.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
            let refused = format!("its {items} items cannot be dealt out as {counts}");
            return Err(DealError::Refused(refused));
        }
        let runs = item_runs(counts, self.job.batch as usize);
        let joined = component.variants.iter().take(sizes).enumerate().map(|(size, whole)| {
            let graph = |batch: usize| {
                let graphs = self.batches[&(batch as u32)].iter();
                let own = graphs.clone().find(|graph| graph.name == component.name);
                &own.expect("jobs of fewer pictures have the same components").variants[size]
            };
            let runs = runs.iter().map(|run| (run.clone(), graph(run.items.len()))).collect();
            Graph::joined(whole, runs).map_err(DealError::Refused)
        });
        joined.collect()
    }
}
