// The storage types without blocks, for decode.cuh, and for kernels that read no others: `at(row, element)` gives a number as f32,
// `decode(row, element, out)` the eight from `element` on.

#pragma once

#include "common.cuh"

// Numbers that are decoded together.
constexpr int GROUP = 8;

// --- Reads of some bytes, as words.

__device__ inline uint16_t read_2(const uint8_t* at) {
    return __ldg(reinterpret_cast<const uint16_t*>(at));
}

// At any even address.
__device__ inline uint32_t read_4(const uint8_t* at) {
    return read_2(at) | static_cast<uint32_t>(read_2(at + 2)) << 16;
}

__device__ inline uint2 read_8(const uint8_t* at) {
    return make_uint2(read_4(at), read_4(at + 4));
}

__device__ inline uint4 read_16(const uint8_t* at) {
    if (is_aligned(at, 16)) return __ldg(reinterpret_cast<const uint4*>(at));
    const uint2 low = read_8(at);
    const uint2 high = read_8(at + 8);
    return make_uint4(low.x, low.y, high.x, high.y);
}

// At a multiple of eight.
__device__ inline uint2 read_8_aligned(const uint8_t* at) {
    return __ldg(reinterpret_cast<const uint2*>(at));
}

__device__ inline float read_f16(const uint8_t* at) {
    return f32_of_f16(read_2(at));
}

struct F32 {
    static constexpr int group = GROUP, block_elements = 1, block_bytes = 4;
    static __device__ float at(const uint8_t* row, int64_t element) {
        return __ldg(reinterpret_cast<const float*>(row) + element);
    }
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const float* from = reinterpret_cast<const float*>(row) + element;
        if (is_aligned(from, 16)) {
            const float4 low = __ldg(reinterpret_cast<const float4*>(from));
            const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
            out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
            out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
            return;
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++) out[i] = __ldg(from + i);
    }
};

// Two bytes a number, which `OF` widens.
template <float (*OF)(uint16_t)>
struct Halves {
    static constexpr int group = GROUP, block_elements = 1, block_bytes = 2;
    static __device__ float at(const uint8_t* row, int64_t element) { return OF(read_2(row + 2 * element)); }
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint4 words = read_16(row + 2 * element);
        const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < GROUP; i++) out[i] = OF(static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16)));
    }
};
using F16 = Halves<f32_of_f16>;
using BF16 = Halves<f32_of_bf16>;

// A byte a number, which `OF` widens.
template <float (*OF)(uint8_t)>
struct Bytes {
    static constexpr int group = GROUP, block_elements = 1, block_bytes = 1;
    static __device__ float at(const uint8_t* row, int64_t element) { return OF(__ldg(row + element)); }
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = row + element;
        if (is_aligned(from, 8)) {
            const uint2 words = read_8_aligned(from);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[i] = OF(static_cast<uint8_t>(words.x >> (8 * i)));
                out[i + 4] = OF(static_cast<uint8_t>(words.y >> (8 * i)));
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++) out[i] = OF(__ldg(from + i));
    }
};
using F8_E4M3 = Bytes<f32_of_e4m3>;
using F8_E5M2 = Bytes<f32_of_e5m2>;
