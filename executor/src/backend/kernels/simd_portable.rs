//! Vectors for machines whose instructions are not named here: arrays, of which the compiler makes
//! what the target has.

use super::simd::Lanes;

/// Eight lanes as an array.
pub(super) struct Portable;

impl Lanes for Portable {
    type Vector = [f32; 8];
    const WIDTH: usize = 8;
    const ROWS: usize = 4;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        // Where fusing is no instruction, `mul_add` is a call.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 8] {
        // SAFETY: the caller's promise; arrays of f32 need no more alignment than f32.
        unsafe { from.cast::<[f32; 8]>().read() }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> [f32; 8] {
        let mut vector = [0.0; 8];
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts(from, count) };
        vector[..count].copy_from_slice(values);
        vector
    }

    #[inline(always)]
    unsafe fn multiply_add(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut sum = c;
        for lane in 0..8 {
            sum[lane] = Self::mul_add(a[lane], b[lane], c[lane]);
        }
        sum
    }

    #[inline(always)]
    unsafe fn sums(vectors: &[[f32; 8]; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        for (sum, v) in sums.iter_mut().zip(vectors) {
            *sum = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
        }
        sums
    }

    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: the caller's promise.
                unsafe {
                    *to.add(column * to_stride + row) = *from.add(row * from_stride + column)
                };
            }
        }
    }
}
