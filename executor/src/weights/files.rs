//! All tensors of a component, over one file or over its shards.
//!
//! Invariants: each name stands once, each tensor lies within its file's mapping, and everything is
//! ordered by name, so that what is built from it does not depend on the layout of the files.

mod added;
mod scales;

mod adapted;
mod keys;
mod names;
mod parts;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::plan::MappingPolicy;
use protocol::{Bytes, StorageType};

pub use keys::GgufKeys;
pub use parts::RUNS_MAX;

use super::dimensions::Dimensions;
use super::gguf::Keys;
use super::index::ShardIndex;
use super::lora::LinearAdapter;
use super::mapping::{MappedFile, join, open_regular};
use super::{Dtype, WeightView, WeightsError};

pub use names::Names;
use parts::ColumnRuns;

/// The mapped files of a component, where each tensor lies in them, and what is to be computed
/// beside its linear layers. Clones share the mappings.
#[derive(Debug, Clone)]
pub struct WeightFiles {
    /// The single file, or the index: what a message about the whole names.
    origin: PathBuf,
    files: Vec<Arc<MappedFile>>,
    /// Of the first file, if it is GGUF.
    keys: Option<Arc<Keys>>,
    tensors: BTreeMap<String, Location>,
    /// What tensors are called in the files, where that is not what they are called here.
    renamed: Names,
    adapters: BTreeMap<String, Vec<LinearAdapter>>,
    private_bytes: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Location {
    dtype: Dtype,
    shape: Dimensions,
    file_index: usize,
    offset_bytes: usize,
    size_bytes: usize,
    /// What every element is multiplied by.
    scale: f32,
}

/// What a file says about one of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Name in the checkpoint.
    pub name: &'a str,
    /// Type in the file; [`Dtype::storage`] says whether it can be computed with.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: &'a [usize],
    /// Length.
    pub size: Bytes,
    /// Which of [`WeightFiles::paths`] it is in.
    pub file_index: usize,
    /// First byte, from the start of that file.
    pub offset: Bytes,
}

/// A tensor that a model asked for and got, of the type and shape it needs. Plain data: it borrows
/// nothing, and means something only together with the [`WeightFiles`] that gave it out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TensorRef {
    storage: StorageType,
    shape: Dimensions,
    file_index: usize,
    offset_bytes: usize,
    size_bytes: usize,
    scale: f32,
    /// Of some columns of a matrix, where these lie; `None` where it lies in one piece.
    columns: Option<ColumnRuns>,
}

impl WeightFiles {
    /// Opens the weights in the component directory `dir`: the first that is there of
    /// `<stem>.safetensors`, `<stem>.safetensors.index.json` and `<stem>.gguf`, for each of `stems`
    /// in turn. Reads headers only.
    ///
    /// # Errors
    /// [`WeightsError::NoWeights`] if none is there, otherwise whatever is wrong with those found.
    pub fn open(dir: &Path, stems: &[&str]) -> Result<WeightFiles, WeightsError> {
        let mut looked_for = Vec::new();
        for stem in stems {
            let single = format!("{stem}.safetensors");
            if let Some(found) = unless_absent(WeightFiles::open_file(&dir.join(&single)))? {
                return Ok(found);
            }
            let index = format!("{stem}.safetensors.index.json");
            if let Some(found) = unless_absent(WeightFiles::open_index(dir, &dir.join(&index)))? {
                return Ok(found);
            }
            let gguf = format!("{stem}.gguf");
            if let Some(found) = unless_absent(WeightFiles::open_file(&dir.join(&gguf)))? {
                return Ok(found);
            }
            looked_for.extend([single, index, gguf]);
        }
        Err(WeightsError::NoWeights { dir: dir.to_owned(), looked_for })
    }

    /// Opens one file that holds everything: GGUF if it begins as such, whatever its name,
    /// otherwise safetensors.
    ///
    /// # Errors
    /// Those of [`MappedFile::open`], [`WeightsError::Read`], [`WeightsError::Header`],
    /// [`WeightsError::Gguf`] and [`WeightsError::Scale`].
    pub fn open_file(path: &Path) -> Result<WeightFiles, WeightsError> {
        WeightFiles::open_file_with_notes(path).map(|(files, _)| files)
    }

    /// Opens one file that holds everything, and answers also with its notes about itself, by name:
    /// of GGUF the texts that are not long.
    ///
    /// # Errors
    /// As [`WeightFiles::open_file`].
    pub fn open_file_with_notes(
        path: &Path,
    ) -> Result<(WeightFiles, BTreeMap<String, String>), WeightsError> {
        let mut files = WeightFiles::empty(path);
        let notes = files.add(path)?;
        Ok((files.opened()?, notes))
    }

