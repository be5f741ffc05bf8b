//! Operations on each element, and on each row by something of its token: `elementwise.cu` and
//! `token_rows.cu`.

use super::{THREADS, ValueAt, blocks_for, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher};
use crate::graph::{Activation, Value};

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct ElementwiseArguments {
    out: Address,
    x: Address,
    y: Address,
    elements: i64,
}

/// `out = x + y`, all `[elements]`; `out` may be `x`.
pub fn add(
    on: &Launcher<'_>,
    out: Address,
    [x, y]: [Address; 2],
    elements: usize,
) -> Result<(), DriverError> {
    elementwise(on, "add", out, [x, y], elements)
}

/// `out = x × y`, all `[elements]`; `out` may be `x`.
pub fn mul(
    on: &Launcher<'_>,
    out: Address,
    [x, y]: [Address; 2],
    elements: usize,
) -> Result<(), DriverError> {
    elementwise(on, "mul", out, [x, y], elements)
}

/// `out = activation(x)`, both `[elements]`; `out` may be `x`.
///
/// # Panics
/// If there is no activation: that is a copy, or nothing.
pub fn activate(
    on: &Launcher<'_>,
    out: Address,
    x: Address,
    elements: usize,
    activation: Activation,
) -> Result<(), DriverError> {
    let kernel = match activation {
        Activation::None => panic!("no activation"),
        Activation::Silu => "activate_silu",
        Activation::GeluTanh => "activate_gelu_tanh",
        Activation::GeluErf => "activate_gelu_erf",
        Activation::QuickGelu => "activate_quick_gelu",
    };
    elementwise(on, kernel, out, [x, Address::NONE], elements)
}

fn elementwise(
    on: &Launcher<'_>,
    kernel: &'static str,
    out: Address,
    [x, y]: [Address; 2],
    elements: usize,
) -> Result<(), DriverError> {
    let arguments = ElementwiseArguments { out, x, y, elements: elements as i64 };
    on.launch(kernel, blocks_for(elements as u64 / 4), [THREADS, 1, 1], 0, &arguments)
}

/// Grid and block for rows of whose features a thread takes `each` neighbours at a time.
pub(super) fn row_launch(rows: u32, features: u32, each: u32) -> ([u32; 3], [u32; 3]) {
    let of_row = features.div_ceil(each).next_power_of_two().min(THREADS);
    let rows_of_block = THREADS / of_row;
    ([rows.div_ceil(rows_of_block), 1, 1], [of_row, rows_of_block, 1])
}

/// The shape of what belongs to tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenShape {
    /// How many sequences.
    pub batch: usize,
    /// Of each sequence.
    pub tokens: usize,
    /// Of each token.
    pub features: usize,
}

impl TokenShape {
    /// A value as `[batch, tokens, features]`.
    pub fn of(value: &Value) -> TokenShape {
        let batch = value.shape[0];
        TokenShape { batch, tokens: value.rows() / batch, features: value.features() }
    }

    /// Tokens of all sequences.
    pub(super) fn rows(&self) -> u32 {
        count(self.batch * self.tokens)
    }
}

/// Chunks of a block's conditioning vector, `[batch, chunks × features]`.
#[derive(Debug, Clone, Copy)]
pub struct ChunksAt {
    /// The first number.
    pub address: Address,
    /// How many chunks each sequence has.
    pub chunks: usize,
}

impl ChunksAt {
    /// Chunk `index` of the first sequence.
    pub(super) fn chunk(&self, index: usize, features: usize) -> Address {
        assert!(index < self.chunks, "chunk {index} of {}", self.chunks);
        self.address.offset(4 * (index * features) as u64)
    }

    /// Elements from one sequence's chunks to the next one's.
    pub(super) fn stride(&self, features: usize) -> i64 {
        (self.chunks * features) as i64
    }
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct GatedAddArguments {
    out: Address,
    x: Address,
    y: Address,
    gate: Address,
    gate_stride: i64,
    rows: u32,
    tokens: u32,
    features: u32,
    padding: u32,
}

/// `out = x + gate × y`: `out`, `x`, `y` `[batch, tokens, features]`, the gate a chunk of each
/// sequence; `out` may be `x`.
pub fn gated_add(
    on: &Launcher<'_>,
    out: Address,
    [x, y]: [Address; 2],
    shape: TokenShape,
    modulation: ChunksAt,
    gate_chunk: usize,
) -> Result<(), DriverError> {
    let arguments = GatedAddArguments {
        out,
        x,
        y,
        gate: modulation.chunk(gate_chunk, shape.features),
        gate_stride: modulation.stride(shape.features),
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        padding: 0,
    };
    let (grid, block) = row_launch(arguments.rows, arguments.features, 4);
    on.launch("gated_add", grid, block, 0, &arguments)
}

/// What of a row's features is added to, by [`scaled_add`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledPart {
    /// Features of `x` and the result.
    pub features: usize,
    /// The first that is added to.
    pub first_feature: usize,
    /// How many of them `y` has in a row.
    pub y_features: usize,
    /// The factor of `y`.
    pub scale: f32,
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct ScaledAddArguments {
    out: Address,
    x: Address,
    y: Address,
    rows: u32,
    features: u32,
    first_feature: u32,
    y_features: u32,
    scale: f32,
    padding: u32,
}

/// `out = x + scale × y`, where `y` `[rows, y_features]` is added to as many features of `x`
/// `[rows, features]`; `out` may be `x`.
pub fn scaled_add(
    on: &Launcher<'_>,
    out: Address,
    [x, y]: [Address; 2],
    rows: usize,
    part: ScaledPart,
) -> Result<(), DriverError> {
    let ScaledPart { features, first_feature, y_features, scale } = part;
    assert!(first_feature + y_features <= features, "{part:?}");
    let arguments = ScaledAddArguments {
        out,
        x,
        y,
        rows: count(rows),
        features: count(features),
        first_feature: count(first_feature),
        y_features: count(y_features),
        scale,
        padding: 0,
    };
    let (grid, block) = row_launch(arguments.rows, arguments.features, 4);
    on.launch("scaled_add", grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct RopeArguments {
    out: Address,
    x: Address,
    table: Address,
    rows: u32,
    tokens: u32,
    features: u32,
    head_dim: u32,
    element: u32,
    padding: u32,
}

/// Rotates neighbouring features of each head by `table`, `[tokens, head_dim / 2, 2]` of cosine and
/// sine. `x`, `out`: `[batch, tokens, heads × head_dim]`. `out`, of any element, may be `x` where
/// it is of f32 too.
pub fn rope(
    on: &Launcher<'_>,
    out: ValueAt,
    inputs: [Address; 2],
    shape: TokenShape,
    heads: usize,
) -> Result<(), DriverError> {
    let launch = row_launch(shape.rows(), count(shape.features), 4);
    rotate(on, "rope", launch, out, inputs, shape, heads)
}

/// Rotates pairs of features of each head by one of the kernels with [`RopeArguments`], in a grid
/// and blocks of its own.
pub(super) fn rotate(
    on: &Launcher<'_>,
    kernel: &'static str,
    (grid, block): ([u32; 3], [u32; 3]),
    out: ValueAt,
    [x, table]: [Address; 2],
    shape: TokenShape,
    heads: usize,
) -> Result<(), DriverError> {
    let head_dim = shape.features / heads;
    assert!(head_dim.is_multiple_of(2), "features are rotated in pairs");
    let arguments = RopeArguments {
        out: out.address,
        x,
        table,
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        head_dim: count(head_dim),
        element: element_kind(out.element),
        padding: 0,
    };
    on.launch(kernel, grid, block, 0, &arguments)
}
