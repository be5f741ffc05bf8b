//! Numbers in another form: rows of f32 as 16-bit floats for tensor cores, and factors of rows
//! (`convert.cu`), weights as f32 (`decode.cu`).

use super::norm::whole_row_launch;
use super::{THREADS, blocks_for, count, kernel_of};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use protocol::StorageType;

/// Inputs of a product, at most: `CONVERT_INPUTS` of `convert.cu`.
pub const INPUTS_MAX: usize = 4;

/// Elements from one converted row to the next: the next multiple of eight, so that each begins at
/// a multiple of 16 bytes.
pub fn half_row_stride(features: usize) -> usize {
    features.next_multiple_of(8)
}

/// What converted rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// binary16, each row times a power of two of its own; what products have to be multiplied by,
    /// one f32 a row, goes here.
    F16 {
        /// `[rows]` of f32.
        factors: Address,
    },
    /// bfloat16.
    BF16,
}

/// Inputs, each with its features, as kernels take them: those that are not there have no address
/// and no features.
///
/// # Panics
/// If there are more than [`INPUTS_MAX`].
pub(super) fn input_arguments(
    inputs: &[(Address, usize)],
) -> ([Address; INPUTS_MAX], [u32; INPUTS_MAX]) {
    assert!(inputs.len() <= INPUTS_MAX, "{} inputs", inputs.len());
    let (mut addresses, mut all_features) = ([Address::NONE; INPUTS_MAX], [0; INPUTS_MAX]);
    for (index, &(input, features)) in inputs.iter().enumerate() {
        addresses[index] = input;
        all_features[index] = count(features);
    }
    (addresses, all_features)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct ConvertArguments {
    out: Address,
    factors: Address,
    inputs: [Address; INPUTS_MAX],
    features: [u32; INPUTS_MAX],
    rows: u32,
    stride: u32,
}

/// The inputs, each `[rows, its features]` of f32, side by side as one matrix of 16-bit floats at
/// `out`: `[rows, stride]` with the [`half_row_stride`] of all features, and zeros behind them.
///
/// # Panics
/// If there are more than [`INPUTS_MAX`] inputs.
pub fn convert(
    on: &Launcher<'_>,
    out: Address,
    inputs: &[(Address, usize)],
    rows: usize,
    to: Half,
) -> Result<(), DriverError> {
    let stride = count(half_row_stride(inputs.iter().map(|input| input.1).sum()));
    let (inputs, features) = input_arguments(inputs);
    let (kernel, factors) = match to {
        Half::F16 { factors } => ("convert_f16", factors),
        Half::BF16 => ("convert_bf16", Address::NONE),
    };
    let arguments = ConvertArguments { out, factors, inputs, features, rows: count(rows), stride };
    let (grid, block) = whole_row_launch(arguments.rows, stride);
    on.launch(kernel, grid, block, 0, &arguments)
}

/// `FactorsArgs` of `convert.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct FactorsArguments {
    factors: Address,
    inputs: [Address; INPUTS_MAX],
    features: [u32; INPUTS_MAX],
    rows: u32,
    padding: u32,
}

/// What [`convert`] to f16 would write as factors of rows of several inputs, each `[rows, its
/// features]` of bf16, to `out`, `[rows]` of f32. Only for GPUs without products of bf16, before
/// capability 8.0.
///
/// # Panics
/// If there are more than [`INPUTS_MAX`] inputs, or features that are no multiple of eight.
pub fn factors(
    on: &Launcher<'_>,
    out: Address,
    inputs: &[(Address, usize)],
    rows: usize,
) -> Result<(), DriverError> {
    for &(_, features) in inputs {
        assert!(features.is_multiple_of(8), "{features} features are not read in eights");
    }
    let (inputs, features) = input_arguments(inputs);
    let arguments =
        FactorsArguments { factors: out, inputs, features, rows: count(rows), padding: 0 };
    let (grid, block) = whole_row_launch(arguments.rows, features.iter().sum());
    on.launch("factors_bf16", grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct DecodeArguments {
    weight: Address,
    out: Address,
    elements: i64,
    scale: f32,
    padding: u32,
}

/// A weight's elements as f32, as the host decodes them: `out` `[elements]`.
pub fn decode(
    on: &Launcher<'_>,
    out: Address,
    weight: StoredWeight,
    elements: usize,
) -> Result<(), DriverError> {
    /// Elements that a thread decodes together: `GROUP` of `plain.cuh`.
    const GROUP: u64 = 8;
    let arguments = DecodeArguments {
        weight: weight.address,
        out,
        elements: elements as i64,
        scale: weight.scale,
        padding: 0,
    };
    let grid = blocks_for((elements as u64).div_ceil(GROUP));
    on.launch(kernel_of!("decode", weight.storage), grid, [THREADS, 1, 1], 0, &arguments)
}
