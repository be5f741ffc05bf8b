//! One LoRA file: its tensors grouped into modules, as their keys say. What the modules stand for
//! is not known here, and no shape is looked at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::key::{self, AdapterPart, Kind};
use super::metadata::{self, Metadata};
use super::{LoraError, TENSORS_MAX};
use crate::weights::WeightFiles;

/// Adapters as one file has them, before they are matched with a model.
pub(super) struct LoraFile {
    pub path: PathBuf,
    pub files: WeightFiles,
    pub metadata: Metadata,
    /// By name.
    pub modules: BTreeMap<String, Module>,
    /// Keys of no known form.
    pub unknown: Vec<String>,
}

/// The keys of one module's tensors.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub a: Option<String>,
    pub b: Option<String>,
    pub alpha: Option<String>,
    pub others: Vec<(String, Kind)>,
}

impl LoraFile {
    /// Opens a file: reads its header only.
    pub fn open(path: &Path) -> Result<LoraFile, LoraError> {
        let (files, notes) = WeightFiles::open_file_with_notes(path)?;
        let got = files.names().count();
        if got > TENSORS_MAX {
            return Err(LoraError::TooManyTensors { path: path.to_owned(), got });
        }
        let metadata = match notes.get(metadata::NOTE) {
            Some(note) => Metadata::parse(note)
                .map_err(|fault| LoraError::Metadata { path: path.to_owned(), fault })?,
            None => Metadata::default(),
        };
        let mut modules: BTreeMap<String, Module> = BTreeMap::new();
        let mut unknown = Vec::new();
        for key in files.names() {
            match key::parse(key) {
                Some((name, part)) => {
                    let module = modules.entry(name.to_owned()).or_default();
                    if let Some(first) = module.take(part, key) {
                        let (path, second) = (path.to_owned(), key.to_owned());
                        return Err(LoraError::Twice { path, first, second });
                    }
                }
                None => unknown.push(key.to_owned()),
            }
        }
        Ok(LoraFile { path: path.to_owned(), files, metadata, modules, unknown })
    }
}

impl Module {
    /// Takes in a tensor; the answer is the key that had the same place before.
    fn take(&mut self, part: AdapterPart, key: &str) -> Option<String> {
        let place = match part {
            AdapterPart::A => &mut self.a,
            AdapterPart::B => &mut self.b,
            AdapterPart::Alpha => &mut self.alpha,
            AdapterPart::Other(kind) => {
                self.others.push((key.to_owned(), kind));
                return None;
            }
        };
        place.replace(key.to_owned())
    }

    /// All keys, each with its kind if that cannot be applied.
    pub fn keys(&self) -> impl Iterator<Item = (&str, Option<Kind>)> {
        let own = [&self.a, &self.b, &self.alpha].into_iter().flatten();
        let others = self.others.iter().map(|(key, kind)| (key.as_str(), Some(*kind)));
        own.map(|key| (key.as_str(), None)).chain(others)
    }
}
