//! Products of tiles by vectors of AVX-512 that multiply pairs of bf16 (`vdpbf16ps`).

use std::arch::x86_64::{
    __cpuid, __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};
use std::mem::transmute;

use super::{
    DepthRun, SquareSums, StridedRows, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, TileRows, TileSums,
};

/// Rows of a tile that are multiplied at once.
const HALF: usize = TILE_ROWS / 2;

/// The most rows that are multiplied at once: their sums with 32 columns take 28 of the 32
/// registers.
pub(in crate::backend::kernels) const ROWS_MAX: usize = 14;

/// What the registers hold: sums of some rows with 32 columns.
type BlockSums<const ROWS: usize> = [[__m512; 2]; ROWS];

/// Whether these vectors form more products in a second than fused multiply-adds of f32: AMD's form
/// twice as many (Zen 5, docs/performance.md), Intel's half (docs/decisions/0019).
pub(in crate::backend::kernels) fn are_fast() -> bool {
    #[allow(unused_unsafe, reason = "later versions of Rust have it safe")]
    // SAFETY: every x86-64 has the instruction.
    let maker = unsafe { __cpuid(0) };
    let name = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD"
}

/// As [`Tiles::bf16_products`](super::Tiles::bf16_products).
///
/// # Safety
/// As there; the machine has the instructions.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn products(
    row_tiles: usize,
    a: TileRows,
    b: *const u8,
    steps: usize,
    sums: TileSums,
) {
    for row in (0..row_tiles * TILE_ROWS).step_by(HALF) {
        let tile_bytes = row / TILE_ROWS * a.second_bytes;
        // SAFETY: the caller's promise, of these rows.
        unsafe {
            let rows = a.start.add(tile_bytes + row % TILE_ROWS * TILE_ROW_BYTES);
            let to = sums.start.byte_add(row * sums.stride_bytes);
            let to = TileSums { start: to, ..sums };
            row_products::<HALF>(rows, [TILE_ROW_BYTES, TILE_BYTES], b, steps, to, || ());
        }
    }
}

/// Sums of products of `ROWS` rows with two tiles of columns for each step of 32 of the depth.
/// `row_bytes` lie between two rows, `step_bytes` between two steps of a row. `each_step` is called
/// as often as there are steps.
///
/// # Safety
/// As of [`Tiles::bf16_products`](super::Tiles::bf16_products), of these rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(in crate::backend::kernels) unsafe fn row_products<const ROWS: usize>(
    rows: *const u8,
    [row_bytes, step_bytes]: [usize; 2],
    b: *const u8,
    steps: usize,
    sums: TileSums,
    each_step: impl FnMut(),
) {
    let TileSums { start, stride_bytes, accumulate } = sums;
    // SAFETY: the caller's promise.
    unsafe {
        let mut block = [[_mm512_setzero_ps(); 2]; ROWS];
        if accumulate {
            for (row, sums_of_row) in block.iter_mut().enumerate() {
                let from = start.byte_add(row * stride_bytes);
                *sums_of_row = [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(TILE_ROWS))];
            }
        }
        add_products(&mut block, rows, [row_bytes, step_bytes], b, steps, each_step);
        store(&block, start, stride_bytes);
    }
}

/// As [`Tiles::bf16_run_products`](super::Tiles::bf16_run_products).
///
/// # Safety
/// As there; the machine has the instructions.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn run_products(
    row_tiles: usize,
    runs: &[DepthRun],
    a: StridedRows,
    b: *const u8,
    sums: &mut SquareSums,
) {
    for row in (0..row_tiles * TILE_ROWS).step_by(HALF) {
        let row_bytes = row / TILE_ROWS * a.second_bytes + row % TILE_ROWS * a.stride_bytes;
        let mut block = [[_mm512_setzero_ps(); 2]; HALF];
        let mut b = b;
        // SAFETY: the caller's promise, of these rows; there are sums of two row tiles.
        unsafe {
            for run in runs {
                let rows = a.start.add(row_bytes + run.offset_bytes);
                let bytes = [a.stride_bytes, TILE_ROW_BYTES];
                add_products(&mut block, rows, bytes, b, run.steps, || ());
                b = b.add(run.steps * 2 * TILE_BYTES);
            }
            store(&block, sums.0[row..].as_mut_ptr().cast(), size_of_val(&sums.0[0]));
        }
    }
}

/// Adds the products of [`row_products`].
///
/// # Safety
/// The machine has the instructions; all rows and tiles are valid for reading.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_products<const ROWS: usize>(
    sums: &mut BlockSums<ROWS>,
    rows: *const u8,
    [row_bytes, step_bytes]: [usize; 2],
    b: *const u8,
    steps: usize,
    mut each_step: impl FnMut(),
) {
    let mut block = *sums;
    for step in 0..steps {
        each_step();
        // SAFETY: the caller's promise; vectors of bf16 and of integers are the same bits.
        unsafe {
            let (rows, b) = (rows.add(step * step_bytes), b.add(step * 2 * TILE_BYTES));
            for pair in 0..TILE_ROWS {
                let columns = b.add(pair * TILE_ROW_BYTES);
                let columns = [columns, columns.add(TILE_BYTES)]
                    .map(|at| transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())));
                for (row, sums) in block.iter_mut().enumerate() {
                    let both = rows.add(row * row_bytes).cast::<i32>().add(pair).read_unaligned();
                    let both = transmute::<__m512i, __m512bh>(_mm512_set1_epi32(both));
                    for (sum, columns) in sums.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, both, columns);
                    }
                }
            }
        }
    }
    *sums = block;
}

/// # Safety
/// The machine has the instructions; the rows' sums are valid for writing.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn store<const ROWS: usize>(block: &BlockSums<ROWS>, to: *mut f32, stride_bytes: usize) {
    for (row, [first, second]) in block.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.byte_add(row * stride_bytes);
            _mm512_storeu_ps(to, *first);
            _mm512_storeu_ps(to.add(TILE_ROWS), *second);
        }
    }
}
