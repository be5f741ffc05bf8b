//! One low-rank change to some rows of one weight.

use crate::weights::TensorRef;

/// A change that a file asks for, with everything checked.
#[derive(Debug, Clone)]
pub(super) struct Adapter {
    /// The file, among the opened ones.
    pub file: usize,
    /// Its name in that file.
    pub module: String,
    /// The weight that is changed, by its name in the checkpoint.
    pub weight: String,
    /// The first row that is changed.
    pub first_row: usize,
    /// The rows that are changed, in the checkpoint: `[rows, in]`.
    pub base: TensorRef,
    /// The factor that reads the input, in the LoRA file: `[rank, in]`.
    pub a: TensorRef,
    /// The factor that writes those rows, in the LoRA file: `[rows, rank]`.
    pub b: TensorRef,
    /// Whether the file has more rows in B than these.
    pub part_of_b: bool,
    /// Factor of the product: α/r times the user's weight.
    pub scale: f64,
}

impl Adapter {
    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    pub fn rows(&self) -> usize {
        self.base.shape()[0]
    }
}

/// A low-rank product beside a linear layer `y`:
/// `y[.., first_row..first_row + rows] += scale · (x · Aᵀ) · Bᵀ`.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearAdapter {
    /// Name of A `[rank, in]` among the component's weights.
    pub a: String,
    /// Name of B `[rows, rank]` among the component's weights.
    pub b: String,
    /// How many features there are between the two factors.
    pub rank: usize,
    /// First feature of `y` that is added to: a row of the layer's weight.
    pub first_row: usize,
    /// Number of features that are added to.
    pub rows: usize,
    /// Factor of the product.
    pub scale: f32,
}
