//! LoRA: low-rank changes `W + α/r · B · A` to the linear layers of a model, from files of their
//! own.
//!
//! ```text
//! file ──key──► modules ──names──► adapters ─┬─ merge    W changed in a private mapping
//!                                            └─ beside   (x · Aᵀ) · Bᵀ added to a layer's result
//! ```
//! Which names stand for which weights is the family's to say, in [`LoraNames`].
//!
//! Invariants: no file ever changes; opening reads headers and the scalars `alpha` only; a
//! component without adapters keeps its mappings; what is not applied is in the report or an error.

mod beside;
mod merge;

mod adapter;
mod file;
mod resolve;

mod key;
mod metadata;
mod names;

mod error;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use protocol::Bytes;

pub use adapter::LinearAdapter;
pub use error::LoraError;
pub use key::Kind;
pub use names::{ComponentNames, DENOISER_PREFIXES, LoraNames};
pub use report::{LoraFileReport, LoraReport, UnmatchedKey};

use super::WeightFiles;
use super::mapping::MappedFile;
use adapter::Adapter;

/// The most LoRA files at once. More than a handful on one model is unheard of.
pub const LORAS_MAX: usize = 64;
/// The most tensors in one LoRA file. Three for each linear layer of the largest DiT that is known
/// here and of its text encoders are about 2,600.
pub const TENSORS_MAX: usize = 20_000;
/// The largest rank. Published files have 4 to 256; a rank beyond the width of the layers saves
/// nothing.
pub const RANK_MAX: usize = 4096;

/// A LoRA file and how strongly to apply it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSource {
    /// The file, safetensors.
    pub path: PathBuf,
    /// Factor of everything in it; 1 is what it was trained for.
    pub weight: f32,
}

/// How a component's adapters are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraMode {
    /// Added to the weights once, in private copies of their pages. Costs [`Loras::private_bytes`]
    /// of the host's memory and no time later.
    Immediately,
    /// Computed beside each linear layer. The factors are weights of the component as any others.
    Runtime,
}

/// Opened LoRA files, matched with a model's weights. Nothing is applied yet.
#[derive(Debug)]
pub struct Loras {
    files: Vec<WeightFiles>,
    adapters: BTreeMap<&'static str, Vec<Adapter>>,
    report: LoraReport,
}

impl Loras {
    /// Opens files and matches them with the weights that `names` knows.
    ///
    /// # Errors
    /// [`LoraError`], which names the file; also when nothing in a file matches.
    pub fn open(sources: &[LoraSource], names: &LoraNames) -> Result<Loras, LoraError> {
        if sources.len() > LORAS_MAX {
            return Err(LoraError::TooManyFiles { got: sources.len() });
        }
        let mut loras =
            Loras { files: Vec::new(), adapters: BTreeMap::new(), report: LoraReport::default() };
        for (index, source) in sources.iter().enumerate() {
            if !source.weight.is_finite() {
                let LoraSource { path, weight } = source.clone();
                return Err(LoraError::Weight { path, weight });
            }
            let resolved = resolve::resolve(index, source, names)?;
            for (component, adapter) in resolved.adapters {
                loras.adapters.entry(component).or_default().push(adapter);
            }
            loras.files.push(resolved.files);
            loras.report.files.push(resolved.report);
        }
        Ok(loras)
    }

    /// The mappings of all files.
    pub fn mappings(&self) -> impl Iterator<Item = &Arc<MappedFile>> {
        self.files.iter().flat_map(WeightFiles::mappings)
    }

    /// What matched, and what did not.
    pub fn report(&self) -> &LoraReport {
        &self.report
    }

    /// The components that have adapters, sorted.
    pub fn components(&self) -> impl Iterator<Item = &'static str> {
        self.adapters.keys().copied()
    }

    /// Bytes of the host's memory that applying a component's adapters immediately takes, exactly:
    /// the pages of its files that are written.
    pub fn private_bytes(&self, component: &str) -> Bytes {
        merge::private_bytes(self.of(component))
    }

    /// The weights of a component with its adapters applied: `weights` themselves if it has none.
    /// `weights` must be those that the names were made for, as they were opened. Merging runs in
    /// the present rayon pool, and ends early once `stop` says so.
    ///
    /// # Errors
    /// [`LoraError::Stopped`], [`LoraError::Unchangeable`], [`LoraError::NotFinite`], and
    /// [`LoraError::Weights`] for files that shrank or cannot be mapped again.
    pub fn apply(
        &self,
        component: &str,
        weights: &Arc<WeightFiles>,
        mode: LoraMode,
        stop: &dyn Fn() -> bool,
    ) -> Result<Arc<WeightFiles>, LoraError> {
        let adapters = self.of(component);
        if adapters.is_empty() {
            return Ok(Arc::clone(weights));
        }
        assert!(!weights.is_adapted(), "adapters are applied to weights as they were opened");
        let applied = match mode {
            LoraMode::Immediately => merge::merge(weights, adapters, &self.files, stop)?,
            LoraMode::Runtime => beside::beside(weights, adapters, &self.files)?,
        };
        Ok(Arc::new(applied))
    }

    fn of(&self, component: &str) -> &[Adapter] {
        self.adapters.get(component).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests;
