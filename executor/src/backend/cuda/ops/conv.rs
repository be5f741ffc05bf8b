//! Convolutions: weights and norm brought to the order in which tiles read them, then one kernel
//! for all of a picture.
//!
//! The workspace holds the norm's moments with a factor and a summand of each channel, and the
//! packed weights; weights in blocks are decoded there first. Kernels: `conv_*.cu`; what a block
//! computes stands in `conv.cuh`.

mod tiling;

use bytemuck::NoUninit;
use protocol::{Bytes, StorageType};

use self::tiling::{PIXELS, Tiling};
use super::convert::decode;
use super::norm::group::{group_moments, group_norm_workspace_bytes};
use super::pieces::Pieces;
use super::{Products, ValueAt, VectorArgument, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::kernels::ConvShape;
use crate::graph::ElementType;

/// Threads of a block of every convolution kernel.
const THREADS: usize = 256;

/// Pixels whose results go through the workspace where they stand in the input's place: enough for
/// a block on each multiprocessor of a small GPU. Each further pass has at least twice as many.
const FIRST_PIXELS: usize = 32 * PIXELS;

/// What a convolution reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct ConvOperands {
    /// `[batch, height, width, in_channels]`: f32, or with products of halves 16 bits.
    pub input: ValueAt,
    /// Scale and shift of the input's normalisation, `[in_channels]` each, if the shape has one.
    pub norm: Option<[StoredWeight; 2]>,
    /// `[out_channels, in_channels, kernel, kernel]`, of any storage type.
    pub weight: StoredWeight,
    /// `[out_channels]`.
    pub bias: StoredWeight,
    /// What the result is added to, where the shape says so: f32 in the shape of `out`, which it
    /// may be if that is f32.
    pub added: Option<Address>,
    /// `[batch, output_height, output_width, out_channels]`: f32, or with products of halves 16
    /// bits.
    pub out: ValueAt,
}

impl ConvOperands {
    fn check(&self, shape: &ConvShape, products: Products) {
        assert_eq!(self.norm.is_some(), shape.norm.is_some(), "norm");
        assert_eq!(self.added.is_some(), shape.accumulate, "what is added");
        let short = |value: ValueAt| value.element != ElementType::F32;
        let are_short = short(self.input) || short(self.out);
        assert!(products == Products::Half || !are_short, "exact products are of f32 in memory");
        assert!(!short(self.out) || self.added != Some(self.out.address), "f32 is overwritten");
    }
}

/// What may hold input `index` of a convolution's node, of which the last is convolved and the
/// first, if there are two, is what the result is added to.
///
/// Products of halves round what is convolved to f16 in any case, without a norm just as it is, but
/// f16 does not hold numbers as large as a VAE has before a norm; bf16 does.
pub fn reads(shape: &ConvShape, products: Products, index: usize) -> ElementType {
    let is_added = shape.accumulate && index == 0;
    if products == Products::Half && !is_added { ElementType::BF16 } else { ElementType::F32 }
}

/// Where a workspace's pieces begin, in bytes from its beginning.
struct Pieced {
    /// Of the group norm's kernels, the moments first.
    moments: u64,
    /// A factor and a summand of each channel, f32 `[batch, in_channels, 2]`.
    factors: u64,
    /// Weights as f32.
    decoded: u64,
    packed: u64,
    /// The first results of [`narrow`].
    first: u64,
    bytes: u64,
}

impl Pieced {
    fn of(shape: &ConvShape, storage: StorageType, products: Products, narrow: bool) -> Pieced {
        let tiling = Tiling::of(shape, products);
        let norm = shape.group_norm();
        let mut pieces = Pieces::default();
        let moments = norm.as_ref().map_or(0, |norm| group_norm_workspace_bytes(norm) as u64);
        let moments = pieces.take(moments);
        let factors = norm.map_or(0, |_| 8 * (shape.batch * shape.in_channels) as u64);
        let factors = pieces.take(factors);
        let elements = if storage.is_blocks() { weight_elements(shape) } else { 0 };
        let decoded = pieces.take(4 * elements as u64);
        let packed = pieces.take(tiling.packed_bytes());
        let pixels = if narrow { FIRST_PIXELS.min(pixels_of(shape)) } else { 0 };
        let first = pieces.take(4 * (pixels * shape.out_channels) as u64);
        Pieced { moments, factors, decoded, packed, first, bytes: pieces.bytes() }
    }
}

fn weight_elements(shape: &ConvShape) -> usize {
    shape.out_channels * shape.in_channels * shape.kernel_height * shape.kernel_width
}

fn pixels_of(shape: &ConvShape) -> usize {
    shape.batch * shape.height * shape.width
}

/// What [`conv2d`] needs beside its operands, or, with `narrow`, either of it and [`narrow`].
/// `storage`: of the weights.
pub fn conv_workspace_bytes(
    shape: &ConvShape,
    storage: StorageType,
    products: Products,
    narrow: bool,
) -> Bytes {
    Bytes(Pieced::of(shape, storage, products, narrow).bytes)
}

