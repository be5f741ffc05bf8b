//! The files that a model source names, opened, and which of them gives a part.
//!
//! A part comes from its own file where one is named, else from the directory or file that is the
//! model. What a part is called in a file and how its configuration is told from it is the part's
//! to say, in its [`PartKind`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{ModelSource, PartFlag};
use serde::de::DeserializeOwned;

use super::ModelError;
use super::config::{ModelIndex, read_part};
use crate::weights::WeightFiles;

/// A model source with its files open.
pub struct OpenedSource {
    /// What was opened.
    pub source: ModelSource,
    /// The model, where it is a directory.
    pub directory: Option<Directory>,
    /// The model, where it is a file.
    pub file: Option<Arc<WeightFiles>>,
    /// The files of single parts, by the flags that name them.
    pub parts: Vec<(PartFlag, Arc<WeightFiles>)>,
    /// Files of single parts that could not be opened, with what is wrong with them.
    faults: Vec<(PartFlag, String)>,
}

/// A model as diffusers saves it.
pub struct Directory {
    /// Where `model_index.json` is.
    pub path: PathBuf,
    /// What `model_index.json` says.
    pub index: ModelIndex,
}

impl OpenedSource {
    /// Opens the files of a source, each once; reads headers only.
    ///
    /// # Errors
    /// The model itself is at fault. What is wrong with files of single parts is told when they are
    /// asked for.
    pub fn open(source: &ModelSource) -> Result<OpenedSource, ModelError> {
        if source.is_empty() {
            return Err(ModelError::NoModel);
        }
        let (mut directory, mut file) = (None, None);
        match source.model.as_deref().map(Path::new) {
            Some(path) if path.is_file() => file = Some(Arc::new(WeightFiles::open_file(path)?)),
            Some(path) => {
                let index = ModelIndex::read(path)?;
                directory = Some(Directory { path: path.to_owned(), index });
            }
            None => {}
        }
        let (mut parts, mut faults) = (Vec::new(), Vec::new());
        let is_weights = |flag: &PartFlag| !flag.is_directory() && !flag.is_unused();
        for (flag, path) in source.part_paths().filter(|(flag, _)| is_weights(flag)) {
            match WeightFiles::open_file(Path::new(path)) {
                Ok(files) => parts.push((flag, Arc::new(files))),
                Err(fault) => faults.push((flag, fault.to_string())),
            }
        }
        Ok(OpenedSource { source: source.clone(), directory, file, parts, faults })
    }

    /// All open files that were named for themselves, with the flags of those that have one.
    pub fn named_files(&self) -> impl Iterator<Item = (Option<PartFlag>, &Arc<WeightFiles>)> {
        let model = self.file.iter().map(|files| (None, files));
        model.chain(self.parts.iter().map(|(flag, files)| (Some(*flag), files)))
    }

    /// The flags of files that could not be opened.
    pub fn faulty(&self) -> impl Iterator<Item = PartFlag> {
        self.faults.iter().map(|(flag, _)| *flag)
    }

    /// The file that is to give a part, if it is a file.
    pub fn file_of(&self, flag: PartFlag) -> Option<&Arc<WeightFiles>> {
        let own = self.parts.iter().find(|(named, _)| *named == flag).map(|(_, files)| files);
        own.or(self.file.as_ref())
    }

    /// Reads a part from where it is; `parts` are all that its family has.
    ///
    /// # Errors
    /// It is nowhere, or left out, or something is wrong with it.
    pub fn part<C: DeserializeOwned>(
        &self,
        kind: &PartKind<C>,
        parts: &[PartSpec],
    ) -> Result<ModelPart<C>, ModelError> {
        let PartSpec { called, flag, .. } = kind.spec;
        if let Some((_, message)) = self.faults.iter().find(|(faulty, _)| *faulty == flag) {
            return Err(ModelError::Part { message: message.clone() });
        }
        if self.source.leaves_out(flag) {
            return Err(ModelError::LeftOut { called, flag });
        }
        match (self.file_of(flag), &self.directory) {
            (Some(files), directory) => {
                // What shapes do not tell the directory's configuration may, if it is of such a
                // part.
                let known = directory.as_ref().and_then(|directory| kind.known(directory));
                let found = (kind.single)(files, known.as_ref())?;
                let Some((config, files)) = found else {
                    return Err(self.lacks(kind.spec, files, parts));
                };
                let path = files.origin().to_owned();
                (kind.check)(&config, &path)?;
                let class = kind.classes[0].to_owned();
                Ok(ModelPart { class, config, files: Arc::new(files), path })
            }
            (None, Some(directory)) => kind.read(directory),
            (None, None) => Err(ModelError::NoPart { called, flag }),
        }
    }

