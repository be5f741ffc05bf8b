//! A component's own names for tensors that its files call otherwise, hold among those of other
//! components, or hold in one piece with others.
//!
//! Nothing is copied: a named view shares the mappings, and what it hands out are the same bytes.
//! Rows of a fused tensor lie in one piece whatever their type, as a row is a whole number of
//! blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use super::{Location, WeightFiles};
use crate::weights::WeightsError;
use crate::weights::dimensions::Dimensions;

/// What the tensors are called in a file, by the names that a component's graph asks for. Names
/// that are not listed are the file's own, less the prefix.
#[derive(Debug, Clone, Default)]
pub struct Names {
    prefix: String,
    listed: BTreeMap<String, FileTensor>,
}

/// A tensor of the file, or some of its rows.
#[derive(Debug, Clone)]
struct FileTensor {
    name: String,
    part: TensorPart,
}

#[derive(Debug, Clone)]
enum TensorPart {
    Whole,
    /// These rows of as many.
    Rows(Range<usize>, usize),
    /// All of a convolution of 1×1 pixels, `[out, in, 1, 1]`, as the matrix `[out, in]`.
    Matrix,
}

impl Names {
    /// The file's own names, behind a prefix that may be empty.
    pub fn behind(prefix: &str) -> Names {
        Names { prefix: prefix.to_owned(), listed: BTreeMap::new() }
    }

    /// `asked` is the file's tensor `own`. Here and below `own` is without the prefix.
    pub fn whole(&mut self, asked: &str, own: &str) {
        self.list(asked, own, TensorPart::Whole);
    }

    /// `asked` is these rows of the file's tensor `own`, which has `of` rows.
    pub fn rows(&mut self, asked: &str, own: &str, rows: Range<usize>, of: usize) {
        assert!(rows.start < rows.end && rows.end <= of, "rows {rows:?} of {of}");
        self.list(asked, own, TensorPart::Rows(rows, of));
    }

    /// `asked` is a matrix, which in the file is the convolution of 1×1 pixels `own`, or a matrix
    /// too.
    pub fn matrix(&mut self, asked: &str, own: &str) {
        self.list(asked, own, TensorPart::Matrix);
    }

    /// The weight and the bias of the layer `asked` are those of the file's layer `own`.
    pub fn layer(&mut self, asked: &str, own: &str) {
        for end in [".weight", ".bias"] {
            self.whole(&format!("{asked}{end}"), &format!("{own}{end}"));
        }
    }

    fn list(&mut self, asked: &str, own: &str, part: TensorPart) {
        let before =
            self.listed.insert(asked.to_owned(), FileTensor { name: own.to_owned(), part });
        assert!(before.is_none(), "{asked} is listed twice");
    }

    /// What a tensor is called in the file.
    fn own_name(&self, asked: &str) -> String {
        let own = self.listed.get(asked).map_or(asked, |own| &own.name);
        format!("{}{own}", self.prefix)
    }
}

impl WeightFiles {
    /// These files under a component's names; tensors without the prefix are left out.
    ///
    /// # Errors
    /// [`WeightsError::WrongShape`] for a fused tensor of another number of rows than is listed,
    /// and [`WeightsError::CutBlocks`] for one whose blocks hold parts of several rows.
    pub fn named(&self, names: Names) -> Result<WeightFiles, WeightsError> {
        assert!(!self.is_adapted() && self.renamed.listed.is_empty(), "files as they were opened");
        let mut tensors = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for (asked, own) in &names.listed {
            let name = names.own_name(asked);
            let Some(location) = self.tensors.get(&name) else { continue };
            let location = match &own.part {
                TensorPart::Whole => *location,
                TensorPart::Matrix => location.as_matrix(),
                TensorPart::Rows(rows, of) => self.rows_of(&name, location, rows, *of)?,
            };
            taken.insert(name);
            tensors.insert(asked.clone(), location);
        }
        for (name, location) in &self.tensors {
            let unlisted = name.strip_prefix(&names.prefix).filter(|_| !taken.contains(name));
            if let Some(asked) = unlisted {
                tensors.entry(asked.to_owned()).or_insert(*location);
            }
        }
        let files = WeightFiles { tensors, renamed: names, ..self.clone() };
        Ok(files)
    }

