//! What was found out of a model's components for one question, and holds for those after it.
//!
//! A plan asks for several sizes of one job within a second, with the VAE in other pieces each
//! time: everything but the VAE is measured once. Then it asks for the bytes of layouts, several
//! times, and the graphs are made once. How much of the weights is in the page cache
//! hardly changes meanwhile, and the system counts cached pages one by one: 20 ms for the 10 GB of
//! a large text encoder (`perf record` of `plan --dry-run`: 60 % of its time).

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use protocol::limits::DEVICES_MAX;
use protocol::plan::Lora;
use protocol::profile::ComponentProfile;
use protocol::{Bytes, GraphOptions, JobShape, ModelSource, Phase};

use crate::models::dealt::{BatchGraphs, SharedGraph};
use crate::models::{Model, ModelError};
use crate::schedule::Outline;

/// For how long what was found out counts.
pub const FRESH: Duration = Duration::from_secs(1);

/// What was found out last: of one model, with one list of LoRA files.
#[derive(Debug, Default)]
pub struct LastModel {
    seen: Option<SeenModel>,
}

#[derive(Debug)]
struct SeenModel {
    model: ModelSource,
    loras: Vec<Lora>,
    at: Instant,
    components: KnownComponents,
}

/// What is known of one model's components.
#[derive(Debug, Default)]
pub struct KnownComponents {
    /// What of their weights is in the page cache.
    pub(super) cached_bytes: BTreeMap<String, Bytes>,
    /// The graphs that were made last.
    graphs: Option<KnownGraphs>,
    profiles: Vec<KnownProfiles>,
}

/// The graphs of a job.
#[derive(Debug)]
pub(super) struct KnownGraphs {
    pub batches: BatchGraphs,
    /// Graphs that are cut over as many GPUs have the same nodes, whatever the shares are: the
    /// outlines of these, by component, number of GPUs, and size of the inputs.
    pub cut_outlines: Vec<Vec<Vec<OnceLock<Outline<'static>>>>>,
}

impl KnownGraphs {
    fn new(batches: BatchGraphs) -> KnownGraphs {
        let unknown = |component: &SharedGraph| {
            let of_sizes = || component.deciding().iter().map(|_| OnceLock::new()).collect();
            (0..=DEVICES_MAX).map(|_| of_sizes()).collect()
        };
        let cut_outlines = batches.components().iter().map(unknown).collect();
        KnownGraphs { batches, cut_outlines }
    }
}

/// Profiles of components that do not depend on the VAE's pieces.
#[derive(Debug)]
struct KnownProfiles {
    job: JobShape,
    /// Without the VAE's pieces.
    options: GraphOptions,
    threads: usize,
    components: Vec<ComponentProfile>,
}

impl LastModel {
    /// What is known of this model's components; to be filled where it is not.
    pub fn of(&mut self, model: &ModelSource, loras: &[Lora]) -> &mut KnownComponents {
        let is_fresh = |seen: &SeenModel| {
            seen.model == *model && seen.loras == loras && seen.at.elapsed() < FRESH
        };
        if !self.seen.as_ref().is_some_and(is_fresh) {
            self.seen = None;
        }
        let seen = self.seen.get_or_insert_with(|| SeenModel {
            model: model.clone(),
            loras: loras.to_vec(),
            at: Instant::now(),
            components: KnownComponents::default(),
        });
        &mut seen.components
    }
}

impl KnownComponents {
    /// The graphs of a job that were made last, where they are of that.
    pub(super) fn graphs_of(&self, job: &JobShape, options: &GraphOptions) -> Option<&BatchGraphs> {
        let last = self.graphs.as_ref().map(|last| &last.batches);
        last.filter(|last| last.are_of(job, options))
    }

    /// The graphs of a job of this model: those that were made last, where they are of that.
    pub(super) fn graphs(
        &mut self,
        model: &dyn Model,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<&mut KnownGraphs, ModelError> {
        if self.graphs_of(job, options).is_none() {
            self.graphs = Some(KnownGraphs::new(BatchGraphs::new(model, job, options)?));
        }
        Ok(self.graphs.as_mut().expect("they were there, or are made"))
    }

    /// The profiles that hold for a job with these options, whatever the VAE's pieces are.
    pub(super) fn profiles(
        &self,
        job: &JobShape,
        options: &GraphOptions,
        threads: usize,
    ) -> Option<&[ComponentProfile]> {
        let options = GraphOptions { vae_tile: None, ..options.clone() };
        let is_same = |known: &&KnownProfiles| {
            known.job == *job && known.options == options && known.threads == threads
        };
        self.profiles.iter().find(is_same).map(|known| known.components.as_slice())
    }

    /// Notes these.
    pub(super) fn add_profiles(
        &mut self,
        job: &JobShape,
        options: &GraphOptions,
        threads: usize,
        components: Vec<ComponentProfile>,
    ) {
        let options = GraphOptions { vae_tile: None, ..options.clone() };
        self.profiles.push(KnownProfiles { job: job.clone(), options, threads, components });
    }

    /// Notes what was not known.
    pub(super) fn take_in(&mut self, new: KnownComponents) {
        let KnownComponents { cached_bytes, graphs, profiles } = new;
        self.cached_bytes.extend(cached_bytes);
        self.graphs = graphs.or(self.graphs.take());
        self.profiles.extend(profiles);
    }
}

/// Whether components of a phase are computed in the VAE's pieces.
pub(super) fn is_tiled(phase: Phase) -> bool {
    matches!(phase, Phase::Encode | Phase::Decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_counts_for_the_same_model_and_not_for_long() {
        let mut last = LastModel::default();
        let [one, other] = ["/a", "/b"].map(|path| ModelSource::of(path.to_owned()));
        let lora = Lora { path: "/l".to_owned(), weight: 1.0 };
        let see = |known: &mut KnownComponents| {
            known.cached_bytes.insert("dit".to_owned(), Bytes(7));
        };
        see(last.of(&one, &[]));
        assert_eq!(last.of(&one, &[]).cached_bytes.get("dit"), Some(&Bytes(7)));
        assert!(last.of(&one, &[lora]).cached_bytes.is_empty());
        see(last.of(&one, &[]));
        assert!(last.of(&other, &[]).cached_bytes.is_empty());
        see(last.of(&one, &[]));
        last.seen.as_mut().expect("it was just seen").at -= FRESH;
        assert!(last.of(&one, &[]).cached_bytes.is_empty());
    }
}
