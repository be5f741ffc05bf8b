//! A file is added: recognised by how it begins, its header read, its tensors taken in.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use protocol::Bytes;

use super::{Location, WeightFiles};
use crate::weights::WeightsError;
use crate::weights::gguf::{Gguf, GgufValue, Keys, MAGIC};
use crate::weights::header::{Header, TensorEntry};
use crate::weights::mapping::MappedFile;

impl WeightFiles {
    /// Maps one more file and takes in its tensors; the answer is the file's notes.
    pub(super) fn add(&mut self, path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
        let mapped = MappedFile::open(path)?;
        let unreadable = |cause| WeightsError::Read { path: path.to_owned(), cause };
        let (tensors, notes) = if is_gguf(&mapped).map_err(unreadable)? {
            let read = Gguf::read(mapped.file(), mapped.size().0)
                .map_err(unreadable)?
                .map_err(|fault| WeightsError::Gguf { path: path.to_owned(), fault })?;
            let notes = texts(&read.keys);
            self.keys = self.files.is_empty().then(|| Arc::new(read.keys));
            (read.tensors, notes)
        } else {
            let header = Header::read(mapped.file(), mapped.size().0)
                .map_err(unreadable)?
                .map_err(|fault| WeightsError::Header { path: path.to_owned(), fault })?;
            (header.tensors, header.notes)
        };
        self.take_tensors(tensors, &mapped)?;
        self.files.push(Arc::new(mapped));
        Ok(notes)
    }

    /// Takes in the tensors of the file that is added next.
    fn take_tensors(
        &mut self,
        tensors: BTreeMap<String, TensorEntry>,
        mapped: &MappedFile,
    ) -> Result<(), WeightsError> {
        let file_index = self.files.len();
        for (tensor, entry) in tensors {
            if let Some(first) = self.tensors.get(&tensor) {
                return Err(WeightsError::TensorInTwoShards {
                    path: self.files[first.file_index].path().to_owned(),
                    other: mapped.path().to_owned(),
                    tensor,
                });
            }
            let location = Location {
                dtype: entry.dtype,
                shape: entry.shape,
                file_index,
                offset_bytes: Bytes(entry.offset_bytes).as_usize(),
                size_bytes: Bytes(entry.size_bytes).as_usize(),
                scale: 1.0,
            };
            self.tensors.insert(tensor, location);
        }
        Ok(())
    }
}

/// Whether a file begins as GGUF does. Read instead of mapped, as headers are.
fn is_gguf(mapped: &MappedFile) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    match mapped.file().read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(magic == MAGIC),
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// The keys whose values are texts.
fn texts(keys: &Keys) -> BTreeMap<String, String> {
    let texts = keys.iter().filter_map(|(key, value)| match value {
        GgufValue::Text(text) => Some((key.to_owned(), text.clone())),
        _ => None,
    });
    texts.collect()
}
