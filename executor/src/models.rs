//! Models: what each family is made of. One file of configuration, names and graph for each component
//! family; nothing outside this module and `pipeline` knows a family's name.
//!
//! A model is opened from configurations and weight headers only. Its graphs say nothing of devices.

pub mod source;

pub mod clip;
pub mod config;
pub mod defaults;
pub mod flux;
pub mod t5;
pub mod tokenizers;
pub mod transformer;
pub mod vae;

pub mod describe;
mod others;
pub mod shapes;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{Bytes, GraphOptions, JobShape, ModelDescription, ModelSource, Phase};

use crate::graph::Graph;
use crate::job::JobLayout;
use crate::read::ReadError;
use crate::tokenizer::TokenizerError;
use crate::weights::lora::{LoraError, LoraMode, LoraSource, Loras};
use crate::weights::{WeightFiles, WeightsError};

use others::OtherFamily;
use source::Opened;

pub use flux::Flux;

/// What is wrong with a model or with a job asked of it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that must be there is not.
    #[error(
        "{} has no {file}; hint: a model is a directory in diffusers format, whole, or files of its parts",
        dir.display()
    )]
    MissingFile {
        /// The directory looked into.
        dir: PathBuf,
        /// The file's name within it.
        file: String,
    },
    /// A file could not be read.
    #[error(
        "cannot read {}: {cause}; hint: a model's files are regular files that its user may read",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },
    /// A configuration is larger than any real one.
    #[error(
        "{} has {} bytes, more than the {} a configuration may have; hint: copy it again from the \
         model's repository",
        path.display(), got.0, limit.0
    )]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        got: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// A configuration is no JSON or TOML, or lacks a field.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// Files of a family that is known, and not run.
    #[error(
        "{}: this is {family}; Berth runs FLUX.1 models so far; hint: name one, as FLUX.1-schnell or FLUX.1-dev",
        path.display()
    )]
    OtherFamily {
        /// The directory, or the file that holds the denoiser.
        path: PathBuf,
        /// What people call the family.
        family: String,
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
    /// Nothing was named.
    #[error("no model is named; hint: name a directory, a file, or files of parts")]
    NoModel,
    /// No file gives a part.
    #[error("no file gives {called}; hint: name one with --{flag} FILE")]
    NoPart {
        /// What people call the part.
        called: &'static str,
        /// The flag that names a file with it.
        flag: &'static str,
    },
    /// A file does not hold the part that it was named for.
    #[error(
        "{} does not hold {called}: looked for {looked_for}, found {found}; hint: name the right file with --{flag}",
        path.display()
    )]
    NotInFile {
        /// The file.
        path: PathBuf,
        /// What people call the part.
        called: &'static str,
        /// The flag that names a file with it.
        flag: &'static str,
        /// Names of tensors of which each such file has one.
        looked_for: &'static str,
        /// What the file holds.
        found: String,
    },
    /// A file whose every part comes from elsewhere.
    #[error("{} gives nothing: {holds} of it come from other files; hint: leave one of them out", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// The parts that it holds.
        holds: String,
    },
    /// A file of a single part could not be opened.
    #[error("{message}")]
    Part {
        /// What is wrong with it, with its path.
        message: String,
    },
    /// T5's tokenizer is in none of the files.
    #[error(
        "no file gives T5's tokenizer; hint: name a directory that holds tokenizer_2/tokenizer.json with \
         --tokenizer-dir, or with --t5xxl a GGUF file of T5, which has its own"
    )]
    NoTokenizer,
    /// A directory of tokenizers without any.
    #[error(
        "{} has neither tokenizer nor tokenizer_2 in it; hint: name the directory that holds these", dir.display()
    )]
    NoTokenizers {
        /// The directory.
        dir: PathBuf,
    },
    /// The built-in tokenizer is of another vocabulary than the text encoder.
    #[error(
        "{} knows {knows} tokens, CLIP-L's tokenizer has {has}; hint: name a directory that holds the text encoder's \
         own in tokenizer/ with --tokenizer-dir",
        path.display()
    )]
    OtherVocabulary {
        /// The text encoder's file.
        path: PathBuf,
        /// Tokens that it knows.
        knows: usize,
        /// Tokens that the tokenizer may give.
        has: usize,
    },
    /// Files none of which holds anything known.
    #[error(
        "{files}: of no known family; looked for {looked_for}; hint: name a file of a FLUX.1 model"
    )]
    UnknownFiles {
        /// The files.
        files: String,
        /// Names of tensors, with the parts that they are of.
        looked_for: String,
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

/// The family of a directory is that of its class, the family of files that of the first that holds anything known.
fn family(opened: &Opened) -> Result<Family, ModelError> {
    if let Some((path, other)) = other_family(opened) {
        return Err(ModelError::OtherFamily { path, family: other.to_string() });
    }
    if let Some(directory) = &opened.directory {
        return match directory.index.class.as_str() {
            flux::CLASS => Ok(Family::Flux),
            class => Err(ModelError::UnknownFamily {
                path: directory.path.join(config::MODEL_INDEX),
                class: class.to_owned(),
                known: flux::CLASS,
            }),
        };
    }
    // A file that could not be opened is told of as a part of the only family there is. Text encoders and VAEs are
    // common to several families, of which one's DiT may stand beside them.
    let known = |files| !describe::called(&flux::HELD, files).is_empty();
    let other = opened.file_of(flux::DIT_FLAG).is_some_and(|files| flux::is_other_dit(files));
    if opened.has_faults() || !other && opened.named_files().any(|(_, files)| known(files)) {
        return Ok(Family::Flux);
    }
    let files = describe::shown(opened.named_files().map(|(_, files)| files.origin()));
    let looked_for = flux::HELD.iter().map(|part| format!("{} ({})", part.looked_for, part.called));
    let looked_for = looked_for.collect::<Vec<_>>().join(", ");
    Err(ModelError::UnknownFiles { files, looked_for })
}

/// The family that is not run, if a source is of one: that of the file that is to give the DiT, or
/// else the directory's.
fn other_family(opened: &Opened) -> Option<(PathBuf, &'static OtherFamily)> {
    if let Some(files) = opened.file_of(flux::DIT_FLAG) {
        let other = if flux::is_dit(files) { None } else { OtherFamily::of_file(files) };
        return other.map(|other| (files.origin().to_owned(), other));
    }
    let directory = opened.directory.as_ref()?;
    Some((directory.path.clone(), OtherFamily::of_index(&directory.index)?))
}

impl Model {
    /// Opens a diffusers directory, or a file with all parts: [`Model::open_source`] of it.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::open_source(&ModelSource::of(path.to_string_lossy()))
    }

    /// Opens a model: reads configurations and weight headers, maps the files.
    pub fn open_source(source: &ModelSource) -> Result<Model, ModelError> {
        let opened = Opened::open(source)?;
        match family(&opened)? {
            Family::Flux => Ok(Model::Flux(Box::new(Flux::open(&opened)?))),
        }
    }

    /// What is in a diffusers directory or a file: [`Model::describe_source`] of it.
    pub fn describe(path: &Path) -> Result<ModelDescription, ModelError> {
        Model::describe_source(&ModelSource::of(path.to_string_lossy()))
    }

    /// What is in a model's files, whole or not. An error only if nothing can be said of them.
    pub fn describe_source(source: &ModelSource) -> Result<ModelDescription, ModelError> {
        let opened = Opened::open(source)?;
        match family(&opened) {
            Ok(Family::Flux) => Ok(flux::describe(&opened)),
            Err(problem @ (ModelError::UnknownFiles { .. } | ModelError::OtherFamily { .. })) => {
                Ok(describe::unknown(&opened, &problem))
            }
            Err(error) => Err(error),
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
