// What the attention kernels share: their argument, and what those on tensor cores do with their scores: bias, mask, and a
// softmax that is formed while the keys go by.
//
// A lane holds scores as mma_f16 leaves them: of each tile of 8 keys, two neighbouring keys of row lane / 4 (elements 0 and 1)
// and of the row 8 below (2 and 3).
#pragma once

#include "element.cuh"
#include "tiles.cuh"

struct AttentionArgs {
    // [batch, query_tokens, heads × head_dim] of f32 or f16, or [batch, heads, query_rows, row] of f16, as the kernel says.
    const void* q;
    // [batch, key_tokens, kv_heads × head_dim] of f32 or f16, or [batch, kv_heads, key_rows, row] of f16.
    const void* k;
    const void* v;
    const float* bias;  // [heads, query_tokens + key_tokens - 1] by distance, or null
    void* out;          // [batch, query_tokens, heads × head_dim] of `element`
    const int32_t* known;  // how many of a sequence's keys are seen, or null for all
    uint32_t query_tokens;
    uint32_t key_tokens;
    uint32_t query_rows;
    uint32_t key_rows;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t causal;
    float scale;       // times log2 e; above 0
    uint32_t element;  // ELEMENT_F32, or ELEMENT_BF16 from the tensor-core kernels
    uint32_t kv_heads;  // divides heads: neighbours share keys and values

    // Keys that are seen: those behind them are hidden from every query.
    __device__ __forceinline__ uint32_t keys_seen() const {
        return known ? min(key_tokens, static_cast<uint32_t>(*known)) : key_tokens;
    }

    // The head of keys and values that a head of queries sees.
    __device__ __forceinline__ uint32_t kv_head(uint32_t head) const { return head * kv_heads / heads; }
};

// Less than any score, and finite, so that scores of minus infinity weigh nothing even where there are no others yet.
constexpr float LEAST_SCORE = -1e30f;

// What hides a key.
#define MINUS_INFINITY __uint_as_float(0xff800000)

// How products of queries and keys become scores.
struct Scores {
    const float* bias;  // of this head by distance, or null
    float scale;
    float factor;       // what a finished score is to be multiplied with to be a power of two
    uint32_t query_tokens;
    uint32_t key_tokens;  // those that are seen
    uint32_t causal;

    // Finishes scores of queries `query` and `query + 8`, and of keys `key`, `key + 1`, `key + 8` and so on. `masked`:
    // whether some of them may be hidden.
    template <uint32_t TILES>
    __device__ __forceinline__ void finish(float (&s)[TILES][4], uint32_t query, uint32_t key, bool masked) const {
        if (bias) {
#pragma unroll
            for (uint32_t n = 0; n < TILES; ++n) {
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    // Of rows and keys that are padding, some distance does no harm.
                    const uint32_t row = min(query + i / 2 * 8, query_tokens - 1);
                    const uint32_t column = min(key + n * 8 + i % 2, key_tokens - 1);
                    s[n][i] = fmaf(s[n][i], scale, bias[column + query_tokens - 1 - row] * LOG2_E);
                }
            }
        }
        if (!masked) return;
#pragma unroll
        for (uint32_t n = 0; n < TILES; ++n) {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t column = key + n * 8 + i % 2;
                const bool hidden = column >= key_tokens || (causal && column > query + i / 2 * 8);
                if (hidden) s[n][i] = MINUS_INFINITY;
            }
        }
    }
};

// The biases of a head, or null.
__device__ __forceinline__ const float* bias_of(const AttentionArgs& args, uint32_t head) {
    const uint64_t distances = uint64_t(args.query_tokens) + args.key_tokens - 1;
    return args.bias ? args.bias + head * distances : nullptr;
}

__device__ __forceinline__ Scores scores_of(const AttentionArgs& args, uint32_t head) {
    return Scores{
        bias_of(args, head),
        args.scale,
        args.bias ? 1.0f : args.scale,
        args.query_tokens,
        args.keys_seen(),
        args.causal,
    };
}

// The softmax of two rows so far, in each of the four lanes that share them.
struct Softmax {
    float largest[2] = {LEAST_SCORE, LEAST_SCORE};  // score so far
    float next[2] = {LEAST_SCORE, LEAST_SCORE};     // the same, with the present tiles
    float weights[2] = {0.0f, 0.0f};                // this lane's part of the sum

