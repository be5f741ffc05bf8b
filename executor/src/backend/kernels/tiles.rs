//! Tiles of bf16, and sums of products of two. A tile is 16 rows of 64 bytes. Of the first one each
//! row is 32 of the depth; of the second one each row is two of the depth of 16 columns.
//!
//! Two kinds of processors multiply them: those with registers for tiles (AMX), and those whose
//! vectors multiply pairs of bf16.
//!
//! Not here: what is multiplied, and how it comes into tiles.

mod amx;
pub(super) mod dots;

use amx::TileRegisters;
pub(super) use amx::is_here;
pub(super) use dots::are_fast;

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// Bytes of a tile's row.
pub(super) const TILE_ROW_BYTES: usize = 64;

/// Bytes of a tile.
pub(super) const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;

/// What multiplies tiles, for one task of a thread.
pub(super) struct Tiles(Option<TileRegisters>);

impl Tiles {
    /// Makes the thread ready: with registers for tiles, or with vectors that multiply bf16.
    ///
    /// # Panics
    /// If it is to have registers, and they are not [here](is_here).
    pub(super) fn configure(registers: bool) -> Tiles {
        Tiles(registers.then(TileRegisters::configure))
    }

    /// Sums of products of bf16: of each pair of rows of `a` with all columns of `b`.
    ///
    /// `sums` are `16 * row_tiles` rows of 32 f32, `stride_bytes` apart. Each is what it was, or
    /// zero without `accumulate`, plus the products of its row and column in order of depth, by the
    /// rules of `tdpbf16ps` or `vdpbf16ps`: subnormal numbers are zeros. `row_tiles` is 1 or 2; a
    /// row of tiles of `a` has one for each step of 32 of the depth.
    /// `b` has two tiles for each step, in which a row is 16 columns' pairs of depth.
    ///
    /// # Safety
    /// All these tiles are valid for reading, and the sums for writing, by nobody else meanwhile;
    /// without `accumulate` they need no values. Without registers, the machine has the vectors.
    #[inline]
    pub(super) unsafe fn bf16_products(
        &self,
        row_tiles: usize,
        a: TileRows,
        b: *const u8,
        steps: usize,
        sums: TileSums,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.0 {
                Some(registers) => registers.bf16_products(row_tiles, a, b, steps, sums),
                None => dots::products(row_tiles, a, b, steps, sums),
            }
        }
    }

    /// Sums of products of bf16 over several runs of the depth: of each row of `a` with all columns
    /// of `b`, in the order of the runs, from zero.
    ///
    /// Row `i` of a run's operand begins `i * a.stride_bytes` after its start and has 64 bytes for
    /// each of its steps of 32; rows from 16 on begin `a.second_bytes` after those from 0 on, and
    /// are there if `row_tiles` is 2. `b` has two tiles for each step of all runs.
    ///
    /// # Safety
    /// All these rows and tiles are valid for reading. Without registers, the machine has the
    /// vectors.
    #[inline]
    pub(super) unsafe fn bf16_run_products(
        &self,
        row_tiles: usize,
        runs: &[DepthRun],
        a: StridedRows,
        b: *const u8,
        sums: &mut SquareSums,
    ) {
        // SAFETY: as above.
        unsafe {
            match &self.0 {
                Some(registers) => registers.bf16_run_products(row_tiles, runs, a, b, sums),
                None => dots::run_products(row_tiles, runs, a, b, sums),
            }
        }
    }
}

/// One or two rows of tiles.
#[derive(Clone, Copy)]
pub(super) struct TileRows {
    /// The first row's first tile.
    pub(super) start: *const u8,
    /// From one row's first tile to the other's.
    pub(super) second_bytes: usize,
}

/// Rows of f32 that take the sums of tiles.
#[derive(Clone, Copy)]
pub(super) struct TileSums {
    /// The first row's first sum, at any alignment.
    pub(super) start: *mut f32,
    /// From one row to the next.
    pub(super) stride_bytes: usize,
    /// Whether products are added to what is there.
    pub(super) accumulate: bool,
}

/// Some steps of 32 of the depth that follow each other in memory.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct DepthRun {
    /// From where the operand starts to where these do.
    pub(super) offset_bytes: usize,
    /// How many there are, at least one.
    pub(super) steps: usize,
}

/// Rows of bf16 of [`Tiles::bf16_run_products`].
#[derive(Clone, Copy)]
pub(super) struct StridedRows {
    /// What runs are counted from.
    pub(super) start: *const u8,
    /// From one row to the next.
    pub(super) stride_bytes: usize,
    /// From the first row tile to the second.
    pub(super) second_bytes: usize,
}

/// Sums of 32 rows and 32 columns.
#[repr(align(64))]
pub(super) struct SquareSums(pub(super) [[f32; 2 * TILE_ROWS]; 2 * TILE_ROWS]);
