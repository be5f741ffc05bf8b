// Four f32 at a time: values begin at multiples of 16 bytes, so a row of a length that four divides is read in vectors, any
// other number by number. What lies beyond a row's end reads as zero and is not written.

#pragma once

#include "common.cuh"

struct Four {
    float at[4];
};

// The four from `first`, a multiple of four, of a row of `length`.
__device__ inline Four load_four(const float* row, int64_t first, int64_t length) {
    if (length % 4 == 0) {
        const float4 whole = *reinterpret_cast<const float4*>(row + first);
        return Four{{whole.x, whole.y, whole.z, whole.w}};
    }
    Four some = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i < length) some.at[i] = row[first + i];
    return some;
}

__device__ inline void store_four(float* row, int64_t first, int64_t length, const Four& values) {
    if (length % 4 == 0) {
        *reinterpret_cast<float4*>(row + first) = make_float4(values.at[0], values.at[1], values.at[2], values.at[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i < length) row[first + i] = values.at[i];
}
