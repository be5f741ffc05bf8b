//! Families: kinds of models that are made of the same parts and run alike. One folder and one line
//! of [`FAMILIES`] each; nothing outside of a family's folder knows its name.
//!
//! A family opens the files of a model ([`models`](crate::models)), says what they hold, and does
//! between components what is its own in each phase of a job ([`pipeline`]). It
//! stands above both.

pub mod flux1;
pub mod flux2;
pub mod qwen_image;
pub mod sd3;
pub mod z_image;

mod others;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{Failure, Job, ModelDescription, ModelSource, PartFlag, UsageReport};

use crate::backend::CancelFlag;
use crate::failure::bad_request;
use crate::models::source::{OpenedSource, PartSpec};
use crate::models::{Model, ModelError, config, describe};
use crate::pipeline::{self, JobPhases, Observer, RunningJob};
use crate::runtime::Runtime;
use crate::weights::WeightFiles;

use others::OtherFamily;

/// All families that are run.
pub static FAMILIES: &[&dyn Family] = &[
    &flux1::Flux1Family,
    &z_image::ZImageFamily,
    &flux2::Flux2Family,
    &qwen_image::QwenImageFamily,
    &sd3::Sd3Family,
];

/// A family of models.
pub trait Family: Sync {
    /// Its name in plans and documents, as `flux`.
    fn name(&self) -> &'static str;

    /// What people call it.
    fn called(&self) -> &'static str;

    /// Models of it, for people: "A or B".
    fn examples(&self) -> &'static str;

    /// The pipeline classes of its model indexes.
    fn classes(&self) -> &'static [&'static str];

    /// The parts that its models are made of, and how files with them are known.
    fn parts(&self) -> &'static [PartSpec];

    /// Opens a model whose files are open already.
    ///
    /// # Errors
    /// Whatever is wrong with any part.
    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError>;

    /// What is in the files of a model, whole or not; `makes_tokenizers` to see whether that can be
    /// done.
    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription;

    /// Whether a job runs the denoiser a second time in each step, on the negative prompt.
    fn second_pass(&self, job: &Job) -> bool {
        job.true_cfg_scale > 1.0
    }

    /// Starts a job on a model that it opened, before the first phase: its prompts become token
    /// ids, its buffers are taken.
    ///
    /// # Errors
    /// The job asks for what the model cannot do.
    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure>;
}

/// Opens a diffusers directory, or a file with all parts: [`open_source`] of it.
pub fn open(path: &Path) -> Result<Arc<dyn Model>, ModelError> {
    open_source(&ModelSource::of(path.to_string_lossy()))
}

/// Opens a model: reads configurations and weight headers, maps the files.
pub fn open_source(source: &ModelSource) -> Result<Arc<dyn Model>, ModelError> {
    let source = OpenedSource::open(source)?;
    family_of(&source)?.open(&source)
}

/// What is in a diffusers directory or a file: [`describe_source`] of it, with its tokenizers.
pub fn describe(path: &Path) -> Result<ModelDescription, ModelError> {
    describe_source(&ModelSource::of(path.to_string_lossy()), true)
}

/// What is in a model's files, whole or not; tokenizers are made, to see whether that can be done,
/// or only looked for. An error only if nothing can be said of the files.
pub fn describe_source(
    source: &ModelSource,
    makes_tokenizers: bool,
) -> Result<ModelDescription, ModelError> {
    let source = OpenedSource::open(source)?;
    match family_of(&source) {
        Ok(family) => Ok(family.describe(&source, makes_tokenizers)),
        Err(problem @ (ModelError::UnknownFiles { .. } | ModelError::OtherFamily { .. })) => {
            Ok(describe::unknown(&source, &problem))
        }
        Err(error) => Err(error),
    }
}

/// Runs a job by the runtime's plan; the answer is what it used.
pub fn generate(
    runtime: &mut Runtime,
    job: &Job,
    cancel: &CancelFlag,
    observer: &mut dyn Observer,
) -> Result<UsageReport, Failure> {
    let name = runtime.model.family();
    let family = FAMILIES.iter().find(|family| family.name() == name);
    let family = family.expect("a family of the list opened the model");
    let start = |running: &mut RunningJob<'_>| {
        if running.shape().true_cfg != family.second_pass(job) {
            let message = "the plan and the job disagree on true classifier-free guidance";
            return Err(bad_request(message));
        }
        family.start(running)
    };
    pipeline::generate(runtime, job, cancel, observer, &start)
}

