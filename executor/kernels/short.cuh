// Values of 16 bits as kernels read them; how they are written is in element.cuh.

#pragma once

#include "element.cuh"

// Four numbers in two words, of which the first is in the lower half of the first.
__device__ __forceinline__ Four four_of(uint32_t kind, uint2 words) {
    const uint32_t both[2] = {words.x, words.y};
    Four four;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint16_t bits = static_cast<uint16_t>(both[i / 2] >> (16 * (i % 2)));
        four.at[i] = kind == ELEMENT_F16 ? f32_of_f16(bits) : f32_of_bf16(bits);
    }
    return four;
}
