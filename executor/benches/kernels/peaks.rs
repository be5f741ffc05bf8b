//! Loops of nothing but multiply-adds: what a core could do at most.

use executor::backend::kernels::Isa;

/// A peak's name, the operations of one run, and the run.
pub type Peak = (&'static str, f64, fn());

/// The peaks that can be measured with an instruction set: fused multiply-adds of f32, products of
/// bytes.
pub fn all(isa: Isa) -> Vec<Peak> {
    match isa.to_string().as_str() {
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
    use std::arch::x86_64::{
        _mm256_fmadd_ps, _mm256_set1_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_set1_epi32,
        _mm512_set1_ps,
    };
    use std::hint::black_box;

    /// Instructions that do not wait for each other: more than two units times a latency of five.
    const CHAINS: usize = 12;

    /// Rounds of a run.
    const ROUNDS: usize = 1 << 20;

    pub fn operations(lanes: usize, each: usize) -> f64 {
        (lanes * each * CHAINS * ROUNDS) as f64
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
}
