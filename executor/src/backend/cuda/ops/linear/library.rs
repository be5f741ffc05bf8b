//! Products of halves by cuBLASLt, and what is left to do with its sums.
//!
//! Where its epilogue can do all that follows the sums, it does: a scale, a bias and GELU's approximation by tanh, for bf16
//! operands, which need no factor for each row. A bias that is not stored as the epilogue takes it becomes f32 in the workspace.
//! Otherwise the library writes plain sums, and `linear_finish.cu` does the rest in their place.

use protocol::StorageType;

use super::{Linear, OutArgument, halves_bytes};
use crate::backend::cuda::cublas::{Epilogue, Operands, Shape};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::cuda::ops::convert::{Half, decode};
use crate::backend::cuda::ops::{THREADS, count};
use crate::graph::Activation;

/// What the address of a bias in f32 is a multiple of, in bytes, for the epilogue to read it in fours.
const BIAS_ALIGNMENT: u64 = 16;

/// `LinearFinishArgs` of `linear_finish.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct FinishArguments {
    to: OutArgument,
    factors: Address,
}

/// Computes a layer whose activations lie converted in its workspace; `false` where a kernel of our own has to.
pub(super) fn linear(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    converted: Half,
) -> Result<bool, DriverError> {
    let depth = layer.in_features();
    let bf16 = match (layer.weight.storage, converted) {
        (StorageType::BF16, Half::BF16) => true,
        (StorageType::F16, Half::F16 { .. }) => false,
        _ => return Ok(false),
    };
    // Rows that begin at multiples of 16 bytes, without which tensor cores are fed slowly or not at all.
    if !depth.is_multiple_of(8) {
        return Ok(false);
    }
    let whole = bf16 && matches!(layer.activation, Activation::None | Activation::GeluTanh);
    let epilogue = Epilogue {
        bias: whole && layer.bias.is_some(),
        gelu: whole && layer.activation == Activation::GeluTanh,
    };
    let stored = layer.bias.filter(is_as_the_epilogue_takes_it);
    let operands = Operands {
        weight: layer.weight.address,
        x: layer.workspace,
        out: layer.out.offset(4 * layer.columns.from as u64),
        bias: stored.map_or_else(|| layer.behind_halves(), |bias| bias.address),
        factor: if whole { layer.weight.scale } else { 1.0 },
    };
    let shape = Shape {
        bf16,
        rows: layer.rows,
        columns: layer.out_features,
        depth,
        stride: layer.columns.stride,
        epilogue,
        alignments: operands.alignments(),
    };
    let Some(library) = on.library_for(&shape, &operands)? else {
        return Ok(false);
    };
    if let (true, None, Some(bias)) = (epilogue.bias, stored, layer.bias) {
        decode(on, operands.bias, bias, layer.out_features)?;
    }
    // SAFETY: a layer's operands have its sizes, and live until the stream has computed it: what launches rely on too.
    if !unsafe { on.multiply(library, &shape, &operands)? } {
        return Ok(false);
    }
    if whole { Ok(true) } else { finish(on, layer, converted).map(|()| true) }
}

fn is_as_the_epilogue_takes_it(bias: &StoredWeight) -> bool {
    let aligned = bias.address.0.is_multiple_of(BIAS_ALIGNMENT);
    bias.storage == StorageType::F32 && bias.scale == 1.0 && aligned
}

/// Starts what is left to do once the sums are written.
fn finish(on: &Launcher<'_>, layer: &Linear<'_>, converted: Half) -> Result<(), DriverError> {
    /// Rows that a thread of `linear_finish.cu` takes at a time.
    const ROWS: usize = 8;
    /// Blocks below each other, at most, which is enough for any GPU; each takes more rows where there are more.
    const DOWN_MAX: usize = 1024;
    let factors = match converted {
        Half::F16 { factors } => factors,
        Half::BF16 => Address::NONE,
    };
    let across = count(layer.out_features).div_ceil(THREADS);
    let down = count(layer.rows.div_ceil(ROWS).min(DOWN_MAX));
    let arguments = FinishArguments { to: layer.out_argument(), factors };
    on.launch("linear_finish", [across, down, 1], [THREADS, 1, 1], 0, &arguments)
}

impl Linear<'_> {
    /// What lies behind the converted activations: factors of rows, or the bias in f32.
    pub(super) fn behind_halves(&self) -> Address {
        self.workspace.offset(halves_bytes(self.rows, self.in_features()).0)
    }
}
