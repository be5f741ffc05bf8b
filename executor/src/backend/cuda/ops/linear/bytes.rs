//! Products of signed bytes: activations are quantised as on the host (`quantise.cu`), weights
//! become bytes (`decode_bytes.cu`), each 32 of either with a scale, and both are multiplied on
//! tensor cores (`linear_bytes.cu`).
//!
//! A GeForce multiplies bytes at four times the rate of 16-bit numbers with sums in f32, so that is
//! how layers whose weights [have integer products](StorageType::has_integer_products) are
//! computed, unless the GPU is [wide](is_wide). Whatever is multiplied at a time lies in the
//! workspace: some columns of the layer, and some of its rows.

use protocol::{Bytes, StorageType};

use super::tiles::grid_of;
use super::{Linear, OutArgument, PART_ALIGNMENT};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher};
use crate::backend::cuda::ops::convert::{INPUTS_MAX, input_arguments};
use crate::backend::cuda::ops::{THREADS, ValueAt, blocks_for, count, element_kind, kernel_of};

/// Numbers of a row that share a scale: `BLOCK` of `linear_bytes.cu`.
const BLOCK: usize = 32;

/// Numbers that a thread takes at a time: `GROUP` of `plain.cuh`.
const GROUP: usize = 8;

/// Parts end where tiles do, which have 64, 96 or 128 rows or columns.
const PART_COLUMNS: usize = 192;
const PART_ROWS: usize = 128;

/// Whether a GPU's tensor cores multiply 16-bit numbers so fast that scaling sums of bytes, one
/// after the other, takes longer: those of data centres.
fn is_wide(capability: (u32, u32)) -> bool {
    matches!(capability, (8, 0) | (9, 0) | (10, _) | (11, 0))
}

/// Rows of bytes with their scales, as one part of a workspace: bytes `[count, depth]`, then f32
/// `[depth / 32, stride]`.
#[derive(Debug, Clone, Copy)]
struct ByteRows {
    count: usize,
    depth: usize,
    /// Of `count`, the multiple of this that follows.
    stride: usize,
}

impl ByteRows {
    fn numbers_bytes(self) -> u64 {
        (self.count * self.depth) as u64
    }

    fn bytes(self) -> Bytes {
        let scales_bytes = (4 * self.depth / BLOCK * self.stride) as u64;
        Bytes(self.numbers_bytes() + scales_bytes).align_up(PART_ALIGNMENT)
    }

    /// Where the scales of rows at `start` are.
    fn scales(self, start: Address) -> Address {
        start.offset(self.numbers_bytes())
    }
}

/// How a layer is computed as products of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteParts {
    depth: usize,
    /// Rows of a part, and columns; the last ones may have fewer.
    rows: usize,
    columns: usize,
}

impl ByteParts {
    /// The parts of a layer with these rows, depth and columns on tensor cores, `None` where it is
    /// not computed so on any GPU. `in_groups`: each input's features are whole [`GROUP`]s. A part
    /// of either operand takes at most `bytes_max`, but has at least the rows of a tile.
    pub(super) fn of(
        [rows, depth, columns]: [usize; 3],
        in_groups: bool,
        storage: StorageType,
        bytes_max: Bytes,
    ) -> Option<ByteParts> {
        let can = storage.has_integer_products() && in_groups && depth.is_multiple_of(BLOCK);
        if !can {
            return None;
        }
        let whole = ByteParts { depth, rows, columns };
        let parts = |rows: ByteRows| rows.bytes().0.div_ceil(bytes_max.0).max(1) as usize;
        let of_rows = parts(whole.activations(rows));
        let of_columns = parts(whole.weights(columns));
        Some(ByteParts {
            rows: rows.div_ceil(of_rows).next_multiple_of(PART_ROWS).min(rows),
            columns: columns.div_ceil(of_columns).next_multiple_of(PART_COLUMNS).min(columns),
            ..whole
        })
    }

