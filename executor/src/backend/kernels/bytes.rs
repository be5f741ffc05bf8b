//! Vectors of bytes, for products of quantised weights with quantised activations.
//!
//! As in [`simd`](super::simd), an inner loop is written once, generic over [`ByteLanes`], inside
//! [`per_byte_isa!`]. All sets form the same integers; a float that is made of them is rounded
//! alike in all sets that fuse multiply-add.

pub(super) use super::byte_lanes::ByteLanes;
#[cfg(target_arch = "x86_64")]
pub(super) use super::bytes_x86::{Ymm, YmmVnni, Zmm, ZmmVnni};
use super::simd::Portable;

/// Words as an array.
pub(super) struct PortableBytes;

impl ByteLanes for PortableBytes {
    type Float = Portable;
    type Words = [u32; 8];
    const TILE_ROWS: usize = 3;
    const SIGNED: bool = false;

    #[inline(always)]
    fn steps(_bits: u32) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn splat(word: u32) -> [u32; 8] {
        [word; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const u32) -> [u32; 8] {
        // SAFETY: the caller's promise; the read needs no alignment.
        unsafe { from.cast::<[u32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn dot<const BITS: u32>(
        mut sums: [u32; 8],
        numbers: [u32; 8],
        bytes: [u32; 8],
    ) -> [u32; 8] {
        for lane in 0..8 {
            let products = numbers[lane].to_le_bytes().into_iter().zip(bytes[lane].to_le_bytes());
            for (number, byte) in products {
                let product = i32::from(number) * i32::from(byte as i8);
                sums[lane] = sums[lane].wrapping_add(product as u32);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dots<const BITS: u32>(
        sums: [u32; 8],
        numbers: *const u32,
        _stride: usize,
        bytes: *const u32,
    ) -> [u32; 8] {
        // SAFETY: the caller's promise.
        unsafe { Self::dot::<BITS>(sums, Self::load(numbers), Self::splat(*bytes)) }
    }

    #[inline(always)]
    unsafe fn spread<const SCALES: usize>(from: *const f32) -> [f32; 8] {
        // SAFETY: the caller's promise.
        std::array::from_fn(|lane| unsafe { *from.add(lane * SCALES / 8) })
    }

    #[inline(always)]
    unsafe fn to_float(words: [u32; 8]) -> [f32; 8] {
        words.map(|word| word as i32 as f32)
    }
}

/// As [`per_isa!`](super::simd::per_isa), with `body::<B>` for `B` the set's [`ByteLanes`], and
/// constants before them.
macro_rules! per_byte_isa {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$lanes:ident $(, const $constant:ident: $kind:ty)*>(
            $($arg:ident: $ty:ty),* $(,)?
        ) $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name<$(const $constant: $kind),*>(
            isa: $crate::backend::kernels::simd::Isa,
            $($arg: $ty),*
        ) {
            use $crate::backend::kernels::{bytes, simd};

            #[inline(always)]
            fn body<$lanes: bytes::ByteLanes $(, const $constant: $kind)*>($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            fn avx512_vnni<$(const $constant: $kind),*>($($arg: $ty),*) {
                body::<bytes::ZmmVnni $(, $constant)*>($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512<$(const $constant: $kind),*>($($arg: $ty),*) {
                body::<bytes::Zmm $(, $constant)*>($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            fn avx2_vnni<$(const $constant: $kind),*>($($arg: $ty),*) {
                body::<bytes::YmmVnni $(, $constant)*>($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2<$(const $constant: $kind),*>($($arg: $ty),*) {
                body::<bytes::Ymm $(, $constant)*>($($arg),*);
            }

            match isa.level() {
                // SAFETY: an `Isa` of this level exists only where its instructions do.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Amx | simd::Level::Avx512Bf16 | simd::Level::Avx512Vnni => unsafe {
                    avx512_vnni::<$($constant),*>($($arg),*)
                },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx512 => unsafe { avx512::<$($constant),*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2Vnni => unsafe { avx2_vnni::<$($constant),*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2 => unsafe { avx2::<$($constant),*>($($arg),*) },
                simd::Level::Portable => body::<bytes::PortableBytes $(, $constant)*>($($arg),*),
            }
        }
    };
}
pub(super) use per_byte_isa;
