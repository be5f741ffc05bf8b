//! Linear layers: which kernel multiplies what, and the workspace that this takes.
//!
//! Up to [`FEW_ROWS`] rows: `linear_few.cu`, in f32. More of them exactly: `linear_exact.cu`, in
//! f32. Otherwise on tensor cores:
//!
//! - with weights in f16 as f16: the activations become so in the workspace, with a factor for each
//!   row;
//! - with all others as bf16, which activations are already where all that reads them would round
//!   them so ([`reads`]), and become in the workspace otherwise. Where there is no bf16, before
//!   capability 8.0, they become f16 on their way into shared memory, by factors that are found
//!   first (`linear_scaled.cu`).
//!
//! Quantised weights are multiplied as bytes, with activations that become so too, unless the GPU
//! is one for which that does not pay (`bytes`).
//!
//! Weights of 16 bits are multiplied as they are (`linear_half.cu`), or by cuBLASLt where it is
//! (`library`). From capability 8.0 on others become so first where there are many rows
//! (`decoded`), and else on their way (`linear_decoded.cu`).
//!
//! Invariant of our own kernels: an element's arithmetic depends on the summed dimension, on the
//! weight's storage, and on whether there are few rows; not on how many rows and columns are
//! computed with it, nor on whether the activations were rounded before. cuBLASLt chooses by the
//! whole shape: a layer that is split by rows of its weight may then differ from the whole one in
//! the last bits. Twice the same is the same with either.

mod bytes;
mod decoded;
mod library;
mod tiles;

use protocol::{Bytes, StorageType};

use self::bytes::ByteParts;
use self::decoded::DecodedParts;
use self::tiles::{ProductTile, kernel_of_common, kernel_of_decoded, kernel_of_plain};
use super::convert::{Half, INPUTS_MAX, convert, factors, half_row_stride, input_arguments};
use super::{ValueAt, VectorArgument, count, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::kernels::{Columns, LinearShape};
use crate::graph::{Activation, ElementType};

/// Up to so many rows, reading the weights takes longer than multiplying: the limit of
/// `linear_few.cu`.
pub const FEW_ROWS: usize = 8;

/// What a part of a layer may take that is made for it in the workspace: of weights that become
/// bf16 or bytes first, and of activations that become bytes. With a width of 3072 the deepest
/// layers of a DiT, of 12288 and 15360 inputs, are two parts in bf16, and one in bytes.
pub const PART_BYTES_MAX: Bytes = Bytes::mib(57);

/// What each part of a workspace begins at a multiple of: that of arenas.
const PART_ALIGNMENT: u64 = protocol::plan::ALIGNMENT_BYTES;

/// A linear layer: `out[columns] = activation(cat(inputs) · weightᵀ + bias)`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// One to four of `[rows, features]`, each with its features, thought concatenated along these.
    pub inputs: &'a [(Address, usize)],
    /// What the elements of all inputs are: f32, or what [`reads`] says.
    pub input_element: ElementType,
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
    /// `[rows, columns.stride]`.
    pub out: ValueAt,
    /// Which columns of it are written.
    pub columns: Columns,
    /// Whether products are to be formed in f32.
    pub exact: bool,
    /// What a part may take of the workspace: at most [`PART_BYTES_MAX`].
    pub part_bytes_max: Bytes,
    /// As long as [`linear_workspace_bytes`] says.
    pub workspace: Address,
}

/// How a layer is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProductMethod {
    Few,
    Exact,
    /// On tensor cores, of operands in f16.
    F16,
    /// On tensor cores, of operands in bf16.
    BF16,
}

impl ProductMethod {
    fn of(rows: usize, in_features: usize, storage: StorageType, exact: bool) -> ProductMethod {
        // Where blocks run over the ends of rows, only the f32 kernels find them.
        let whole_rows = (in_features as u64).is_multiple_of(storage.block_elements());
        match rows {
            ..=FEW_ROWS => ProductMethod::Few,
            _ if exact || storage == StorageType::F32 || !whole_rows => ProductMethod::Exact,
            _ if storage == StorageType::F16 => ProductMethod::F16,
            _ => ProductMethod::BF16,
        }
    }
}

