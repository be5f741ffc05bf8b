//! Rotary positions of heads whose halves are rotated against each other: `rope_halves.cu`.

use super::elementwise::{TokenShape, rotate, row_launch};
use super::{ValueAt, count};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher};

/// Rotates each feature of a head's first half with the one of its second half by `table`,
/// `[tokens, head_dim / 2, 2]` of cosine and sine. `x`, `out`: `[batch, tokens, heads × head_dim]`.
/// `out`, of any element, may be `x` where it is of f32 too.
pub fn rope_halves(
    on: &Launcher<'_>,
    out: ValueAt,
    inputs: [Address; 2],
    shape: TokenShape,
    heads: usize,
) -> Result<(), DriverError> {
    // A thread takes one pair at a time: neighbouring threads take neighbours of both halves.
    let launch = row_launch(shape.rows(), count(shape.features) / 2, 1);
    rotate(on, "rope_halves", launch, out, inputs, shape, heads)
}
