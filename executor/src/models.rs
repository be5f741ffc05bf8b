//! Models: what is known of one from its files, whatever its family. Where its parts are, its
//! graphs, and the buffers of a job on it. Which families there are, and what they do in a job, is
//! in [`families`](crate::families).
//!
//! A model is opened from configurations and weight headers only. Its graphs say nothing of
//! devices.
//!
//! Invariants: nothing here knows a family or a backend; nothing is allocated that grows with a
//! job.

pub mod buffers;
pub mod source;

pub mod config;
pub mod cut;
pub mod dealt;
pub mod defaults;
pub mod describe;
pub mod job;
pub mod rgb_map;
pub mod shapes;
pub mod tokenizers;

mod error;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::profile::StepItems;
use protocol::{Bytes, GraphOptions, JobShape, Phase, StorageType};
use rayon::prelude::*;

use crate::graph::Graph;
use crate::weights::lora::{LoraMode, LoraNames, LoraSource, Loras};
use crate::weights::{WeightFiles, WeightsError};

use buffers::BufferPlan;
use tokenizers::ModelTokenizer;

pub use error::ModelError;

/// The weight files of each component, by its name.
pub type ComponentFiles = BTreeMap<&'static str, Arc<WeightFiles>>;

/// An opened model of any family: configurations, and mapped weights. What all models do alike is
/// implemented on `dyn Model`.
pub trait Model: Any + Send + Sync {
    /// The family's name, as in plans.
    fn family(&self) -> &'static str;

    /// The names of all components that a job may run, in the order in which they run.
    fn components(&self) -> &'static [&'static str];

    /// The names of those that a job does without which brings its embeddings.
    fn text_encoders(&self) -> &'static [&'static str];

    /// The tokenizers of its text encoders.
    fn tokenizers(&self) -> Vec<&ModelTokenizer>;

    /// The weight files of a component.
    fn files(&self, component: &str) -> &Arc<WeightFiles>;

    /// The graphs of the components that a job runs between the VAE's, in the order in which they
    /// run, on weights as they are stored.
    ///
    /// # Errors
    /// The job asks for what the model cannot do, or the files lack a weight.
    fn whole_graphs(&self, job: &JobShape) -> Result<Vec<ComponentGraph>, ModelError>;

    /// The VAE's graphs of a possible job, on weights as they are stored.
    ///
    /// # Errors
    /// The options ask for tiles that cannot be, or the files lack the encoder, or a weight.
    fn vae_graphs(&self, job: &JobShape, options: &GraphOptions) -> Result<VaeGraphs, ModelError>;

    /// What a job holds on the host from its first phase to its last.
    ///
    /// # Errors
    /// The job asks for what the model cannot do.
    fn buffers(&self, job: &JobShape, options: &GraphOptions) -> Result<BufferPlan, ModelError>;

    /// What LoRA files may call the layers of each component that they can adapt.
    ///
    /// # Errors
    /// The files lack a weight.
    fn lora_names(&self) -> Result<LoraNames, ModelError>;

    /// This model on other weight files, of which LoRA changes so many bytes. All else is shared.
    fn with_files(&self, files: &ComponentFiles, changed_bytes: Bytes) -> Arc<dyn Model>;

    /// Pages of weight files that LoRA changes, which are the process's own.
    fn changed_bytes(&self) -> Bytes;
}

/// The graph of one component for one job shape; `G` where others have it too.
#[derive(Debug, Clone)]
pub struct ComponentGraph<G = Graph> {
    /// The component's name, as `dit`.
    pub name: &'static str,
    /// The phase in which it computes.
    pub phase: Phase,
    /// How often the graph runs in one job.
    pub calls: u32,
    /// The graph for each size of its inputs that a job may meet, the largest first: one, but for
    /// a VAE in tiles, whose last rows and columns may be smaller, and for what takes a prompt
    /// just as long as it is. All have the same weights, in the same order.
    pub variants: Vec<G>,
    /// Whether all graphs have the same nodes, and none a larger value than the first: then the
    /// first one's schedule has room for all.
    pub nested: bool,
    /// The items that it computes in each step; they are divided only where all sizes are nested.
    pub items: StepItems,
}

