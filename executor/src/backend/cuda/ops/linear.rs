//! Linear layers: which kernel multiplies what, and the workspace that this takes.
//!
//! Up to [`FEW_ROWS`] rows: `linear_few.cu`, in f32. More of them exactly: `linear_exact.cu`, in f32. Otherwise on tensor cores: the
//! activations become 16-bit floats in the workspace, and meet weights of 16 bits as they are (`linear_half.cu`) or others, which
//! become f16 on their way (`linear_decoded.cu`). Weights of 16 bits are multiplied by cuBLASLt where it is (`library`).
//!
//! Invariant of our own kernels: an element's arithmetic depends on the summed dimension, on the weight's storage, and on whether
//! there are few rows; not on how many rows and columns are computed with it. cuBLASLt chooses by the whole shape: a layer that is
//! split by rows of its weight may then differ from the whole one in the last bits. Twice the same is the same with either.

mod library;
mod tiles;

use protocol::{Bytes, StorageType};

use self::tiles::{Tile, kernel_of_common, kernel_of_decoded, kernel_of_plain};
use super::convert::{Half, INPUTS_MAX, convert, half_row_stride};
use super::{VectorArgument, count};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::kernels::{Columns, LinearShape};
use crate::graph::Activation;

/// Up to so many rows, reading the weights takes longer than multiplying: the limit of `linear_few.cu`.
pub const FEW_ROWS: usize = 8;

/// What each part of a workspace begins at a multiple of: that of arenas.
const PART_ALIGNMENT: u64 = protocol::plan::ALIGNMENT_BYTES;

/// A linear layer: `out[columns] = activation(cat(inputs) · weightᵀ + bias)`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// One to four of `[rows, features]`, each with its features, thought concatenated along these.
    pub inputs: &'a [(Address, usize)],
    /// Rows of the inputs and of the result.
    pub rows: usize,
    /// `[out_features, in_features]`.
    pub weight: StoredWeight,
    /// Rows of the weight.
    pub out_features: usize,
    /// `[out_features]`, of a type without blocks.
    pub bias: Option<StoredWeight>,
    /// What follows the bias.
    pub activation: Activation,
    /// `[rows, columns.stride]` of f32.
    pub out: Address,
    /// Which columns of it are written.
    pub columns: Columns,
    /// Whether products are to be formed in f32.
    pub exact: bool,
    /// As long as [`linear_workspace_bytes`] says.
    pub workspace: Address,
}

/// How a layer is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Few,
    Exact,
    Half,
}

impl Way {
    fn of(rows: usize, in_features: usize, storage: StorageType, exact: bool) -> Way {
        // Where blocks run over the ends of rows, only the f32 kernels find them.
        let whole_rows = (in_features as u64).is_multiple_of(storage.block_elements());
        match rows {
            ..=FEW_ROWS => Way::Few,
            _ if exact || storage == StorageType::F32 || !whole_rows => Way::Exact,
            _ => Way::Half,
        }
    }
}

/// Bytes of a layer's workspace, on every GPU: its activations as 16-bit floats and a factor for each row, where it is computed on
/// tensor cores; otherwise none. With weights in bf16 the bias in f32 may lie where factors do.
pub fn linear_workspace_bytes(shape: &LinearShape<'_>, storage: StorageType, exact: bool) -> Bytes {
    let in_features = shape.in_features.iter().sum();
    match Way::of(shape.rows, in_features, storage, exact) {
        Way::Few | Way::Exact => Bytes::ZERO,
        Way::Half => {
            let has_bias = storage == StorageType::BF16 && in_features.is_multiple_of(8);
            let bias = if has_bias { shape.out_features } else { 0 };
            halves_bytes(shape.rows, in_features) + floats_bytes(shape.rows.max(bias))
        }
    }
}

fn halves_bytes(rows: usize, in_features: usize) -> Bytes {
    Bytes(2 * (rows * half_row_stride(in_features)) as u64).align_up(PART_ALIGNMENT)
}

fn floats_bytes(count: usize) -> Bytes {
    Bytes(4 * count as u64).align_up(PART_ALIGNMENT)
}

/// `LinearOut` of `linear.cuh`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct OutArgument {
    out: Address,
    stride: i64,
    bias: VectorArgument,
    rows: u32,
    columns: u32,
    from: u32,
    scale: f32,
    activation: u32,
    storage: u32,
}

/// `LinearF32Args` of `linear_f32.cuh`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct F32Arguments {
    to: OutArgument,
    inputs: [Address; INPUTS_MAX],
    weight: Address,
    features: [u32; INPUTS_MAX],
    depth: u32,
    padding: u32,
}

/// `LinearHalfArgs` of `half_tile.cuh`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct HalfArguments {
    to: OutArgument,
    x: Address,
    factors: Address,
    weight: Address,
    x_stride: i64,
    row_bytes: i64,
    depth: u32,
    padding: u32,
}