    fn activations(self, rows: usize) -> ByteRows {
        /// `ROWS_PLACED` of `row_places.cuh`.
        const PLACED: usize = 64;
        ByteRows { count: rows, depth: self.depth, stride: rows.next_multiple_of(PLACED) }
    }

    fn weights(self, columns: usize) -> ByteRows {
        ByteRows { count: columns, depth: self.depth, stride: columns.next_multiple_of(4) }
    }

    /// What the largest parts take in the workspace.
    pub(super) fn bytes(self) -> Bytes {
        self.activations(self.rows).bytes() + self.weights(self.columns).bytes()
    }
}

/// `QuantiseArgs` of `quantise.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct QuantiseArguments {
    out: Address,
    scales: Address,
    inputs: [Address; INPUTS_MAX],
    features: [u32; INPUTS_MAX],
    rows: u32,
    depth: u32,
    stride: u32,
    element: u32,
}

/// `DecodeBytesArgs` of `decode_bytes.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct DecodeBytesArguments {
    weight: Address,
    out: Address,
    scales: Address,
    columns: u32,
    depth: u32,
    stride: u32,
    padding: u32,
}

/// `LinearBytesArgs` of `linear_bytes.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct LinearBytesArguments {
    to: OutArgument,
    x: Address,
    x_scales: Address,
    weight: Address,
    weight_scales: Address,
    depth: u32,
    x_stride: u32,
    weight_stride: u32,
    padding: u32,
}

/// Whether this GPU multiplies bytes where a layer has [`ByteParts`].
pub(super) fn pay_on(on: &Launcher<'_>) -> bool {
    on.prefers_bytes() || !is_wide(on.capability())
}

/// Computes a layer, part by part.
pub(super) fn linear(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    parts: ByteParts,
) -> Result<(), DriverError> {
    let weights = layer.workspace.offset(parts.activations(parts.rows).bytes().0);
    for from in (0..layer.out_features).step_by(parts.columns) {
        let part = layer.of_columns(from, parts.columns.min(layer.out_features - from));
        decode(on, &part, parts, weights)?;
        let whole = parts.rows == layer.rows;
        for row in (0..layer.rows).step_by(parts.rows) {
            let rows = parts.rows.min(layer.rows - row);
            if from == 0 || !whole {
                quantise(on, layer, parts, [row, rows])?;
            }
            multiply(on, &part, parts, weights, [row, rows])?;
        }
    }
    Ok(())
}

/// Writes rows of the activations to the workspace.
fn quantise(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    parts: ByteParts,
    [row, rows]: [usize; 2],
) -> Result<(), DriverError> {
    let to = parts.activations(rows);
    let element_bytes = layer.input_element.bytes();
    let inputs: Vec<(Address, usize)> = layer
        .inputs
        .iter()
        .map(|&(input, features)| (input.offset(element_bytes * (row * features) as u64), features))
        .collect();
    let (inputs, features) = input_arguments(&inputs);
    let arguments = QuantiseArguments {
        out: layer.workspace,
        scales: to.scales(layer.workspace),
        inputs,
        features,
        rows: count(rows),
        depth: count(parts.depth),
        stride: count(to.stride),
        element: element_kind(layer.input_element),
    };
    let grid = blocks_for((to.stride * parts.depth / GROUP) as u64);
    on.launch("quantise", grid, [THREADS, 1, 1], 0, &arguments)
}

/// Writes the weights of a layer, which are a part, to the workspace.
fn decode(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    parts: ByteParts,
    out: Address,
) -> Result<(), DriverError> {
    let Linear { weight, out_features: columns, .. } = *layer;
    let to = parts.weights(columns);
    let arguments = DecodeBytesArguments {
        weight: weight.address,
        out,
        scales: to.scales(out),
        columns: count(columns),
        depth: count(parts.depth),
        stride: count(to.stride),
        padding: 0,
    };
    let kernel = kernel_of!("decode_bytes", weight.storage);
    let grid = blocks_for((columns * parts.depth / GROUP) as u64);
    on.launch(kernel, grid, [THREADS, 1, 1], 0, &arguments)
}