/// What the inputs of a layer become anyway, on every GPU: where this is bf16, they may lie so.
pub fn reads(shape: &LinearShape<'_>, storage: StorageType, exact: bool) -> ElementType {
    let in_features = shape.in_features.iter().sum();
    // Rows that lie without room between them begin where 16 bytes can be copied.
    match ProductMethod::of(shape.rows, in_features, storage, exact) {
        ProductMethod::BF16 if in_eights(shape.in_features) => ElementType::BF16,
        _ => ElementType::F32,
    }
}

/// Whether a layer is multiplied as bytes on this GPU.
pub fn multiplies_bytes(
    on: &Launcher<'_>,
    shape: &LinearShape<'_>,
    storage: StorageType,
    exact: bool,
) -> bool {
    let in_features = shape.in_features.iter().sum();
    let sides = [shape.rows, in_features, shape.out_features];
    let is_bf16 = ProductMethod::of(shape.rows, in_features, storage, exact) == ProductMethod::BF16;
    let parts = ByteParts::of(sides, in_eights(shape.in_features), storage, PART_BYTES_MAX);
    is_bf16 && parts.is_some() && bytes::pay_on(on)
}

/// Whether each input's features are a multiple of eight.
fn in_eights<'f>(in_features: impl IntoIterator<Item = &'f usize>) -> bool {
    in_features.into_iter().all(|features| features.is_multiple_of(8))
}

/// Whether a layer is best told to write its result in 16 bits: not where that would take its
/// product from cuBLASLt.
pub fn writes(
    shape: &LinearShape<'_>,
    storage: StorageType,
    exact: bool,
    after: &AfterSums,
    element: ElementType,
) -> bool {
    let in_features = shape.in_features.iter().sum();
    let way = ProductMethod::of(shape.rows, in_features, storage, exact);
    let is_library_s = matches!(way, ProductMethod::F16 | ProductMethod::BF16)
        && library::multiplies(storage, in_features);
    !is_library_s || library::writes(shape.in_features.len(), storage, after, element)
}

/// What follows a layer's sums.
#[derive(Debug, Clone, Copy)]
pub struct AfterSums {
    /// How its bias is stored, where it has one.
    pub bias: Option<StorageType>,
    /// What follows the bias.
    pub activation: Activation,
}

/// Bytes of a layer's workspace, on every GPU: where it is computed on tensor cores, its
/// activations as 16-bit floats unless they are bf16 already, and a factor for each row; otherwise
/// none. With weights in bf16, and those that become so, the bias in f32 may lie where factors do.
/// Weights that are decoded first lie behind. Where both become bytes on some GPUs, there is room
/// for these instead.
pub fn linear_workspace_bytes(
    shape: &LinearShape<'_>,
    storage: StorageType,
    exact: bool,
    input_element: ElementType,
) -> Bytes {
    let in_features = shape.in_features.iter().sum();
    match ProductMethod::of(shape.rows, in_features, storage, exact) {
        ProductMethod::Few | ProductMethod::Exact => Bytes::ZERO,
        method @ (ProductMethod::F16 | ProductMethod::BF16) => {
            let has_bias = storage == StorageType::BF16 && in_features.is_multiple_of(8);
            let (rows, columns) = (shape.rows, shape.out_features);
            let sides = [rows, in_features, columns];
            let parts = DecodedParts::of(sides, storage, PART_BYTES_MAX);
            let parts = parts.filter(|_| method == ProductMethod::BF16);
            let bias = match parts {
                Some(parts) => parts.columns(),
                None if has_bias => columns,
                None => 0,
            };
            let halves = converted_bytes(rows, in_features, input_element)
                + floats_bytes(rows.max(bias))
                + parts.map_or(Bytes::ZERO, DecodedParts::bytes);
            let in_eights = in_eights(shape.in_features);
            let of_bytes = ByteParts::of(sides, in_eights, storage, PART_BYTES_MAX);
            halves.max(of_bytes.map_or(Bytes::ZERO, ByteParts::bytes))
        }
    }
}

