//! Products of tiles by AMX of x86-64, which has registers for them.
//!
//! Linux gives a process the state that tiles take when it asks, once. A thread configures its
//! tiles for a task and releases them after it, so that nobody saves them for threads that do
//! something else.
//!
//! Invariant: [`TileRegisters`] exist only where the instructions do and the kernel gave the state.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{DepthRun, SquareSums, StridedRows, TILE_ROW_BYTES, TILE_ROWS, TileRows, TileSums};

/// Whether this process may multiply tiles of bf16. The first call asks the kernel.
pub(in crate::backend::kernels) fn is_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| has_instructions() && ask())
}

/// Whether the processor has tiles, and products of bf16 in them: bits of leaf 7 (Intel's manual,
/// volume 2, CPUID).
fn has_instructions() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const NEEDED: u32 = AMX_BF16 | AMX_TILE;
    #[allow(unused_unsafe, reason = "later versions of Rust have them safe")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED
    }
}

/// Asks for the tiles' state, which kernels before 5.16 do not know and others may refuse
/// (`Documentation/arch/x86/xstate.rst`). It is given to all threads of the process.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: it takes two numbers, and changes only what the process is allowed to use.
    let answer =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// What `ldtilecfg` reads: palette 1 with all eight tiles whole (Intel's manual, volume 1, "Tile
/// configuration").
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static WHOLE_TILES: Configuration = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = TILE_ROW_BYTES as u16;
        rows[tile] = TILE_ROWS as u8;
        tile += 1;
    }
    Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// This thread's tiles, whole ones, until this is dropped.
pub(super) struct TileRegisters {
    /// They are the thread's.
    of_thread: PhantomData<*const ()>,
}

