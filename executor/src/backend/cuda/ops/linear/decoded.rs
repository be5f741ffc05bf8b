//! Weights that are decoded to bf16 before they are multiplied, once for all rows, instead of once
//! for each tile of rows (`decode_half.cu`).
//!
//! A part of the layer's columns at a time is decoded into the workspace, and is then a layer with
//! weights in bf16. The kernels that decode on their way (`linear_decoded.cu`) round alike, and add
//! up in the same order: the result has the same bits, unless cuBLASLt multiplies.

use protocol::{Bytes, StorageType};

use super::tiles::{kernel_of_common, kernel_of_decoded};
use super::{Linear, floats_bytes};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};
use crate::backend::cuda::ops::{THREADS, blocks_for};
use crate::graph::ElementType;

/// With fewer rows it does not pay. A number that is decoded first is written and read once more.
/// Moving these 4 bytes takes a GPU as long as 140 (RTX 3090) to 500 (H100) products of 16 bits,
/// and each row is one product with the number.
const ROWS_MIN: usize = 512;

/// Numbers that are decoded together: `GROUP` of `plain.cuh`.
const GROUP: usize = 8;

/// How a layer's weights are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodedParts {
    depth: usize,
    /// Columns of a part; the last one may have fewer.
    columns: usize,
}

impl DecodedParts {
    /// The parts of a layer with these rows, depth and columns, whose operands become bf16. A part
    /// takes at most `bytes_max`, but has at least the columns of a tile. `None` where the weights
    /// are multiplied as they are stored, or decoded on their way.
    pub(super) fn of(
        [rows, depth, columns]: [usize; 3],
        storage: StorageType,
        bytes_max: Bytes,
    ) -> Option<DecodedParts> {
        /// Parts end where tiles do, those of cuBLASLt too.
        const TILE: usize = 256;
        if storage == StorageType::BF16 || rows < ROWS_MIN || !depth.is_multiple_of(GROUP) {
            return None;
        }
        let parts = (2 * (columns * depth) as u64).div_ceil(bytes_max.0).max(1) as usize;
        let columns = columns.div_ceil(parts).next_multiple_of(TILE).min(columns);
        Some(DecodedParts { depth, columns })
    }

    /// Columns of the largest part.
    pub(super) fn columns(self) -> usize {
        self.columns
    }

    /// What the largest part takes in the workspace.
    pub(super) fn bytes(self) -> Bytes {
        Bytes(2 * (self.columns * self.depth) as u64).align_up(super::PART_ALIGNMENT)
    }
}

/// `DecodeHalfArgs` of `decode_half.cu`.
#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct DecodeHalfArguments {
    weight: Address,
    out: Address,
    elements: i64,
    storage: u32,
    padding: u32,
}

/// Writes the first `elements` of a weight, whole blocks, as bf16 to `out`. The weight's scale is
/// left to whoever multiplies.
fn decode_half(
    on: &Launcher<'_>,
    out: Address,
    weight: StoredWeight,
    elements: usize,
) -> Result<(), DriverError> {
    let storage = weight.storage;
    let arguments = DecodeHalfArguments {
        weight: weight.address,
        out,
        elements: elements as i64,
        storage: storage as u32,
        padding: 0,
    };
    let grid = blocks_for((elements / GROUP) as u64);
    let kernel = kernel_of_decoded!("decode_half", storage, "");
    on.launch(kernel, grid, [THREADS, 1, 1], 0, &arguments)
}

/// Computes a layer of these activations in bf16, part by part.
pub(super) fn linear(
    on: &Launcher<'_>,
    layer: &Linear<'_>,
    inputs: &[(Address, usize)],
    parts: DecodedParts,
) -> Result<(), DriverError> {
    let workspace = layer.behind_converted();
    // Before it lies what a part takes itself.
    let decoded = workspace.offset(floats_bytes(layer.rows.max(parts.columns)).0);
    for from in (0..layer.out_features).step_by(parts.columns) {
        let out_features = parts.columns.min(layer.out_features - from);
        let stored = layer.of_columns(from, out_features);
        decode_half(on, decoded, stored.weight, out_features * parts.depth)?;
        let part = Linear {
            inputs,
            input_element: ElementType::BF16,
            weight: StoredWeight { address: decoded, storage: StorageType::BF16, ..stored.weight },
            workspace,
            ..stored
        };
        part.as_bf16(on)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::PART_BYTES_MAX;
    use super::*;

    #[test]
    fn parts_are_alike_and_end_with_tiles() {
        let columns = |columns, depth| {
            let sides = [4608, depth, columns];
            let parts = DecodedParts::of(sides, StorageType::Q4K, PART_BYTES_MAX).unwrap();
            assert!(parts.bytes() <= PART_BYTES_MAX + Bytes(512 * depth as u64), "{parts:?}");
            parts.columns()
        };
        assert_eq!(columns(3072, 3072), 3072);
        assert_eq!(columns(12_288, 3072), 6144);
        assert_eq!(columns(3072, 12_288), 1536);
        assert_eq!(columns(3072, 15_360), 1536);
        assert_eq!(columns(72, 256), 72);
        assert_eq!(columns(3072, 1 << 20), 256);
    }

    #[test]
    fn few_rows_and_odd_depths_are_not_decoded_before() {
        let of = |rows, depth, storage| {
            DecodedParts::of([rows, depth, 64], storage, PART_BYTES_MAX).is_some()
        };
        assert!(of(512, 256, StorageType::Q8_0));
        assert!(!of(511, 256, StorageType::Q8_0));
        assert!(!of(512, 36, StorageType::F8E4M3));
        assert!(!of(512, 256, StorageType::BF16));
    }
}