/// `out = conv(norm(input), weight) + bias`, plus `added` where the shape accumulates, with zeros
/// outside the normalised input. Kernels are 1 × 1 or 3 × 3, of the latter with a stride of 1 or 2,
/// and zeros as wide above as to the left. `workspace`: [`conv_workspace_bytes`], at a multiple of
/// 256.
///
/// A pixel's result depends on the input under its kernel and the moments alone, not on where in
/// the picture it is.
pub fn conv2d(
    on: &Launcher<'_>,
    shape: &ConvShape,
    products: Products,
    operands: &ConvOperands,
    workspace: Address,
) -> Result<(), DriverError> {
    operands.check(shape, products);
    let pieced = Pieced::of(shape, operands.weight.storage, products, false);
    let call = ConvRun::prepare(on, shape, products, operands, workspace, &pieced)?;
    let ConvOperands { input, out, .. } = operands;
    call.convolve(&Tiling::of(shape, products), input.address, out.address)
}

/// Whether [`narrow`] writes f32 in the place of an input of such elements: where a result has at
/// most half the bytes of a pixel's input, or as many and one block computes all of them.
pub fn narrows(shape: &ConvShape, products: Products, input: ElementType) -> bool {
    match bytes_of_pixel(shape, input) {
        [inner, outer] if inner == outer => Tiling::of(shape, products).out_tiles() == 1,
        [inner, outer] => 2 * outer <= inner,
    }
}

/// Bytes of a pixel's input and of its result in f32.
fn bytes_of_pixel(shape: &ConvShape, input: ElementType) -> [usize; 2] {
    [input.bytes() as usize * shape.in_channels, 4 * shape.out_channels]
}

/// As [`conv2d`] of single pixels, without a norm, to f32; `out` is where `input` is, and
/// [`narrows`] says that it may be. What follows the result is left in no particular state.
/// `workspace`: [`conv_workspace_bytes`] with `narrow`.
///
/// Where a result takes the very place of its pixel's input, a block has read all of that before it
/// writes. Else the first pixels go through the workspace. Then the results of some pixels only
/// overwrite inputs of pixels before them, which are done with: each pass takes as many pixels as
/// fit there.
pub fn narrow(
    on: &Launcher<'_>,
    shape: &ConvShape,
    products: Products,
    operands: &ConvOperands,
    workspace: Address,
) -> Result<(), DriverError> {
    operands.check(shape, products);
    let ConvOperands { input, out, .. } = operands;
    assert!(narrows(shape, products, input.element), "the result does not fit before the input");
    assert_eq!(input.address, out.address, "the result stands in the input's place");
    assert_eq!(out.element, ElementType::F32, "the result is f32");
    assert!(shape.norm.is_none() && !shape.accumulate, "single pixels, and nothing else");
    let pieced = Pieced::of(shape, operands.weight.storage, products, true);
    let call = ConvRun::prepare(on, shape, products, operands, workspace, &pieced)?;
    let pixels = pixels_of(shape);
    let [inner, outer] = bytes_of_pixel(shape, input.element);
    if inner == outer {
        let tiling = Tiling::of_pixels(shape, products, pixels);
        return call.convolve(&tiling, input.address, out.address);
    }
    let at = |pixel: usize, bytes: usize| input.address.offset((pixel * bytes) as u64);
    let first = FIRST_PIXELS.min(pixels);
    let (aside, bytes) = (workspace.offset(pieced.first), first * outer);
    call.convolve(&Tiling::of_pixels(shape, products, first), input.address, aside)?;
    // SAFETY: the caller gives both for the time of the operation: the workspace, and its result's
    // place, of which the copy comes after the pass that read there.
    unsafe { on.copy(out.address, aside, bytes)? };
    let mut done = first;
    while done < pixels {
        // Results up to pixel `end · inner / outer` lie before the input of pixel `end`.
        let end = pixels.min(done * inner / outer);
        let tiling = Tiling::of_pixels(shape, products, end - done);
        call.convolve(&tiling, at(done, inner), at(done, outer))?;
        done = end;
    }
    Ok(())
}

/// A convolution whose weights and norm are prepared.
struct ConvRun<'a> {
    on: &'a Launcher<'a>,
    shape: &'a ConvShape,
    operands: &'a ConvOperands,
    /// Factors and summands, or none.
    norm: Address,
    packed: Address,
}