    fn open_index(dir: &Path, path: &Path) -> Result<WeightFiles, WeightsError> {
        let (file, _) = open_regular(path)?;
        let index = ShardIndex::read(&file)
            .map_err(|cause| WeightsError::Read { path: path.to_owned(), cause })?
            .map_err(|fault| WeightsError::Index { path: path.to_owned(), fault })?;

        let mut files = WeightFiles::empty(path);
        for shard in &index.shards {
            if unless_absent(files.add(&dir.join(shard)))?.is_none() {
                let shard = shard.clone();
                return Err(WeightsError::MissingShard { path: path.to_owned(), shard });
            }
        }
        for (tensor, &shard) in &index.tensors {
            let placed = files.tensors.get(tensor).is_some_and(|there| there.file_index == shard);
            if !placed {
                return Err(WeightsError::TensorNotInShard {
                    path: files.files[shard].path().to_owned(),
                    index: path.to_owned(),
                    tensor: tensor.clone(),
                });
            }
        }
        files.opened()
    }

    fn empty(origin: &Path) -> WeightFiles {
        WeightFiles {
            origin: origin.to_owned(),
            files: Vec::new(),
            keys: None,
            tensors: BTreeMap::new(),
            renamed: Names::default(),
            adapters: BTreeMap::new(),
            private_bytes: Bytes::ZERO,
        }
    }

    fn opened(mut self) -> Result<WeightFiles, WeightsError> {
        self.take_scales()?;
        tracing::debug!(
            path = %self.origin.display(),
            files = self.files.len(),
            tensors = self.tensors.len(),
            tensor_bytes = self.total_tensor_bytes().0,
            "opened weights"
        );
        Ok(self)
    }

    /// The tensor `name`, which must have a type to compute with and the shape that the model
    /// expects.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`], [`WeightsError::WrongType`] and
    /// [`WeightsError::WrongShape`].
    pub fn require(&self, name: &str, expected_shape: &[usize]) -> Result<TensorRef, WeightsError> {
        let Some(found) = self.tensors.get(name) else {
            return Err(self.missing(name));
        };
        let path = || self.files[found.file_index].path().to_owned();
        let Some(storage) = found.dtype.storage() else {
            return Err(WeightsError::WrongType {
                path: path(),
                tensor: name.to_owned(),
                got: found.dtype,
                supported: Dtype::SUPPORTED,
            });
        };
        if found.shape.as_slice() != expected_shape {
            return Err(self.wrong_shape(name, found, expected_shape));
        }
        let &Location { shape, file_index, offset_bytes, size_bytes, scale, .. } = found;
        let columns = None;
        Ok(TensorRef { storage, shape, file_index, offset_bytes, size_bytes, scale, columns })
    }

    /// What the files say about the tensor `name`, if they have it.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.tensors.get_key_value(name).map(|(name, location)| location.info(name))
    }

    /// All tensors, ordered by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.tensors.iter().map(|(name, location)| location.info(name))
    }

    /// What each tensor is called, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The bytes of a tensor of these files, in the mapping: nothing is copied.
    ///
    /// # Panics
    /// If `info` is of other files.
    pub fn bytes(&self, info: &TensorInfo<'_>) -> &[u8] {
        self.slice(info.file_index, info.offset.as_usize(), info.size.as_usize())
    }

    /// Bytes of all tensors together, without headers.
    pub fn total_tensor_bytes(&self) -> Bytes {
        self.tensors.values().map(|location| Bytes(location.size_bytes as u64)).sum()
    }

    /// The files that hold tensors, in the order of [`TensorInfo::file_index`].
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }

    /// Each file once.
    pub fn mappings(&self) -> impl Iterator<Item = &Arc<MappedFile>> {
        self.files.iter()
    }

    /// Checks that every mapping can still be read; to be called before the weights are used.
    ///
    /// # Errors
    /// Those of [`MappedFile::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(|file| file.check_unchanged())
    }

    /// Tells the system how the files will be read, and [`WeightFiles::release`] what to do; to be
    /// called once, before weights are read.
    ///
    /// # Errors
    /// Those of [`MappedFile::advise`].
    pub fn advise(&self, policy: MappingPolicy) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(|file| file.advise(policy))
    }

    /// Says that these weights were copied to where they are needed, as [`MappedFile::release`]. A
    /// refusal of the system is only logged: the weights are where they should be.
    ///
    /// # Panics
    /// If the weights are of other files.
    pub fn release<'a>(&self, weights: impl IntoIterator<Item = &'a TensorRef>) {
        for weight in weights {
            self.release_range(weight.file_index, weight.byte_range());
        }
    }

    /// Says that all weights of these files were copied, as [`WeightFiles::release`]. What was read
    /// ahead beyond them, and headers, go as well.
    pub fn release_all(&self) {
        for (index, file) in self.files.iter().enumerate() {
            self.release_range(index, 0..file.bytes().len());
        }
    }

    fn release_range(&self, file_index: usize, range: Range<usize>) {
        if let Err(fault) = self.files[file_index].release(range) {
            tracing::warn!("{fault}");
        }
    }

    /// How much of the files is in the page cache, as [`MappedFile::cached_bytes`].
    ///
    /// # Errors
    /// Those of [`MappedFile::cached_bytes`].
    pub fn cached_bytes(&self) -> Result<Bytes, WeightsError> {
        self.files.iter().map(|file| file.cached_bytes(0..file.bytes().len())).sum()
    }

    /// How much of these weights is in the page cache, rounded down; nothing where LoRA changes any
    /// of the component's, and nothing of a file of which the system does not tell.
    ///
    /// # Panics
    /// If the weights are of other files.
    pub fn cached_weight_bytes<'a>(
        &self,
        weights: impl IntoIterator<Item = &'a TensorRef>,
    ) -> Bytes {
        if self.private_bytes > Bytes::ZERO {
            return Bytes::ZERO;
        }
        let mut runs = vec![Vec::new(); self.files.len()];
        for weight in weights {
            join(&mut runs[weight.file_index], &weight.byte_range());
        }
        let cached = |(file, range): (&Arc<MappedFile>, Range<usize>)| {
            file.cached_page_bytes(range).unwrap_or_else(|fault| {
                tracing::warn!("{fault}");
                Bytes::ZERO
            })
        };
        let ranges = self.files.iter().zip(runs);
        ranges
            .flat_map(|(file, runs)| runs.into_iter().map(move |run| (file, run)))
            .map(cached)
            .sum()
    }

    fn slice(&self, file_index: usize, offset_bytes: usize, size_bytes: usize) -> &[u8] {
        &self.files[file_index].bytes()[offset_bytes..][..size_bytes]
    }

    /// The name that shares the longest start and end with `wanted`, if that is half of both or
    /// more. That finds a prefix too many or a part renamed, the two ways in which checkpoints
    /// differ.
    fn most_similar(&self, wanted: &str) -> Option<&str> {
        let shared_bytes = |name: &str| {
            let pairs = || wanted.bytes().zip(name.bytes());
            let start = pairs().take_while(|(a, b)| a == b).count();
            let ends = wanted.bytes().rev().zip(name.bytes().rev());
            let end = ends.take_while(|(a, b)| a == b).count();
            (start + end).min(wanted.len()).min(name.len())
        };
        let (shared, name) = self
            .names()
            .map(|name| (shared_bytes(name), name))
            .max_by_key(|&(shared, name)| (shared, std::cmp::Reverse(name)))?;
        (shared * 2 >= wanted.len().max(name.len())).then_some(name)
    }
}

