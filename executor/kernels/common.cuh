// What every kernel uses: integer types, conversions of short floats, reads of 16 bytes, sums of a warp and a block.
//
// No header of a system or of CUDA is included: NVRTC knows CUDA's own names, and where another compiler reads this, the
// simulator's header declares them. Everything here gives the same bits in both.
//
// A launch has whole warps, and every thread of a block takes part in each function that says so.

#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
// Shared memory whose length is told at the launch, as bytes at a multiple of 16.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#include "simulator.h"
#endif

constexpr int WARP = 32;
constexpr uint32_t WHOLE_WARP = 0xffffffff;
// Threads of a block at most, of every device.
constexpr int BLOCK_MAX = 1024;

// --- Short floats. A result that is no number has all of its bits set but the sign.

__device__ inline float f32_of_bf16(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ inline float f32_of_f16(uint16_t bits) {
#ifdef __CUDACC_RTC__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t rest = static_cast<uint32_t>(bits & 0x7fff) << 13;
    // The exponent's bias of 15 becomes that of 127.
    const uint32_t bias = (127 - 15) << 23;
    const uint32_t unit = 1 << 23;
    if ((bits & 0x7c00) == 0x7c00) return __uint_as_float(sign | (rest + 2 * bias));
    if ((bits & 0x7c00) != 0) return __uint_as_float(sign | (rest + bias));
    const float value = __uint_as_float(rest + bias + unit) - __uint_as_float(bias + unit);
    return __uint_as_float(sign | __float_as_uint(value));
#endif
}

// To the nearest, of two the even one; infinite from 65520 on.
__device__ inline uint16_t f16_of_f32(float value) {
#ifdef __CUDACC_RTC__
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t word = __float_as_uint(value);
    const uint32_t sign = word >> 16 & 0x8000;
    const uint32_t size = word & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (size < 0x38800000) {
        // A subnormal: its unit is 2^-24, which a sum with 0.5 has as its last bit.
        const float sum = __uint_as_float(size) + 0.5f;
        return static_cast<uint16_t>(sign | (__float_as_uint(sum) - 0x3f000000));
    }
    const uint32_t rounded = size + 0xfff + (size >> 13 & 1) - ((127 - 15) << 23);
    return static_cast<uint16_t>(sign | rounded >> 13);
#endif
}

// To the nearest, of two the even one.
__device__ inline uint16_t bf16_of_f32(float value) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const uint32_t word = __float_as_uint(value);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
#endif
}

// Two numbers in a word, the first in its lower half.
__device__ inline uint32_t f16x2_of_f32(float low, float high) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return f16_of_f32(low) | static_cast<uint32_t>(f16_of_f32(high)) << 16;
#endif
}

__device__ inline uint32_t bf16x2_of_f32(float low, float high) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return bf16_of_f32(low) | static_cast<uint32_t>(bf16_of_f32(high)) << 16;
#endif
}

// The largest finite binary16.
constexpr float F16_MAX = 65504.0f;

// What is too large for binary16 becomes the largest, with its sign; what is no number stays none.
__device__ __forceinline__ float within_f16(float value) {
    return fabsf(value) > F16_MAX ? copysignf(F16_MAX, value) : value;
}

// Two numbers as binary16 within its range, the first in the lower half.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
    // What is infinite after rounding lies as far beyond as what was too large.
    uint32_t pair = f16x2_of_f32(low, high);
    asm("min.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x7bff7bff));
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0xfbfffbff));
    return pair;
#else
    return f16x2_of_f32(within_f16(low), within_f16(high));
#endif
}

// Eight bits with four of exponent, no infinities, all bits set is no number (OCP 8-bit floating point, E4M3).
__device__ inline float f32_of_e4m3(uint8_t bits) {
    // Read as a binary16 whose fraction begins with the three bits, it lacks the difference of the biases: 15 - 7.
    const float value = f32_of_f16(static_cast<uint16_t>((bits & 0x7f) << 7)) * 256.0f;
    const uint32_t size = (bits & 0x7f) == 0x7f ? 0x7fc00000 : __float_as_uint(value);
    return __uint_as_float(size | static_cast<uint32_t>(bits & 0x80) << 24);
}

// The upper half of a binary16.
__device__ inline float f32_of_e5m2(uint8_t bits) {
    return f32_of_f16(static_cast<uint16_t>(bits << 8));
}

// --- Bytes and words.

// Whether an address is a multiple of `bytes`, a power of two.
__device__ inline bool is_aligned(const void* address, int bytes) {
    return (reinterpret_cast<uint64_t>(address) & (bytes - 1)) == 0;
}

// The whole number in byte `index` of a word, less `OFFSET`. By the bits of 2^23 + the byte: a conversion from an integer has a
// fraction of an addition's rate.
template <int OFFSET>
__device__ inline float number_of_byte(uint32_t word, int index) {
#ifdef __CUDACC_RTC__
    const uint32_t bits = __byte_perm(word, 0x4b000000, 0x7650 | index);
#else
    const uint32_t bits = (word >> (8 * index) & 255) | 0x4b000000;
#endif
    return __uint_as_float(bits) - (8388608.0f + OFFSET);
}

// --- Reductions, always in the same order.

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(WHOLE_WARP, value, distance);
    return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(WHOLE_WARP, value, distance));
    return value;
}

// The sum over a block of one dimension, in every thread. `partial`: shared, BLOCK_MAX / WARP long, free to use before and
// after; all threads take part.
template <class T>
__device__ inline T block_sum(T value, T* partial) {
    const int lane = threadIdx.x % WARP;
    value = warp_sum(value);
    if (lane == 0) partial[threadIdx.x / WARP] = value;
    __syncthreads();
    const int warps = (blockDim.x + WARP - 1) / WARP;
    value = warp_sum(lane < warps ? partial[lane] : T(0));
    __syncthreads();
    return value;
}

// The largest over a block of one dimension, as `block_sum`.
__device__ inline float block_max(float value, float* partial) {
    const int lane = threadIdx.x % WARP;
    value = warp_max(value);
    if (lane == 0) partial[threadIdx.x / WARP] = value;
    __syncthreads();
    const int warps = (blockDim.x + WARP - 1) / WARP;
    value = warp_max(partial[lane < warps ? lane : 0]);
    __syncthreads();
    return value;
}
