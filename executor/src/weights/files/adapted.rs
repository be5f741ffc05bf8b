//! A component's weights as loaded adapters make them: other files' tensors beside its own, or
//! parts of its files in private copies. What adapters are is not known here.
//!
//! Invariant: only a [`WeightFiles`] that nobody else has seen is changed.

use std::sync::Arc;

use protocol::Bytes;

use super::{Location, WeightFiles};
use crate::weights::lora::LinearAdapter;
use crate::weights::mapping::MappedFile;
use crate::weights::{Dtype, TensorRef, WeightsError};

impl WeightFiles {
    /// What is computed beside the linear layer of this weight, in order.
    pub fn adapters(&self, weight: &str) -> &[LinearAdapter] {
        self.adapters.get(weight).map_or(&[], Vec::as_slice)
    }

    /// The weights beside which something is computed, sorted.
    pub fn adapted_weights(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// Bytes of the mappings' pages that are this process's own and not the files': anonymous
    /// memory of the host for as long as the mappings stand.
    pub fn private_bytes(&self) -> Bytes {
        self.private_bytes
    }

    /// Whether adapters have been applied, in either way.
    pub(in crate::weights) fn is_adapted(&self) -> bool {
        !self.adapters.is_empty() || self.private_bytes > Bytes::ZERO
    }

    /// Takes in a tensor of other files as if it stood in a shard of these. `tensor` may be some
    /// rows of one; a tensor that is there already under this name and is the same stays.
    ///
    /// # Errors
    /// [`WeightsError::TensorInTwoShards`] if the name is another tensor's.
    pub(in crate::weights) fn take_in(
        &mut self,
        name: String,
        tensor: &TensorRef,
        other: &WeightFiles,
    ) -> Result<(), WeightsError> {
        let file = &other.files[tensor.file_index];
        let known = self.files.iter().position(|known| Arc::ptr_eq(known, file));
        let file_index = known.unwrap_or_else(|| {
            self.files.push(Arc::clone(file));
            self.files.len() - 1
        });
        let &TensorRef { storage, shape, offset_bytes, size_bytes, scale, .. } = tensor;
        let dtype = Dtype::of_storage(storage);
        let location = Location { dtype, shape, file_index, offset_bytes, size_bytes, scale };
        match self.tensors.get(&name) {
            Some(first) if *first != location => Err(WeightsError::TensorInTwoShards {
                path: self.files[first.file_index].path().to_owned(),
                other: file.path().to_owned(),
                tensor: name,
            }),
            Some(_) => Ok(()),
            None => {
                self.tensors.insert(name, location);
                Ok(())
            }
        }
    }

    /// Adds something to compute beside the linear layer of a weight.
    pub(in crate::weights) fn add_adapter(&mut self, weight: &str, adapter: LinearAdapter) {
        self.adapters.entry(weight.to_owned()).or_default().push(adapter);
    }

    /// The mapping of one of the files.
    pub(in crate::weights) fn mapped(&self, file_index: usize) -> &MappedFile {
        &self.files[file_index]
    }

    /// Puts another mapping of the same file in a mapping's place.
    pub(in crate::weights) fn replace(&mut self, file_index: usize, mapped: MappedFile) {
        assert_eq!(self.files[file_index].size(), mapped.size(), "another file");
        self.files[file_index] = Arc::new(mapped);
    }

    /// States how much of the mappings has become private.
    pub(in crate::weights) fn set_private_bytes(&mut self, bytes: Bytes) {
        self.private_bytes = bytes;
    }
}
