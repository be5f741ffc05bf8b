//! The instruction sets, the choice among them at run time, and how a kernel is compiled for each.
//!
//! A kernel's inner loop is written once, generic over [`Lanes`], inside [`per_isa!`]. That macro
//! compiles it for each instruction set and calls the one that an [`Isa`] names.
//!
//! Invariant: an [`Isa`] exists only for instructions that this machine has.

use std::fmt;
use std::sync::OnceLock;

pub(super) use super::lanes::{Lanes, SQUARE_MAX};
pub(super) use super::simd_portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(super) use super::simd_x86::{Avx2, Avx512};

/// The environment variable that names the best instruction set to use, as [`Isa`] displays it. For
/// tests and comparisons; a set that this machine lacks, or an unknown one, is passed over with a
/// warning.
pub const ISA_VARIABLE: &str = "BERTH_ISA";

/// An instruction set of this machine. Results differ between sets by rounding only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// Every instruction set that is known, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// [`Level::Avx512Bf16`] with products of bf16 in tiles (AMX).
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// [`Level::Avx512Vnni`] with conversions to bf16, and its products.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// [`Level::Avx512`] with products of bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// 512-bit vectors with the F, BW, DQ and VL extensions.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// [`Level::Avx2`] with products of bytes (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    /// 256-bit vectors with fused multiply-add and conversions of binary16.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler makes of arrays.
    Portable,
}

impl Isa {
    /// The fastest one, or the one that [`ISA_VARIABLE`] asks for.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let mut fast = Isa::available().filter(|isa| isa.0.is_fast());
            let fastest = fast.next().expect("the portable one is always there");
            let Ok(wanted) = std::env::var(ISA_VARIABLE) else { return fastest };
            Isa::named(&wanted).unwrap_or_else(|| {
                tracing::warn!("{ISA_VARIABLE}={wanted} is not here; {fastest} is used");
                fastest
            })
        })
    }

    /// The one of that name, if this machine has it.
    pub fn named(name: &str) -> Option<Isa> {
        Isa::available().find(|isa| isa.to_string() == name)
    }

    /// All that this machine has, the fastest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let levels = [
            #[cfg(target_arch = "x86_64")]
            Level::Amx,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2,
            Level::Portable,
        ];
        levels.into_iter().filter(|level| level.is_present()).map(Isa)
    }

    /// Whether its vectors have 512 bits.
    pub(super) fn is_wide(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Avx512Bf16 | Level::Avx512Vnni | Level::Avx512 => true,
            _ => false,
        }
    }

    /// Whether it multiplies bf16, in tiles or in vectors.
    pub(super) fn has_bf16_products(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Avx512Bf16 => true,
            _ => false,
        }
    }

    /// Whether it multiplies tiles of bf16 (AMX).
    pub(super) fn has_tiles(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => true,
            _ => false,
        }
    }

    /// Which one it is, for [`per_isa!`].
    pub(super) fn level(self) -> Level {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        })
    }
}

impl Level {
    /// Whether it is faster than those after it.
    fn is_fast(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => super::tiles::are_fast(),
            _ => true,
        }
    }

    fn is_present(self) -> bool {
        match self {
            // These and no others are what `per_isa!` and `per_byte_isa!` enable, and what `tiles`
            // and `bf16` use.
            #[cfg(target_arch = "x86_64")]
            Level::Amx => Level::Avx512Bf16.is_present() && super::tiles::is_here(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => {
                is_x86_feature_detected!("avx512bf16") && Level::Avx512Vnni.is_present()
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => {
                is_x86_feature_detected!("avx512vnni") && Level::Avx512.is_present()
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Level::Avx2.is_present()
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => is_x86_feature_detected!("avxvnni") && Level::Avx2.is_present(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Level::Portable => true,
        }
    }
}

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Asks for the cache line of an address, of which nothing else is required.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Compiles a function for each instruction set, as `body::<L>` with `L` the set's [`Lanes`]; the
/// function itself takes an [`Isa`] first, and calls the one for it. What the body calls must be
/// `#[inline(always)]` to be compiled for that set too.
macro_rules! per_isa {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$lanes:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::backend::kernels::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            use $crate::backend::kernels::simd;

            #[inline(always)]
            fn body<$lanes: simd::Lanes>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<simd::Avx512>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<simd::Avx2>($($arg),*)
            }

            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                simd::Level::Amx
                | simd::Level::Avx512Bf16
                | simd::Level::Avx512Vnni
                | simd::Level::Avx512 => {
                    // SAFETY: an `Isa` of this level exists only where its instructions do.
                    unsafe { avx512($($arg),*) }
                }
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2Vnni | simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                simd::Level::Portable => body::<simd::Portable>($($arg),*),
            }
        }
    };
}
pub(super) use per_isa;

#[cfg(test)]
mod tests {
    use super::*;

    per_isa! {
        /// Sums, full and partial loads of one vector.
        fn probe<L>(values: &[f32]) -> (f32, f32) {
            assert!(values.len() >= L::WIDTH);
            // SAFETY: `per_isa!` has the instructions, and the slice is long enough.
            unsafe {
                let mut full = [L::zero(); 8];
                full[5] = L::multiply_add(L::load(values.as_ptr()), L::load(values.as_ptr()), full[0]);
                let mut part = [L::zero(); 8];
                part[7] = L::load_first(values.as_ptr(), 3);
                (L::sums(&full)[5] / L::WIDTH as f32, L::sums(&part)[7])
            }
        }
    }

    #[test]
    fn the_portable_set_is_last_and_always_there() {
        assert_eq!(Isa::available().last().unwrap().to_string(), "portable");
        // What the variable names may be slower, but is there.
        let named = std::env::var(ISA_VARIABLE).ok().and_then(|name| Isa::named(&name));
        let mut fast = Isa::available().filter(|isa| isa.0.is_fast());
        assert_eq!(Isa::best(), named.or(fast.next()).unwrap());
    }

    #[test]
    fn vectors_load_multiply_and_sum() {
        for isa in Isa::available() {
            assert_eq!(probe(isa, &[2.0; 16]), (4.0, 6.0), "{isa}");
        }
    }
}