/// Of the activations in the workspace.
fn converted_bytes(rows: usize, in_features: usize, input_element: ElementType) -> Bytes {
    match input_element {
        ElementType::BF16 => Bytes::ZERO,
        _ => halves_bytes(rows, in_features),
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
    element: u32,
    padding: u32,
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
    x: [Address; INPUTS_MAX],
    factors: Address,
    weight: Address,
    row_bytes: i64,
    features: [u32; INPUTS_MAX],
    begins: [u32; INPUTS_MAX - 1],
    depth: u32,
}

/// Activations as tensor cores take them.
#[derive(Debug, Clone, Copy)]
struct Halves<'a> {
    /// Of `[rows, features]` each, with their features, which are multiples of eight; more in all
    /// than the layer's where zeros follow those of each row.
    inputs: &'a [(Address, usize)],
    /// `[rows]` of f32, what rows of products are multiplied by; or [`Address::NONE`].
    factors: Address,
}

/// Computes a linear layer.
///
/// # Panics
/// If there are no rows, no or more than four inputs, columns beyond the output's, or inputs that
/// the layer does not read.
pub fn linear(on: &Launcher<'_>, layer: &Linear<'_>) -> Result<(), DriverError> {
    let Linear { inputs, rows, out_features, columns, .. } = *layer;
    assert!((1..=INPUTS_MAX).contains(&inputs.len()), "{} inputs", inputs.len());
    assert!(rows > 0 && out_features > 0, "{rows} rows, {out_features} columns");
    assert!(columns.from + out_features <= columns.stride, "columns beyond {}", columns.stride);
    let way = ProductMethod::of(rows, layer.in_features(), layer.weight.storage, layer.exact);
    let element = layer.input_element;
    let is_read = match element {
        ElementType::F32 => true,
        ElementType::BF16 => way == ProductMethod::BF16 && layer.in_eights(),
        ElementType::F16 | ElementType::I32 => false,
    };
    assert!(is_read, "inputs of {element:?} by {}", layer.weight.storage);
    match way {
        ProductMethod::Few => layer.few(on),
        ProductMethod::Exact => layer.exactly(on),
        ProductMethod::F16 => layer.as_f16(on),
        ProductMethod::BF16 => layer.as_bf16(on),
    }
}

