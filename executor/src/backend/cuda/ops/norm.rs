//! Normalisations of rows: `norm.cu`. Those of groups of channels are in `group`.

pub mod group;

use super::elementwise::{ChunksAt, TokenShape};
use super::{THREADS, ValueAt, VectorArgument, WARP, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};

/// Numbers of a row that a thread keeps in registers: four times `ROW_KEPT` of `rows.cuh`.
const KEPT: u32 = 16;

/// Threads of a block, at most, of every GPU.
const BLOCK_MAX: u32 = 1024;

/// Grid and block for rows that a warp or a block works on together, as `rows.cuh` says.
pub(super) fn whole_row_launch(rows: u32, features: u32) -> ([u32; 3], [u32; 3]) {
    let threads = features.div_ceil(KEPT).next_multiple_of(WARP).clamp(WARP, BLOCK_MAX);
    let rows_of_block = if threads == WARP { THREADS / WARP } else { 1 };
    ([rows.div_ceil(rows_of_block), 1, 1], [threads, rows_of_block, 1])
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct LayerNormArguments {
    out: Address,
    x: Address,
    weight: VectorArgument,
    bias: VectorArgument,
    rows: u32,
    features: u32,
    eps: f32,
    element: u32,
}

/// Each row of `x`, `[rows, features]`, to mean 0 and variance 1, then times the first of `affine`
/// plus the second, both `[features]`. `out`, of any element, may be `x` where it is of f32 too.
pub fn layer_norm(
    on: &Launcher<'_>,
    out: ValueAt,
    x: Address,
    [rows, features]: [usize; 2],
    eps: f32,
    [weight, bias]: [StoredWeight; 2],
) -> Result<(), DriverError> {
    let arguments = LayerNormArguments {
        out: out.address,
        x,
        weight: VectorArgument::of(weight),
        bias: VectorArgument::of(bias),
        rows: count(rows),
        features: count(features),
        eps,
        element: element_kind(out.element),
    };
    let (grid, block) = whole_row_launch(arguments.rows, arguments.features);
    on.launch("layer_norm", grid, block, 0, &arguments)
}

/// Which chunks of a modulation shift and scale.
#[derive(Debug, Clone, Copy)]
pub struct ShiftAndScale {
    /// The chunks.
    pub modulation: ChunksAt,
    /// Index of the chunk that is added.
    pub shift_chunk: usize,
    /// Index of the chunk that scales.
    pub scale_chunk: usize,
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct AdaLayerNormArguments {
    out: Address,
    x: Address,
    shift: Address,
    scale: Address,
    stride: i64,
    rows: u32,
    tokens: u32,
    features: u32,
    eps: f32,
    element: u32,
    padding: u32,
}

/// Each token of `x` to mean 0 and variance 1, then times (1 + scale) plus shift. `out`, of any
/// element, may be `x` where it is of f32 too.
pub fn ada_layer_norm(
    on: &Launcher<'_>,
    out: ValueAt,
    x: Address,
    shape: TokenShape,
    by: ShiftAndScale,
    eps: f32,
) -> Result<(), DriverError> {
    let arguments = AdaLayerNormArguments {
        out: out.address,
        x,
        shift: by.modulation.chunk(by.shift_chunk, shape.features),
        scale: by.modulation.chunk(by.scale_chunk, shape.features),
        stride: by.modulation.stride(shape.features),
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        eps,
        element: element_kind(out.element),
        padding: 0,
    };
    let (grid, block) = whole_row_launch(arguments.rows, arguments.features);
    on.launch("ada_layer_norm", grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct RmsNormArguments {
    out: Address,
    x: Address,
    weight: VectorArgument,
    rows: u32,
    features: u32,
    eps: f32,
    element: u32,
}

/// Each row of `x`, `[rows, features]`, divided by its root mean square, times `weight`,
/// `[features]`. `out`, of any element, may be `x` where it is of f32 too. For a norm of each head,
/// `features` is the size of a head.
pub fn rms_norm(
    on: &Launcher<'_>,
    out: ValueAt,
    x: Address,
    [rows, features]: [usize; 2],
    eps: f32,
    weight: StoredWeight,
) -> Result<(), DriverError> {
    let arguments = RmsNormArguments {
        out: out.address,
        x,
        weight: VectorArgument::of(weight),
        rows: count(rows),
        features: count(features),
        eps,
        element: element_kind(out.element),
    };
    let (grid, block) = whole_row_launch(arguments.rows, arguments.features);
    on.launch("rms_norm", grid, block, 0, &arguments)
}