    /// The error for a file that does not hold what it is to give.
    fn lacks(&self, part: PartSpec, files: &Arc<WeightFiles>, parts: &[PartSpec]) -> ModelError {
        let PartSpec { called, flag, .. } = part;
        if !self.parts.iter().any(|(named, _)| *named == flag) {
            return ModelError::NoPart { called, flag };
        }
        let found = called_parts(parts, files);
        let found = match found.as_slice() {
            [] => format!("{:?}", files.names().next().unwrap_or("nothing")),
            found => found.join(" and "),
        };
        ModelError::NotInFile { path: files.origin().to_owned(), part, found }
    }

    /// An error if something is named that gives nothing to a family with these parts: a file for
    /// none of them, or the model itself, where all that it holds of them was named otherwise.
    pub fn check_used(&self, parts: &[PartSpec]) -> Result<(), ModelError> {
        let is_none = |flag: &&PartFlag| {
            let is_other = flag.is_directory() || flag.is_unused();
            !is_other && parts.iter().all(|part| part.flag != **flag)
        };
        if let Some(&flag) = self.source.parts.keys().find(is_none) {
            let known = parts.iter().map(|part| format!("--{}", part.flag)).collect::<Vec<_>>();
            return Err(ModelError::NotOfFamily { flag, known: known.join(", ") });
        }
        let Some(files) = &self.file else { return Ok(()) };
        let own = |flag| self.parts.iter().any(|(named, _)| *named == flag);
        let mut held = parts.iter().filter(|part| (part.is_in)(files)).peekable();
        if held.peek().is_none() || held.any(|part| !own(part.flag)) {
            return Ok(());
        }
        let holds = called_parts(parts, files).join(" and ");
        Err(ModelError::Replaced { path: files.origin().to_owned(), holds })
    }
}

/// A part that a family's models are made of, and how a file that holds it is known.
#[derive(Debug, Clone, Copy)]
pub struct PartSpec {
    /// The name that plans have for it.
    pub component: &'static str,
    /// What people call it.
    pub called: &'static str,
    /// The flag that names a file with it.
    pub flag: PartFlag,
    /// Names of tensors of which each such file has one, for people.
    pub looked_for: &'static str,
    /// Whether a file holds it.
    pub is_in: fn(&Arc<WeightFiles>) -> bool,
}

/// A part of the model: its configuration and weights.
#[derive(Clone)]
pub struct ModelPart<C> {
    /// The class that the model index names, or the one that the file's names are of.
    pub class: String,
    /// Its configuration, checked.
    pub config: C,
    /// Its weights, mapped, under the names that its graph asks for.
    pub files: Arc<WeightFiles>,
    /// The file that says the configuration, for messages.
    pub path: PathBuf,
}

/// What a file holds of a part, if anything: its configuration, with help of one that may fit, and
/// its weights.
pub type SinglePart<C> =
    fn(&Arc<WeightFiles>, Option<&C>) -> Result<Option<(C, WeightFiles)>, ModelError>;

/// A kind of part: where a directory holds it, and how a file's is read.
pub struct PartKind<C> {
    /// What it is, and how a file with it is known.
    pub spec: PartSpec,
    /// Its folder in a directory.
    pub folder: &'static str,
    /// Its classes, of which the first is that of files without an index.
    pub classes: &'static [&'static str],
    /// Its weight files' name in a directory, without extension.
    pub stem: &'static str,
    /// Checks a configuration; the path is for messages.
    pub check: fn(&C, &Path) -> Result<(), ModelError>,
    /// Takes the part from a file.
    pub single: SinglePart<C>,
}

impl<C: DeserializeOwned> PartKind<C> {
    fn read(&self, directory: &Directory) -> Result<ModelPart<C>, ModelError> {
        let class = directory.index.part(self.folder, self.classes)?;
        let (path, config) = read_part::<C>(&directory.path, self.folder)?;
        (self.check)(&config, &path)?;
        let files = WeightFiles::open(&directory.path.join(self.folder), &[self.stem])?;
        Ok(ModelPart { class, config, files: Arc::new(files), path })
    }

    /// The configuration that a directory has for the part, if it is sound.
    pub fn known(&self, directory: &Directory) -> Option<C> {
        let (path, config) = read_part::<C>(&directory.path, self.folder).ok()?;
        (self.check)(&config, &path).is_ok().then_some(config)
    }
}

/// The first of these prefixes behind which a file has a tensor.
pub fn first_prefix<'a>(files: &WeightFiles, prefixes: &[&'a str], name: &str) -> Option<&'a str> {
    prefixes.iter().copied().find(|prefix| files.tensor(&format!("{prefix}{name}")).is_some())
}

/// What people call the parts that a file holds.
fn called_parts(parts: &[PartSpec], files: &Arc<WeightFiles>) -> Vec<&'static str> {
    parts.iter().filter(|part| (part.is_in)(files)).map(|part| part.called).collect()
}
