// Quantised weights as signed bytes with their scales, before products of many rows (linear_bytes.cu), once for all rows.
//
// in: [columns, depth] as stored, rows of whole blocks; out: the same numbers as bytes, factor × byte + summand each. scales, and
// summands where the type has them: [depth / run, stride], zeros beyond the columns. A thread decodes eight numbers; grid and
// block of one dimension, any.
#include "decode.cuh"

struct DecodeBytesArgs {
    const uint8_t* in;
    uint2* out;
    float* scales;
    float* summands;
    uint32_t columns;
    uint32_t depth;   // a multiple of 32
    uint32_t stride;  // a multiple of four
    uint32_t padding;
};

// Bytes less an offset of up to 128, as signed ones.
template <int OFFSET>
__device__ inline uint32_t less_offset(uint32_t bytes) {
    // With the highest bit set none borrows from the next.
    if constexpr (OFFSET == 128) return bytes ^ 0x80808080;
    return ((bytes | 0x80808080) - OFFSET * 0x01010101u) ^ 0x80808080;
}

template <class Type, int RUN, bool SUMMANDS>
__device__ inline void decode_bytes(const DecodeBytesArgs& args) {
    const uint32_t groups = args.columns * (args.depth / GROUP);
    const uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t group = blockIdx.x * blockDim.x + threadIdx.x; group < groups; group += step) {
        const Levels levels = Type::levels(args.in, static_cast<int64_t>(group) * GROUP);
        args.out[group] = make_uint2(less_offset<Type::OFFSET>(levels.bytes.x), less_offset<Type::OFFSET>(levels.bytes.y));
        const uint32_t column = group / (args.depth / GROUP);
        const uint32_t at = (group - column * (args.depth / GROUP)) * GROUP;
        if (at % RUN != 0) continue;
        const int64_t row = static_cast<int64_t>(at / RUN) * args.stride;
        args.scales[row + column] = levels.factor;
        if constexpr (SUMMANDS) args.summands[row + column] = levels.summand;
        if (column + 1 < args.columns) continue;
        for (uint32_t beyond = args.columns; beyond < args.stride; beyond++) {
            args.scales[row + beyond] = 0.0f;
            if constexpr (SUMMANDS) args.summands[row + beyond] = 0.0f;
        }
    }
}

#define DECODE_BYTES(name, Type, RUN, SUMMANDS)                              \
    extern "C" __global__ void decode_bytes_##name(DecodeBytesArgs args) {   \
        decode_bytes<Type, RUN, SUMMANDS>(args);                             \
    }
DECODE_BYTES(q8_0, Q8_0, 32, false)
DECODE_BYTES(q4_0, Q4_0, 32, false)
DECODE_BYTES(q4_1, Q4_1, 32, true)
DECODE_BYTES(q5_0, Q5_0, 32, false)
DECODE_BYTES(q5_1, Q5_1, 32, true)
DECODE_BYTES(q4_k, Q4_K, 32, true)
DECODE_BYTES(q5_k, Q5_K, 32, true)
DECODE_BYTES(q6_k, Q6_K, 16, false)
