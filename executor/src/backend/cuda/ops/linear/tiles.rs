//! The tiles that the kernels of linear layers come in, and the kernels' names.

/// The square of the result that a block computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProductTile {
    /// 128 by 128.
    Large,
    /// 64 by 64.
    Small,
}

impl ProductTile {
    /// Large tiles read less, where there are enough of them for the whole GPU.
    pub(super) fn of(rows: usize, columns: usize, multiprocessors: u32) -> ProductTile {
        if ProductTile::Large.count(rows, columns) >= multiprocessors as usize && rows > 64 {
            ProductTile::Large
        } else {
            ProductTile::Small
        }
    }

    fn side(self) -> usize {
        match self {
            ProductTile::Large => 128,
            ProductTile::Small => 64,
        }
    }

    fn count(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.side()) * columns.div_ceil(self.side())
    }

    /// A block for each tile, as [`grid_of`].
    pub(super) fn grid(self, rows: usize, columns: usize) -> [u32; 3] {
        grid_of([self.side(), self.side()], rows, columns)
    }
}

/// A block for each tile of so many rows and columns, in one dimension: `TilePlace` of `linear.cuh`
/// says which.
///
/// # Panics
/// If there are more than a grid has.
pub(super) fn grid_of(tile: [usize; 2], rows: usize, columns: usize) -> [u32; 3] {
    /// `CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X` of every GPU since capability 3.0.
    const BLOCKS_MAX: usize = (1 << 31) - 1;
    let tiles = rows.div_ceil(tile[0]) * columns.div_ceil(tile[1]);
    assert!(tiles <= BLOCKS_MAX, "{tiles} tiles");
    [tiles as u32, 1, 1]
}

/// A kernel that there is for the types which models mostly have, and once for all others:
/// `linear_few.cu`.
macro_rules! kernel_of_common {
    ($family:literal, $storage:expr, $size:literal) => {
        match $storage {
            StorageType::F32 => concat!($family, "_f32", $size),
            StorageType::F16 => concat!($family, "_f16", $size),
            StorageType::BF16 => concat!($family, "_bf16", $size),
            StorageType::F8E4M3 => concat!($family, "_f8_e4m3", $size),
            StorageType::F8E5M2 => concat!($family, "_f8_e5m2", $size),
            StorageType::Q8_0 => concat!($family, "_q8_0", $size),
            StorageType::Q4_0 => concat!($family, "_q4_0", $size),
            StorageType::Q4K => concat!($family, "_q4_k", $size),
            StorageType::Q5K => concat!($family, "_q5_k", $size),
            StorageType::Q6K => concat!($family, "_q6_k", $size),
            _ => concat!($family, "_any", $size),
        }
    };
}

/// The same of `linear_decoded.cu` and `linear_scaled.cu`, which have none for f32, with which
/// products are exact, and none for f16 that takes bf16.
macro_rules! kernel_of_decoded {
    ($family:literal, $storage:expr, $size:literal) => {{
        assert!(!matches!($storage, StorageType::F32 | StorageType::F16), "{} and bf16", $storage);
        kernel_of_common!($family, $storage, $size)
    }};
}

/// A kernel that there is for plain types, and once for all others: `linear_exact.cu`.
macro_rules! kernel_of_plain {
    ($family:literal, $storage:expr, $size:literal) => {
        match $storage {
            StorageType::F32 => concat!($family, "_f32", $size),
            StorageType::F16 => concat!($family, "_f16", $size),
            StorageType::BF16 => concat!($family, "_bf16", $size),
            _ => concat!($family, "_any", $size),
        }
    };
}

pub(super) use {kernel_of_common, kernel_of_decoded, kernel_of_plain};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tiles_are_for_what_fills_the_gpu() {
        assert_eq!(ProductTile::of(4608, 3072, 128), ProductTile::Large);
        assert_eq!(ProductTile::of(77, 768, 128), ProductTile::Small);
        assert_eq!(ProductTile::of(64, 100_000, 128), ProductTile::Small);
        assert_eq!(ProductTile::of(512, 4096, 128), ProductTile::Large);
        assert_eq!(ProductTile::of(512, 4096, 132), ProductTile::Small);
    }

    #[test]
    fn a_grid_has_a_block_for_each_tile() {
        assert_eq!(ProductTile::Large.grid(129, 128), [2, 1, 1]);
        assert_eq!(ProductTile::Small.grid(129, 128), [6, 1, 1]);
        assert_eq!(ProductTile::Small.grid(1, 1), [1, 1, 1]);
    }
}
