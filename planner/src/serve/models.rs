//! The directory of models and LoRA files that can be asked for by name.
//!
//! ```text
//! [model.NAME] source ──┐
//! models = [dirs] ──────┼─ scan ──► names ──► ServedModel, ModelSource
//! the demo model ───────┘
//! ```
//! Not here: what is in a model. A name is there when something is at its path; whether that can be
//! run is seen when it is opened.
//!
//! Invariants: a name is looked up in a map, and never becomes part of a path. Each name is one
//! model's: what is configured goes before what is found, and what is found first before the rest,
//! in the order of the directories and then of the files' names. The demo model is always `demo`.

mod scan;
mod size;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::ModelSource;

use super::config::{ModelConfig, SdapiCfg, ServeConfig};
use super::desk::event::ServedModel;
use super::desk::job::{ErrorCode, JobError};
use super::nearest;
use crate::demo;
use size::FilesSize;

/// The name of the demo model.
pub const DEMO: &str = demo::SERVED_NAME;

/// The models and LoRA files of this host, by name.
#[derive(Debug, Clone)]
pub struct ModelDirectory {
    folders: Vec<PathBuf>,
    lora_folders: Vec<PathBuf>,
    sections: BTreeMap<String, ModelConfig>,
    aliases: BTreeMap<String, String>,
    default_model: String,
    found: FoundModels,
}

/// What a scan found.
#[derive(Debug, Clone, Default, PartialEq)]
struct FoundModels {
    sources: BTreeMap<String, ModelSource>,
    sizes: BTreeMap<String, FilesSize>,
    loras: BTreeMap<String, PathBuf>,
    problems: Vec<String>,
}

impl ModelDirectory {
    /// Looks at everything that is configured.
    ///
    /// # Errors
    /// The default model is none that there is, or the demo model is said to be another one; as a
    /// sentence with a hint. Whatever else is wrong is one of [`ModelDirectory::problems`].
    pub fn open(config: &ServeConfig) -> Result<ModelDirectory, String> {
        if config.model.get(DEMO).is_some_and(|section| section.source.is_some()) {
            return Err(format!(
                "[model.{DEMO}] has a source, and {DEMO} is {}; hint: give the model another name",
                demo::NAME
            ));
        }
        let mut directory = ModelDirectory {
            folders: config.models.clone(),
            lora_folders: config.loras.clone(),
            sections: config.model.clone(),
            aliases: config.aliases.clone(),
            default_model: DEMO.to_owned(),
            found: FoundModels::default(),
        };
        directory.rescan();
        if let Some(name) = &config.default_model {
            let model = directory.resolve(name).map_err(|error| {
                let problems = directory.problems().iter().map(|problem| format!("\n{problem}"));
                format!("default_model: {}{}", error.message, problems.collect::<String>())
            })?;
            directory.default_model = model.to_owned();
        }
        Ok(directory)
    }

    /// Looks again; whether anything is other than it was.
    pub fn rescan(&mut self) -> bool {
        let found = self.look();
        let is_other = found != self.found;
        self.found = found;
        is_other
    }

    /// Whether files, or the names of what there is, are other than at the last scan.
    pub fn changed(&self) -> bool {
        self.look() != self.found
    }

    /// What can be asked for, by name.
    pub fn served(&self) -> Vec<ServedModel> {
        let served = |name: &String| {
            let FilesSize { bytes, modified_ms } =
                self.found.sizes.get(name).copied().unwrap_or_default();
            let section = self.section(name);
            ServedModel {
                name: name.clone(),
                files_bytes: bytes,
                modified_ms,
                keep_alive: section.keep_alive,
                class: section.priority,
                preload: section.preload,
            }
        };
        self.found.sources.keys().map(served).collect()
    }

    /// The largest size that each model is placed for, in pixels; of models that are configured so.
    pub fn plan_for(&self) -> BTreeMap<String, [u32; 2]> {
        let pixels = |size: &&[u32; 2]| u64::from(size[0]) * u64::from(size[1]);
        let names = self.found.sources.keys();
        let largest = names.filter_map(|name| {
            let size = self.section(name).plan_for.iter().max_by_key(pixels).copied()?;
            Some((name.clone(), size))
        });
        largest.collect()
    }

    /// Where each model is, for [`JobRequest::prepare`](crate::job::JobRequest::prepare).
    pub fn sources(&self) -> &BTreeMap<String, ModelSource> {
        &self.found.sources
    }

    /// The model of requests that name none.
    pub fn default_model(&self) -> &str {
        &self.default_model
    }

    /// The model that is called so: by its own name, else by an alias.
    ///
    /// # Errors
    /// There is none; with names that may be meant.
    pub fn resolve(&self, name: &str) -> Result<&str, JobError> {
        let own =
            |name: &str| self.found.sources.get_key_value(name).map(|(name, _)| name.as_str());
        let model = own(name).or_else(|| own(self.aliases.get(name)?));
        model.ok_or_else(|| {
            let aliases = self.aliases.iter().filter(|(_, target)| own(target).is_some());
            let known = self.found.sources.keys().chain(aliases.map(|(alias, _)| alias));
            unknown("model", name, known, Some("model"))
        })
    }