/// The graphs of a job's VAE.
pub struct VaeGraphs {
    /// Of a job that starts from a picture.
    pub encoder: Option<ComponentGraph>,
    /// Of any job.
    pub decoder: ComponentGraph,
}

impl ComponentGraph {
    /// A component whose inputs have one size.
    pub fn one(name: &'static str, phase: Phase, calls: u32, graph: Graph) -> ComponentGraph {
        let (variants, items) = (vec![graph], StepItems::ONE);
        ComponentGraph { name, phase, calls, variants, nested: true, items }
    }

    /// The same with its weights as if in another type, if one is given.
    pub fn stored_as(mut self, storage: Option<StorageType>) -> ComponentGraph {
        if let Some(storage) = storage {
            self.variants.iter_mut().for_each(|graph| graph.store_as(storage));
        }
        self
    }

    /// The same, to be had by several.
    pub fn shared(self) -> ComponentGraph<Arc<Graph>> {
        let ComponentGraph { name, phase, calls, variants, nested, items } = self;
        let variants = variants.into_iter().map(Arc::new).collect();
        ComponentGraph { name, phase, calls, variants, nested, items }
    }
}

impl ComponentGraph<Arc<Graph>> {
    /// The graphs that decide its sizes: the first where it has room for the others.
    pub fn deciding(&self) -> &[Arc<Graph>] {
        if self.nested { &self.variants[..1] } else { &self.variants }
    }
}

impl dyn Model {
    /// The graphs of the components that a job runs, in the order in which they run; their weights
    /// as if in another type, where the options say so.
    pub fn graphs(
        &self,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<Vec<ComponentGraph>, ModelError> {
        let whole = self.whole_graphs(job)?;
        let VaeGraphs { encoder, decoder } = self.vae_graphs(job, options)?;
        let all = encoder.into_iter().chain(whole).chain([decoder]);
        Ok(all.map(|component| component.stored_as(options.weights_as)).collect())
    }

    /// Makes the tokenizers, beside each other.
    ///
    /// # Errors
    /// A tokenizer's files are at fault.
    pub fn make_tokenizers(&self) -> Result<(), ModelError> {
        let made = self.tokenizers().into_par_iter().map(|tokenizer| tokenizer.get().map(drop));
        // The first failure of several is the answer, whichever was there first.
        made.collect::<Vec<_>>().into_iter().collect()
    }

    /// Opens LoRA files and matches them with this model's weights. Reads headers and scalars only,
    /// and applies nothing.
    pub fn open_loras(&self, sources: &[LoraSource]) -> Result<Loras, ModelError> {
        Ok(Loras::open(sources, &self.lora_names()?)?)
    }

    /// This model with `loras`, which it opened, applied in the mode that `mode` gives for each
    /// component's name; without one its weights stay, and only what changing them takes is
    /// counted. Everything else is shared with this one; components without adapters share their
    /// weights too. `stop` is asked now and then; once it says yes the answer is
    /// [`LoraError::Stopped`](crate::weights::lora::LoraError::Stopped).
    pub fn with_loras(
        &self,
        loras: &Loras,
        mode: &dyn Fn(&str) -> Option<LoraMode>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Arc<dyn Model>, ModelError> {
        let mut files = ComponentFiles::new();
        for &component in self.components() {
            let stored = self.files(component);
            let applied = match mode(component) {
                Some(mode) => loras.apply(component, stored, mode, stop)?,
                None => Arc::clone(stored),
            };
            files.insert(component, applied);
        }
        let changed = loras.components().filter(|c| mode(c) != Some(LoraMode::Runtime));
        let changed_bytes = changed.map(|component| loras.private_bytes(component)).sum();
        Ok(self.with_files(&files, changed_bytes))
    }

    /// An error if any weight file has become shorter since it was mapped.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.components().iter().try_for_each(|component| self.files(component).check_unchanged())
    }

    /// The model as its family knows it. Another family's is a bug of the caller.
    pub fn downcast<M: Model>(self: Arc<Self>) -> Arc<M> {
        let family = self.family();
        let model: Arc<dyn Any + Send + Sync> = self;
        model.downcast().unwrap_or_else(|_| panic!("a model of {family} is taken for another's"))
    }
}
