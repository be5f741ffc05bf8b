// Weights as signed bytes with a scale for each 32 of a row, before products of many rows (linear_bytes.cu), once for all rows.
//
// Types whose numbers are whole ones times a factor for each 32 stay as they are. Others are rounded: those with a summand, or a factor
// for each 16, and floats of eight bits.
//
// in: [columns, depth] as stored, rows of whole blocks; out: as many bytes. scales: [depth / 32, stride], zeros beyond the columns. A
// thread takes eight numbers; grid and block of one dimension, whole warps.
#include "byte_block.cuh"
#include "decode.cuh"

struct DecodeBytesArgs {
    const uint8_t* in;
    uint2* out;
    float* scales;
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

// Writes a block's scale, and behind the last column's zeros. `first`: the block's first group of its row.
__device__ inline void put_scale(const DecodeBytesArgs& args, uint32_t column, uint32_t first, float scale) {
    float* row = args.scales + static_cast<int64_t>(first / SHARERS) * args.stride;
    row[column] = scale;
    if (column + 1 < args.columns) return;
    for (uint32_t beyond = args.columns; beyond < args.stride; beyond++) row[beyond] = 0.0f;
}

template <class Type>
__device__ inline void decode_bytes(const DecodeBytesArgs& args) {
    const uint32_t row_groups = args.depth / GROUP;
    const uint32_t groups = args.columns * row_groups;
    const uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t group = blockIdx.x * blockDim.x + threadIdx.x; group < groups; group += step) {
        const Levels levels = Type::levels(args.in, static_cast<int64_t>(group) * GROUP);
        args.out[group] = make_uint2(less_offset<Type::OFFSET>(levels.bytes.x), less_offset<Type::OFFSET>(levels.bytes.y));
        const uint32_t column = group / row_groups;
        const uint32_t first = group - column * row_groups;
        if (first % SHARERS == 0) put_scale(args, column, first, levels.factor);
    }
}

// A block's scale, and its inverse, by the bits of its largest magnitude. What is not finite makes the scale no number.
//
// For floats of eight bits: the power of two by which the largest lies between 64 and 120, or 112. As they have four bits, or three,
// those of at least an eighth of the largest are then whole numbers, and so the same as before; smaller ones are rounded.
struct PowerOfTwo {
    float scale;
    float inverse;

    __device__ explicit PowerOfTwo(uint32_t largest) {
        // The least number of all is above 2^-17, so zeros only are below this.
        const uint32_t exponent = max(largest >> 23, 64u);
        scale = __uint_as_float(exponent == 255 ? 0x7fffffff : (exponent - 6) << 23);
        inverse = __uint_as_float((2 * 127 + 6 - exponent) << 23);
    }
};

// For all others: the largest over 127, rounded up to the 11 bits that a factor of Q8_0 has.
struct Of127 {
    float scale = 0.0f;
    float inverse = 0.0f;

    __device__ explicit Of127(uint32_t largest) {
        constexpr uint32_t LOWER_BITS = (1 << 13) - 1;
        const float magnitude = __uint_as_float(largest);
        // Below this the inverse would overflow.
        if (magnitude < 1e-35f) return;
        const uint32_t bits = __float_as_uint(__fdiv_rn(magnitude, 127.0f)) + LOWER_BITS;
        scale = __uint_as_float(largest < 0x7f800000 ? bits & ~LOWER_BITS : 0x7fffffff);
        inverse = __fdiv_rn(1.0f, scale);
    }
};

template <class Type, class Scale>
__device__ inline void round_to_bytes(const DecodeBytesArgs& args) {
    const uint32_t row_groups = args.depth / GROUP;
    const uint32_t groups = args.columns * row_groups;
    const uint32_t step = gridDim.x * blockDim.x;
    const uint32_t lane = threadIdx.x % WARP;
    // All of a warp go on together, as they exchange what they find.
    for (uint32_t group = blockIdx.x * blockDim.x + threadIdx.x; group - lane < groups; group += step) {
        float values[GROUP] = {};
        if (group < groups) Type::decode(args.in, static_cast<int64_t>(group) * GROUP, values);
        const Scale by(largest_of_block(values));
        if (group >= groups) continue;
        args.out[group] = eight_bytes(values, by.inverse);
        const uint32_t column = group / row_groups;
        const uint32_t first = group - column * row_groups;
        if (first % SHARERS == 0) put_scale(args, column, first, by.scale);
    }
}

#define DECODE_BYTES(name, ...)                                            \
    extern "C" __global__ void decode_bytes_##name(DecodeBytesArgs args) { \
        __VA_ARGS__(args);                                                 \
    }
DECODE_BYTES(q8_0, decode_bytes<Q8_0>)
DECODE_BYTES(q4_0, decode_bytes<Q4_0>)
DECODE_BYTES(q5_0, decode_bytes<Q5_0>)
DECODE_BYTES(q4_1, round_to_bytes<Q4_1, Of127>)
DECODE_BYTES(q5_1, round_to_bytes<Q5_1, Of127>)
DECODE_BYTES(q2_k, round_to_bytes<Q2_K, Of127>)
DECODE_BYTES(q3_k, round_to_bytes<Q3_K, Of127>)
DECODE_BYTES(q4_k, round_to_bytes<Q4_K, Of127>)
DECODE_BYTES(q5_k, round_to_bytes<Q5_K, Of127>)
DECODE_BYTES(q6_k, round_to_bytes<Q6_K, Of127>)
DECODE_BYTES(f8_e4m3, round_to_bytes<F8_E4M3, PowerOfTwo>)
DECODE_BYTES(f8_e5m2, round_to_bytes<F8_E5M2, PowerOfTwo>)
