// Sequences that are filled up with one stored token.
//
// A block is `[threads of a row, rows]`; `blockIdx.x` counts blocks of rows. A thread takes four neighbours at a time.

#include "four.cuh"
#include "vector.cuh"

struct PadTokensArgs {
    // [batch, out_tokens, features]
    float* out;
    // [batch, tokens, features]
    const float* x;
    // How many tokens of each sequence are known; null for all.
    const int32_t* known;
    // [features]
    StoredVector padding;
    uint32_t rows;
    uint32_t out_tokens;
    uint32_t tokens;
    uint32_t features;
};

extern "C" __global__ void pad_tokens(PadTokensArgs args) {
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows) return;
    const uint32_t item = row / args.out_tokens, token = row % args.out_tokens;
    const uint32_t known = args.known ? min(static_cast<uint32_t>(*args.known), args.tokens) : args.tokens;
    float* out = args.out + static_cast<int64_t>(row) * args.features;
    const float* x = args.x + (static_cast<int64_t>(item) * args.tokens + token) * args.features;
    for (uint32_t first = threadIdx.x * 4; first < args.features; first += blockDim.x * 4) {
        Four four = {};
        if (token < known) {
            four = load_four(x, first, args.features);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (first + i < args.features) four.at[i] = vector_at(args.padding, first + i);
        }
        store_four(out, first, args.features, four);
    }
}
