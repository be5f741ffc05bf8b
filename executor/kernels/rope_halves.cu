// Rotary positions of heads whose halves are rotated against each other. out may be x where it is of f32 too.
//
// A block is `[threads of a row, rows]`; `blockIdx.x` counts blocks of rows. A thread takes one pair at a time.

#include "element.cuh"

struct RopeHalvesArgs {
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

__device__ __forceinline__ void store_element(void* value, uint32_t kind, int64_t at, float number) {
    if (kind == ELEMENT_F32) {
        static_cast<float*>(value)[at] = number;
    } else {
        static_cast<uint16_t*>(value)[at] = static_cast<uint16_t>(pair_of(kind, number, 0.0f));
    }
}

// (x0 cos - x1 sin, x1 cos + x0 sin) of each feature of a head's first half and the one of its second half.
extern "C" __global__ void rope_halves(RopeHalvesArgs args) {
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows) return;
    const uint32_t half = args.head_dim / 2;
    const int64_t start = static_cast<int64_t>(row) * args.features;
    const float2* rotations = reinterpret_cast<const float2*>(args.table) + static_cast<int64_t>(row % args.tokens) * half;
    for (uint32_t pair = threadIdx.x; pair < args.features / 2; pair += blockDim.x) {
        const uint32_t at = pair % half;
        const int64_t low = start + pair / half * args.head_dim + at, high = low + half;
        const float2 rotation = rotations[at];
        const float x0 = args.x[low], x1 = args.x[high];
        // Not left to a compiler, which might choose otherwise for another element.
        store_element(args.out, args.element, low, fmaf(x0, rotation.x, -__fmul_rn(x1, rotation.y)));
        store_element(args.out, args.element, high, fmaf(x1, rotation.x, __fmul_rn(x0, rotation.y)));
    }
}