impl TileRegisters {
    /// Configures the thread's tiles.
    ///
    /// # Panics
    /// If they are not [here](is_here).
    pub(super) fn configure() -> TileRegisters {
        assert!(is_here(), "no tiles on this machine");
        // SAFETY: the instruction is there, and reads 64 bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly));
        }
        TileRegisters { of_thread: PhantomData }
    }

    /// As [`Tiles::bf16_products`](super::Tiles::bf16_products).
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(super) unsafe fn bf16_products(
        &self,
        row_tiles: usize,
        a: TileRows,
        b: *const u8,
        steps: usize,
        sums: TileSums,
    ) {
        debug_assert!(steps > 0 && (1..=2).contains(&row_tiles));
        // SAFETY: the caller's promise; tiles are configured as long as `self` lives.
        unsafe {
            match row_tiles {
                1 => one_row_tile(a.start, b, steps, sums),
                _ => two_row_tiles(a, b, steps, sums),
            }
        }
    }

    /// As [`Tiles::bf16_run_products`](super::Tiles::bf16_run_products).
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(super) unsafe fn bf16_run_products(
        &self,
        row_tiles: usize,
        runs: &[DepthRun],
        a: StridedRows,
        b: *const u8,
        sums: &mut SquareSums,
    ) {
        debug_assert!((1..=2).contains(&row_tiles));
        debug_assert!(!runs.is_empty() && runs.iter().all(|run| run.steps > 0));
        // SAFETY: the caller's promise; tiles are configured as long as `self` lives.
        unsafe {
            match row_tiles {
                1 => runs_of_one_row_tile(runs, a, b, sums),
                _ => runs_of_two_row_tiles(runs, a, b, sums),
            }
        }
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: the instruction is there, as tiles are.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// [`TileRegisters::bf16_products`] of 16 rows with 32 columns.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn one_row_tile(a: *const u8, b: *const u8, steps: usize, sums: TileSums) {
    // SAFETY: the caller's promise. All tiles that are used are given up at the end.
    unsafe {
        asm!(
            "test {accumulate:e}, {accumulate:e}",
            "jz 3f",
            "tileloadd tmm0, [{c} + {stride}]",
            "tileloadd tmm1, [{c} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{a} + {line}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, 1024",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {stride}], tmm0",
            "tilestored [{c} + {stride} + 64], tmm1",
            accumulate = in(reg) u32::from(sums.accumulate),
            c = in(reg) sums.start,
            stride = in(reg) sums.stride_bytes,
            line = in(reg) TILE_ROW_BYTES,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            steps = inout(reg) steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// [`TileRegisters::bf16_products`] of 32 rows with 32 columns: each tile that is loaded is
/// multiplied twice.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn two_row_tiles(a: TileRows, b: *const u8, steps: usize, sums: TileSums) {
    // SAFETY: the caller's promise. All tiles that are used are given up at the end.
    unsafe {
        asm!(
            "test {accumulate:e}, {accumulate:e}",
            "jz 3f",
            "tileloadd tmm0, [{c} + {stride}]",
            "tileloadd tmm1, [{c} + {stride} + 64]",
            "tileloadd tmm2, [{lower_c} + {stride}]",
            "tileloadd tmm3, [{lower_c} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {line}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower_a} + {line}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 1024",
            "add {lower_a}, 1024",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {stride}], tmm0",
            "tilestored [{c} + {stride} + 64], tmm1",
            "tilestored [{lower_c} + {stride}], tmm2",
            "tilestored [{lower_c} + {stride} + 64], tmm3",
            accumulate = in(reg) u32::from(sums.accumulate),
            c = in(reg) sums.start,
            lower_c = in(reg) sums.start.byte_add(TILE_ROWS * sums.stride_bytes),
            stride = in(reg) sums.stride_bytes,
            line = in(reg) TILE_ROW_BYTES,
            a = inout(reg) a.start => _,
            lower_a = inout(reg) a.start.add(a.second_bytes) => _,
            b = inout(reg) b => _,
            steps = inout(reg) steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// [`TileRegisters::bf16_run_products`] of 16 rows.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn runs_of_one_row_tile(
    runs: &[DepthRun],
    a: StridedRows,
    b: *const u8,
    sums: &mut SquareSums,
) {
    // SAFETY: the caller's promise. All tiles that are used are given up at the end.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "mov {a}, {start}",
            "add {a}, [{runs}]",
            "mov {steps}, [{runs} + 8]",
            "3:",
            "tileloadd tmm4, [{a} + {stride}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, 64",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 3b",
            "add {runs}, 16",
            "dec {left}",
            "jnz 2b",
            "add {line}, {line}",
            "tilestored [{c} + {line}], tmm0",
            "tilestored [{c} + {line} + 64], tmm1",
            runs = inout(reg) runs.as_ptr() => _,
            left = inout(reg) runs.len() => _,
            start = in(reg) a.start,
            stride = in(reg) a.stride_bytes,
            line = inout(reg) TILE_ROW_BYTES => _,
            b = inout(reg) b => _,
            c = in(reg) sums.0.as_mut_ptr(),
            a = out(reg) _,
            steps = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// [`TileRegisters::bf16_run_products`] of 32 rows.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn runs_of_two_row_tiles(
    runs: &[DepthRun],
    a: StridedRows,
    b: *const u8,
    sums: &mut SquareSums,
) {
    // SAFETY: the caller's promise. All tiles that are used are given up at the end.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "mov {a}, {start}",
            "add {a}, [{runs}]",
            "mov {steps}, [{runs} + 8]",
            "lea {lower_a}, [{a} + {second}]",
            "3:",
            "tileloadd tmm4, [{a} + {stride}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower_a} + {stride}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 64",
            "add {lower_a}, 64",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 3b",
            "add {runs}, 16",
            "dec {left}",
            "jnz 2b",
            "add {line}, {line}",
            "tilestored [{c} + {line}], tmm0",
            "tilestored [{c} + {line} + 64], tmm1",
            "tilestored [{c} + {line} + 2048], tmm2",
            "tilestored [{c} + {line} + 2112], tmm3",
            runs = inout(reg) runs.as_ptr() => _,
            left = inout(reg) runs.len() => _,
            start = in(reg) a.start,
            second = in(reg) a.second_bytes,
            stride = in(reg) a.stride_bytes,
            line = inout(reg) TILE_ROW_BYTES => _,
            b = inout(reg) b => _,
            c = in(reg) sums.0.as_mut_ptr(),
            a = out(reg) _,
            lower_a = out(reg) _,
            steps = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