    /// The file of a LoRA.
    ///
    /// # Errors
    /// There is none of this name; with names that may be meant.
    pub fn lora(&self, name: &str) -> Result<&Path, JobError> {
        let file = self.found.loras.get(name).map(PathBuf::as_path);
        file.ok_or_else(|| unknown("LoRA", name, self.found.loras.keys(), Some("lora")))
    }

    /// The LoRA files, by name.
    pub fn loras(&self) -> &BTreeMap<String, PathBuf> {
        &self.found.loras
    }

    /// Other names of models that there are, each with the model's own.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        let there = |target: &str| self.found.sources.contains_key(target);
        let aliases = self.aliases.iter().map(|(alias, target)| (alias.as_str(), target.as_str()));
        aliases.filter(move |(_, target)| there(target))
    }

    /// What A1111's `cfg_scale` means for a model.
    pub fn sdapi_cfg(&self, name: &str) -> SdapiCfg {
        self.section(name).sdapi_cfg
    }

    /// What is wrong with the directories and names, a sentence each.
    pub fn problems(&self) -> &[String] {
        &self.found.problems
    }

    fn section(&self, name: &str) -> ModelConfig {
        self.sections.get(name).cloned().unwrap_or_default()
    }

    fn look(&self) -> FoundModels {
        let mut found = FoundModels::default();
        found.add_demo();
        for (name, section) in &self.sections {
            if let Some(source) = &section.source {
                found.add_configured(name, source);
            }
        }
        for folder in &self.folders {
            found.add_folder(folder);
        }
        for folder in &self.lora_folders {
            found.add_loras(folder);
        }
        let mut missing = Vec::new();
        let unused = self.sections.iter().filter(|(name, section)| {
            section.source.is_none() && !found.sources.contains_key(*name)
        });
        missing.extend(unused.map(|(name, _)| {
            let hint = nearest::hint(name, found.sources.keys().map(String::as_str));
            format!("[model.{name}] has no source, and no directory has a model of this name{hint}")
        }));
        for (alias, target) in &self.aliases {
            if found.sources.contains_key(alias) {
                missing.push(format!(
                    "the alias {alias} is a model's own name, and means that; hint: leave it out"
                ));
            } else if !found.sources.contains_key(target) {
                let hint = nearest::hint(target, found.sources.keys().map(String::as_str));
                missing.push(format!("the alias {alias} means {target}, which is not there{hint}"));
            }
        }
        found.problems.extend(missing);
        found
    }
}

/// An error that nothing has a name.
fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
    param: Option<&str>,
) -> JobError {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    let hint = nearest::hint(name, known.map(String::as_str));
    JobError {
        param: param.map(str::to_owned),
        ..JobError::new(ErrorCode::NoModel, format!("there is no {what} `{shown}`{hint}"))
    }
}

impl FoundModels {
    fn add_demo(&mut self) {
        match demo::directory() {
            Ok(directory) => {
                let source = ModelSource::of(directory.to_string_lossy());
                self.sizes.insert(DEMO.to_owned(), size::of_source(&source).unwrap_or_default());
                // Nothing named is the demo model, wherever that is.
                self.sources.insert(DEMO.to_owned(), ModelSource::default());
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    fn add_configured(&mut self, name: &str, source: &ModelSource) {
        match size::of_source(source) {
            Ok(size) => self.insert(name, source.clone(), size),
            Err(error) => self.problems.push(format!(
                "[model.{name}]: {error}; hint: its source names a directory in diffusers format, or files"
            )),
        }
    }

    fn add_folder(&mut self, folder: &Path) {
        let entries = scan::models(folder, &mut self.problems);
        for (name, path) in entries {
            let Some(text) = path.to_str() else { continue };
            let source = ModelSource::of(text);
            if name == DEMO || self.sources.contains_key(&name) {
                let first = match self.sources.get(&name) {
                    Some(source) if !source.is_empty() => source.to_string(),
                    _ => demo::NAME.to_owned(),
                };
                self.problems.push(format!(
                    "{text} is left out: {name} is the name of {first}; hint: rename it, or give it a name by [model.NAME]"
                ));
                continue;
            }
            match source
                .check()
                .map_err(|error| error.to_string())
                .and_then(|()| size::of_source(&source))
            {
                Ok(size) => self.insert(&name, source, size),
                Err(error) => self.problems.push(format!("{text} is left out: {error}")),
            }
        }
    }

    fn add_loras(&mut self, folder: &Path) {
        for (name, path) in scan::loras(folder, &mut self.problems) {
            if let Some(first) = self.loras.get(&name) {
                self.problems.push(format!(
                    "{} is left out: {name} is the name of {}; hint: rename it",
                    path.display(),
                    first.display()
                ));
                continue;
            }
            self.loras.insert(name, path);
        }
    }

    fn insert(&mut self, name: &str, source: ModelSource, size: FilesSize) {
        self.sources.insert(name.to_owned(), source);
        self.sizes.insert(name.to_owned(), size);
    }
}

#[cfg(test)]
mod tests;
