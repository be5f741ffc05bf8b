//! What can be wrong with LoRA files. Each message is a sentence of its own, as those of
//! [`WeightsError`] are; strings from a file are quoted and escaped.

use std::path::PathBuf;

use protocol::StorageType;

use super::{Kind, LORAS_MAX, RANK_MAX, TENSORS_MAX};
use crate::weights::{Dtype, WeightsError};

/// Why LoRA files cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// The file itself is at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),

    /// More files than anyone combines.
    #[error("{got} LoRA files are named, at most {LORAS_MAX} can be applied at once")]
    TooManyFiles {
        /// Files named.
        got: usize,
    },

    /// A weight that is no number.
    #[error("the LoRA {} is given the weight {weight}; hint: a weight is a number, as 0.8", .path.display())]
    Weight {
        /// The file.
        path: PathBuf,
        /// What its user asked for.
        weight: f32,
    },

    /// More tensors than any LoRA has.
    #[error(
        "{} has {got} tensors, a LoRA at most {TENSORS_MAX}; hint: this is another kind of file",
        .path.display()
    )]
    TooManyTensors {
        /// The file.
        path: PathBuf,
        /// Its tensors.
        got: usize,
    },

    /// The file's notes say what cannot be understood.
    #[error("the configuration in the notes of {} cannot be used: {fault}", .path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: String,
    },

    /// No tensor of the file has to do with the model.
    #[error(
        "nothing in the LoRA {} fits this model{}{}",
        .path.display(), name_kinds(.kinds), name_example(*.tensors, .example.as_deref())
    )]
    NothingMatches {
        /// The file.
        path: PathBuf,
        /// How many it has.
        tensors: usize,
        /// Kinds of adapters in it that cannot be applied, sorted.
        kinds: Vec<Kind>,
        /// One of its tensors, if it has any.
        example: Option<String>,
    },

    /// A layer of the model is adapted in a way that cannot be computed.
    #[error(
        "the tensor {tensor:?} in {} belongs to a {kind}, which is not supported; \
         hint: use a file with plain LoRA",
        .path.display()
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// What it is part of.
        kind: Kind,
    },

    /// A module without one of its factors.
    #[error(
        "the module {module:?} in {} has {present:?} and lacks {missing}; \
         hint: the file was not written whole",
        .path.display()
    )]
    MissingHalf {
        /// The file.
        path: PathBuf,
        /// What the file calls it.
        module: String,
        /// What is there.
        present: String,
        /// What is not.
        missing: &'static str,
    },

    /// Two tensors for one factor.
    #[error("{} has both {first:?} and {second:?}, which are the same factor", .path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },

    /// Two modules for one weight.
    #[error(
        "{} adapts {weight:?} twice, by {first:?} and by {second:?}; \
         hint: keep the tensors of one of the two naming schemes",
        .path.display()
    )]
    TwoModules {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the model.
        weight: String,
        /// One of the modules.
        first: String,
        /// The other.
        second: String,
    },

    /// A factor of a type that cannot be computed with.
    #[error(
        "the tensor {tensor:?} in {} has type {got}, supported are {}",
        .path.display(), names(.supported)
    )]
    WrongType {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// Its type.
        got: Dtype,
        /// The types that would do.
        supported: &'static [Dtype],
    },

    /// A factor that has not two dimensions.
    #[error("the tensor {tensor:?} in {} has shape {got:?} and is no matrix", .path.display())]
    NoMatrix {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// Its shape.
        got: Vec<usize>,
    },

    /// Factors that cannot be multiplied.
    #[error(
        "{a:?} in {} has rank {a_rank}, {b:?} has rank {b_rank}", .path.display()
    )]
    RankMismatch {
        /// The file.
        path: PathBuf,
        /// The first factor.
        a: String,
        /// Its rows.
        a_rank: usize,
        /// The second factor.
        b: String,
        /// Its columns.
        b_rank: usize,
    },

    /// A rank beyond any sense.
    #[error("the tensor {tensor:?} in {} has rank {got}, expected 1 to {RANK_MAX}", .path.display())]
    Rank {
        /// The file.
        path: PathBuf,
        /// The first factor.
        tensor: String,
        /// Its rows.
        got: usize,
    },

    /// A factor that does not fit the weight it changes.
    #[error(
        "the tensor {tensor:?} in {} has shape {got:?}, to change {weight:?} it needs {expected:?}; \
         hint: this LoRA was made for a model of another size",
        .path.display()
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// The weight, or the first of several.
        weight: String,
        /// The shape that would fit.
        expected: Vec<usize>,
        /// The tensor's shape.
        got: Vec<usize>,
    },

    /// A scale that is no number, or cannot be known.
    #[error("the scale of {module:?} in {} is wrong: {fault}", .path.display())]
    Scale {
        /// The file.
        path: PathBuf,
        /// What the file calls it.
        module: String,
        /// What is wrong.
        fault: String,
    },

    /// A weight whose type does not take changes: its adapters are computed beside it.
    #[error(
        "LoRA cannot be written into {weight:?}, which is stored as {storage}; hint: plan anew"
    )]
    Unchangeable {
        /// Which one, by its name in the model.
        weight: String,
        /// Its type.
        storage: StorageType,
    },

    /// A changed weight that is infinite or no number in its type.
    #[error(
        "with LoRA the tensor {weight:?} is not finite any more; \
         hint: the file may be damaged, or its weight too large"
    )]
    NotFinite {
        /// Which one, by its name in the model.
        weight: String,
    },

    /// The one who asked wanted it no longer.
    #[error("applying LoRA was stopped")]
    Stopped,
}

fn name_kinds(kinds: &[Kind]) -> String {
    if kinds.is_empty() {
        return String::new();
    }
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    format!("; it has tensors of {}, which cannot be applied", kinds.join(" and "))
}

fn name_example(tensors: usize, example: Option<&str>) -> String {
    match example {
        Some(example) => format!(
            "; hint: none of its {tensors} tensors, as {example:?}, has the name of a layer to adapt, \
             so it was made for another model"
        ),
        None => "; hint: it has no tensors at all".to_owned(),
    }
}

fn names(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
