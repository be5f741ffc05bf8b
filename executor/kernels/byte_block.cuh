// Blocks of 32 numbers that become signed bytes together: four threads of a warp that follow each other have eight numbers each.

#pragma once

#include "plain.cuh"

// Threads that share a block.
constexpr int SHARERS = 4;

// The bits of the largest magnitude of a block. Magnitudes compare as their bits do, and what is not finite is above all others.
// All of a warp take part.
__device__ inline uint32_t largest_of_block(const float (&values)[GROUP]) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffff);
    largest = max(largest, __shfl_xor_sync(WHOLE_WARP, largest, 1));
    return max(largest, __shfl_xor_sync(WHOLE_WARP, largest, 2));
}

// Eight numbers times `inverse`, rounded to whole ones, as bytes.
__device__ inline uint2 eight_bytes(const float (&values)[GROUP], float inverse) {
    // Adding this rounds to the nearest whole number, whose byte is then the lowest.
    constexpr float ROUNDING = 12582912.0f;
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const uint32_t byte = __float_as_uint(__fadd_rn(__fmul_rn(values[i], inverse), ROUNDING)) & 255;
        words[i / 4] |= byte << i % 4 * 8;
    }
    return make_uint2(words[0], words[1]);
}
