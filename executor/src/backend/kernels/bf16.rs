//! Linear layers with operands in bf16, where the processor multiplies [tiles](super::tiles) of it:
//! over weights in bf16, which are [in f32](super::matmul) elsewhere, and with AMX over quantised
//! ones, which are [of bytes](super::integer) elsewhere. Activations are rounded, and so are
//! decoded weights.
//!
//! Invariants: an element is the sum of its products along the depth in order, in f32, by steps of
//! 32 from the beginning of each input; how rows, columns and the depth are cut into panels changes
//! nothing. A plan's bytes do not depend on the processor: scratch is what the others take.

#[cfg(target_arch = "x86_64")]
mod decode;
#[cfg(target_arch = "x86_64")]
mod edge;
#[cfg(target_arch = "x86_64")]
mod panel;
#[cfg(target_arch = "x86_64")]
mod rounding;
#[cfg(target_arch = "x86_64")]
mod rows;
#[cfg(target_arch = "x86_64")]
mod strip;
#[cfg(target_arch = "x86_64")]
mod tiled;

use super::grid::aligned_len;
use super::matmul::{Columns, FEW_ROWS, LinearOperands, linear};
use super::workers::Workers;
use crate::graph::Activation;
use crate::weights::view::WeightView;

#[cfg(target_arch = "x86_64")]
pub(super) use rounding::round_rows;

/// The least scratch of a worker that multiplies tiles: of a strip and a sliver, 32 deep. Each is
/// two tiles, and the first begins at a 64-byte border.
pub(super) const TILES_LEN_MIN: usize = aligned_len(2 * 2 * 256);

/// As [`linear`], for a weight in bf16. Where the processor multiplies bf16, more than
/// [`FEW_ROWS`](protocol::limits::FEW_ROWS) rows of activations are rounded to it, to 8 bits each;
/// sums are formed in f32. `scratch`: [`linear_scratch_len`](super::matmul::linear_scratch_len).
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn bf16_linear(
    workers: &Workers,
    inputs: &[&[f32]],
    weight: WeightView<'_>,
    bias: Option<WeightView<'_>>,
    activation: Activation,
    out: &mut [f32],
    columns: Columns,
    scratch: &mut [f32],
) {
    assert_eq!(weight.storage, protocol::StorageType::BF16);
    let operands = LinearOperands::new(inputs, weight, bias, activation, out.len(), columns);
    if weight.scale == 1.0 && multiply_in_tiles(workers, &operands, out, scratch) {
        return;
    }
    linear(workers, inputs, weight, bias, activation, out, columns, scratch);
}

/// Forms products in tiles if the processor multiplies bf16 and there are more than
/// [`FEW_ROWS`](protocol::limits::FEW_ROWS); says whether it did. Each worker needs
/// [`TILES_LEN_MIN`] elements of scratch with AMX, else as many as [`linear`]; it is faster with
/// more.
pub(super) fn multiply_in_tiles(
    workers: &Workers,
    operands: &LinearOperands<'_>,
    out: &mut [f32],
    scratch: &mut [f32],
) -> bool {
    let is_possible = workers.isa().has_bf16_products() && operands.rows > FEW_ROWS;
    #[cfg(target_arch = "x86_64")]
    if is_possible {
        tiled::multiply(workers, operands, out, scratch);
    }
    is_possible
}

#[cfg(test)]
mod tests;
