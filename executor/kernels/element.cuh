// A value's elements as they lie in memory: f32 or 16 bits.

#pragma once

#include "four.cuh"

// In the order of `element_kind` of ops.rs.
enum ElementKind : uint32_t { ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16 };

// Two numbers of 16 bits in a word, the first in its lower half. Of f16 what is too large becomes the largest.
__device__ __forceinline__ uint32_t pair_of(uint32_t kind, float low, float high) {
    return kind == ELEMENT_F16 ? pack_f16(low, high) : bf16x2_of_f32(low, high);
}

// Writes the four from `first`, a multiple of four, of a row of `length` that begins at element `start` of a value.
__device__ __forceinline__ void store_elements(
    void* value, uint32_t kind, int64_t start, int64_t first, int64_t length, const Four& four) {
    if (kind == ELEMENT_F32) {
        store_four(static_cast<float*>(value) + start, first, length, four);
        return;
    }
    const uint32_t low = pair_of(kind, four.at[0], four.at[1]);
    const uint32_t high = pair_of(kind, four.at[2], four.at[3]);
    uint16_t* row = static_cast<uint16_t*>(value) + start + first;
    if (length % 4 == 0) {
        *reinterpret_cast<uint2*>(row) = make_uint2(low, high);
        return;
    }
    const uint32_t words[2] = {low, high};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i < length) row[i] = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
}
