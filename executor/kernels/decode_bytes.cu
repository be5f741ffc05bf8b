// Weights as signed bytes with their scales, before products of many rows (linear_bytes.cu), once for all rows: quantised ones, and
// those in floats of eight bits.
//
// in: [columns, depth] as stored, rows of whole blocks; out: the same numbers as bytes, factor × byte + summand each. scales, and
// summands where the type has them: [depth / run, stride], zeros beyond the columns. A thread decodes eight numbers; grid and
// block of one dimension, whole warps.
#include "byte_block.cuh"
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

// Writes a column's number into its row of a table, and behind the last one zeros.
__device__ inline void put(const DecodeBytesArgs& args, float* row, uint32_t column, float number) {
    row[column] = number;
    if (column + 1 < args.columns) return;
    for (uint32_t beyond = args.columns; beyond < args.stride; beyond++) row[beyond] = 0.0f;
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
        put(args, args.scales + row, column, levels.factor);
        if constexpr (SUMMANDS) put(args, args.summands + row, column, levels.summand);
    }
}

// Floats of eight bits as bytes: each 32 share the power of two by which the largest lies between 64 and 120, or 112. As they have
// four bits, or three, those of at least an eighth of the largest are then whole numbers, and so the same as before; smaller ones are
// rounded. What is not finite makes the scale no number.
template <class Type>
__device__ inline void round_to_bytes(const DecodeBytesArgs& args) {
    const uint32_t row_groups = args.depth / GROUP;
    const uint32_t groups = args.columns * row_groups;
    const uint32_t step = gridDim.x * blockDim.x;
    const uint32_t lane = threadIdx.x % WARP;
    // All of a warp go on together, as they exchange what they find.
    for (uint32_t group = blockIdx.x * blockDim.x + threadIdx.x; group - lane < groups; group += step) {
        float values[GROUP] = {};
        if (group < groups) Type::decode(args.in, static_cast<int64_t>(group) * GROUP, values);
        // Of the largest, as f32 has it. The least number of all is above 2^-17, so zeros only are below this.
        const uint32_t exponent = max(largest_of_block(values) >> 23, 64u);
        const float scale = __uint_as_float(exponent == 255 ? 0x7fffffff : (exponent - 6) << 23);
        const float inverse = __uint_as_float((2 * 127 + 6 - exponent) << 23);
        int sum = 0;
        const uint32_t low = four_bytes(values, inverse, sum);
        const uint32_t high = four_bytes(values + 4, inverse, sum);
        if (group >= groups) continue;
        args.out[group] = make_uint2(low, high);
        const uint32_t column = group / row_groups;
        const uint32_t first = group - column * row_groups;
        if (first % SHARERS != 0) continue;
        const int64_t row = static_cast<int64_t>(first / SHARERS) * args.stride;
        put(args, args.scales + row, column, scale);
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

extern "C" __global__ void decode_bytes_f8_e4m3(DecodeBytesArgs args) {
    round_to_bytes<F8_E4M3>(args);
}

extern "C" __global__ void decode_bytes_f8_e5m2(DecodeBytesArgs args) {
    round_to_bytes<F8_E5M2>(args);
}
