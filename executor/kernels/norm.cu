// Normalisations of rows: layer norm with stored or given scales and shifts, and root mean square. out may be x where it is of
// f32 too.
//
// x, out: `[rows, features]`, out of any ElementKind. Block as in rows.cuh, `blockIdx.x` counts blocks of rows.

#include "element.cuh"
#include "moments.cuh"
#include "rows.cuh"
#include "vector.cuh"

struct LayerNormArgs {
    void* out;
    const float* x;
    // [features] each
    StoredVector weight;
    StoredVector bias;
    uint32_t rows;
    uint32_t features;
    float eps;
    // An ElementKind, of out.
    uint32_t element;
};

// (x - mean) / √(variance + eps) × weight + bias
extern "C" __global__ void layer_norm(LayerNormArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.x + start, features};
    const Row<PlainRow> row(source, features);
    const RowMoments moments = row_moments(row, features, args.eps, partial);
    row.each_again([&](const Four& x, int first) {
        Four y = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i >= features) break;
            const float normal = (x.at[i] - moments.mean) * moments.scale;
            y.at[i] = normal * vector_at(args.weight, first + i) + vector_at(args.bias, first + i);
        }
        store_elements(args.out, args.element, start, first, features, y);
    });
}

struct AdaLayerNormArgs {
    void* out;
    const float* x;
    // Of the first batch item: [features] each.
    const float* shift;
    const float* scale;
    // From one batch item's to the next one's.
    int64_t stride;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    float eps;
    // An ElementKind, of out.
    uint32_t element;
    uint32_t padding;
};

// (x - mean) / √(variance + eps) × (1 + scale) + shift
extern "C" __global__ void ada_layer_norm(AdaLayerNormArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.x + start, features};
    const Row<PlainRow> row(source, features);
    const RowMoments moments = row_moments(row, features, args.eps, partial);
    const int64_t item = index / args.tokens * args.stride;
    row.each([&](const Four& x, int first) {
        const Four scale = load_four(args.scale + item, first, features);
        const Four shift = load_four(args.shift + item, first, features);
        Four y;
#pragma unroll
        for (int i = 0; i < 4; i++)
            y.at[i] = (x.at[i] - moments.mean) * moments.scale * (1.0f + scale.at[i]) + shift.at[i];
        store_elements(args.out, args.element, start, first, features, y);
    });
}

struct RmsNormArgs {
    void* out;
    const float* x;
    // [features]
    StoredVector weight;
    uint32_t rows;
    uint32_t features;
    float eps;
    // An ElementKind, of out.
    uint32_t element;
};

// out = x × scale × weight
template <class Storage>
__device__ inline void scale_row(const Row<PlainRow>& row, const RmsNormArgs& args, float scale, int64_t start) {
    const int features = static_cast<int>(args.features);
    const StoredVector& weight = args.weight;
    row.each([&](const Four& x, int first) {
        Four y = {};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + i < features)
                y.at[i] = x.at[i] * scale * __fmul_rn(Storage::at(weight.bytes, first + i), weight.scale);
        store_elements(args.out, args.element, start, first, features, y);
    });
}

// x / √(mean of squares + eps) × weight. For a norm of each head, features is the size of a head.
extern "C" __global__ void rms_norm(RmsNormArgs args) {
    __shared__ float partial[BLOCK_MAX / WARP];
    const uint32_t index = row_of_thread();
    if (index >= args.rows) return;
    const int features = static_cast<int>(args.features);
    const int64_t start = static_cast<int64_t>(index) * features;
    const PlainRow source{args.x + start, features};
    const Row<PlainRow> row(source, features);
    const float scale = inverse_root_mean_square(row, features, args.eps, partial);
    switch (args.weight.kind) {
        case VECTOR_F16: scale_row<F16>(row, args, scale, start); break;
        case VECTOR_BF16: scale_row<BF16>(row, args, scale, start); break;
        case VECTOR_F8_E4M3: scale_row<F8_E4M3>(row, args, scale, start); break;
        case VECTOR_F8_E5M2: scale_row<F8_E5M2>(row, args, scale, start); break;
        default: scale_row<F32>(row, args, scale, start); break;
    }
}
