//! Loops of nothing but multiply-adds: what a core could do at most.

use executor::backend::kernels::Isa;

/// A peak's name, the operations of one run, and the run.
pub type Peak = (&'static str, f64, fn());

/// The peaks that can be measured with an instruction set: fused multiply-adds of f32, products of
/// bytes, products of bf16 in tiles or in vectors.
pub fn all(isa: Isa) -> Vec<Peak> {
    match isa.to_string().as_str() {
        #[cfg(target_arch = "x86_64")]
        "amx" => vec![
            ("peak-f32", x86::operations(16, 2), x86::fma_512),
            ("peak-int8", x86::operations(64, 2), x86::vnni_512),
            ("peak-bf16", x86::TILE_OPERATIONS, x86::tiles_bf16),
        ],
        #[cfg(target_arch = "x86_64")]
        "avx512-bf16" => vec![
            ("peak-f32", x86::operations(16, 2), x86::fma_512),
            ("peak-int8", x86::operations(64, 2), x86::vnni_512),
            ("peak-bf16", x86::operations(32, 2), x86::pairs_bf16),
        ],
        #[cfg(target_arch = "x86_64")]
        "avx512-vnni" => vec![
            ("peak-f32", x86::operations(16, 2), x86::fma_512),
            ("peak-int8", x86::operations(64, 2), x86::vnni_512),
        ],
        #[cfg(target_arch = "x86_64")]
        "avx512" => vec![("peak-f32", x86::operations(16, 2), x86::fma_512)],
        #[cfg(target_arch = "x86_64")]
        "avx2" | "avx2-vnni" => vec![("peak-f32", x86::operations(8, 2), x86::fma_256)],
        _ => Vec::new(),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm256_fmadd_ps, _mm256_set1_ps, _mm512_dpbf16_ps, _mm512_dpbusd_epi32,
        _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps,
    };
    use std::hint::black_box;
    use std::mem::transmute;

    /// Instructions that do not wait for each other: more than two units times a latency of five.
    const CHAINS: usize = 12;

    /// Rounds of a run.
    const ROUNDS: usize = 1 << 20;

    pub fn operations(lanes: usize, each: usize) -> f64 {
        (lanes * each * CHAINS * ROUNDS) as f64
    }

    /// Of [`tiles_bf16`]: four tiles of 16 x 16 sums, each of 32 products.
    pub const TILE_OPERATIONS: f64 = (4 * 2 * 16 * 16 * 32 * ROUNDS / 16) as f64;

    /// Products of whole tiles of bf16, in which nothing is loaded.
    pub fn tiles_bf16() {
        /// Palette 1, eight tiles of 16 rows of 64 bytes.
        #[repr(C, align(64))]
        struct Configuration([u8; 64]);
        let mut tiles = Configuration([0; 64]);
        tiles.0[0] = 1;
        for tile in 0..8 {
            (tiles.0[16 + 2 * tile], tiles.0[48 + tile]) = (64, 16);
        }
        // SAFETY: the instruction set that has tiles was found on this machine, and the process may
        // use them; all of them are given up at the end.
        unsafe {
            asm!(
                "ldtilecfg [{tiles}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                tiles = in(reg) &raw const tiles,
                rounds = inout(reg) ROUNDS / 16 => _,
                options(nostack),
            );
        }
    }

    macro_rules! peak {
        ($name:ident, $features:literal, $zero:expr, $operand:expr, $step:expr) => {
            pub fn $name() {
                #[target_feature(enable = $features)]
                fn rounds() {
                    let operand = black_box($operand);
                    let mut sums = [$zero; CHAINS];
                    for _ in 0..ROUNDS {
                        for sum in &mut sums {
                            *sum = $step(*sum, operand);
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: the instruction set whose peak this is was found on this machine.
                unsafe { rounds() }
            }
        };
    }

    peak!(fma_512, "avx512f", _mm512_set1_ps(0.0), _mm512_set1_ps(1e-20), |sum, x| {
        _mm512_fmadd_ps(x, x, sum)
    });
    peak!(fma_256, "avx2,fma", _mm256_set1_ps(0.0), _mm256_set1_ps(1e-20), |sum, x| {
        _mm256_fmadd_ps(x, x, sum)
    });
    peak!(vnni_512, "avx512f,avx512vnni", _mm512_set1_epi32(0), _mm512_set1_epi32(1), |sum, x| {
        _mm512_dpbusd_epi32(sum, x, x)
    });
    peak!(pairs_bf16, "avx512f,avx512bf16", _mm512_set1_ps(0.0), ones_bf16(), |sum, x| {
        _mm512_dpbf16_ps(sum, x, x)
    });

    #[target_feature(enable = "avx512f")]
    fn ones_bf16() -> __m512bh {
        // SAFETY: both types are 512 bits.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(0x3f80_3f80)) }
    }
}
