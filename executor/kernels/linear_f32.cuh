// The operands of linear layers in f32: activations that lie in up to four matrices, and weights of any storage type.
#pragma once

#include "linear.cuh"

// The argument of the kernels with f32 operands.
struct LinearF32Args {
    LinearOut to;
    const float* x[4];    // [rows, features] each, thought beside each other; null where there are fewer
    const uint8_t* w;     // [columns, depth]
    int32_t features[4];  // of each input; zero where there are fewer
    int32_t depth;        // their sum
    int32_t padding;
};

// Activations of one input from some feature on.
struct Run {
    const float* from;
    int32_t count;
};

// Those of a row from `k` on; none past the depth.
__device__ inline Run activations_at(const LinearF32Args& args, int row, int k) {
    Run run = {nullptr, 0};
#pragma unroll
    for (int input = 0; input < 4; input++) {
        const int features = args.features[input];
        if (k >= 0 && k < features) run = {args.x[input] + static_cast<int64_t>(row) * features + k, features - k};
        k -= features;
    }
    return run;
}

// Four activations of a row from `k` on; zeros follow the last.
__device__ inline float4 four_activations(const LinearF32Args& args, int row, int k) {
    const Run run = activations_at(args, row, k);
    if (run.count >= 4 && is_aligned(run.from, 16)) return *reinterpret_cast<const float4*>(run.from);
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const Run one = activations_at(args, row, k + i);
        const float value = one.count > 0 ? *one.from : 0.0f;
        four = make_float4(four.y, four.z, four.w, value);
    }
    return four;
}

// Eight weights of a column from `k` on, without their scale; zeros follow the last. Blocks may run over the ends of rows.
template <class Type>
__device__ inline void eight_weights(const LinearF32Args& args, int column, int k, float (&out)[GROUP]) {
    const int64_t element = static_cast<int64_t>(column) * args.depth + k;
    // Otherwise groups of eight begin at other places of each row.
    if (args.depth % GROUP == 0 && k < args.depth) {
        eight_numbers<Type>(args.to.storage, args.w, element, out);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < GROUP; i++) {
#pragma unroll
        for (int j = 0; j + 1 < GROUP; j++) out[j] = out[j + 1];
        out[GROUP - 1] = k + i < args.depth ? one_number<Type>(args.to.storage, args.w, element + i) : 0.0f;
    }
}