/// The family of a source: that of the file that is to give the denoiser, else that of the
/// directory's class, else that of the files of other parts.
fn family_of(source: &OpenedSource) -> Result<&'static dyn Family, ModelError> {
    let denoiser = source.file_of(PartFlag::DiffusionModel);
    let of_denoiser = denoiser.and_then(|files| find(|family| denoises(family, files)));
    if let Some((path, other)) = other_family(source, of_denoiser.is_some()) {
        let (family, runs) = (other.to_string(), all_called());
        let examples = all(|family| family.examples().to_owned(), ", ");
        return Err(ModelError::OtherFamily { path, family, runs, examples });
    }
    if let Some(directory) = &source.directory {
        let class = directory.index.class.as_str();
        let of_class = find(|family| family.classes().contains(&class));
        let of_class = of_class.ok_or_else(|| ModelError::UnknownFamily {
            path: directory.path.join(config::MODEL_INDEX),
            class: class.to_owned(),
            known: all(|family| family.classes().join(" or "), " or "),
        })?;
        return Ok(of_denoiser.unwrap_or(of_class));
    }
    if let Some(family) = of_denoiser {
        return Ok(family);
    }
    // Text encoders and VAEs are common to several families, of which one's denoiser may stand
    // beside them.
    let is_other = denoiser.is_some_and(|files| others::is_denoiser(files));
    let holds = |part: &PartSpec| source.named_files().any(|(_, files)| (part.is_in)(files));
    // A file that could not be opened is told of as a part of the first family that has such parts.
    let faulty = |part: &PartSpec| source.faulty().any(|flag| part.flag == flag);
    let held = |family: &dyn Family| family.parts().iter().filter(|part| holds(part)).count();
    // The one that most of the files fit; of several the first of the list.
    let most = FAMILIES.iter().copied().rev().max_by_key(|family| held(*family));
    let of_parts = most.filter(|family| !is_other && held(*family) > 0);
    of_parts.or_else(|| find(|family| family.parts().iter().any(faulty))).ok_or_else(|| {
        ModelError::UnknownFiles {
            files: describe::shown(source.named_files().map(|(_, files)| files.origin())),
            looked_for: looked_for(),
            runs: all_called(),
        }
    })
}

/// What people call the families: "A, B or C".
fn all_called() -> String {
    let (last, others) = FAMILIES.split_last().expect("there are families");
    let others: Vec<&str> = others.iter().map(|family| family.called()).collect();
    format!("{} or {}", others.join(", "), last.called())
}

fn find(is: impl Fn(&dyn Family) -> bool) -> Option<&'static dyn Family> {
    FAMILIES.iter().copied().find(|family| is(*family))
}

/// Whether a file holds what denoises in a family.
fn denoises(family: &dyn Family, files: &Arc<WeightFiles>) -> bool {
    let denoiser = |part: &&PartSpec| part.flag == PartFlag::DiffusionModel;
    family.parts().iter().find(denoiser).is_some_and(|part| (part.is_in)(files))
}

/// The family that is known and not run, if a source is of one: that of the file that is to give
/// the denoiser, which `is_run` where a family of the list has it, or else the directory's.
fn other_family(source: &OpenedSource, is_run: bool) -> Option<(PathBuf, &'static OtherFamily)> {
    if let Some(files) = source.file_of(PartFlag::DiffusionModel) {
        let other = if is_run { None } else { OtherFamily::of_file(files) };
        return other.map(|other| (files.origin().to_owned(), other));
    }
    let directory = source.directory.as_ref()?;
    Some((directory.path.clone(), OtherFamily::of_index(&directory.index)?))
}

/// What all families say, for people.
fn all(say: impl Fn(&dyn Family) -> String, between: &str) -> String {
    FAMILIES.iter().map(|family| say(*family)).collect::<Vec<String>>().join(between)
}

/// The tensors by which parts are known, each once, for people.
fn looked_for() -> String {
    let mut names: Vec<String> = Vec::new();
    for part in FAMILIES.iter().flat_map(|family| family.parts()) {
        let name = format!("{} ({})", part.looked_for, part.called);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
