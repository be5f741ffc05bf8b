// Normalisations of rows whose weight is modulated, and sums with what they make. out may be x where it is of f32 too.
//
// x, y, out: `[batch, tokens, features]`. Block as in rows.cuh, `blockIdx.x` counts blocks of rows.

#include "element.cuh"
#include "moments.cuh"
#include "rows.cuh"
#include "vector.cuh"

struct ScaledNormArgs {
    void* out;
    const float* x;
    // [features]; none for layer normalisation.
    StoredVector weight;
    // Of the first batch item: [features].
    const float* scale;
    // From one batch item's scales to the next one's.
    int64_t stride;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    float eps;
    // An ElementKind, of out.
    uint32_t element;
    uint32_t padding;
};

// x / √(mean of squares + eps) × weight × (1 + scale)
extern "C" __global__ void scaled_rms_norm(ScaledNormArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.x + start, features};
    const Row<PlainRow> row(source, features);
    const float normal = inverse_root_mean_square(row, features, args.eps, partial);
    const float* scales = args.scale + index / args.tokens * args.stride;
    row.each_again([&](const Four& x, int first) {
        const Four scale = load_four(scales, first, features);
        Four y = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i >= features) break;
            y.at[i] = x.at[i] * normal * (vector_at(args.weight, first + i) * (1.0f + scale.at[i]));
        }
        store_elements(args.out, args.element, start, first, features, y);
    });
}

// (x - mean) / √(variance + eps) × (1 + scale)
extern "C" __global__ void scaled_layer_norm(ScaledNormArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.x + start, features};
    const Row<PlainRow> row(source, features);
    const RowMoments moments = row_moments(row, features, args.eps, partial);
    const float* scales = args.scale + index / args.tokens * args.stride;
    row.each([&](const Four& x, int first) {
        const Four scale = load_four(scales, first, features);
        Four y;
#pragma unroll
        for (int i = 0; i < 4; i++) y.at[i] = (x.at[i] - moments.mean) * moments.scale * (1.0f + scale.at[i]);
        store_elements(args.out, args.element, start, first, features, y);
    });
}

struct GatedNormAddArgs {
    float* out;
    const float* x;
    const float* y;
    // [features]
    StoredVector weight;
    // Of the first batch item: [features]; null for a gate of 1.
    const float* gate;
    // From one batch item's gates to the next one's.
    int64_t stride;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    float eps;
};

// x + tanh(gate) × y / √(mean of squares + eps) × weight
extern "C" __global__ void gated_norm_add(GatedNormAddArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.y + start, features};
    const Row<PlainRow> row(source, features);
    const float normal = inverse_root_mean_square(row, features, args.eps, partial);
    const float* gates = args.gate ? args.gate + index / args.tokens * args.stride : nullptr;
    row.each_again([&](const Four& y, int first) {
        Four sum = load_four(args.x + start, first, features);
        const Four gate = gates ? load_four(gates, first, features) : Four{};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i >= features) break;
            const float weight = vector_at(args.weight, first + i);
            const float factor = gates ? weight * tanhf(gate.at[i]) : weight;
            sum.at[i] = fmaf(y.at[i] * normal, factor, sum.at[i]);
        }
        store_four(args.out + start, first, features, sum);
    });
}