    // Takes the largest scores of the present tiles into account.
    template <uint32_t TILES>
    __device__ __forceinline__ void maximum(const float (&s)[TILES][4]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            float most = largest[i];
#pragma unroll
            for (uint32_t n = 0; n < TILES; ++n) most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            most = fmaxf(most, __shfl_xor_sync(WHOLE_WARP, most, 1));
            next[i] = fmaxf(most, __shfl_xor_sync(WHOLE_WARP, most, 2));
        }
    }

    // Takes the largest score of row `i` as that of all so far; gives its power, which the present weights are relative to, and in
    // `by` the factor by which sums of earlier weights are too large.
    __device__ __forceinline__ float renew(uint32_t i, float factor, float& by) {
        // Each product is rounded as the largest one is, so that no difference is above zero however large they are.
        const float top = __fmul_rn(next[i], factor);
        by = exp2_fast(__fmul_rn(largest[i], factor) - top);
        largest[i] = next[i];
        return top;
    }

    // Two neighbouring scores of row `i` to weights; their sum.
    static __device__ __forceinline__ float weigh_pair(float (&s)[4], uint32_t i, float factor, float top) {
        s[2 * i] = exp2_fast(__fmul_rn(s[2 * i], factor) - top);
        s[2 * i + 1] = exp2_fast(__fmul_rn(s[2 * i + 1], factor) - top);
        return s[2 * i] + s[2 * i + 1];
    }

    // Adds the sum of the present weights of row `i`.
    __device__ __forceinline__ void add(uint32_t i, float sum, float by) { weights[i] = fmaf(weights[i], by, sum); }

    // Scores to weights relative to the largest one; `factors` are those by which sums of earlier weights are too large.
    template <uint32_t TILES>
    __device__ __forceinline__ void weigh(float (&s)[TILES][4], float factor, float (&factors)[2]) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const float top = renew(i, factor, factors[i]);
            float sum = 0.0f;
#pragma unroll
            for (uint32_t n = 0; n < TILES; ++n) sum += weigh_pair(s[n], i, factor, top);
            add(i, sum, factors[i]);
        }
    }

    // Adds the parts of the four lanes.
    __device__ __forceinline__ void join_lanes() {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            weights[i] += __shfl_xor_sync(WHOLE_WARP, weights[i], 1);
            weights[i] += __shfl_xor_sync(WHOLE_WARP, weights[i], 2);
        }
    }
};

// Scales sums of earlier weights down, where that changes any of the warp's: late tiles seldom have a larger score.
template <uint32_t TILES>
__device__ __forceinline__ void rescale(float (&sums)[TILES][4], const float (&factors)[2]) {
    if (!__any_sync(WHOLE_WARP, factors[0] != 1.0f || factors[1] != 1.0f)) return;
#pragma unroll
    for (uint32_t n = 0; n < TILES; ++n) {
        sums[n][0] *= factors[0];
        sums[n][1] *= factors[0];
        sums[n][2] *= factors[1];
        sums[n][3] *= factors[1];
    }
}

// Writes two neighbouring features of a row of the result, as far as the head has them.
__device__ __forceinline__ void store_pair(float* row, uint32_t feature, uint32_t head_dim, float x, float y) {
    if (head_dim % 2 == 0) {
        // Even numbers of features keep pairs at multiples of 8 bytes.
        if (feature < head_dim) *reinterpret_cast<float2*>(row + feature) = float2{x, y};
        return;
    }
    if (feature < head_dim) row[feature] = x;
    if (feature + 1 < head_dim) row[feature + 1] = y;
}

// The same of 16 bits each.
__device__ __forceinline__ void store_pair(uint16_t* row, uint32_t feature, uint32_t head_dim, uint32_t pair) {
    if (head_dim % 2 == 0) {
        if (feature < head_dim) *reinterpret_cast<uint32_t*>(row + feature) = pair;
        return;
    }
    if (feature < head_dim) row[feature] = static_cast<uint16_t>(pair);
    if (feature + 1 < head_dim) row[feature + 1] = static_cast<uint16_t>(pair >> 16);
}

// Divides sums by the weights of their two rows.
template <uint32_t TILES>
__device__ __forceinline__ void divide(float (&sums)[TILES][4], float upper, float lower) {
#pragma unroll
    for (uint32_t n = 0; n < TILES; ++n) {
        sums[n][0] /= upper;
        sums[n][1] /= upper;
        sums[n][2] /= lower;
        sums[n][3] /= lower;
    }
}

// Writes this lane's part of its upper or lower row, which begins at element `start` of the result: features `first`, `first + 1`,
// `first + 8` and so on.
template <uint32_t TILES>
__device__ __forceinline__ void store_row(
    const AttentionArgs& args, uint64_t start, uint32_t first, uint32_t head_dim, const float (&means)[TILES][4], uint32_t lower) {
    if (args.element == ELEMENT_F32) {
        float* row = static_cast<float*>(args.out) + start;
#pragma unroll
        for (uint32_t n = 0; n < TILES; ++n)
            store_pair(row, first + n * 8, head_dim, means[n][2 * lower], means[n][2 * lower + 1]);
        return;
    }
    uint16_t* row = static_cast<uint16_t*>(args.out) + start;
#pragma unroll
    for (uint32_t n = 0; n < TILES; ++n)
        store_pair(row, first + n * 8, head_dim, bf16x2_of_f32(means[n][2 * lower], means[n][2 * lower + 1]));
}
