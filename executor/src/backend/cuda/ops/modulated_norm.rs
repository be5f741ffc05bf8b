//! Normalisations whose weight is modulated, and sums with what they make: `modulated_norm.cu`.

use super::elementwise::{ChunksAt, TokenShape};
use super::norm::whole_row_launch;
use super::{ValueAt, VectorArgument, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};

/// What a normalised row is multiplied with.
#[derive(Debug, Clone, Copy)]
pub struct FactorsAt {
    /// The weight, `[features]`.
    pub weight: Option<StoredWeight>,
    /// The chunks of which this one scales or gates.
    pub modulation: Option<(ChunksAt, usize)>,
}

impl FactorsAt {
    fn weight(&self) -> VectorArgument {
        self.weight.map_or(VectorArgument::NONE, VectorArgument::of)
    }

    /// The chunk of the first sequence, and the elements from one sequence's to the next one's.
    fn chunk(&self, features: usize) -> (Address, i64) {
        self.modulation.map_or((Address::NONE, 0), |(chunks, chunk)| {
            (chunks.chunk(chunk, features), chunks.stride(features))
        })
    }
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct ScaledNormArguments {
    out: Address,
    x: Address,
    weight: VectorArgument,
    scale: Address,
    stride: i64,
    rows: u32,
    tokens: u32,
    features: u32,
    eps: f32,
    element: u32,
    padding: u32,
}

/// Each token of `x`, normalised, times weight and (1 + scale): by its root mean square where there
/// is a weight, else to mean 0 and variance 1. `out`, of any element, may be `x` where it is of f32
/// too.
///
/// # Panics
/// If nothing scales.
pub fn scaled_norm(
    on: &Launcher<'_>,
    out: ValueAt,
    x: Address,
    shape: TokenShape,
    by: FactorsAt,
    eps: f32,
) -> Result<(), DriverError> {
    assert!(by.modulation.is_some(), "a chunk scales");
    let (scale, stride) = by.chunk(shape.features);
    let arguments = ScaledNormArguments {
        out: out.address,
        x,
        weight: by.weight(),
        scale,
        stride,
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        eps,
        element: element_kind(out.element),
        padding: 0,
    };
    let kernel = if by.weight.is_some() { "scaled_rms_norm" } else { "scaled_layer_norm" };
    let (grid, block) = whole_row_launch(arguments.rows, arguments.features);
    on.launch(kernel, grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct GatedNormAddArguments {
    out: Address,
    x: Address,
    y: Address,
    weight: VectorArgument,
    gate: Address,
    stride: i64,
    rows: u32,
    tokens: u32,
    features: u32,
    eps: f32,
}

/// `out = x + gate × norm(y)`: each token of `y` divided by its root mean square, times the weight;
/// the gate is the hyperbolic tangent of a chunk, or 1. `out` may be `x`.
pub fn gated_norm_add(
    on: &Launcher<'_>,
    out: Address,
    [x, y]: [Address; 2],
    shape: TokenShape,
    by: FactorsAt,
    eps: f32,
) -> Result<(), DriverError> {
    let (gate, stride) = by.chunk(shape.features);
    let arguments = GatedNormAddArguments {
        out,
        x,
        y,
        weight: by.weight(),
        gate,
        stride,
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        eps,
    };
    let (grid, block) = whole_row_launch(arguments.rows, arguments.features);
    on.launch("gated_norm_add", grid, block, 0, &arguments)
}