/// Multiplies rows that are in the workspace with the weights of a layer, which are there too.
fn multiply(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    parts: ByteParts,
    weight: Address,
    [row, rows]: [usize; 2],
) -> Result<(), DriverError> {
    /// Rows and columns of tiles.
    const SMALL: [usize; 2] = [64, 64];
    const LARGE: [usize; 2] = [128, 96];
    const BLOCK_THREADS: u32 = 128;
    let columns = layer.out_features;
    let (x, w) = (parts.activations(rows), parts.weights(columns));
    let out_row_bytes = layer.out.element.bytes() * layer.columns.stride as u64;
    let part = Linear {
        rows,
        out: ValueAt { address: layer.out.address.offset(row as u64 * out_row_bytes), ..layer.out },
        ..*layer
    };
    let arguments = LinearBytesArguments {
        to: part.out_argument(),
        x: layer.workspace,
        x_scales: x.scales(layer.workspace),
        weight,
        weight_scales: w.scales(weight),
        depth: count(parts.depth),
        x_stride: count(x.stride),
        weight_stride: count(w.stride),
        padding: 0,
    };
    let tiles = rows.div_ceil(LARGE[0]) * columns.div_ceil(LARGE[1]);
    // Large tiles read less, where there are enough of them for the whole GPU.
    let is_large = on.capability() >= (8, 0) && tiles >= on.multiprocessors() as usize;
    let (kernel, sides) =
        if is_large { ("linear_bytes_large", LARGE) } else { ("linear_bytes_small", SMALL) };
    on.launch(kernel, grid_of(sides, rows, columns), [BLOCK_THREADS, 1, 1], 0, &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::PART_BYTES_MAX;
    use super::*;

    fn parts(sides: [usize; 3], storage: StorageType) -> ByteParts {
        ByteParts::of(sides, true, storage, PART_BYTES_MAX).expect("a form")
    }

    #[test]
    fn parts_are_alike_and_within_their_bounds() {
        let of = |sides| {
            let parts = parts(sides, StorageType::Q4K);
            assert!(parts.activations(parts.rows).bytes() <= PART_BYTES_MAX, "{parts:?}");
            assert!(parts.weights(parts.columns).bytes() <= PART_BYTES_MAX, "{parts:?}");
            [parts.rows, parts.columns]
        };
        assert_eq!(of([4608, 3072, 3072]), [4608, 3072]);
        assert_eq!(of([4608, 3072, 21_504]), [4608, 10_752]);
        assert_eq!(of([4608, 12_288, 3072]), [2304, 3072]);
        assert_eq!(of([4608, 15_360, 3072]), [2304, 3072]);
        assert_eq!(of([9, 256, 72]), [9, 72]);
    }

    #[test]
    fn a_workspace_has_room_for_a_part_of_each() {
        let parts = parts([70, 256, 10], StorageType::Q4K);
        // 70 rows, scales of 8 blocks of 128; 10 columns, scales of 12.
        let activations = (70 * 256 + 8 * 128 * 4_u64).next_multiple_of(256);
        let weights = (10 * 256 + 8 * 12 * 4_u64).next_multiple_of(256);
        assert_eq!(parts.bytes(), Bytes(activations + weights));
    }

    #[test]
    fn other_types_and_odd_features_have_no_parts() {
        let of = |in_groups, storage| {
            ByteParts::of([9, 256, 72], in_groups, storage, PART_BYTES_MAX).is_some()
        };
        assert!(of(true, StorageType::Q8_0));
        assert!(!of(false, StorageType::Q8_0));
        assert!(!of(true, StorageType::IQ4XS));
        assert!(!of(true, StorageType::BF16));
    }

    #[test]
    fn cards_of_data_centres_are_wide() {
        assert!(is_wide((9, 0)) && is_wide((8, 0)));
        assert!(!is_wide((7, 5)) && !is_wide((8, 6)) && !is_wide((8, 9)) && !is_wide((12, 0)));
    }
}