impl<'a> ConvRun<'a> {
    fn prepare(
        on: &'a Launcher<'a>,
        shape: &'a ConvShape,
        products: Products,
        operands: &'a ConvOperands,
        workspace: Address,
        pieced: &Pieced,
    ) -> Result<ConvRun<'a>, DriverError> {
        let mut norm = Address::NONE;
        if let Some(scale_and_shift) = operands.norm {
            norm = workspace.offset(pieced.factors);
            let moments = workspace.offset(pieced.moments);
            prepare_norm(on, shape, operands.input, scale_and_shift, moments, norm)?;
        }
        let mut weight = operands.weight;
        if weight.storage.is_blocks() {
            let address = workspace.offset(pieced.decoded);
            decode(on, address, weight, weight_elements(shape))?;
            weight = StoredWeight { address, storage: StorageType::F32, scale: 1.0 };
        }
        let packed = workspace.offset(pieced.packed);
        pack(on, shape, &Tiling::of(shape, products), products, weight, packed)?;
        Ok(ConvRun { on, shape, operands, norm, packed })
    }

    fn convolve(&self, tiling: &Tiling, input: Address, out: Address) -> Result<(), DriverError> {
        let shape = self.shape;
        let args = ConvArguments {
            input,
            weights: self.packed,
            norm: self.norm,
            added: self.operands.added.unwrap_or(Address::NONE),
            out,
            bias: VectorArgument::of(self.operands.bias),
            height: count(tiling.height),
            width: count(tiling.width),
            in_channels: count(shape.in_channels),
            out_channels: count(shape.out_channels),
            out_height: count(tiling.out_height),
            out_width: count(tiling.out_width),
            tile_rows: count(tiling.tile_rows()),
            tile_columns: count(tiling.tile_columns()),
            out_tiles: count(tiling.out_tiles()),
            stride: count(shape.stride),
            pad: count(shape.pad_top),
            upsample: u32::from(shape.upsample == 2),
            silu: u32::from(shape.norm.is_some_and(|norm| norm.silu)),
            input_kind: element_kind(self.operands.input.element),
            out_kind: element_kind(self.operands.out.element),
            unused: 0,
        };
        let grid = [count(tiling.blocks()), 1, 1];
        self.on.launch(tiling.kernel, grid, [THREADS as u32, 1, 1], 0, &args)
    }
}

/// Brings the moments of the input to a factor and a summand of each channel.
fn prepare_norm(
    on: &Launcher<'_>,
    shape: &ConvShape,
    input: ValueAt,
    [scale, shift]: [StoredWeight; 2],
    moments: Address,
    target: Address,
) -> Result<(), DriverError> {
    let group_norm = shape.group_norm().expect("the shape has a norm");
    group_moments(on, input, &group_norm, moments)?;
    let args = NormArguments {
        moments,
        target,
        scale: VectorArgument::of(scale),
        shift: VectorArgument::of(shift),
        batch: count(shape.batch),
        channels: count(shape.in_channels),
        groups: count(group_norm.groups),
        unused: 0,
    };
    let blocks = (shape.batch * shape.in_channels).div_ceil(THREADS);
    on.launch("conv_norm", [count(blocks), 1, 1], [THREADS as u32, 1, 1], 0, &args)
}

/// Brings weights without blocks to the order of tiles.
fn pack(
    on: &Launcher<'_>,
    shape: &ConvShape,
    tiling: &Tiling,
    products: Products,
    weight: StoredWeight,
    target: Address,
) -> Result<(), DriverError> {
    let args = PackFilterArguments {
        weights: VectorArgument::of(weight),
        target,
        out_channels: count(shape.out_channels),
        in_channels: count(shape.in_channels),
        taps: count(shape.kernel_height * shape.kernel_width),
        out_rows: count(tiling.out_rows()),
        channels: count(tiling.chunk_channels),
        chunks: count(tiling.chunks()),
    };
    let kernel = match products {
        Products::Exact => "conv_pack_exact",
        Products::Half => "conv_pack_half",
    };
    let threads = tiling.out_rows() * tiling.chunks() * tiling.chunk_channels;
    let grid = [count(threads.div_ceil(THREADS)), 1, 1];
    on.launch(kernel, grid, [THREADS as u32, 1, 1], 0, &args)
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct ConvArguments {
    input: Address,
    weights: Address,
    norm: Address,
    added: Address,
    out: Address,
    bias: VectorArgument,
    height: u32,
    width: u32,
    in_channels: u32,
    out_channels: u32,
    out_height: u32,
    out_width: u32,
    tile_rows: u32,
    tile_columns: u32,
    out_tiles: u32,
    stride: u32,
    pad: u32,
    upsample: u32,
    silu: u32,
    input_kind: u32,
    out_kind: u32,
    unused: u32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct PackFilterArguments {
    weights: VectorArgument,
    target: Address,
    out_channels: u32,
    in_channels: u32,
    taps: u32,
    out_rows: u32,
    channels: u32,
    chunks: u32,
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct NormArguments {
    moments: Address,
    target: Address,
    scale: VectorArgument,
    shift: VectorArgument,
    batch: u32,
    channels: u32,
    groups: u32,
    unused: u32,
}