impl Linear<'_> {
    fn in_features(&self) -> usize {
        self.inputs.iter().map(|input| input.1).sum()
    }

    /// Whether each input's features are a multiple of eight.
    fn in_eights(&self) -> bool {
        in_eights(self.inputs.iter().map(|(_, features)| features))
    }

    /// The layer of `count` of its columns, from `from` on. Rows of the weight are whole blocks.
    fn of_columns(&self, from: usize, count: usize) -> Self {
        let behind = |rows: StoredWeight, elements: usize| StoredWeight {
            address: rows.address.offset(rows.storage.bytes(elements as u64).0),
            ..rows
        };
        Linear {
            weight: behind(self.weight, from * self.in_features()),
            out_features: count,
            bias: self.bias.map(|bias| behind(bias, from)),
            columns: Columns { from: self.columns.from + from, ..self.columns },
            ..*self
        }
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
            ProductTile::Large => (kernel_of_plain!("linear_exact", storage, "_large"), 256),
            ProductTile::Small => (kernel_of_plain!("linear_exact", storage, "_small"), 64),
        };
        let grid = tile.grid(self.rows, self.out_features);
        on.launch(kernel, grid, [threads, 1, 1], 0, &self.f32_arguments())
    }

    fn as_f16(&self, on: &Launcher<'_>) -> Result<(), DriverError> {
        let depth = self.in_features();
        let x = Halves {
            inputs: &[(self.workspace, half_row_stride(depth))],
            factors: self.behind_converted(),
        };
        convert(on, self.workspace, self.inputs, self.rows, Half::F16 { factors: x.factors })?;
        if library::linear(on, self, &x)? {
            return Ok(());
        }
        let copied = on.capability() >= (8, 0) && depth.is_multiple_of(8);
        let kernel = match (copied, self.tile(on)) {
            (true, ProductTile::Large) => ("linear_half_f16_large", 128),
            (true, ProductTile::Small) => ("linear_half_f16_small", 128),
            (false, ProductTile::Large) => ("linear_decoded_f16_large", 256),
            (false, ProductTile::Small) => ("linear_decoded_f16_small", 128),
        };
        self.multiply(on, &x, kernel)
    }

    fn as_bf16(&self, on: &Launcher<'_>) -> Result<(), DriverError> {
        let depth = self.in_features();
        let storage = self.weight.storage;
        let sides = [self.rows, depth, self.out_features];
        let of_bytes = ByteParts::of(sides, self.in_eights(), storage, self.part_bytes_max);
        if let Some(parts) = of_bytes.filter(|_| bytes::pay_on(on)) {
            return bytes::linear(on, self, parts);
        }
        let converted = [(self.workspace, half_row_stride(depth))];
        let inputs = if self.input_element == ElementType::BF16 {
            self.inputs
        } else {
            convert(on, self.workspace, self.inputs, self.rows, Half::BF16)?;
            &converted[..]
        };
        if on.capability() < (8, 0) {
            let x = Halves { inputs, factors: self.behind_converted() };
            factors(on, x.factors, inputs, self.rows)?;
            let kernel = match self.tile(on) {
                ProductTile::Large => (kernel_of_decoded!("linear_scaled", storage, "_large"), 256),
                ProductTile::Small => (kernel_of_decoded!("linear_scaled", storage, "_small"), 128),
            };
            return self.multiply(on, &x, kernel);
        }
        if let Some(parts) = DecodedParts::of(sides, storage, self.part_bytes_max) {
            return decoded::linear(on, self, inputs, parts);
        }
        let x = Halves { inputs, factors: Address::NONE };
        if library::linear(on, self, &x)? {
            return Ok(());
        }
        let copied = storage == StorageType::BF16 && depth.is_multiple_of(8);
        let kernel = match (copied, self.tile(on)) {
            (true, ProductTile::Large) => ("linear_half_bf16_large", 128),
            (true, ProductTile::Small) => ("linear_half_bf16_small", 128),
            (false, ProductTile::Large) => {
                (kernel_of_decoded!("linear_decoded", storage, "_large"), 256)
            }
            (false, ProductTile::Small) => {
                (kernel_of_decoded!("linear_decoded", storage, "_small"), 128)
            }
        };
        self.multiply(on, &x, kernel)
    }

    /// Starts a kernel of our own for tensor cores, with so many threads in a block.
    fn multiply(
        &self,
        on: &Launcher<'_>,
        x: &Halves<'_>,
        (kernel, threads): (&'static str, u32),
    ) -> Result<(), DriverError> {
        let depth = self.in_features();
        let (addresses, features) = input_arguments(x.inputs);
        let mut begins = [i32::MAX as u32; INPUTS_MAX - 1];
        for (index, begin) in begins.iter_mut().enumerate().take(x.inputs.len() - 1) {
            *begin = features[..=index].iter().sum();
        }
        let arguments = HalfArguments {
            to: self.out_argument(),
            x: addresses,
            factors: x.factors,
            weight: self.weight.address,
            row_bytes: self.weight.storage.bytes(depth as u64).0 as i64,
            features,
            begins,
            depth: count(depth),
        };
        let grid = self.tile(on).grid(self.rows, self.out_features);
        on.launch(kernel, grid, [threads, 1, 1], 0, &arguments)
    }

    fn after_sums(&self) -> AfterSums {
        AfterSums { bias: self.bias.map(|bias| bias.storage), activation: self.activation }
    }

    /// What lies behind the converted activations: factors of rows, or the bias in f32.
    fn behind_converted(&self) -> Address {
        let converted = converted_bytes(self.rows, self.in_features(), self.input_element);
        self.workspace.offset(converted.0)
    }

    fn tile(&self, on: &Launcher<'_>) -> ProductTile {
        ProductTile::of(self.rows, self.out_features, on.multiprocessors())
    }

    fn f32_arguments(&self) -> F32Arguments {
        let (inputs, features) = input_arguments(self.inputs);
        F32Arguments {
            to: self.out_argument(),
            inputs,
            weight: self.weight.address,
            features,
            depth: count(self.in_features()),
            padding: 0,
        }
    }

    fn out_argument(&self) -> OutArgument {
        OutArgument {
            out: self.out.address,
            stride: self.columns.stride as i64,
            bias: self.bias.map_or(VectorArgument::NONE, VectorArgument::of),
            rows: count(self.rows),
            columns: count(self.out_features),
            from: count(self.columns.from),
            scale: self.weight.scale,
            activation: activation_kind(self.activation),
            storage: self.weight.storage as u32,
            element: element_kind(self.out.element),
            padding: 0,
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
