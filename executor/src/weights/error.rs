//! What can be wrong with weight files. Each message is a sentence of its own, with its causes
//! inside and not behind `source()`, so that it survives being sent as text.
//!
//! Strings that come from a file are shown quoted and escaped: they may hold anything.

use std::io;
use std::path::PathBuf;

use protocol::Bytes;

use super::Dtype;
use super::gguf::GgufError;
use super::header::HeaderError;
use super::index::IndexError;

/// Why a component's weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A directory without any of the files that weights could be in.
    #[error(
        "{} holds no weights, it has none of: {}; \
         hint: name a directory whose download is complete",
        .dir.display(), .looked_for.join(", ")
    )]
    NoWeights {
        /// The component's directory.
        dir: PathBuf,
        /// File names, in the order in which they were looked for.
        looked_for: Vec<String>,
    },

    /// The system refused to open a file.
    #[error("cannot open {}: {cause}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },

    /// A directory, pipe, socket or device where a file of weights should be.
    #[error("{} is no regular file", .path.display())]
    NotRegularFile {
        /// What was opened.
        path: PathBuf,
    },

    /// A file of no bytes.
    #[error("{} is empty; hint: its download did not finish, download it again", .path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// The system refused to read an open file.
    #[error("cannot read {}: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },

    /// The system refused to map a file.
    #[error(
        "cannot map {} ({size}) into memory: {cause}; \
         hint: see the address space limit (ulimit -v)",
        .path.display()
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// Its length.
        size: Bytes,
        /// What the system said.
        cause: io::Error,
    },

    /// The system refused to say or be told what becomes of a file's pages.
    #[error("cannot manage the page cache of {}: {cause}", .path.display())]
    PageCache {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },

    /// Someone shortened the file while it was mapped; its tensors cannot be read any more.
    #[error(
        "{} shrank from {mapped_bytes} to {present_bytes} bytes while in use; \
         hint: let downloads and copies finish before a run",
        .path.display()
    )]
    FileShrank {
        /// The file.
        path: PathBuf,
        /// Its length when it was mapped.
        mapped_bytes: u64,
        /// Its length now.
        present_bytes: u64,
    },

    /// A file that is not well-formed safetensors.
    #[error("{} is no usable safetensors file: {fault}", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderError,
    },

    /// A file that begins as GGUF and is not well-formed.
    #[error("{} is no usable GGUF file: {fault}", .path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: GgufError,
    },

    /// An array of a GGUF file that is needed and cannot be read.
    #[error("the array {key:?} of {} cannot be used: {fault}", .path.display())]
    Array {
        /// The file.
        path: PathBuf,
        /// Which entry of the metadata it is.
        key: String,
        /// What is wrong with it.
        fault: &'static str,
    },

    /// A scale beside a weight that is no number.
    #[error(
        "the scale {tensor:?} in {} {fault}; hint: use a file with one scale for each weight",
        .path.display()
    )]
    Scale {
        /// The file.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// What is wrong with it.
        fault: String,
    },

    /// A file that is not a well-formed index of shards.
    #[error("{} is no usable index of shards: {fault}", .path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong with it.
        fault: IndexError,
    },

    /// An index names a file that is not beside it.
    #[error(
        "{} needs the shard {shard}, which is not there; \
         hint: download that file into the directory",
        .path.display()
    )]
    MissingShard {
        /// The index file.
        path: PathBuf,
        /// File name of the shard.
        shard: String,
    },

    /// An index places a tensor in a shard whose header does not have it.
    #[error(
        "{} lacks the tensor {tensor:?} that {} places in it; \
         hint: index and shards must come from one download",
        .path.display(), .index.display()
    )]
    TensorNotInShard {
        /// The shard.
        path: PathBuf,
        /// Which file says so.
        index: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
    },

    /// Two shards have a tensor of one name.
    #[error("the tensor {tensor:?} is both in {} and in {}", .path.display(), .other.display())]
    TensorInTwoShards {
        /// The shard that was read first.
        path: PathBuf,
        /// The shard that repeats the tensor.
        other: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
    },

    /// A tensor that the model needs is not in its files.
    #[error("{} has no tensor {tensor:?}{}", .path.display(), hint_nearest(.nearest.as_deref()))]
    MissingTensor {
        /// The file, or the index of the shards.
        path: PathBuf,
        /// The tensor that was asked for.
        tensor: String,
        /// The most similar name in the files, if one is similar at all.
        nearest: Option<String>,
    },

    /// A tensor of another shape than the model has.
    #[error(
        "the tensor {tensor:?} in {} has shape {got:?}, the model needs {expected:?}; \
         hint: weights and configuration must be of one model",
        .path.display()
    )]
    WrongShape {
        /// The file that holds the tensor.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// The model's shape, outermost first.
        expected: Vec<usize>,
        /// The file's shape, outermost first.
        got: Vec<usize>,
    },

    /// A tensor with another number of dimensions than sizes are read from.
    #[error(
        "the tensor {tensor:?} in {} has shape {got:?}, expected are {expected} dimensions; \
         hint: the file is of another model",
        .path.display()
    )]
    WrongRank {
        /// The file that holds the tensor.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// The number of dimensions.
        expected: usize,
        /// The file's shape, outermost first.
        got: Vec<usize>,
    },

    /// Rows of a fused tensor that do not begin where a block does.
    #[error(
        "the tensor {tensor:?} in {} holds several of the model's in one, and its blocks hold parts of more than \
         one of them; hint: use a file that keeps vectors in f32, as most do",
        .path.display()
    )]
    CutBlocks {
        /// The file that holds the tensor.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
    },

    /// A tensor of a type that the executor does not compute with.
    #[error(
        "the tensor {tensor:?} in {} has type {got}, supported are {}; \
         hint: use a variant of the model that is stored in one of these",
        .path.display(), join_names(.supported)
    )]
    WrongType {
        /// The file that holds the tensor.
        path: PathBuf,
        /// Which one, by its name in the file.
        tensor: String,
        /// The file's type.
        got: Dtype,
        /// The types that would do.
        supported: &'static [Dtype],
    },
}

fn hint_nearest(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!("; hint: the most similar name there is {name:?}"),
        None => "; hint: the file is incomplete, or of another model".to_owned(),
    }
}

fn join_names(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