impl Location {
    fn info<'a>(&'a self, name: &'a str) -> TensorInfo<'a> {
        TensorInfo {
            name,
            dtype: self.dtype,
            shape: self.shape.as_slice(),
            size: Bytes(self.size_bytes as u64),
            file_index: self.file_index,
            offset: Bytes(self.offset_bytes as u64),
        }
    }
}

impl TensorRef {
    /// The weight itself, in the mapping.
    ///
    /// # Panics
    /// If `files` are not those that gave this out, or it does not lie in one piece.
    pub fn view<'a>(&'a self, files: &'a WeightFiles) -> WeightView<'a> {
        assert!(self.columns.is_none(), "some columns of a matrix");
        let bytes = files.slice(self.file_index, self.offset_bytes, self.size_bytes);
        self.view_of(self.shape.as_slice(), bytes)
    }

    /// The same weight, or some of its rows, with its bytes wherever they lie.
    pub fn view_of<'a>(&self, shape: &'a [usize], bytes: &'a [u8]) -> WeightView<'a> {
        WeightView { storage: self.storage, shape, bytes, scale: self.scale }
    }

    /// What every stored element is multiplied by: 1 unless the file has a scale beside the weight.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// How the elements are stored.
    pub fn storage(&self) -> StorageType {
        self.storage
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        self.shape.as_slice()
    }

    /// Length.
    pub fn size(&self) -> Bytes {
        Bytes(self.size_bytes as u64)
    }

    /// Length of one row: of all that shares an index of the outermost dimension.
    pub fn row_bytes(&self) -> Bytes {
        let rows = self.shape().first().copied().unwrap_or(1).max(1);
        Bytes((self.size_bytes / rows) as u64)
    }

    /// The same as if a matrix whose rows are whole blocks were stored in another type: for its
    /// size, as there are no such bytes. Anything else stays.
    pub fn stored_as(&self, storage: StorageType) -> TensorRef {
        let [_, row @ ..] = self.shape() else { return *self };
        let row_elements = row.iter().product::<usize>() as u64;
        if row.is_empty() || !row_elements.is_multiple_of(storage.block_elements()) {
            return *self;
        }
        let elements = self.shape().iter().product::<usize>() as u64;
        TensorRef { storage, size_bytes: storage.bytes(elements).as_usize(), ..*self }
    }

    /// Which of [`WeightFiles::paths`] it is in.
    pub(super) fn file_index(&self) -> usize {
        self.file_index
    }
}

/// Makes the absence of the file itself an ordinary answer.
fn unless_absent<T>(opened: Result<T, WeightsError>) -> Result<Option<T>, WeightsError> {
    match opened {
        Ok(found) => Ok(Some(found)),
        Err(WeightsError::Open { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

#[cfg(test)]
mod tests;
