//! Sizes of a component, read from the shapes of its tensors: for files that come without a
//! configuration.

use super::ModelError;
use super::config::LAYERS_MAX;
use crate::weights::{WeightFiles, WeightsError};

/// The shapes of a component's tensors.
pub struct Shapes<'a> {
    files: &'a WeightFiles,
}

impl<'a> Shapes<'a> {
    /// Those of these files.
    pub fn of(files: &'a WeightFiles) -> Shapes<'a> {
        Shapes { files }
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.files.tensor(name).is_some()
    }

    /// The dimensions of a tensor, outermost first.
    ///
    /// # Errors
    /// The tensor is not there, or has another number of dimensions.
    pub fn sizes<const N: usize>(&self, name: &str) -> Result<[usize; N], ModelError> {
        let Some(tensor) = self.files.tensor(name) else {
            return Err(self.files.missing(name).into());
        };
        tensor.shape.try_into().map_err(|_| {
            ModelError::Weights(WeightsError::WrongRank {
                path: self.files.origin().to_owned(),
                tensor: self.files.own_name(name),
                expected: N,
                got: tensor.shape.to_vec(),
            })
        })
    }

    /// How many of the tensors that are numbered from 0 are there, without a gap; one more than the
    /// limit stands for any number beyond it.
    pub fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..=LAYERS_MAX).take_while(|&number| self.has(&name(number))).count()
    }
}
