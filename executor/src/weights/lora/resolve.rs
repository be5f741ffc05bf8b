//! From the modules of a file to adapters: which weights they change, with every shape, type and
//! scale checked.

use std::collections::BTreeMap;

use super::adapter::Adapter;
use super::file::{LoraFile, Module};
use super::key::Kind;
use super::names::TargetRows;
use super::report::{LoraFileReport, UnmatchedKey};
use super::{LoraError, LoraNames, LoraSource, RANK_MAX};
use crate::weights::{Dtype, TensorRef, WeightFiles};

/// A file with its adapters, each with its component.
pub(super) struct ResolvedFile {
    pub files: WeightFiles,
    pub adapters: Vec<(&'static str, Adapter)>,
    pub report: LoraFileReport,
}

/// Opens the file numbered `index` and matches its modules.
pub(super) fn resolve(
    index: usize,
    source: &LoraSource,
    names: &LoraNames,
) -> Result<ResolvedFile, LoraError> {
    let file = LoraFile::open(&source.path)?;
    // Scalars are read from the mapping below.
    file.files.check_unchanged()?;
    let mut adapters: Vec<(&'static str, Adapter)> = Vec::new();
    let mut matched: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut unmatched: Vec<UnmatchedKey> =
        file.unknown.iter().map(|key| UnmatchedKey { key: key.clone(), kind: None }).collect();

    for (name, module) in &file.modules {
        let target = names.resolve(name);
        let without_factors = module.a.is_none() && module.b.is_none() && !module.others.is_empty();
        let Some((component, target)) = target.filter(|_| !without_factors) else {
            unmatched.extend(module.keys().map(|(key, kind)| UnmatchedKey {
                key: key.to_owned(),
                kind: kind.or_else(|| module.others.first().map(|(_, kind)| *kind)),
            }));
            continue;
        };
        let opened = MatchedModule { file: &file, name, module };
        let found = opened.adapters(index, source.weight, target)?;
        for adapter in &found {
            opened.check_alone(component, adapter, &adapters)?;
        }
        adapters.extend(found.into_iter().map(|adapter| (component, adapter)));
        *matched.entry(component).or_default() += 1;
        let others = module.others.iter();
        unmatched
            .extend(others.map(|(key, kind)| UnmatchedKey { key: key.clone(), kind: Some(*kind) }));
    }
    unmatched.sort_by(|a, b| a.key.cmp(&b.key));
    if adapters.is_empty() {
        return Err(nothing_matches(file, unmatched));
    }
    let matched = matched.into_iter().collect();
    let (path, weight) = (file.path, source.weight);
    let report = LoraFileReport { path, weight, matched, unmatched };
    Ok(ResolvedFile { files: file.files, adapters, report })
}

fn nothing_matches(file: LoraFile, unmatched: Vec<UnmatchedKey>) -> LoraError {
    let mut kinds: Vec<Kind> = unmatched.iter().filter_map(|key| key.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let tensors = unmatched.len();
    let example = unmatched.into_iter().next().map(|key| key.key);
    LoraError::NothingMatches { path: file.path, tensors, kinds, example }
}

/// A module that has a name of the model's.
struct MatchedModule<'a> {
    file: &'a LoraFile,
    name: &'a str,
    module: &'a Module,
}

impl MatchedModule<'_> {
    /// The adapters of a module whose second factor has the rows of `target`.
    fn adapters(
        &self,
        index: usize,
        weight: f32,
        target: &[TargetRows],
    ) -> Result<Vec<Adapter>, LoraError> {
        let changes_product = |kind: &Kind| {
            matches!(kind, Kind::Dora | Kind::Convolution | Kind::Bias | Kind::Embedding)
        };
        if let Some((key, kind)) = self.module.others.iter().find(|(_, k)| changes_product(k)) {
            return Err(self.unsupported(key, *kind));
        }
        let (a_key, b_key) = self.halves()?;
        let (a, b) = (self.factor(a_key)?, self.factor(b_key)?);
        let rank = self.rank((a_key, &a), (b_key, &b))?;
        let (columns, rows) = (
            target[0].base.shape()[1],
            target.iter().map(|rows| rows.base.shape()[0]).sum::<usize>(),
        );
        for (key, expected, got) in
            [(a_key, [rank, columns], a.shape()), (b_key, [rows, rank], b.shape())]
        {
            if got != expected {
                return Err(LoraError::WrongShape {
                    path: self.file.path.clone(),
                    tensor: key.to_owned(),
                    weight: target[0].weight.clone(),
                    expected: expected.to_vec(),
                    got: got.to_vec(),
                });
            }
        }
        let scale = self.scale(rank)? * f64::from(weight);
        if !(scale as f32).is_finite() {
            return Err(self.wrong_scale(format!("the product is scaled by {scale}")));
        }
        let mut row = 0;
        Ok(target
            .iter()
            .map(|part| {
                let rows = row..row + part.base.shape()[0];
                row = rows.end;
                Adapter {
                    file: index,
                    module: self.name.to_owned(),
                    weight: part.weight.clone(),
                    first_row: part.first_row,
                    base: part.base,
                    a,
                    b: b.rows(rows),
                    part_of_b: target.len() > 1,
                    scale,
                }
            })
            .collect())
    }

    fn halves(&self) -> Result<(&str, &str), LoraError> {
        let missing = |present: &Option<String>, missing| LoraError::MissingHalf {
            path: self.file.path.clone(),
            module: self.name.to_owned(),
            present: present.clone().unwrap_or_default(),
            missing,
        };
        let Module { a, b, alpha, .. } = self.module;
        match (a, b) {
            (Some(a), Some(b)) => Ok((a, b)),
            (Some(_), None) => Err(missing(a, "B (or `up`)")),
            (None, Some(_)) => Err(missing(b, "A (or `down`)")),
            (None, None) => Err(missing(alpha, "both factors")),
        }
    }

    /// A factor, of a type to compute with and two dimensions.
    fn factor(&self, key: &str) -> Result<TensorRef, LoraError> {
        let tensor = self.tensor(key)?;
        match tensor.shape() {
            [_, _] => Ok(tensor),
            [_, _, _, _] => Err(self.unsupported(key, Kind::Convolution)),
            shape => Err(LoraError::NoMatrix {
                path: self.file.path.clone(),
                tensor: key.to_owned(),
                got: shape.to_vec(),
            }),
        }
    }

    fn tensor(&self, key: &str) -> Result<TensorRef, LoraError> {
        let info = self.file.files.tensor(key).expect("the key is the file's");
        if !Dtype::SUPPORTED_ELEMENTS.contains(&info.dtype) {
            return Err(LoraError::WrongType {
                path: self.file.path.clone(),
                tensor: key.to_owned(),
                got: info.dtype,
                supported: Dtype::SUPPORTED_ELEMENTS,
            });
        }
        Ok(self.file.files.require(key, info.shape)?)
    }

    fn rank(&self, a: (&str, &TensorRef), b: (&str, &TensorRef)) -> Result<usize, LoraError> {
        let (rank, other) = (a.1.shape()[0], b.1.shape()[1]);
        let path = || self.file.path.clone();
        if rank != other {
            return Err(LoraError::RankMismatch {
                path: path(),
                a: a.0.to_owned(),
                a_rank: rank,
                b: b.0.to_owned(),
                b_rank: other,
            });
        }
        if !(1..=RANK_MAX).contains(&rank) {
            return Err(LoraError::Rank { path: path(), tensor: a.0.to_owned(), got: rank });
        }
        Ok(rank)
    }

    /// α/r
    fn scale(&self, rank: usize) -> Result<f64, LoraError> {
        let alpha = match &self.module.alpha {
            Some(key) => {
                let tensor = self.tensor(key)?;
                if tensor.shape().iter().product::<usize>() != 1 {
                    return Err(self.wrong_scale(format!(
                        "the tensor {key:?} has shape {:?} and is no single number",
                        tensor.shape()
                    )));
                }
                Some(tensor.view(&self.file.files).to_f32()[0])
            }
            None => None,
        };
        self.file.metadata.scale(self.name, alpha, rank).map_err(|fault| self.wrong_scale(fault))
    }

    /// An error if the file changes the same rows by another module too.
    fn check_alone(
        &self,
        component: &str,
        adapter: &Adapter,
        others: &[(&'static str, Adapter)],
    ) -> Result<(), LoraError> {
        let rows = |adapter: &Adapter| adapter.first_row..adapter.first_row + adapter.rows();
        let mine = rows(adapter);
        let overlaps = |other: &Adapter| {
            let theirs = rows(other);
            other.weight == adapter.weight && mine.start < theirs.end && theirs.start < mine.end
        };
        let same = others.iter().find(|(other, known)| *other == component && overlaps(known));
        match same {
            Some((_, other)) => Err(LoraError::TwoModules {
                path: self.file.path.clone(),
                weight: adapter.weight.clone(),
                first: other.module.clone(),
                second: self.name.to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn unsupported(&self, key: &str, kind: Kind) -> LoraError {
        LoraError::Unsupported { path: self.file.path.clone(), tensor: key.to_owned(), kind }
    }

    fn wrong_scale(&self, fault: String) -> LoraError {
        let (path, module) = (self.file.path.clone(), self.name.to_owned());
        LoraError::Scale { path, module, fault }
    }
}
