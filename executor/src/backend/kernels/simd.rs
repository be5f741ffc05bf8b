//! The instruction sets, the choice among them at run time, and how a kernel is compiled for each.
//!
//! A kernel's inner loop is written once, generic over [`Lanes`], inside [`per_isa!`]. That macro
//! compiles it for each instruction set and calls the one that an [`Isa`] names.
//!
//! Invariant: an [`Isa`] exists only for instructions that this machine has.

use std::fmt;

pub(super) use super::simd_portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(super) use super::simd_x86::{Avx2, Avx512};

/// An instruction set of this machine. Results differ between sets by rounding only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// Every instruction set that is known, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// 512-bit vectors with the F, BW, DQ and VL extensions.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler makes of arrays.
    Portable,
}

impl Isa {
    /// The fastest one.
    pub fn best() -> Isa {
        Isa::available().next().expect("the portable one is always there")
    }

    /// All that this machine has, the fastest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let levels = [
            #[cfg(target_arch = "x86_64")]
            Level::Avx512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2,
            Level::Portable,
        ];
        levels.into_iter().filter(|level| level.is_present()).map(Isa)
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
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        })
    }
}

impl Level {
    fn is_present(self) -> bool {
        match self {
            // These and no others are what `per_isa!` enables.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Level::Avx2.is_present()
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Level::Portable => true,
        }
    }
}

/// One instruction set's vector of `f32`, for the micro-kernel.
///
/// The vector functions are `unsafe` because calling them needs the instructions: that holds
/// inside [`per_isa!`].
pub(super) trait Lanes {
    /// The vector.
    type Vector: Copy;
    /// How many `f32` it has.
    const WIDTH: usize;
    /// How many rows of the first operand the registers hold accumulators for: 4 or 8.
    const ROWS: usize;

    /// `a * b + c`, fused where that is one instruction.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// All zero.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn zero() -> Self::Vector;

    /// `WIDTH` elements, at any alignment.
    ///
    /// # Safety
    /// The machine has the instructions, and `from` is valid for reading `WIDTH` elements.
    unsafe fn load(from: *const f32) -> Self::Vector;

    /// `count` elements, then zeros.
    ///
    /// # Safety
    /// The machine has the instructions, `from` is valid for reading `count` elements, and
    /// `count < WIDTH`.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::Vector;

    /// `a * b + c`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn multiply_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// The sum over the lanes of each vector; all eight are added in the same order.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn sums(vectors: &[Self::Vector; 8]) -> [f32; 8];

    /// Writes eight elements of each of eight rows as the columns of eight others: rows begin
    /// `from_stride` and `to_stride` apart.
    ///
    /// # Safety
    /// The machine has the instructions; all eight elements of each row are valid for reading from
    /// `from` and for writing to `to`, and the two do not overlap.
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
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
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<simd::Avx512>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<simd::Avx2>($($arg),*)
            }

            match isa.level() {
                // SAFETY: an `Isa` of this level exists only where its instructions do.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2 => unsafe { avx2($($arg),*) },
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
        assert_eq!(Isa::best(), Isa::available().next().unwrap());
    }

    #[test]
    fn vectors_load_multiply_and_sum() {
        for isa in Isa::available() {
            assert_eq!(probe(isa, &[2.0; 16]), (4.0, 6.0), "{isa}");
        }
    }
}
