// Activations as signed bytes, for products with quantised weights (linear_bytes.cu). They are rounded to bf16, unless they are
// bf16 already, and then quantised as on the host (quantise.rs): each 32 features of a row share a scale, their largest magnitude
// over 127; what is not finite makes it no number.
//
// inputs: up to four of [rows, features of each], multiples of eight, thought beside each other: a multiple of 32 in all. out:
// [rows, depth]; scales: [depth / 32, stride], rows in the order of row_places.cuh, zeros beyond them.
// A thread takes eight features, and four threads that follow each other a block; grid and block of one dimension, whole warps.
#include "byte_block.cuh"
#include "element.cuh"
#include "row_places.cuh"

constexpr int QUANTISE_INPUTS = 4;

struct QuantiseArgs {
    uint2* out;
    float* scales;
    const uint8_t* inputs[QUANTISE_INPUTS];
    uint32_t features[QUANTISE_INPUTS];  // of each input; those that are not there have none
    uint32_t rows;
    uint32_t depth;
    uint32_t stride;   // a multiple of 64
    uint32_t element;  // ElementKind of the inputs: f32 or bf16
};

// Eight features of a row that begin with a multiple of eight, as bf16 rounds them.
__device__ inline void eight_features(const QuantiseArgs& args, uint32_t row, uint32_t feature, float (&out)[GROUP]) {
    const uint8_t* input = args.inputs[0];
    uint32_t features = args.features[0];
#pragma unroll
    for (int i = 1; i < QUANTISE_INPUTS; i++) {
        // Where the inputs before it end, and this one has some.
        if (input == args.inputs[i - 1] && feature >= features && args.features[i] > 0) {
            feature -= features;
            input = args.inputs[i];
            features = args.features[i];
        }
    }
    const int64_t at = static_cast<int64_t>(row) * features + feature;
    if (args.element == ELEMENT_BF16) {
        BF16::decode(input, at, out);
        return;
    }
    F32::decode(input, at, out);
#pragma unroll
    for (int i = 0; i < GROUP; i++) out[i] = f32_of_bf16(bf16_of_f32(out[i]));
}

// A block's scale, and what its values are multiplied by.
__device__ inline float2 scale_and_inverse(float largest) {
    // Below this the inverse would overflow.
    if (largest < 1e-35f) return make_float2(0.0f, 0.0f);
    if (largest <= 3.4028235e38f) return make_float2(__fdiv_rn(largest, 127.0f), __fdiv_rn(127.0f, largest));
    return make_float2(__uint_as_float(0x7fffffff), 0.0f);
}

extern "C" __global__ void quantise(QuantiseArgs args) {
    const uint32_t row_groups = args.depth / GROUP;
    const uint32_t step = gridDim.x * blockDim.x;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t groups = args.stride * row_groups;
    // All of a warp go on together, as they exchange what they find.
    for (uint32_t group = blockIdx.x * blockDim.x + threadIdx.x; group - lane < groups; group += step) {
        const uint32_t row = group / row_groups;
        const uint32_t first = group - row * row_groups;
        const bool there = row < args.rows;
        float values[GROUP] = {};
        if (there) eight_features(args, row, first * GROUP, values);
        const float2 by = scale_and_inverse(__uint_as_float(largest_of_block(values)));
        if (there) args.out[group] = eight_bytes(values, by.y);
        if (group >= groups || first % SHARERS != 0) continue;
        args.scales[static_cast<int64_t>(first / SHARERS) * args.stride + row_place(row)] = by.x;
    }
}
