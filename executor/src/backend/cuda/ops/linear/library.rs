//! Products of halves by cuBLASLt, and what is left to do with its sums.
//!
//! Where its epilogue can do all that follows the sums, it does: a scale, a bias and GELU's
//! approximation by tanh, for bf16 operands, which need no factor for each row. It takes a bias in
//! the result's type; one that is stored otherwise becomes so in the workspace. Otherwise the
//! library writes plain sums, and `linear_finish.cu` does the rest in their place.
//!
//! Several inputs are as many products, each added to those before it. That is done in f32, as is
//! all that `linear_finish.cu` reads: results in bf16 are the library's where one product makes
//! them whole, and those in f16 never.

use protocol::StorageType;

use super::{AfterSums, Halves, Linear, OutArgument};
use crate::backend::cuda::cublas::{Epilogue, ProductOperands, Shape};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::cuda::ops::convert::{Half, convert, decode};
use crate::backend::cuda::ops::{THREADS, count};
use crate::graph::{Activation, ElementType};

/// What the address of a bias is a multiple of, in bytes, for the epilogue to read it in vectors.
const BIAS_ALIGNMENT: u64 = 16;

/// `LinearFinishArgs` of `linear_finish.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct FinishArguments {
    to: OutArgument,
    factors: Address,
}

/// Whether the library multiplies with weights of a type and depth.
pub(super) fn multiplies(storage: StorageType, depth: usize) -> bool {
    // Rows that begin at multiples of 16 bytes, without which tensor cores are fed slowly or not at
    // all.
    matches!(storage, StorageType::BF16 | StorageType::F16) && depth.is_multiple_of(8)
}

/// Whether its products of so many inputs are written in an element type.
pub(super) fn writes(
    inputs: usize,
    storage: StorageType,
    after: &AfterSums,
    element: ElementType,
) -> bool {
    match element {
        ElementType::F32 => true,
        ElementType::BF16 => {
            let bias = after.bias.is_none_or(becomes_bf16);
            inputs == 1 && bias && is_whole(storage, after.activation)
        }
        ElementType::F16 | ElementType::I32 => false,
    }
}

/// Whether a bias that is stored so is bf16, or is made so for a result in bf16: as it is in GGUF,
/// whose matrices are in blocks.
fn becomes_bf16(bias: StorageType) -> bool {
    matches!(bias, StorageType::BF16 | StorageType::F32)
}

/// Whether the epilogue does all that follows the sums.
fn is_whole(storage: StorageType, activation: Activation) -> bool {
    storage == StorageType::BF16 && matches!(activation, Activation::None | Activation::GeluTanh)
}

/// Computes a layer of these activations; `false` where a kernel of our own has to.
pub(super) fn linear(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    x: &Halves<'_>,
) -> Result<bool, DriverError> {
    let Some(parts) = InputProducts::of(layer, x) else {
        return Ok(false);
    };
    let library_for = |shape: &Shape, operands: &ProductOperands| {
        // SAFETY: a layer's operands have its sizes, and live until the stream has computed it:
        // what launches rely on too. What it will write is of no use before.
        unsafe { on.library_for(shape, operands) }
    };
    for index in 0..x.inputs.len() {
        let (shape, operands) = parts.at(index);
        if library_for(&shape, &operands)?.is_none() {
            return Ok(false);
        }
    }
    if let (true, None, Some(bias)) = (parts.epilogue.bias, parts.bias, layer.bias) {
        let (at, features) = (layer.behind_converted(), layer.out_features);
        match layer.out.element {
            ElementType::BF16 => convert(on, at, &[(bias.address, features)], 1, Half::BF16)?,
            _ => decode(on, at, bias, features)?,
        }
    }
    for index in 0..x.inputs.len() {
        let (shape, operands) = parts.at(index);
        let Some(library) = library_for(&shape, &operands)? else {
            return Ok(false);
        };
        // SAFETY: as above.
        if !unsafe { on.multiply(library, &shape, &operands)? } {
            return Ok(false);
        }
    }
    if parts.is_whole { Ok(true) } else { finish(on, layer, x).map(|()| true) }
}

