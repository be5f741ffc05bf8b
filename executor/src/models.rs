//! Models: what each family is made of. One file of configuration, names and graph for each component
//! family; nothing outside this module and `pipeline` knows a family's name.
//!
//! A model is opened from configurations and weight headers only. Its graphs say nothing of devices.

pub mod clip;
pub mod config;
pub mod defaults;
pub mod flux;
pub mod t5;
pub mod transformer;
pub mod vae;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{Bytes, GraphOptions, JobShape, ModelDescription, Phase};

use crate::graph::Graph;
use crate::job::JobLayout;
use crate::tokenizer::TokenizerError;
use crate::weights::lora::{LoraError, LoraMode, LoraSource, Loras};
use crate::weights::{WeightFiles, WeightsError};

pub use flux::Flux;

/// What is wrong with a model or with a job asked of it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that must be there is not.
    #[error("{} has no {file}; hint: a model is a directory in diffusers format, whole", dir.display())]
    MissingFile {
        /// The directory looked into.
        dir: PathBuf,
        /// The file's name within it.
        file: String,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A configuration is larger than any real one.
    #[error("{} has {got} bytes, more than the {limit} a configuration may have", path.display())]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        got: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A configuration is no JSON or TOML, or lacks a field.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// A pipeline class that no family here has.
    #[error(
        "{}: the family of `{class}` is unknown; hint: known is {known}", path.display()
    )]
    UnknownFamily {
        /// The model index.
        path: PathBuf,
        /// Its class.
        class: String,
        /// The classes that are known.
        known: &'static str,
    },
    /// The weight files are at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// LoRA files are at fault.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A tokenizer's files are at fault.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The job asks for what the model cannot do.
    #[error("{0}")]
    Job(String),
}

impl ModelError {
    /// The message with those of its causes.
    pub fn with_causes(&self) -> String {
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        message
    }
}

/// The graph of one component for one job shape.
pub struct ComponentGraph {
    /// The component's name, as `dit`.
    pub name: &'static str,
    /// The phase in which it computes.
    pub phase: Phase,
    /// How often the graph runs in one job.
    pub calls: u32,
    /// The graph for each size of its inputs that a job meets, the largest first: one, but for a VAE in tiles,
    /// whose last rows and columns may be smaller. All have the same weights, in the same order.
    pub variants: Vec<Graph>,
}

/// An opened model. Clones share the mappings.
#[derive(Clone)]
pub enum Model {
    /// FLUX.1 schnell, dev, and models of the same classes.
    Flux(Box<Flux>),
}

enum Family {
    Flux,
}

fn family(dir: &Path, index: &config::ModelIndex) -> Result<Family, ModelError> {
    match index.class.as_str() {
        flux::CLASS => Ok(Family::Flux),
        class => Err(ModelError::UnknownFamily {
            path: dir.join(config::MODEL_INDEX),
            class: class.to_owned(),
            known: flux::CLASS,
        }),
    }
}

impl Model {
    /// Opens a diffusers directory: reads configurations and weight headers, maps the files.
    pub fn open(dir: &Path) -> Result<Model, ModelError> {
        let index = config::ModelIndex::read(dir)?;
        match family(dir, &index)? {
            Family::Flux => Ok(Model::Flux(Box::new(Flux::open(dir, &index)?))),
        }
    }

    /// What is in a diffusers directory, whole or not. An error only if its family cannot be told.
    pub fn describe(dir: &Path) -> Result<ModelDescription, ModelError> {
        let index = config::ModelIndex::read(dir)?;
        match family(dir, &index)? {
            Family::Flux => Ok(flux::describe(dir, &index)),
        }
    }

    /// Opens LoRA files and matches them with this model's weights. Reads headers and scalars only, and
    /// applies nothing.
    pub fn open_loras(&self, sources: &[LoraSource]) -> Result<Loras, ModelError> {
        match self {
            Model::Flux(model) => model.open_loras(sources),
        }
    }

    /// This model with `loras`, which it opened, applied in the mode that `mode` gives for each component's
    /// name; without one its weights stay, and only what changing them takes is counted. Everything else is shared with this one; components without adapters share their weights too.
    /// `stop` is asked now and then; once it says yes the answer is [`LoraError::Stopped`].
    pub fn with_loras(
        &self,
        loras: &Loras,
        mode: &dyn Fn(&str) -> Option<LoraMode>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Model, ModelError> {
        match self {
            Model::Flux(model) => Ok(Model::Flux(Box::new(model.with_loras(loras, mode, stop)?))),
        }
    }

    /// The family's name.
    pub fn family(&self) -> &'static str {
        match self {
            Model::Flux(_) => flux::FAMILY,
        }
    }

    /// The graphs of all components for a job shape, in the order in which they run; their weights as if in another
    /// type, where the options say so.
    pub fn graphs(
        &self,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<Vec<ComponentGraph>, ModelError> {
        let mut graphs = match self {
            Model::Flux(model) => model.graphs(job, options)?,
        };
        if let Some(storage) = options.weights_as {
            let variants = graphs.iter_mut().flat_map(|component| &mut component.variants);
            variants.for_each(|graph| graph.store_as(storage));
        }
        Ok(graphs)
    }

    /// What a job holds on the host.
    pub fn job_layout(
        &self,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<JobLayout, ModelError> {
        match self {
            Model::Flux(model) => model.job_layout(job, options),
        }
    }

    /// Pages of weight files that LoRA changed, which are the process's own.
    pub fn changed_bytes(&self) -> Bytes {
        match self {
            Model::Flux(model) => model.changed_bytes(),
        }
    }

    /// The weight files of a component.
    pub fn files(&self, component: &str) -> &Arc<WeightFiles> {
        match self {
            Model::Flux(model) => model.files(component),
        }
    }

    /// An error if any weight file has become shorter since it was mapped.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        match self {
            Model::Flux(model) => model.check_unchanged(),
        }
    }
}
