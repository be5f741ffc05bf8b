// Rows of f32 as 16-bit floats for tensor cores: several inputs, thought concatenated along features, become one matrix. And the
// factors of rows that are bf16 already.
//
// inputs: up to four of `[rows, features of each]`; out: `[rows, stride]`, zeros beyond the features. stride: a multiple of
// eight, so that rows begin at multiples of 16 bytes. Block as in rows.cuh, `blockIdx.x` counts blocks of rows.

#include "rows.cuh"

constexpr int CONVERT_INPUTS = 4;

struct ConvertArgs {
    // [rows, stride]
    uint16_t* out;
    // [rows]: what a row's products have to be multiplied by. Not written for bf16.
    float* factors;
    const float* inputs[CONVERT_INPUTS];
    // Of each input; those that are not there have none.
    uint32_t features[CONVERT_INPUTS];
    uint32_t rows;
    uint32_t stride;
};

// A row of the concatenation.
struct JoinedRow {
    const ConvertArgs& args;
    uint32_t row;
    // Whether all inputs are read in fours.
    bool fours;

    __device__ JoinedRow(const ConvertArgs& args, uint32_t row) : args(args), row(row) {
        fours = (args.features[0] | args.features[1] | args.features[2] | args.features[3]) % 4 == 0;
    }

    // Where a feature of the concatenation lies, or nothing beyond the last.
    __device__ const float* find(uint32_t feature) const {
        const float* found = nullptr;
        bool past = true;
#pragma unroll
        for (int i = 0; i < CONVERT_INPUTS; i++) {
            const uint32_t features = args.features[i];
            if (past && feature < features) {
                found = args.inputs[i] + static_cast<int64_t>(row) * features + feature;
                past = false;
            }
            feature -= features;
        }
        return found;
    }

    __device__ float one(uint32_t feature) const {
        const float* found = find(feature);
        return found == nullptr ? 0.0f : *found;
    }

    __device__ Four operator()(int place) const {
        const uint32_t first = static_cast<uint32_t>(place);
        if (!fours) return Four{{one(first), one(first + 1), one(first + 2), one(first + 3)}};
        const float* found = find(first);
        return found == nullptr ? Four{} : load_four(found, 0, 4);
    }
};

// The power of two that takes a largest magnitude to 2^13 and above, but below 2^14: far enough below 65504 for any rounding, and
// what then is below binary16's normal numbers is 2^-27 of the largest. 1 for zero and for what is not finite.
__device__ inline float factor_of(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    if (largest == 0.0f || exponent == 128) return 1.0f;
    // Its inverse has to be a normal number too.
    const int power = min(13 - exponent, 126);
    return __uint_as_float(static_cast<uint32_t>(power + 127) << 23);
}

__device__ inline void store_pairs(uint16_t* row, int first, uint32_t low, uint32_t high) {
    *reinterpret_cast<uint2*>(row + first) = make_uint2(low, high);
}

// Each row as binary16 times a power of two of its own.
extern "C" __global__ void convert_f16(ConvertArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const JoinedRow source(args, index);
    const Row<JoinedRow> row(source, static_cast<int>(args.stride));
    float largest = 0.0f;
    row.each([&](const Four& x, int) {
#pragma unroll
        for (int i = 0; i < 4; i++) largest = fmaxf(largest, fabsf(x.at[i]));
    });
    const float factor = factor_of(row_max(largest, partial));
    uint16_t* out = args.out + static_cast<int64_t>(index) * args.stride;
    row.each([&](const Four& x, int first) {
        const uint32_t low = f16x2_of_f32(x.at[0] * factor, x.at[1] * factor);
        store_pairs(out, first, low, f16x2_of_f32(x.at[2] * factor, x.at[3] * factor));
    });
    if (threadIdx.x == 0) args.factors[index] = 1.0f / factor;
}

// Each row as bfloat16.
extern "C" __global__ void convert_bf16(ConvertArgs args) {
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const JoinedRow source(args, index);
    const Row<JoinedRow> row(source, static_cast<int>(args.stride));
    uint16_t* out = args.out + static_cast<int64_t>(index) * args.stride;
    row.each([&](const Four& x, int first) {
        store_pairs(out, first, bf16x2_of_f32(x.at[0], x.at[1]), bf16x2_of_f32(x.at[2], x.at[3]));
    });
}

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ < 800

struct FactorsArgs {
    // [rows]: what a row's products have to be multiplied by, once its numbers were divided by it.
    float* factors;
    // [rows, features of each], of bf16
    const uint16_t* inputs[CONVERT_INPUTS];
    // Of each input, multiples of eight; those that are not there have none.
    uint32_t features[CONVERT_INPUTS];
    uint32_t rows;
    uint32_t padding;
};

// The larger magnitude of each of two pairs of bf16, whose bits without the sign are in their order.
__device__ inline uint32_t larger_of_pairs(uint32_t left, uint32_t right) {
    const uint32_t low = max(left & 0x7fff, right & 0x7fff);
    return low | max(left & 0x7fff0000, right & 0x7fff0000);
}

// The factors that convert_f16 would give rows of several inputs; for capability 7.5, which multiplies bf16 as f16.
extern "C" __global__ void factors_bf16(FactorsArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    constexpr uint32_t EIGHT = 8;
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    uint32_t pair = 0;
#pragma unroll
    for (int input = 0; input < CONVERT_INPUTS; input++) {
        const uint32_t features = args.features[input];
        const uint16_t* row = args.inputs[input] + static_cast<int64_t>(index) * features;
#pragma unroll 4
        for (uint32_t first = threadIdx.x * EIGHT; first < features; first += blockDim.x * EIGHT) {
            const uint4 eight = *reinterpret_cast<const uint4*>(row + first);
            pair = larger_of_pairs(pair, larger_of_pairs(larger_of_pairs(eight.x, eight.y), larger_of_pairs(eight.z, eight.w)));
        }
    }
    const float largest = fmaxf(f32_of_bf16(static_cast<uint16_t>(pair)), f32_of_bf16(static_cast<uint16_t>(pair >> 16)));
    const float factor = factor_of(row_max(largest, partial));
    if (threadIdx.x == 0) args.factors[index] = 1.0f / factor;
}

#endif