/// The library's products of a layer, one for each input.
struct InputProducts<'a> {
    layer: &'a Linear<'a>,
    x: &'a Halves<'a>,
    /// Whether the epilogue does all that follows the sums.
    is_whole: bool,
    /// Of the last product.
    epilogue: Epilogue,
    /// The bias, where it is stored as the epilogue takes it; else it is in the workspace.
    bias: Option<StoredWeight>,
}

impl<'a> InputProducts<'a> {
    fn of(layer: &'a Linear<'a>, x: &'a Halves<'a>) -> Option<InputProducts<'a>> {
        let storage = layer.weight.storage;
        let after = layer.after_sums();
        let element = layer.out.element;
        let can = multiplies(storage, layer.in_features())
            && writes(x.inputs.len(), storage, &after, element);
        if !can {
            return None;
        }
        let is_whole = is_whole(storage, after.activation);
        let taken = match element {
            ElementType::BF16 => StorageType::BF16,
            _ => StorageType::F32,
        };
        let bias = layer.bias.filter(|bias| {
            let aligned = bias.address.0.is_multiple_of(BIAS_ALIGNMENT);
            bias.storage == taken && bias.scale == 1.0 && aligned
        });
        // What is rounded for the epilogue is f32 as it is stored.
        let is_rounded = |bias: StoredWeight| bias.storage == StorageType::F32 && bias.scale == 1.0;
        let is_taken = bias.is_some() || layer.bias.is_none_or(is_rounded);
        if element == ElementType::BF16 && !is_taken {
            return None;
        }
        let by_tanh = after.activation == Activation::GeluTanh;
        let epilogue =
            Epilogue { bias: is_whole && layer.bias.is_some(), gelu: is_whole && by_tanh };
        Some(InputProducts { layer, x, is_whole, epilogue, bias })
    }

    /// The product of an input.
    fn at(&self, index: usize) -> (Shape, ProductOperands) {
        let InputProducts { layer, x, is_whole, .. } = *self;
        let before: usize = x.inputs[..index].iter().map(|input| input.1).sum();
        let is_last = index + 1 == x.inputs.len();
        let out_bytes = layer.out.element.bytes();
        let operands = ProductOperands {
            weight: layer.weight.address.offset(2 * before as u64),
            x: x.inputs[index].0,
            out: layer.out.address.offset(out_bytes * layer.columns.from as u64),
            bias: self.bias.map_or_else(|| layer.behind_converted(), |bias| bias.address),
            factor: if is_whole { layer.weight.scale } else { 1.0 },
            adds: index > 0,
        };
        let shape = Shape {
            bf16: layer.weight.storage == StorageType::BF16,
            bf16_result: layer.out.element == ElementType::BF16,
            rows: layer.rows,
            columns: layer.out_features,
            depth: x.inputs[index].1,
            weight_stride: layer.in_features(),
            stride: layer.columns.stride,
            epilogue: if is_last { self.epilogue } else { Epilogue::default() },
            alignments: operands.alignments(),
        };
        (shape, operands)
    }
}

/// Starts what is left to do once the sums are written.
fn finish(on: &Launcher<'_>, layer: &Linear<'_>, x: &Halves<'_>) -> Result<(), DriverError> {
    /// Rows that a thread of `linear_finish.cu` takes at a time.
    const ROWS: usize = 8;
    /// Blocks below each other, at most, which is enough for any GPU; each takes more rows where
    /// there are more.
    const DOWN_MAX: usize = 1024;
    let across = count(layer.out_features).div_ceil(THREADS);
    let down = count(layer.rows.div_ceil(ROWS).min(DOWN_MAX));
    let arguments = FinishArguments { to: layer.out_argument(), factors: x.factors };
    on.launch("linear_finish", [across, down, 1], [THREADS, 1, 1], 0, &arguments)
}
