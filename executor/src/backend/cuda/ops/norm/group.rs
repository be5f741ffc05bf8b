//! Group normalisation of pictures: `group_norm.cu`. Its moments are also what a convolution needs
//! that normalises its input.
//!
//! The workspace holds the moments, `[batch, groups]` of mean and reciprocal deviation, and behind
//! them what the chunks of pixels leave to join. Both depend on shapes alone, and so does the order
//! of all sums.

use super::super::{THREADS, ValueAt, VectorArgument, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::kernels::GroupNormShape;
use crate::graph::ElementType;

/// Bytes of a mean with a deviation.
const PAIR_BYTES: usize = 8;

/// Chunks of pixels of a picture, at most: four blocks for each multiprocessor of the largest GPUs.
const CHUNKS_MAX: usize = 512;

/// Pixels that a thread reads at once: `LUMP` of `group_norm.cu`.
const LUMP: usize = 8;

/// Threads that join a group's chunks.
const JOIN_THREADS: u32 = 128;

/// How a picture is cut for its blocks.
struct GroupNormGrid {
    /// Channels that a thread takes: four where that divides a group's, else one.
    width: usize,
    /// Columns of so many channels.
    columns: usize,
    /// Threads of a block: columns, pixels.
    block: [usize; 2],
    /// Pixels that a block goes over.
    chunk_pixels: usize,
    /// Of such.
    chunks: usize,
}

impl GroupNormGrid {
    fn of(shape: &GroupNormShape) -> GroupNormGrid {
        assert!(shape.channels.is_multiple_of(shape.groups), "channels are not whole groups");
        let width = if (shape.channels / shape.groups).is_multiple_of(4) { 4 } else { 1 };
        let columns = shape.channels / width;
        let of_block = columns.next_power_of_two().min(THREADS as usize);
        let block = [of_block, THREADS as usize / of_block];
        let least = LUMP * block[1];
        let chunk_pixels = shape.pixels.div_ceil(CHUNKS_MAX).max(least);
        let chunks = shape.pixels.div_ceil(chunk_pixels);
        GroupNormGrid { width, columns, block, chunk_pixels, chunks }
    }

    fn launch(&self, batch: usize) -> ([u32; 3], [u32; 3]) {
        let [of_block, pixels] = self.block;
        let grid = [self.chunks, self.columns.div_ceil(of_block), batch];
        (grid.map(count), [count(of_block), count(pixels), 1])
    }
}

fn moments_bytes(shape: &GroupNormShape) -> usize {
    PAIR_BYTES * shape.batch * shape.groups
}

/// Bytes of workspace for [`group_norm`], and for [`group_moments`] alone.
pub fn group_norm_workspace_bytes(shape: &GroupNormShape) -> usize {
    let cut = GroupNormGrid::of(shape);
    moments_bytes(shape) + PAIR_BYTES * shape.batch * cut.chunks * cut.columns
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct SpreadArguments {
    x: Address,
    partials: Address,
    pixels: u32,
    channels: u32,
    chunk_pixels: u32,
    columns: u32,
    kind: u32,
    padding: u32,
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct MomentsArguments {
    moments: Address,
    partials: Address,
    pixels: u32,
    chunk_pixels: u32,
    chunks: u32,
    columns: u32,
    group_columns: u32,
    column_width: u32,
    eps: f32,
    padding: u32,
}

/// Writes the moments of `x`, `[batch, pixels, channels]` of f32 or 16 bits, to the start of the
/// workspace: `[batch, groups]` of two f32, the mean, and one over the root of the variance plus
/// eps.
pub fn group_moments(
    on: &Launcher<'_>,
    x: ValueAt,
    shape: &GroupNormShape,
    workspace: Address,
) -> Result<(), DriverError> {
    let cut = GroupNormGrid::of(shape);
    let partials = workspace.offset(moments_bytes(shape) as u64);
    let spread = SpreadArguments {
        x: x.address,
        partials,
        pixels: count(shape.pixels),
        channels: count(shape.channels),
        chunk_pixels: count(cut.chunk_pixels),
        columns: count(cut.columns),
        kind: element_kind(x.element),
        padding: 0,
    };
    let (grid, block) = cut.launch(shape.batch);
    on.launch("group_norm_spread", grid, block, 0, &spread)?;
    let moments = MomentsArguments {
        moments: workspace,
        partials,
        pixels: spread.pixels,
        chunk_pixels: spread.chunk_pixels,
        chunks: count(cut.chunks),
        columns: spread.columns,
        group_columns: count(cut.columns / shape.groups),
        column_width: count(cut.width),
        eps: shape.eps,
        padding: 0,
    };
    let grid = [count(shape.groups), count(shape.batch), 1];
    on.launch("group_norm_moments", grid, [JOIN_THREADS, 1, 1], 0, &moments)
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct ApplyArguments {
    out: Address,
    x: Address,
    moments: Address,
    weight: VectorArgument,
    bias: VectorArgument,
    pixels: u32,
    channels: u32,
    chunk_pixels: u32,
    columns: u32,
    groups: u32,
    silu: u32,
}

/// Each group of channels of each picture of `x`, `[batch, pixels, channels]`, to mean 0 and
/// variance 1 over its pixels, then times `weight` plus `bias`, both `[channels]`, then through
/// SiLU if `silu`; `out` may be `x`. `workspace`: [`group_norm_workspace_bytes`].
pub fn group_norm(
    on: &Launcher<'_>,
    out: Address,
    x: Address,
    shape: &GroupNormShape,
    [weight, bias]: [StoredWeight; 2],
    silu: bool,
    workspace: Address,
) -> Result<(), DriverError> {
    group_moments(on, ValueAt { address: x, element: ElementType::F32 }, shape, workspace)?;
    let cut = GroupNormGrid::of(shape);
    let arguments = ApplyArguments {
        out,
        x,
        moments: workspace,
        weight: VectorArgument::of(weight),
        bias: VectorArgument::of(bias),
        pixels: count(shape.pixels),
        channels: count(shape.channels),
        chunk_pixels: count(cut.chunk_pixels),
        columns: count(cut.columns),
        groups: count(shape.groups),
        silu: u32::from(silu),
    };
    let (grid, block) = cut.launch(shape.batch);
    on.launch("group_norm_apply", grid, block, 0, &arguments)
}