    fn rows_of(
        &self,
        name: &str,
        location: &Location,
        rows: &Range<usize>,
        of: usize,
    ) -> Result<Location, WeightsError> {
        let path = || self.files[location.file_index].path().to_owned();
        let shape = location.shape.as_slice();
        if shape.first() != Some(&of) {
            let mut expected = shape.to_vec();
            expected.splice(..shape.len().min(1), [of]);
            let (tensor, got) = (name.to_owned(), shape.to_vec());
            return Err(WeightsError::WrongShape { path: path(), tensor, expected, got });
        }
        let [begin, end] = [rows.start, rows.end].map(|row| location.row_offset(row, of));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(WeightsError::CutBlocks { path: path(), tensor: name.to_owned() });
        };
        let mut shape = shape.to_vec();
        shape[0] = rows.len();
        Ok(Location {
            shape: Dimensions::new(&shape).expect("as many dimensions as before"),
            offset_bytes: location.offset_bytes + begin,
            size_bytes: end - begin,
            ..*location
        })
    }

    /// The single file, or the index of the shards.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// What the tensor that is asked for by a name is called in the file, there or not.
    pub fn own_name(&self, asked: &str) -> String {
        self.renamed.own_name(asked)
    }

    /// The error for a tensor that is not there, in the file's own words.
    pub fn missing(&self, asked: &str) -> WeightsError {
        let tensor = self.renamed.own_name(asked);
        // Of a fused tensor one of its parts would be the most similar.
        let nearest = self.most_similar(asked).map(|name| self.renamed.own_name(name));
        let nearest = nearest.filter(|nearest| *nearest != tensor);
        WeightsError::MissingTensor { path: self.origin.clone(), tensor, nearest }
    }

    /// The error for a tensor of which no part can be taken, as its blocks hold parts of several.
    pub fn cut_blocks(&self, asked: &str) -> WeightsError {
        let tensor = self.renamed.own_name(asked);
        WeightsError::CutBlocks { path: self.origin.clone(), tensor }
    }

    /// The error for a tensor that has another shape than it must, in the file's own words.
    pub(super) fn wrong_shape(
        &self,
        asked: &str,
        found: &Location,
        expected: &[usize],
    ) -> WeightsError {
        let (mut expected, mut got) = (expected.to_vec(), found.shape.as_slice().to_vec());
        if let Some(TensorPart::Rows(_, of)) = self.renamed.listed.get(asked).map(|own| &own.part) {
            for shape in [&mut expected, &mut got] {
                shape.splice(..shape.len().min(1), [*of]);
            }
        }
        let path = self.files[found.file_index].path().to_owned();
        WeightsError::WrongShape { path, tensor: self.renamed.own_name(asked), expected, got }
    }
}

impl Location {
    fn as_matrix(&self) -> Location {
        match *self.shape.as_slice() {
            [rows, columns, 1, 1] => {
                let shape = Dimensions::new(&[rows, columns]).expect("two dimensions");
                Location { shape, ..*self }
            }
            _ => *self,
        }
    }

    /// Where a row begins, from the first of as many; `None` where that is within a block.
    fn row_offset(&self, row: usize, of: usize) -> Option<usize> {
        let block = self.dtype.storage().map_or(1, |storage| storage.block_elements());
        let row_elements = self.shape.as_slice()[1..].iter().product::<usize>();
        let whole = ((row * row_elements) as u64).is_multiple_of(block);
        // Sizes within a file, which a product of theirs may go beyond.
        let (bytes, of) = (self.size_bytes as u128 * row as u128, of as u128);
        (whole && bytes.is_multiple_of(of)).then_some((bytes / of) as usize)
    }
}

#[cfg(test)]
mod tests;
