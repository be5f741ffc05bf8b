//! Whole tokens: looked up in stored tables, joined and cut; biases by distance, and sinusoids of
//! times: `tables.cu` and `tokens.cu`.

use protocol::StorageType;

use super::elementwise::{TokenShape, row_launch};
use super::{THREADS, ValueAt, blocks_for, count, kernel_of};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};

/// `StoredTable` of `tables.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct TableArgument {
    bytes: Address,
    scale: f32,
    padding: u32,
}

impl TableArgument {
    fn of(table: StoredWeight) -> TableArgument {
        TableArgument { bytes: table.address, scale: table.scale, padding: 0 }
    }
}

/// Features of a table that a thread decodes together: `GROUP` of `plain.cuh`.
const GROUP: u32 = 8;

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct EmbeddingArguments {
    out: Address,
    ids: Address,
    table: TableArgument,
    rows: u32,
    features: u32,
}

/// `out[i] = table[ids[i]]`: `out` `[ids, features]`, the table `[entries, features]`, ids of 32
/// bits, each below the entries.
pub fn embedding(
    on: &Launcher<'_>,
    out: Address,
    ids: Address,
    table: StoredWeight,
    rows: usize,
    features: usize,
) -> Result<(), DriverError> {
    let (rows, features) = (count(rows), count(features));
    let arguments =
        EmbeddingArguments { out, ids, table: TableArgument::of(table), rows, features };
    let (grid, block) = row_launch(rows, features, GROUP);
    on.launch(kernel_of!("embedding", table.storage), grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct AddPositionsArguments {
    out: Address,
    x: Address,
    table: TableArgument,
    rows: u32,
    tokens: u32,
    features: u32,
    padding: u32,
}

/// `out[i, token] = x[i, token] + table[token]`; `out` may be `x`. The table has `[tokens or more,
/// features]`.
pub fn add_positions(
    on: &Launcher<'_>,
    out: Address,
    x: Address,
    shape: TokenShape,
    table: StoredWeight,
) -> Result<(), DriverError> {
    let arguments = AddPositionsArguments {
        out,
        x,
        table: TableArgument::of(table),
        rows: shape.rows(),
        tokens: count(shape.tokens),
        features: count(shape.features),
        padding: 0,
    };
    let (grid, block) = row_launch(arguments.rows, arguments.features, GROUP);
    on.launch(kernel_of!("add_positions", table.storage), grid, block, 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct RelativePositionBiasArguments {
    out: Address,
    table: TableArgument,
    tokens: u32,
    heads: u32,
    buckets: u32,
    range: f32,
}

/// The bias of each distance between tokens, as the host's `relative_position_bias`: `out`
/// `[heads, 2 · tokens - 1]`, the table `[buckets, heads]`.
pub fn relative_position_bias(
    on: &Launcher<'_>,
    out: Address,
    table: StoredWeight,
    [buckets, heads]: [usize; 2],
    tokens: usize,
    max_distance: usize,
) -> Result<(), DriverError> {
    assert!(tokens > 0 && buckets >= 4 && max_distance > buckets / 4, "no logarithmic buckets");
    let exact = buckets / 4;
    let arguments = RelativePositionBiasArguments {
        out,
        table: TableArgument::of(table),
        tokens: count(tokens),
        heads: count(heads),
        buckets: count(buckets),
        range: (max_distance as f64 / exact as f64).ln() as f32,
    };
    let offsets = 2 * arguments.tokens - 1;
    let grid = [offsets.div_ceil(THREADS), arguments.heads, 1];
    let kernel = kernel_of!("relative_position_bias", table.storage);
    on.launch(kernel, grid, [THREADS, 1, 1], 0, &arguments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct CopySpansArguments {
    out: Address,
    input: Address,
    span: i64,
    out_stride: i64,
    input_stride: i64,
}

/// Copies `spans` runs of `span` bytes, `strides` apart at both ends. All are of whole elements.
fn copy_spans(
    on: &Launcher<'_>,
    [out, input]: [Address; 2],
    spans: usize,
    span: u64,
    [out_stride, input_stride]: [u64; 2],
) -> Result<(), DriverError> {
    /// Bytes that a thread copies together, where all begins at multiples of it.
    const PIECE: u64 = 16;
    let arguments = CopySpansArguments {
        out,
        input,
        span: span as i64,
        out_stride: out_stride as i64,
        input_stride: input_stride as i64,
    };
    let [blocks, ..] = blocks_for(span / PIECE);
    on.launch("copy_spans", [blocks, count(spans), 1], [THREADS, 1, 1], 0, &arguments)
}

/// `out[i] = cat(a[i], b[i])` along the tokens: `out` `[batch, a_tokens + b_tokens, features]`. All
/// are of the same element, any one.
pub fn concat_tokens(
    on: &Launcher<'_>,
    out: ValueAt,
    [a, b]: [Address; 2],
    [a_tokens, b_tokens]: [usize; 2],
    batch: usize,
    features: usize,
) -> Result<(), DriverError> {
    let token = out.element.bytes() * features as u64;
    let [a_span, b_span] = [a_tokens as u64 * token, b_tokens as u64 * token];
    let whole = a_span + b_span;
    copy_spans(on, [out.address, a], batch, a_span, [whole, a_span])?;
    copy_spans(on, [out.address.offset(a_span), b], batch, b_span, [whole, b_span])
}

/// `out[i] = x[i, from..from + count]`: `x` of `shape`, `out` `[batch, count, features]`, both of
/// the same element, any one.
pub fn slice_tokens(
    on: &Launcher<'_>,
    out: ValueAt,
    x: Address,
    shape: TokenShape,
    from: usize,
    taken: usize,
) -> Result<(), DriverError> {
    let TokenShape { batch, tokens, features } = shape;
    assert!(from + taken <= tokens, "slice outside the tokens");
    let token = out.element.bytes() * features as u64;
    let first = x.offset(from as u64 * token);
    let span = taken as u64 * token;
    copy_spans(on, [out.address, first], batch, span, [span, tokens as u64 * token])
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct SinusoidArguments {
    out: Address,
    times: Address,
    batch: u32,
    features: u32,
    exponent: f32,
    scale: f32,
}

/// `out[i] = [cos(scale · (t[i] · freq))..., sin(scale · (t[i] · freq))...]` with `freq =
/// 10000^(-j / (features / 2))`: `t` `[batch]`, `out` `[batch, features]`.
pub fn sinusoid(
    on: &Launcher<'_>,
    out: Address,
    times: Address,
    scale: f32,
    [batch, features]: [usize; 2],
) -> Result<(), DriverError> {
    /// The longest period over the shortest, from the original transformer.
    const PERIODS: f64 = 10_000.0;
    assert!(features.is_multiple_of(2) && features > 0, "cosines and sines come in pairs");
    let arguments = SinusoidArguments {
        out,
        times,
        batch: count(batch),
        features: count(features),
        exponent: -(PERIODS.ln() as f32),
        scale,
    };
    let pairs = count(batch * features / 2);
    on.launch("sinusoid", [pairs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0, &arguments)
}
