// Operations on each row of features by something that belongs to its token or its batch item: gated and scaled sums, rotation.
// out may be x where it is of f32 too.
//
// A block is `[threads of a row, rows]`; `blockIdx.x` counts blocks of rows. A thread takes four neighbours at a time.

#include "element.cuh"

// Calls `function(row, first feature)` for each four of each row.
template <class Function>
__device__ inline void each_four(uint32_t rows, uint32_t features, Function function) {
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    for (uint32_t first = threadIdx.x * 4; first < features; first += blockDim.x * 4) function(row, first);
}

struct GatedAddArgs {
    // [batch, tokens, features]
    float* out;
    const float* x;
    const float* y;
    // The gates of the first batch item: [features].
    const float* gate;
    // From one batch item's gates to the next one's.
    int64_t gate_stride;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    uint32_t padding;
};

// x + gate × y
extern "C" __global__ void gated_add(GatedAddArgs args) {
    each_four(args.rows, args.features, [&](uint32_t row, uint32_t first) {
        const int64_t start = static_cast<int64_t>(row) * args.features;
        const float* gates = args.gate + row / args.tokens * args.gate_stride;
        Four sum = load_four(args.x + start, first, args.features);
        const Four y = load_four(args.y + start, first, args.features);
        const Four gate = load_four(gates, first, args.features);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.at[i] = fmaf(gate.at[i], y.at[i], sum.at[i]);
        store_four(args.out + start, first, args.features, sum);
    });
}

struct ScaledAddArgs {
    // [rows, features]
    float* out;
    const float* x;
    // [rows, y_features]
    const float* y;
    uint32_t rows;
    uint32_t features;
    uint32_t first_feature;
    uint32_t y_features;
    float scale;
    uint32_t padding;
};

// x + scale × y, y added to y_features of x's features from first_feature on
extern "C" __global__ void scaled_add(ScaledAddArgs args) {
    each_four(args.rows, args.features, [&](uint32_t row, uint32_t first) {
        const int64_t start = static_cast<int64_t>(row) * args.features;
        const float* y = args.y + static_cast<int64_t>(row) * args.y_features;
        Four sum = load_four(args.x + start, first, args.features);
        if ((args.first_feature | args.y_features) % 4 == 0) {
            // Four neighbours have all a summand or none.
            const uint32_t at = first - args.first_feature;
            if (at < args.y_features) {
                const Four add = load_four(y, at, args.y_features);
#pragma unroll
                for (int i = 0; i < 4; i++) sum.at[i] = fmaf(args.scale, add.at[i], sum.at[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // One before the first is a large number.
                const uint32_t at = first + i - args.first_feature;
                if (at < args.y_features) sum.at[i] = fmaf(args.scale, y[at], sum.at[i]);
            }
        }
        store_four(args.out + start, first, args.features, sum);
    });
}

struct RopeArgs {
    // [batch, tokens, heads × head_dim]
    void* out;
    const float* x;
    // [tokens, head_dim / 2, 2]: cosine, sine
    const float* table;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    // Even.
    uint32_t head_dim;
    // An ElementKind, of out.
    uint32_t element;
    uint32_t padding;
};

// Pairs of neighbours in each head: (x0 cos - x1 sin, x1 cos + x0 sin). A row has whole pairs, but not always whole fours.
extern "C" __global__ void rope(RopeArgs args) {
    each_four(args.rows, args.features, [&](uint32_t row, uint32_t first) {
        const int64_t start = static_cast<int64_t>(row) * args.features;
        const float* rotations = args.table + static_cast<int64_t>(row % args.tokens) * args.head_dim;
        Four x = load_four(args.x + start, first, args.features);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const float2 rotation = *reinterpret_cast<const float2*>(rotations + (first + i) % args.head_dim);
            const float x0 = x.at[i];
            const float x1 = x.at[i + 1];
            // Not left to a compiler, which might choose otherwise for another element.
            x.at[i] = fmaf(x0, rotation.x, -__fmul_rn(x1, rotation.y));
            x.at[i + 1] = fmaf(x1, rotation.x, __fmul_rn(x0, rotation.y));
        }
        store_elements(args.out, args.element, start, first, args.features, x);
    });
}