/// Computes a linear layer.
///
/// # Panics
/// If there are no rows, no or more than four inputs, or columns beyond the output's.
pub fn linear(on: &Launcher<'_>, layer: &Linear<'_>) -> Result<(), DriverError> {
    let Linear { inputs, rows, out_features, columns, .. } = *layer;
    assert!((1..=INPUTS_MAX).contains(&inputs.len()), "{} inputs", inputs.len());
    assert!(rows > 0 && out_features > 0, "{rows} rows, {out_features} columns");
    assert!(columns.from + out_features <= columns.stride, "columns beyond {}", columns.stride);
    match Way::of(rows, layer.in_features(), layer.weight.storage, layer.exact) {
        Way::Few => layer.few(on),
        Way::Exact => layer.exactly(on),
        Way::Half => layer.half(on),
    }
}

impl Linear<'_> {
    fn in_features(&self) -> usize {
        self.inputs.iter().map(|input| input.1).sum()
    }

    fn few(&self, on: &Launcher<'_>) -> Result<(), DriverError> {
        /// Columns and threads of a block of `linear_few.cu`.
        const COLUMNS: u32 = 8;
        const THREADS: u32 = 128;
        let arguments = self.f32_arguments();
        let grid = [arguments.to.columns.div_ceil(COLUMNS), 1, 1];
        let storage = self.weight.storage;
        let kernel = if self.rows == 1 {
            kernel_of_common!("linear_few", storage, "_one")
        } else {
            kernel_of_common!("linear_few", storage, "_eight")
        };
        on.launch(kernel, grid, [THREADS, 1, 1], 0, &arguments)
    }

    fn exactly(&self, on: &Launcher<'_>) -> Result<(), DriverError> {
        let tile = self.tile(on);
        let storage = self.weight.storage;
        let (kernel, threads) = match tile {
            Tile::Large => (kernel_of_plain!("linear_exact", storage, "_large"), 256),
            Tile::Small => (kernel_of_plain!("linear_exact", storage, "_small"), 64),
        };
        let grid = tile.grid(self.rows, self.out_features);
        on.launch(kernel, grid, [threads, 1, 1], 0, &self.f32_arguments())
    }

    fn half(&self, on: &Launcher<'_>) -> Result<(), DriverError> {
        let StoredWeight { storage, .. } = self.weight;
        let depth = self.in_features();
        // What asynchronous copies of 16 bytes need: a GPU that has them, and rows that begin where they can.
        let as_stored = on.capability() >= (8, 0) && depth.is_multiple_of(8);
        let tile = self.tile(on);
        let (to, kernel, threads) = match (as_stored, storage, tile) {
            (true, StorageType::BF16, Tile::Large) => (Half::BF16, "linear_half_bf16_large", 128),
            (true, StorageType::BF16, Tile::Small) => (Half::BF16, "linear_half_bf16_small", 128),
            (true, StorageType::F16, Tile::Large) => (self.f16(), "linear_half_f16_large", 128),
            (true, StorageType::F16, Tile::Small) => (self.f16(), "linear_half_f16_small", 128),
            (_, _, Tile::Large) => (self.f16(), kernel_of_decoded!(storage, "_large"), 256),
            (_, _, Tile::Small) => (self.f16(), kernel_of_decoded!(storage, "_small"), 128),
        };
        convert(on, self.workspace, self.inputs, self.rows, to)?;
        if library::linear(on, self, to)? {
            return Ok(());
        }
        let arguments = HalfArguments {
            to: self.out_argument(),
            x: self.workspace,
            factors: match to {
                Half::F16 { factors } => factors,
                Half::BF16 => Address::NONE,
            },
            weight: self.weight.address,
            x_stride: half_row_stride(depth) as i64,
            row_bytes: storage.bytes(depth as u64).0 as i64,
            depth: count(depth),
            padding: 0,
        };
        let grid = tile.grid(self.rows, self.out_features);
        on.launch(kernel, grid, [threads, 1, 1], 0, &arguments)
    }

    /// f16 activations, with their factors behind them.
    fn f16(&self) -> Half {
        Half::F16 { factors: self.behind_halves() }
    }

    fn tile(&self, on: &Launcher<'_>) -> Tile {
        Tile::of(self.rows, self.out_features, on.multiprocessors())
    }

    fn f32_arguments(&self) -> F32Arguments {
        let mut arguments = F32Arguments {
            to: self.out_argument(),
            inputs: [Address::NONE; INPUTS_MAX],
            weight: self.weight.address,
            features: [0; INPUTS_MAX],
            depth: count(self.in_features()),
            padding: 0,
        };
        for (index, &(input, features)) in self.inputs.iter().enumerate() {
            arguments.inputs[index] = input;
            arguments.features[index] = count(features);
        }
        arguments
    }

    fn out_argument(&self) -> OutArgument {
        OutArgument {
            out: self.out,
            stride: self.columns.stride as i64,
            bias: self.bias.map_or(VectorArgument::NONE, VectorArgument::of),
            rows: count(self.rows),
            columns: count(self.out_features),
            from: count(self.columns.from),
            scale: self.weight.scale,
            activation: activation_kind(self.activation),
            storage: self.weight.storage as u32,
        }
    }
}

/// `ActivationKind` of `activation.cuh`.
fn activation_kind(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
        Activation::GeluErf => 3,
        Activation::QuickGelu => 4,
    }
}
